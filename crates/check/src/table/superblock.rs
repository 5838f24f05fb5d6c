//! Rows of the superblock, the group descriptors, the journal and the orphans; e2fsck's pass 0.
//!
//! e2fsck forgets its verdict on most of these before its passes begin and lets their consequences speak; where a row is
//! advice for that reason, it says so.

macro_rules! superblock_rows {
    ([$next:ident $($more:ident)*] $($rows:tt)*) => { $next! { [$($more)*] $($rows)* in Superblock {
        0x000001 BlockBitmapNotInGroup Error stops by Descriptors
            "The block bitmap of group {group} is at block {block}, outside the group."
            => "Moves the bitmap to a free block of the group and rebuilds it." [GroupDescriptorsTryBackup BlockUsedButUnmarked];
        0x000002 InodeBitmapNotInGroup Error stops by Descriptors
            "The inode bitmap of group {group} is at block {block}, outside the group."
            => "Moves the bitmap to a free block of the group and rebuilds it." [GroupDescriptorsTryBackup InodeUsedButUnmarked];
        0x000003 InodeTableNotInGroup Error stops by Descriptors
            "The inode table of group {group} starts at block {block}, so it does not lie in the group."
            => "Takes the place from a backup of the descriptors; else makes an empty table, where no inodes are lost with that." [GroupDescriptorsTryBackup];
        // stricter than e2fsck, which -n exits 0 where no metadata lies beyond: file data that did is lost all the same
        0x000005 BeyondDevice Error stops by None
            "The superblock claims {found} blocks, but the device has {expected}."
            => "Nothing; either the superblock or the partition table is wrong." [ReadError];
        0x000008 FirstDataBlockWrong Fatal stops by None
            "The superblock calls {found} the first data block, expected is {expected}."
            => "Nothing; name a backup with -b." [];
        // seen: f_okgroup exits 0
        0x000009 UuidMissing Advice stops by Superblock
            "The volume has no UUID."
            => "Makes one." [];
        0x00000b SuperblockFieldWrong Fatal stops by None
            "The superblock field {name} has the impossible value {found}."
            => "Nothing; name a backup with -b." [];
        // seen: f_hurd exits 0
        0x00000e HurdHasFileType Advice stops by Superblock
            "The volume was made for the Hurd, which cannot use the filetype feature it has."
            => "Clears the feature." [EntryTypeWithoutFeature];
        0x00000f JournalInodeBad Error repairs by Journal
            "The journal inode {inode} is not a sound file."
            => "Clears the journal and makes a new one." [JournalInodeNotClear];
        0x000010 JournalSharedUnsupported Fatal repairs by Journal
            "The journal serves more than one volume, which is not supported."
            => "Clears the fields that say so, where the journal lies on the volume." [];
        0x000011 JournalDeviceNotFound Fatal stops by Journal
            "The journal lies on another device, which is not read."
            => "Clears its number where no feature speaks of a journal; else nothing: e2fsck -j replays such a journal, and \
                tune2fs -O ^has_journal takes it from the volume." [];
        0x000015 JournalSuperblockBad Error repairs by Journal
            "The journal's superblock is corrupt."
            => "Writes a new one; changes not yet replayed are lost." [];
        // seen, with 0x000018: e2fsck -n exits 0
        0x000016 JournalFeatureMissing Advice repairs by Journal
            "The superblock lacks the has_journal feature, but names {inode} as the journal's inode."
            => "Sets the feature or clears the journal." [];
        0x000017 JournalRecoveryWithoutJournal Error repairs by Journal
            "The superblock asks for recovery, but the volume has no journal."
            => "Clears the flag." [];
        0x000018 JournalRecoveryFlagMissing Advice stops by Replay
            "The superblock does not ask for recovery, but the journal holds changes."
            => "Replays the journal." [];
        // seen: f_clear_orphan_file exits 0; a pending orphan is work left for the next mount
        0x000020 OrphanPending Advice repairs by Orphans
            "Inode {inode} waits on the orphan list to be freed or cut to size."
            => "Frees or truncates it." [InodeUnattached LinkCountWrong];
        // seen, with the next: e2fsck -n passes over the list; its inodes speak in pass 1
        0x000023 OrphanHeadOutOfRange Advice repairs by Orphans
            "The orphan list starts at inode {found}, which does not exist or is not an orphan."
            => "Drops the list; the cross-check finds its inodes." [OrphanLinkInDeletionTime];
        0x000024 OrphanInodeOutOfRange Advice repairs by Orphans
            "The orphan list leads to inode {found}, which does not exist or is not an orphan."
            => "Drops the rest of the list; the cross-check finds its inodes." [OrphanLinkInDeletionTime];
        0x000025 JournalReadOnlyFeatureUnknown Error stops by None
            "The journal has read-only features {found:x} that are not known."
            => "Nothing." [];
        0x000026 JournalFeatureUnknown Error stops by None
            "The journal has features {found:x} that are not known."
            => "Nothing." [];
        // seen: e2fsck -n exits 0
        0x00002a JournalVersion1HasFeatures Advice stops by Journal
            "The journal's superblock is of version 1, but uses fields of version 2."
            => "Clears those fields." [];
        // seen, with the next: e2fsck -n exits 0
        0x00002e ReservedGdtBlocksWithoutFeature Advice stops by Superblock
            "The superblock reserves {found} descriptor blocks for growth, but lacks the resize_inode feature."
            => "Sets the number to 0." [];
        // seen: e2fsck -n exits 0 where nothing else comes of it
        0x00002f ResizeInodeNotClear Advice stops by SystemInodes
            "The volume lacks the resize_inode feature, but its resize inode has a block map."
            => "Clears it." [];
        // seen: f_jnl_errno exits 0
        0x000030 ResizeInodeBad Advice stops by SystemInodes
            "The resize inode does not hold the descriptor blocks reserved for growth."
            => "Makes it anew." [];
        0x000031 LastMountInFuture Advice repairs by Superblock
            "The last mount is dated {found:date}, which is in the future."
            => "Sets the date to now." [];
        0x000032 LastWriteInFuture Advice repairs by Superblock
            "The last write is dated {found:date}, which is in the future."
            => "Sets the date to now." [];
        // seen: e2fsck -n passes over it
        0x000034 DirectoryHashSignUnknown Advice stops by Superblock
            "The superblock does not say whether directory hashes take characters as signed."
            => "Writes down what this machine does." [];
        // seen: e2fsck -n exits 0 where nothing else comes of it, though the kernel will not mount the volume
        0x000035 GroupChecksumWrong Advice repairs by Descriptors
            "The descriptor of group {group} has checksum {found:x}, computed is {expected:x}; the kernel will not mount this."
            => "Computes it anew and trusts no uninitialised mark of the group." [GroupUnusedInodesWrong];
        // seen: e2fsck -n exits 0
        0x000036 GroupUninitWithoutFeature Advice repairs by Descriptors
            "Group {group} is marked uninitialised, but the volume has no group checksums."
            => "Clears the mark." [];
        // seen: e2fsck -n exits 0 where nothing else comes of it
        0x000038 GroupUnusedInodesWrong Advice repairs by Descriptors
            "Group {group} counts {found} inodes as never used, more than possible."
            => "Sets the count." [GroupChecksumWrong];
        0x000039 LastGroupBlockUninit Error repairs by Descriptors
            "The last group, {group}, is marked as having no block bitmap."
            => "Clears the mark." [];
        // seen: e2fsck -n passes over it
        0x00003b TestFlagSet Advice repairs by Superblock
            "The superblock marks the volume as one for tests of an unfinished driver."
            => "Clears the mark." [];
        0x00003c LastMountBarelyInFuture Advice repairs by Superblock
            "The last mount is dated {found:date}, less than a day in the future; the clock may be wrong."
            => "Sets the date to now." [];
        0x00003d LastWriteBarelyInFuture Advice repairs by Superblock
            "The last write is dated {found:date}, less than a day in the future; the clock may be wrong."
            => "Sets the date to now." [];
        0x000042 MmpBlockOutOfRange Error repairs by SystemInodes
            "The block for multiple-mount protection is {found}, which cannot be."
            => "Makes a new one." [];
        // seen: e2fsck -n exits 12
        0x000043 MmpMagicWrong Error repairs by SystemInodes
            "The block for multiple-mount protection, {block}, is not one."
            => "Writes it anew." [];
        // seen: f_zero_inode_size exits 0
        0x000044 SuperblockTryBackup Advice stops by Superblock
            "The primary superblock is not usable ({name}); the copy at block {block} was read in its place."
            => "Writes the copy over the primary." [];
        // seen: e2fsck -n exits 8 and repairs nothing
        0x0E0009 SuperblockFieldTryBackup Error stops by Superblock
            "The primary superblock is not usable ({name}); the copy at block {block} was read in its place, which no kernel does."
            => "Writes the copy over the primary." [];
        // seen: e2fsck -n exits 4, for it takes that many blocks for descriptors
        0x0E000A FirstMetaGroupMisleads Error stops by Superblock
            "The superblock says that meta groups start at {found}; there are only {expected} descriptor blocks, and no space for more."
            => "Sets the field to what the descriptors agree with, else to 0." [SuperblockTryBackup];
        // seen: f_zero_group exits 4, but through the counts, which copies do not follow
        0x000045 GroupDescriptorsTryBackup Advice stops by Descriptors
            "The primary group descriptors are not usable; those of group {group} were read in their place."
            => "Writes the copy over the primary." [];
        0x000046 BothChecksumFeatures Advice repairs by Superblock
            "The superblock has both metadata_csum and uninit_bg, of which the second is void."
            => "Clears uninit_bg." [];
        // seen: e2fsck -n exits 12
        0x000047 MmpChecksumWrong Error repairs by SystemInodes
            "The block for multiple-mount protection, {block}, has checksum {found:x}, computed is {expected:x}."
            => "Computes it anew." [];
        0x000048 SixtyFourBitWithoutExtents Advice repairs by Superblock
            "The volume has 64-bit block numbers, but not the extents they need."
            => "Sets the extent feature." [];
        // seen: f_first_meta_bg_too_big exits 0
        0x000049 FirstMetaGroupTooLarge Advice stops by Superblock
            "The superblock says that meta groups start at {found}, but there are only {expected} descriptor blocks."
            => "Sets the field to what the descriptors agree with, else to 0." [SuperblockTryBackup];
        0x00004b ChecksumSeedWithoutChecksums Advice repairs by Superblock
            "The superblock has a checksum seed, but no metadata checksums."
            => "Clears the metadata_csum_seed feature." [];
        // seen: f_sb_extra_isize exits 0, with this and the next
        0x00004d MinExtraSizeWrong Advice stops by Superblock
            "The superblock asks for at least {found} extra bytes in an inode, which cannot be."
            => "Sets it to what the known fields need." [];
        0x00004e WantExtraSizeWrong Advice stops by Superblock
            "The superblock wishes for {found} extra bytes in an inode, which cannot be."
            => "Sets it to what the known fields need." [];
        // seen: e2fsck -n exits 0 where the volume keeps no quota; else the file that is not there is an error
        0x00004f QuotaInodeNumberWrong Advice stops by Superblock
            "The superblock names inode {found} for a quota file, which cannot be one."
            => "Clears the number and makes a new quota file." [InodeUnattached];
        0x000051 ResizeInodeWithMetaGroups Error stops by Superblock
            "The volume has both resize_inode and meta_bg, which exclude each other."
            => "Clears resize_inode." [];
        0x000052 OrphanFileHole Error stops by SystemInodes
            "The orphan file {inode} has no block {file_block}."
            => "Makes the file anew." [];
        0x000053 OrphanFileMagicWrong Error stops by SystemInodes
            "Block {file_block} of the orphan file {inode} does not end with the magic number."
            => "Makes the file anew." [];
        0x000054 OrphanFileChecksumWrong Error stops by SystemInodes
            "Block {file_block} of the orphan file {inode} has checksum {found:x}, computed is {expected:x}."
            => "Makes the file anew." [];
        0x000055 OrphanFileSizeWrong Error stops by SystemInodes
            "The orphan file {inode} has size {found}, which is not a number of whole blocks."
            => "Makes the file anew." [];
        0x0E0000 ReadError Error stops by None
            "Block {block} cannot be read ({name})."
            => "Nothing; copy the device before anything else." [];
        // found only where the primary is unusable too; seen: e2fsck gives up then
        0x0E0002 BackupSuperblockUnusable Error stops by Superblock
            "The copy of the superblock in group {group} is not usable ({name})."
            => "Writes the primary over the copy." [];
        // e2fsck compares features, counts and the UUID of one copy, says nothing, and exits 0
        0x0E0018 SuperblockCopyDiffers Advice repairs by Copies
            "The copy of the superblock in group {group}, block {block}, would not serve if the superblock were damaged: {name}."
            => "Writes the superblock over the copy, once all else is right." [];
        0x0E0019 DescriptorCopyDiffers Advice repairs by Copies
            "The copy of the group descriptors in group {group} puts bitmaps or inode tables of {found} groups elsewhere."
            => "Writes the descriptors over the copy, once all else is right." [];
        // seen: e2fsck -n says 0x010035 of an inode without a type, and puts the inode back before its passes when it may
        0x0E0011 JournalInodeRestorable Error repairs by Journal
            "The journal's inode {inode} is damaged; the superblock's copy of its block map can be used."
            => "Restores the inode from the copy." [JournalInodeModeWrong BlockMarkedButUnused InodeBlockCountWrong];
        // seen: e2fsck -n exits 12
        0x0E0015 JournalInodeElsewhere Error repairs by Journal
            "The superblock names inode {found} as the journal's, which is no journal; the reserved inode {inode} is."
            => "Sets the number." [EntryInodeOutOfRange];
        // found on what e2fsck takes for files of quota or orphans, whatever the features say, and clears the names of
        0x0E0016 SystemInodeWithoutFeature Advice stops by Superblock
            "The superblock names inode {inode} in {name}, but lacks the feature for it."
            => "Clears the number." [EntryInodeOutOfRange];
        // seen: e2fsck moves the inode to the reserved number, whatever it is
        0x0E0017 QuotaInodeElsewhere Error stops by Superblock
            "The superblock names inode {inode} in {name}, which is no quota file of that kind."
            => "Sets the number of the reserved inode where that is one, else clears it." [EntryInodeOutOfRange QuotaUsageWrong];
        0x0E0004 JournalNotReplayed Advice repairs by Replay
            "The journal has not been replayed ({count} transaction(s)); the volume was checked as if they were not there."
            => "Replays them before anything else." [OrphanPending FreeBlockCountWrong];
        // found when it is replayed: the copies are not read before
        0x0E0005 JournalDamaged Error repairs by Replay
            "The journal is damaged: a part of what was committed in it cannot be recovered."
            => "Copies what matches its checksums, and empties the journal." [];
        // seen: e2fsck -y makes an empty table
        0x0E0012 InodeTableElsewhere Error stops by Descriptors
            "The descriptor of group {group} has the inode table at block {found}, but it is at block {block}."
            => "Sets the place in the descriptor." [GroupChecksumWrong];
        0x0E0014 JournalRecoveryOfNothing Advice repairs by Replay
            "The needs_recovery flag is set, but the journal holds no complete transaction."
            => "Empties the journal and clears the flag." [];
        0x0E0007 RepairUnfinished Error repairs by Superblock
            "A repair of the volume was broken off; the volume was checked as if it had not begun."
            => "Finishes it." [];
    } } };
}
