//! Rows of the superblock, the group descriptors, the journal and the orphans; e2fsck's pass 0.
//!
//! e2fsck drops its verdict on most of these before its passes begin, and only their consequences count; a row that is
//! advice for that reason has a comment.

macro_rules! superblock_rows {
    ([$next:ident $($more:ident)*] $($rows:tt)*) => { $next! { [$($more)*] $($rows)* in Superblock {
        0x000001 BlockBitmapNotInGroup Error stops by Descriptors
            "Group {group}: block bitmap at block {block} is outside the group."
            => "bitmap moved to a free block of the group and rebuilt." [GroupDescriptorsTryBackup BlockUsedButUnmarked];
        0x000002 InodeBitmapNotInGroup Error stops by Descriptors
            "Group {group}: inode bitmap at block {block} is outside the group."
            => "bitmap moved to a free block of the group and rebuilt." [GroupDescriptorsTryBackup InodeUsedButUnmarked];
        0x000003 InodeTableNotInGroup Error stops by Descriptors
            "Group {group}: inode table at block {block} is outside the group."
            => "location corrected." [GroupDescriptorsTryBackup];
        // stricter than e2fsck, where -n exits 0 if no metadata is beyond the end: file data there is lost nevertheless
        0x000005 BeyondDevice Error stops by None
            "Superblock: block count is {found}, but the device ends after {expected} blocks (truncated)."
            => "none; get a complete copy of the image, or correct the partition table." [ReadError];
        0x000008 FirstDataBlockWrong Fatal stops by None
            "Superblock: first data block is {found}, should be {expected}."
            => "none; use a backup superblock with -b." [];
        // seen: f_okgroup exits 0
        0x000009 UuidMissing Advice stops by Superblock
            "The volume has no UUID."
            => "new UUID created." [];
        0x00000b SuperblockFieldWrong Fatal stops by None
            "Superblock: field {name} has the invalid value {found}."
            => "none; tune2fs -m sets it." [];
        // seen: f_hurd exits 0
        0x00000e HurdHasFileType Advice stops by Superblock
            "The volume was created for GNU Hurd, which does not support the filetype feature."
            => "feature cleared." [EntryTypeWithoutFeature];
        0x00000f JournalInodeBad Error repairs by Journal
            "Journal inode {inode} is invalid."
            => "journal cleared and a new one created." [JournalInodeNotClear];
        0x000010 JournalSharedUnsupported Fatal repairs by Journal
            "The journal is shared by several volumes, which is not supported."
            => "list of users cleared." [];
        0x000011 JournalDeviceNotFound Fatal stops by Journal
            "The journal is on another device, which is not supported."
            => "reference to the other device cleared." [];
        0x000014 JournalTypeUnknown Error stops by None
            "The journal superblock has the unknown type {found}."
            => "none." [];
        0x000015 JournalSuperblockBad Error repairs by Journal
            "The journal superblock is corrupt."
            => "new journal superblock written; changes not yet replayed are lost." [];
        // seen, with 0x000018: e2fsck -n exits 0
        0x000016 JournalFeatureMissing Advice repairs by Journal
            "Superblock: the has_journal feature is not set, but the journal inode is {inode}."
            => "feature set." [];
        0x000017 JournalRecoveryWithoutJournal Error repairs by Journal
            "Superblock: the needs_recovery flag is set, but the volume has no journal."
            => "flag cleared." [];
        0x000018 JournalRecoveryFlagMissing Advice stops by Replay
            "Superblock: the needs_recovery flag is not set, but the journal contains changes."
            => "journal replayed." [];
        // seen: f_clear_orphan_file exits 0; a pending orphan is work left for the next mount
        0x000020 OrphanPending Advice repairs by Orphans
            "Inode {inode} is on the orphan list (to be deleted or truncated)."
            => "inode deleted or truncated." [InodeUnattached LinkCountWrong];
        // seen, with the next: e2fsck -n skips the list; its inodes are reported in pass 1
        0x000023 OrphanHeadOutOfRange Advice repairs by Orphans
            "Orphan list: first inode {found} does not exist or is not an orphan."
            => "list cleared; the check finds its inodes." [OrphanLinkInDeletionTime];
        0x000024 OrphanInodeOutOfRange Advice repairs by Orphans
            "Orphan list: next inode {found} does not exist or is not an orphan."
            => "rest of the list cleared; the check finds its inodes." [OrphanLinkInDeletionTime];
        0x000025 JournalReadOnlyFeatureUnknown Error stops by None
            "The journal has unknown read-only features {found:x}."
            => "none." [];
        0x000026 JournalFeatureUnknown Error stops by None
            "The journal has unknown features {found:x}."
            => "none." [];
        // seen: e2fsck -n exits 0
        0x00002a JournalVersion1HasFeatures Advice stops by Journal
            "Journal superblock: version is 1, but fields of version 2 are set."
            => "fields cleared." [];
        // seen, with the next: e2fsck -n exits 0
        0x00002e ReservedGdtBlocksWithoutFeature Advice stops by Superblock
            "Superblock: {found} descriptor blocks are reserved for growth, but the resize_inode feature is not set."
            => "number set to 0." [];
        // seen: e2fsck -n exits 0 where nothing follows from it
        0x00002f ResizeInodeNotClear Advice stops by SystemInodes
            "The resize inode has a block map, but the resize_inode feature is not set."
            => "inode cleared." [];
        // seen: f_jnl_errno exits 0
        0x000030 ResizeInodeBad Advice stops by SystemInodes
            "The resize inode does not contain the descriptor blocks reserved for growth."
            => "inode recreated." [];
        0x000031 LastMountInFuture Advice repairs by Superblock
            "Superblock: last mount time {found:date} is in the future."
            => "time set to now." [];
        0x000032 LastWriteInFuture Advice repairs by Superblock
            "Superblock: last write time {found:date} is in the future."
            => "time set to now." [];
        // seen: e2fsck -n ignores it
        0x000034 DirectoryHashSignUnknown Advice stops by Superblock
            "Superblock: signedness of directory hashes is not set."
            => "signedness of this machine set." [];
        // seen: e2fsck -n exits 0 where nothing follows from it, though the kernel will not mount the volume
        0x000035 GroupChecksumWrong Unmountable repairs by Descriptors
            "Group {group}: descriptor checksum is {found:x}, should be {expected:x}; the kernel will not mount."
            => "checksum recomputed; the group's uninit flags are not trusted." [GroupUnusedInodesWrong];
        // seen: e2fsck -n exits 0
        0x000036 GroupUninitWithoutFeature Advice repairs by Descriptors
            "Group {group} is marked BLOCK_UNINIT or INODE_UNINIT, but the volume has no group checksums."
            => "flags cleared." [];
        // seen: e2fsck -n exits 0 where nothing follows from it
        0x000038 GroupUnusedInodesWrong Advice repairs by Descriptors
            "Group {group}: unused inode count {found} is invalid."
            => "count corrected." [GroupChecksumWrong];
        0x000039 LastGroupBlockUninit Error repairs by Descriptors
            "Group {group} is the last group, but marked BLOCK_UNINIT."
            => "flag cleared." [];
        // seen: e2fsck -n ignores it
        0x00003b TestFlagSet Advice repairs by Superblock
            "Superblock: the test_fs flag is set (volume for tests of an unfinished driver)."
            => "flag cleared." [];
        0x00003c LastMountBarelyInFuture Advice repairs by Superblock
            "Superblock: last mount time {found:date} is less than a day in the future; check the system clock."
            => "time set to now." [];
        0x00003d LastWriteBarelyInFuture Advice repairs by Superblock
            "Superblock: last write time {found:date} is less than a day in the future; check the system clock."
            => "time set to now." [];
        0x000042 MmpBlockOutOfRange Error repairs by SystemInodes
            "Superblock: MMP block {found} is invalid (multiple mount protection)."
            => "new MMP block created." [];
        // seen: e2fsck -n exits 12
        0x000043 MmpMagicWrong Error repairs by SystemInodes
            "MMP block {block}: invalid magic number."
            => "block rewritten." [];
        // seen: f_zero_inode_size exits 0
        0x000044 SuperblockTryBackup Unmountable stops by Superblock
            "The primary superblock is unusable ({name}); the backup at block {block} was used."
            => "backup copied over the primary superblock." [];
        // seen: e2fsck -n exits 8 and repairs nothing
        0x0E0009 SuperblockFieldTryBackup Error stops by Superblock
            "The primary superblock is unusable ({name}); the backup at block {block} was used (the kernel does not)."
            => "backup copied over the primary superblock." [];
        // seen: e2fsck -n exits 4, as it assumes that many descriptor blocks
        0x0E000A FirstMetaGroupMisleads Error stops by Superblock
            "Superblock: first_meta_bg is {found}, but there are only {expected} descriptor blocks and no space for more."
            => "number corrected." [SuperblockTryBackup];
        // seen: e2fsck corrects s_inodes_count and s_reserved_gdt_blocks, exits 8 with others, and loses files with the rest
        0x0E001B SuperblockFieldMisleads Error stops by Superblock
            "Superblock: {name} is {found}, should be {expected}; the backups, if any, are no better."
            => "field corrected." [];
        // seen: f_zero_group exits 4, but because of the counts, which are not updated in copies
        0x000045 GroupDescriptorsTryBackup Unmountable stops by Descriptors
            "The primary group descriptors are unusable; the backup in group {group} was used."
            => "backup copied over the primary descriptors." [];
        0x000046 BothChecksumFeatures Advice repairs by Superblock
            "Superblock: both metadata_csum and uninit_bg are set; uninit_bg has no effect."
            => "uninit_bg cleared." [];
        // seen: e2fsck -n exits 12
        0x000047 MmpChecksumWrong Error repairs by SystemInodes
            "MMP block {block}: checksum is {found:x}, should be {expected:x}."
            => "checksum recomputed." [];
        0x000048 SixtyFourBitWithoutExtents Advice repairs by Superblock
            "Superblock: the 64bit feature is set, but not the extents feature that it needs."
            => "extents feature set." [];
        // seen: f_first_meta_bg_too_big exits 0
        0x000049 FirstMetaGroupTooLarge Unmountable stops by Superblock
            "Superblock: first_meta_bg is {found}, but there are only {expected} descriptor blocks."
            => "number corrected." [SuperblockTryBackup];
        0x00004b ChecksumSeedWithoutChecksums Advice repairs by Superblock
            "Superblock: metadata_csum_seed is set, but not metadata_csum."
            => "metadata_csum_seed cleared." [];
        // seen: the kernel refuses these two, e2fsck accepts them
        0x0E002C DefaultHashInvalid Unmountable repairs by Superblock
            "Superblock: default hash version {found} is invalid."
            => "set to half_md4." [];
        0x0E002D JournalDeviceBesideInode Unmountable stops by Superblock
            "Superblock: there is a journal in inode {inode}, and a journal device {found:x}, too."
            => "device number cleared." [];
        // seen: f_sb_extra_isize exits 0, with this and the next
        0x00004d MinExtraSizeWrong Unmountable stops by Superblock
            "Superblock: min_extra_isize {found} is invalid."
            => "set to the size of the known fields." [];
        0x00004e WantExtraSizeWrong Unmountable stops by Superblock
            "Superblock: want_extra_isize {found} is invalid."
            => "set to the size of the known fields." [];
        // seen: e2fsck -n exits 0 on a volume without quota; otherwise the missing file is an error
        0x00004f QuotaInodeNumberWrong Advice stops by Superblock
            "Superblock: quota inode number {found} is invalid."
            => "number cleared and a new quota file created." [InodeUnattached];
        0x000051 ResizeInodeWithMetaGroups Error stops by Superblock
            "Superblock: both resize_inode and meta_bg are set, but exclude each other."
            => "resize_inode cleared." [];
        0x000052 OrphanFileHole Error stops by SystemInodes
            "Orphan file {inode}: block {file_block} is not allocated."
            => "file recreated." [];
        0x000053 OrphanFileMagicWrong Error stops by SystemInodes
            "Orphan file {inode}: block {file_block} has an invalid magic number."
            => "file recreated." [];
        0x000054 OrphanFileChecksumWrong Error stops by SystemInodes
            "Orphan file {inode}: checksum of block {file_block} is {found:x}, should be {expected:x}."
            => "file recreated." [];
        0x000055 OrphanFileSizeWrong Error stops by SystemInodes
            "Orphan file {inode}: size {found} is not a multiple of the block size."
            => "file recreated." [];
        0x0E0000 ReadError Error stops by None
            "Block {block} cannot be read ({name})."
            => "none; copy the device before anything else." [];
        // found only where the primary is unusable too; seen: e2fsck aborts then
        0x0E0002 BackupSuperblockUnusable Error stops by Superblock
            "Group {group}: backup superblock is unusable ({name})."
            => "primary superblock copied over it." [];
        // e2fsck compares features, counts and the UUID of one copy, reports nothing, and exits 0
        0x0E0018 SuperblockCopyDiffers Advice repairs by Copies
            "Group {group}: backup superblock at block {block} cannot replace the primary: {name}."
            => "primary superblock copied over it after all other repairs." [];
        0x0E0019 DescriptorCopyDiffers Advice repairs by Copies
            "Group {group}: backup descriptors have other bitmap or inode table locations for {found} groups."
            => "primary descriptors copied over them after all other repairs." [];
        // seen: e2fsck -n reports 0x010035 for an inode without a type; if it may write, it restores the inode before
        // its passes
        0x0E0011 JournalInodeRestorable Error repairs by Journal
            "Journal inode {inode} is damaged; the copy of its block map in the superblock is usable."
            => "inode restored from the copy." [JournalInodeModeWrong BlockMarkedButUnused InodeBlockCountWrong];
        // seen: e2fsck -n exits 12
        0x0E0015 JournalInodeElsewhere Error repairs by Journal
            "Superblock: journal inode is {found}, which is not a journal; should be {inode}."
            => "number corrected." [EntryInodeOutOfRange];
        // reported for inodes that e2fsck treats as quota or orphan files, regardless of the features, and whose
        // entries it clears
        0x0E0016 SystemInodeWithoutFeature Advice stops by Superblock
            "Superblock: {name} is inode {inode}, but the feature for it is not set."
            => "number cleared." [EntryInodeOutOfRange];
        // seen: e2fsck moves the inode to the reserved number, whatever it is
        0x0E0017 QuotaInodeElsewhere Error stops by Superblock
            "Superblock: {name} is inode {inode}, which is not a quota file of that type."
            => "number corrected." [EntryInodeOutOfRange QuotaUsageWrong];
        0x0E0004 JournalNotReplayed Advice repairs by Replay
            "The journal has not been replayed ({count:transactions}); a read-only check does not include its content."
            => "journal replayed." [OrphanPending FreeBlockCountWrong];
        // found during replay: the copies are not read before
        0x0E0005 JournalDamaged Error repairs by Replay
            "The journal is corrupt: some committed data cannot be recovered."
            => "blocks that are certain to be the newest replayed, and the journal emptied." [];
        // seen: e2fsck -y creates an empty table
        0x0E0012 InodeTableElsewhere Error stops by Descriptors
            "Group {group}: inode table location is block {found}, should be {block}."
            => "location corrected." [GroupChecksumWrong];
        // seen: e2fsck -n exits 0 where both tables are full
        0x0E001C InodeTableUnclear Error stops by None
            "Group {group}: inode table location is block {found}, in a backup {block}; it is unclear which is right."
            => "none; copy the device, then compare the files that debugfs shows with and without -s of the backup." [];
        0x0E0014 JournalRecoveryOfNothing Advice repairs by Replay
            "The needs_recovery flag is set, but the journal contains no complete transaction."
            => "journal emptied and flag cleared." [];
        0x0E0007 RepairUnfinished Error repairs by Superblock
            "An earlier repair was interrupted; until it is completed, other problems may be its consequences."
            => "repair completed." [];
        // the check finds the consequences
        0x0E001A RepairLogDamaged Advice repairs by Superblock
            "An earlier repair was interrupted and cannot be completed, as its redo log is damaged; the volume was checked as found."
            => "reference to the log cleared." [];
    } } };
}
