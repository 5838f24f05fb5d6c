//! Rows of the inodes, their block maps and attributes, and of blocks claimed more than once; e2fsck's pass 1 to 1D.

macro_rules! inode_rows {
    ([$next:ident $($more:ident)*] $($rows:tt)*) => { $next! { [$($more)*] $($rows)* in Inodes {
        0x010001 RootNotDirectory Error stops by Inodes
            "The root inode is not a directory."
            => "Makes it a directory again where its blocks are one's; else makes a new root." [LooksLikeDirectory RootMissing DirectoryUnconnected];
        0x010002 RootHasDeletionTime Error repairs by Inodes
            "The root inode has a deletion time."
            => "Clears the time." [];
        0x010003 ReservedInodeModeWrong Error repairs by Inodes
            "Reserved inode {inode} has mode {found:o}, which does not suit it."
            => "Clears the mode." [];
        0x010004 DeletedInodeWithoutTime Error repairs by Inodes
            "Inode {inode} has no links, but no deletion time either."
            => "Sets the deletion time." [];
        0x010005 InodeInUseHasDeletionTime Error repairs by Inodes
            "Inode {inode} is in use, but has a deletion time."
            => "Clears the time." [];
        0x010006 DirectoryEmpty Error repairs by Inodes
            "Directory {inode} has no block."
            => "Clears the inode." [EntryInodeUnused];
        0x010007 BlockBitmapConflict Error stops by Descriptors
            "The block bitmap of group {group} at block {block} lies on other metadata."
            => "Moves the bitmap and rebuilds it." [];
        0x010008 InodeBitmapConflict Error stops by Descriptors
            "The inode bitmap of group {group} at block {block} lies on other metadata."
            => "Moves the bitmap and rebuilds it." [];
        0x010009 InodeTableConflict Error stops by Descriptors
            "The inode table of group {group} at block {block} lies on other metadata."
            => "Moves the table." [];
        0x01000c InodeSizeWrong Error repairs by Inodes
            "Inode {inode} has size {found}, but its blocks need {expected}."
            => "Sets the size." [];
        0x01000d InodeBlockCountWrong Error repairs by Inodes
            "Inode {inode} counts {found} sectors, but holds {expected}."
            => "Sets the count." [];
        0x01000e BlockOutOfRange Error stops by Inodes
            "Inode {inode} has block {found} at {file_block}, which is not on the volume."
            => "Drops the reference." [InodeBlockCountWrong InodeSizeWrong];
        0x01002f ImagicFlagWithoutFeature Error stops by Inodes
            "Inode {inode} has the imagic flag, which the volume does not know."
            => "Clears the flag." [];
        0x010030 SpecialFileImmutable Advice leaves by Inodes
            "Inode {inode} is a device, pipe, socket or link, but marked immutable or append-only."
            => "Clears the flags." [];
        0x010032 SpecialFileSizeNotZero Error repairs by Inodes
            "Inode {inode} is a device, pipe or socket, but has size {found}."
            => "Sets the size to 0." [];
        0x010034 JournalInodeNotClear Error repairs by Inodes
            "The journal's inode {inode} is in use, but the volume has no journal."
            => "Clears the inode." [];
        0x010035 JournalInodeModeWrong Error repairs by Inodes
            "The journal's inode {inode} is not a regular file."
            => "Sets the mode." [];
        0x010036 OrphanLinkInDeletionTime Error stops by Inodes
            "Inode {inode} was on an orphan list that is broken: its deletion time is an inode number."
            => "Clears the time." [InodeUnattached];
        0x010039 XattrBlockUnreadable Error stops by Inodes
            "The extended attribute block {block} of inode {inode} cannot be read."
            => "Drops the block." [ReadError];
        0x01003a XattrBlockBad Error stops by Inodes
            "The extended attribute block {block} of inode {inode} is not one."
            => "Drops the block." [InodeBlockCountWrong];
        0x01003c XattrRefcountWrong Error stops by Inodes
            "The extended attribute block {block} counts {found} inodes, but {expected} have it."
            => "Sets the count." [];
        0x01003e XattrBlockCountWrong Error stops by Inodes
            "The extended attribute block {block} says that it spans {found} blocks."
            => "Drops the block." [];
        0x010040 XattrEntriesCollide Error stops by Inodes
            "Names or values overlap in the extended attribute block {block}."
            => "Drops the block." [];
        0x010041 XattrNameBad Error stops by Inodes
            "The extended attribute block {block} has an impossible name."
            => "Drops the block." [];
        0x010042 XattrValueBad Error stops by Inodes
            "The extended attribute block {block} has an impossible value."
            => "Drops the block." [];
        0x010044 DirectoryTooBig Error stops by Inodes
            "Directory {inode} has block {found} at {file_block}, beyond the largest size of a directory."
            => "Drops the block." [InodeSizeWrong];
        0x010045 RegularFileTooBig Error stops by Inodes
            "File {inode} has block {found} at {file_block}, beyond the largest size of a file."
            => "Drops the block." [InodeSizeWrong];
        0x010046 SymlinkTooBig Error stops by Inodes
            "Symbolic link {inode} has block {found} at {file_block}, beyond its one block."
            => "Drops the block." [InodeSizeWrong];
        0x010047 HtreeFlagWithoutFeature Error repairs by Inodes
            "Inode {inode} has the index flag, but the volume has no hash trees."
            => "Clears the flag." [];
        0x010048 HtreeFlagOnNonDirectory Error repairs by Inodes
            "Inode {inode} has the index flag, but is not a directory."
            => "Clears the flag." [];
        0x010049 HtreeRootBad Error repairs by Directories
            "The hash tree of directory {inode} has no sound root."
            => "Clears the flag, then indexes the directory anew." [];
        0x01004a HtreeHashVersionUnknown Error repairs by Directories
            "The hash tree of directory {inode} uses hash version {found}, which is not known."
            => "Clears the flag, then indexes the directory anew." [];
        0x01004b HtreeFlagsUnknown Error repairs by Directories
            "The hash tree of directory {inode} has flags {found:x} that are not known."
            => "Clears the flag, then indexes the directory anew." [];
        0x01004c HtreeTooDeep Error repairs by Directories
            "The hash tree of directory {inode} has {found} levels, more than the {expected} allowed."
            => "Clears the flag, then indexes the directory anew." [];
        0x01004f ExtraSizeWrong Error repairs by Inodes
            "Inode {inode} has {found} extra bytes, which cannot be."
            => "Sets it to what the known fields need." [];
        0x010050 InodeXattrNameLengthWrong Error repairs by Inodes
            "An attribute in inode {inode} has a name of {found} bytes, which cannot be."
            => "Drops the attributes in the inode, but not its inline data." [];
        0x010053 InodeXattrValueSizeWrong Error repairs by Inodes
            "Attribute {name} in inode {inode} has a value of {found} bytes that does not lie in the inode."
            => "Drops the attributes in the inode, but not its inline data." [];
        0x010054 InodeXattrHashWrong Error repairs by Inodes
            "Attribute {name} in inode {inode} has hash {found:x}, computed is {expected:x}."
            => "Drops the attribute." [];
        0x010055 LooksLikeDirectory Error stops by Inodes
            "Inode {inode} is a {name}, but it looks like it is really a directory."
            => "Makes it a directory again." [EntryTypeWrong SpecialFileSizeNotZero];
        0x010058 ExtentStartInvalid Error stops by Inodes
            "Inode {inode} has an extent of {count} blocks at {file_block} that starts at {found}, which is not on the volume."
            => "Drops the extent." [InodeBlockCountWrong InodeSizeWrong];
        0x010059 ExtentLengthInvalid Error stops by Inodes
            "Inode {inode} has an extent of {count} blocks at {file_block} that starts at {found} and runs too far."
            => "Drops the extent." [InodeBlockCountWrong InodeSizeWrong];
        0x01005a ExtentFlagWithoutFeature Error stops by Inodes
            "Inode {inode} has the extents flag, but the volume has no extents."
            => "Clears the inode." [];
        0x01005b ExtentFeatureMissing Error stops by Inodes
            "Inode {inode} has an extent tree, but the superblock lacks the extents feature."
            => "Sets the feature." [];
        0x01005c ExtentFlagMissing Error repairs by Inodes
            "Inode {inode} has an extent tree, but not the flag for it."
            => "Sets the flag." [];
        0x01005d FastSymlinkHasExtentFlag Error stops by Inodes
            "Symbolic link {inode} keeps its target in the inode, but has the extents flag."
            => "Clears the flag." [];
        0x01005e ExtentsOutOfOrder Error stops by Inodes
            "Inode {inode} has an extent at {file_block} (block {found}, {count} blocks) that comes before the one it follows."
            => "Drops the extent." [InodeBlockCountWrong];
        0x01005f ExtentHeaderInvalid Error stops by Inodes
            "Inode {inode} has an extent node without a sound header {name}."
            => "Drops the node." [InodeBlockCountWrong];
        0x010062 QuotaInodeModeWrong Error repairs by Inodes
            "Quota inode {inode} is not a regular file."
            => "Sets the mode." [];
        0x010063 QuotaInodeNotClear Error repairs by Inodes
            "Quota inode {inode} is in use, but the volume has no quota."
            => "Clears the inode." [];
        0x010065 BadBlocksInodeInvalid Error stops by Inodes
            "The inode that lists bad blocks is not sound."
            => "Clears it." [];
        0x010066 ExtentLengthZero Error stops by Inodes
            "Inode {inode} has an extent of length 0 at {file_block} (block {found})."
            => "Drops the extent." [];
        0x010068 InodeChecksumWrong Error repairs by Inodes
            "Inode {inode} has checksum {found:x}, computed is {expected:x}; its fields look sound."
            => "Computes it anew." [];
        0x010069 InodeXattrEntriesCollide Error stops by Inodes
            "Names or values of the attributes in inode {inode} overlap."
            => "Drops the attributes in the inode, inline data among them." [];
        0x01006a ExtentBlockChecksumWrong Error stops by Inodes
            "Extent block {block} of inode {inode} has a wrong checksum; its fields look sound."
            => "Computes it anew." [];
        0x01006c XattrBlockChecksumWrong Error stops by Inodes
            "The extended attribute block {block} of inode {inode} has a wrong checksum; its fields look sound."
            => "Computes it anew." [];
        0x01006d ExtentIndexStartWrong Error stops by Inodes
            "In inode {inode}, an index says {expected}, but the node below it, block {block}, starts at {found}."
            => "Sets the index." [];
        0x01006e ExtentEndOutOfBounds Error stops by Inodes
            "Inode {inode} has an extent at {file_block} (block {found}, {count} blocks) that leaves the range of its node."
            => "Drops the extent." [];
        0x01006f InlineDataFeatureMissing Error repairs by Inodes
            "Inode {inode} has the inline data flag, but the superblock lacks that feature."
            => "Sets the feature; of an inode without such data clears the flag." [];
        0x010073 DirectoryExtentUninit Error repairs by Inodes
            "Directory {inode} has an extent at {file_block} that is marked as not written (block {found}, {count} blocks)."
            => "Clears the mark." [];
        0x010074 ClusterMisaligned Error stops by Inodes
            "Inode {inode} has block {found} at {file_block}, which lies otherwise in its cluster."
            => "Drops the reference." [InodeBlockCountWrong];
        0x010075 InlineDataXattrMissing Error stops by Inodes
            "Inode {inode} has the inline data flag, but no attribute with the rest of the data."
            => "Clears the flag where blocks are mapped; else only what stands in the inode stays, and of a file with more nothing." [];
        0x010076 SpecialFileHasMapFlag Advice leaves by Inodes
            "Inode {inode} is a device, pipe or socket, but has the flag for extents or inline data."
            => "Clears the flags." [];
        0x010078 InlineInodeHasExtentFlag Error stops by Inodes
            "Inode {inode} has the flags for inline data and for extents."
            => "Clears the flag that does not fit what stands in the inode." [];
        0x01007a InodeMapUndecidable Error stops by Inodes
            "Inode {inode} has the flags for extents and inline data, and is neither."
            => "Clears the inode." [EntryInodeUnused];
        0x01007d ExtentTreeTooDeep Error repairs by Inodes
            "The extent tree of inode {inode} has {found} levels of blocks; the kernel follows {expected}."
            => "Writes a tree of as many levels as it takes." [InodeBlockCountWrong];
        0x010080 BlockMapWithBigalloc Error stops by Inodes
            "Inode {inode} has an indirect block map, which a volume with clusters cannot have."
            => "Clears the inode." [];
        0x010081 ExtentHeaderMissing Error stops by Inodes
            "Inode {inode} has the extents flag, but no header in its root."
            => "Writes an empty root." [InodeBlockCountWrong InodeSizeWrong];
        0x010083 XattrValueInodeWrong Error repairs by Inodes
            "Attribute {name} of inode {inode} has its value in inode {found}, which does not hold it."
            => "Drops the attribute." [];
        0x010086 XattrValueInodeFlagMissing Error repairs by Inodes
            "Inode {found} holds an attribute value of inode {inode}, but lacks the flag for that."
            => "Sets the flag; where directories name that inode, drops the attribute." [];
        0x010088 CasefoldFlagOnNonDirectory Error stops by Inodes
            "Inode {inode} has the casefold flag, but is not a directory."
            => "Clears the flag." [];
        0x010089 CasefoldFlagWithoutFeature Error stops by Inodes
            "Directory {inode} has the casefold flag, but the volume lacks that feature."
            => "Clears the flag." [];
        0x01008a EncryptionXattrMissing Error stops by Inodes
            "Inode {inode} has the encrypt flag, but no encryption context."
            => "Clears the flag." [];
        0x01008b EncryptionXattrCorrupt Error stops by Inodes
            "Inode {inode} has an encryption context that is not sound."
            => "Clears the inode." [];
        0x01008d HtreeNeedsSiphash Error repairs by Directories
            "The hash tree of directory {inode} uses hash version {found}, but encrypted casefolding needs SipHash."
            => "Clears the flag, then indexes the directory anew." [];
        0x01008e HtreeCannotUseSiphash Error repairs by Directories
            "The hash tree of directory {inode} uses SipHash, which is only for encrypted casefolding."
            => "Clears the flag, then indexes the directory anew." [];
        0x01008f OrphanFileModeWrong Error repairs by Inodes
            "The orphan file {inode} is not a regular file."
            => "Sets the mode." [];
        0x010091 XattrValueInodeNotRegular Error stops by Inodes
            "Inode {inode} is marked as holding an attribute value, but is not a regular file."
            => "Clears the flag." [];
        0x010092 XattrValueInodeFeatureMissing Error repairs by Inodes
            "An attribute of inode {inode} has its value in another inode, but the superblock lacks the ea_inode feature."
            => "Sets the feature." [];
        0x0E0008 IndirectBlockForeign Error repairs by Inodes
            "Indirect block {block} of inode {inode} does not say that it is that, or its checksum is wrong."
            => "Writes whose it is, and the checksum." [];
    }
    in MultiplyClaimed {
        0x013001 FileSharesBlocks Error stops by Sharing
            "Inode {inode} has {count} multiply-claimed block(s), shared with {found} other file(s): {name}."
            => "Gives each file its own copy." [FileSharesWithMetadata];
        0x013003 FileSharesWithMetadata Error stops by Sharing
            "Inode {inode} has {count} multiply-claimed block(s), some of them shared with metadata of the file system."
            => "Gives the file blocks of its own." [];
    } } };
}
