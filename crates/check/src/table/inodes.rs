//! Rows of the inodes, their block maps and attributes, and of multiply-claimed blocks; e2fsck's pass 1 to 1D.

macro_rules! inode_rows {
    ([$next:ident $($more:ident)*] $($rows:tt)*) => { $next! { [$($more)*] $($rows)* in Inodes {
        0x010001 RootNotDirectory Error stops by Inodes
            "The root inode is not a directory."
            => "root directory restored." [LooksLikeDirectory RootMissing DirectoryUnconnected];
        0x010002 RootHasDeletionTime Error repairs by Inodes
            "The root inode has a deletion time."
            => "deletion time cleared." [];
        0x010003 ReservedInodeModeWrong Error repairs by Inodes
            "Reserved inode {inode}: mode {found:o} is invalid."
            => "mode cleared." [];
        0x010004 DeletedInodeWithoutTime Error repairs by Inodes
            "Inode {inode} is deleted (no links), but has no deletion time."
            => "deletion time set." [];
        0x010005 InodeInUseHasDeletionTime Error repairs by Inodes
            "Inode {inode} is in use, but has a deletion time."
            => "deletion time cleared." [];
        0x010006 DirectoryEmpty Error repairs by Inodes
            "Directory {inode} has no blocks."
            => "inode cleared." [EntryInodeUnused];
        0x010007 BlockBitmapConflict Error stops by Descriptors
            "Group {group}: block bitmap at block {block} overlaps other metadata."
            => "bitmap moved and rebuilt." [];
        0x010008 InodeBitmapConflict Error stops by Descriptors
            "Group {group}: inode bitmap at block {block} overlaps other metadata."
            => "bitmap moved and rebuilt." [];
        0x010009 InodeTableConflict Error stops by Descriptors
            "Group {group}: inode table at block {block} overlaps other metadata."
            => "table moved." [];
        0x01000c InodeSizeWrong Error repairs by Inodes
            "Inode {inode}: size is {found}, should be {expected}."
            => "size corrected." [];
        0x01000d InodeBlockCountWrong Error repairs by Inodes
            "Inode {inode}: block count is {found} sectors, should be {expected}."
            => "count corrected." [];
        0x01000e BlockOutOfRange Error stops by Inodes
            "Inode {inode}: block {found} at file block {file_block} is outside the volume."
            => "reference cleared." [InodeBlockCountWrong InodeSizeWrong];
        0x01002f ImagicFlagWithoutFeature Error stops by Inodes
            "Inode {inode} has the imagic flag, but the volume lacks the imagic_inodes feature."
            => "flag cleared." [];
        0x010030 SpecialFileImmutable Advice leaves by Inodes
            "Inode {inode} is a device, pipe, socket or symbolic link, but has the immutable or append-only flag."
            => "flags cleared." [];
        0x010032 SpecialFileSizeNotZero Error repairs by Inodes
            "Inode {inode} (device, pipe or socket): size is {found}, should be 0."
            => "size set to 0." [];
        0x010034 JournalInodeNotClear Error repairs by Inodes
            "Journal inode {inode} is in use, but the volume has no journal."
            => "inode cleared." [];
        0x010035 JournalInodeModeWrong Error repairs by Inodes
            "Journal inode {inode} is not a regular file."
            => "mode corrected." [];
        0x010036 OrphanLinkInDeletionTime Error stops by Inodes
            "Inode {inode} was on a corrupt orphan list: its deletion time is an inode number."
            => "deletion time corrected." [InodeUnattached];
        0x010039 XattrBlockUnreadable Error stops by Inodes
            "Inode {inode}: extended attribute block {block} cannot be read."
            => "attribute block removed." [ReadError];
        0x01003a XattrBlockBad Error stops by Inodes
            "Inode {inode}: block {block} is not an extended attribute block."
            => "attribute block removed." [InodeBlockCountWrong];
        0x01003c XattrRefcountWrong Error stops by Inodes
            "Extended attribute block {block}: reference count is {found}, should be {expected}."
            => "count corrected." [];
        0x01003e XattrBlockCountWrong Error stops by Inodes
            "Extended attribute block {block}: block count is {found}, should be 1."
            => "attribute block removed." [];
        0x010040 XattrEntriesCollide Error stops by Inodes
            "Extended attribute block {block}: names or values overlap."
            => "overlapping attributes removed." [];
        0x010041 XattrNameBad Error stops by Inodes
            "Extended attribute block {block} has an entry with an invalid name."
            => "attribute removed." [];
        0x010042 XattrValueBad Error stops by Inodes
            "Extended attribute block {block} has an entry with an invalid value."
            => "attribute removed." [];
        0x010044 DirectoryTooBig Error stops by Inodes
            "Directory {inode}: block {found} at file block {file_block} exceeds the maximum directory size."
            => "block removed." [InodeSizeWrong];
        0x010045 RegularFileTooBig Error stops by Inodes
            "File {inode}: block {found} at file block {file_block} exceeds the maximum file size."
            => "block removed." [InodeSizeWrong];
        0x010046 SymlinkTooBig Error stops by Inodes
            "Symbolic link {inode}: block {found} at file block {file_block} exceeds the maximum of one block."
            => "block removed." [InodeSizeWrong];
        0x010047 HtreeFlagWithoutFeature Error repairs by Inodes
            "Inode {inode} has the index flag, but the volume lacks the dir_index feature."
            => "flag cleared." [];
        0x010048 HtreeFlagOnNonDirectory Error repairs by Inodes
            "Inode {inode} has the index flag, but is not a directory."
            => "flag cleared." [];
        0x010049 HtreeRootBad Error repairs by Directories
            "Directory {inode}: hash tree has no valid root."
            => "flag cleared, then directory reindexed." [];
        0x01004a HtreeHashVersionUnknown Error repairs by Directories
            "Directory {inode}: hash tree uses unknown hash version {found}."
            => "flag cleared, then directory reindexed." [];
        0x01004b HtreeFlagsUnknown Error repairs by Directories
            "Directory {inode}: hash tree has unknown flags {found:x}."
            => "flag cleared, then directory reindexed." [];
        0x01004c HtreeTooDeep Error repairs by Directories
            "Directory {inode}: hash tree has {found} levels, maximum is {expected}."
            => "flag cleared, then directory reindexed." [];
        0x01004f ExtraSizeWrong Error repairs by Inodes
            "Inode {inode}: extra size {found} is invalid."
            => "set to the size of the known fields." [];
        0x010050 InodeXattrNameLengthWrong Error stops by Inodes
            "Inode {inode}: attribute name length {found} is invalid."
            => "attributes from there on removed from the inode, except inline data." [];
        0x010053 InodeXattrValueSizeWrong Error stops by Inodes
            "Inode {inode}: value of attribute {name} ({found} bytes) is outside the inode."
            => "attribute removed." [];
        0x010054 InodeXattrHashWrong Error stops by Inodes
            "Inode {inode}: hash of attribute {name} is {found:x}, should be {expected:x}."
            => "attribute removed, unless it is inline data." [];
        0x010055 LooksLikeDirectory Error stops by Inodes
            "Inode {inode} is a {name}, but looks like a directory."
            => "turned back into a directory." [EntryTypeWrong SpecialFileSizeNotZero];
        0x010058 ExtentStartInvalid Error stops by Inodes
            "Inode {inode}: extent of {count} blocks at file block {file_block} (block {found}) starts outside the volume."
            => "extent removed." [InodeBlockCountWrong InodeSizeWrong];
        0x010059 ExtentLengthInvalid Error stops by Inodes
            "Inode {inode}: extent of {count} blocks at file block {file_block} (block {found}) ends outside the volume."
            => "extent removed." [InodeBlockCountWrong InodeSizeWrong];
        0x01005a ExtentFlagWithoutFeature Error stops by Inodes
            "Inode {inode} has the extents flag, but the volume lacks the extents feature."
            => "inode cleared." [];
        0x01005b ExtentFeatureMissing Error stops by Inodes
            "Inode {inode} has an extent tree, but the superblock lacks the extents feature."
            => "feature set." [];
        0x01005c ExtentFlagMissing Error repairs by Inodes
            "Inode {inode} has an extent tree, but not the extents flag."
            => "flag set." [];
        0x01005d FastSymlinkHasExtentFlag Error stops by Inodes
            "Symbolic link {inode} has its target in the inode, but also the extents flag."
            => "flag cleared." [];
        0x01005e ExtentsOutOfOrder Error stops by Inodes
            "Inode {inode}: extent at file block {file_block} (block {found}, {count} blocks) is out of order."
            => "extent removed." [InodeBlockCountWrong];
        0x01005f ExtentHeaderInvalid Error stops by Inodes
            "Inode {inode}: invalid extent header {name}."
            => "node removed." [InodeBlockCountWrong];
        0x010062 QuotaInodeModeWrong Error repairs by Inodes
            "Quota inode {inode} is not a regular file."
            => "mode corrected." [];
        0x010063 QuotaInodeNotClear Error repairs by Inodes
            "Quota inode {inode} is in use, but the volume has no quota."
            => "inode cleared." [];
        0x010065 BadBlocksInodeInvalid Error stops by Inodes
            "The bad blocks inode is invalid."
            => "inode cleared." [];
        0x010066 ExtentLengthZero Error stops by Inodes
            "Inode {inode}: extent at file block {file_block} (block {found}) has length 0."
            => "extent removed." [];
        0x010068 InodeChecksumWrong Error repairs by Inodes
            "Inode {inode}: checksum is {found:x}, should be {expected:x}; its fields look valid."
            => "checksum recomputed." [];
        0x010069 InodeXattrEntriesCollide Error stops by Inodes
            "Inode {inode}: attribute names or values in the inode overlap."
            => "overlapping attributes removed, including inline data." [];
        0x01006a ExtentBlockChecksumWrong Error stops by Inodes
            "Inode {inode}: extent block {block} has a wrong checksum; its fields look valid."
            => "checksum recomputed." [];
        0x01006c XattrBlockChecksumWrong Error stops by Inodes
            "Inode {inode}: extended attribute block {block} has a wrong checksum; its fields look valid."
            => "checksum recomputed." [];
        0x01006d ExtentIndexStartWrong Error stops by Inodes
            "Inode {inode}: extent index starts at {expected}, but its node, block {block}, starts at {found}."
            => "index corrected." [];
        0x01006e ExtentEndOutOfBounds Error stops by Inodes
            "Inode {inode}: extent at file block {file_block} (block {found}, {count} blocks) is outside its node's range."
            => "extent removed from the node." [];
        0x01006f InlineDataFeatureMissing Error stops by Inodes
            "Inode {inode} has the inline data flag, but the superblock lacks the inline_data feature."
            => "feature and flag corrected." [];
        0x010073 DirectoryExtentUninit Error repairs by Inodes
            "Directory {inode}: extent at file block {file_block} (block {found}, {count} blocks) is marked unwritten."
            => "mark cleared." [];
        0x010074 ClusterMisaligned Error stops by Inodes
            "Inode {inode}: block {found} at file block {file_block} violates the cluster allocation rules (bigalloc)."
            => "moved into one cluster as far as clusters were free." [InodeBlockCountWrong];
        0x010075 InlineDataXattrMissing Error stops by Inodes
            "Inode {inode} has the inline data flag, but the attribute with the rest of the data is missing."
            => "flag and size adapted to the remaining data." [];
        0x010076 SpecialFileHasMapFlag Advice leaves by Inodes
            "Inode {inode} is a device, pipe or socket, but has the extents or inline data flag."
            => "flags cleared." [];
        0x010078 InlineInodeHasExtentFlag Error stops by Inodes
            "Inode {inode} has both the inline data and the extents flag."
            => "flag that does not match the content cleared." [];
        0x01007a InodeMapUndecidable Error stops by Inodes
            "Inode {inode} has both the inline data and the extents flag, but the content matches neither."
            => "inode cleared." [EntryInodeUnused];
        0x01007d ExtentTreeTooDeep Error repairs by Inodes
            "Inode {inode}: extent tree has {found} levels of blocks, maximum is {expected}."
            => "tree rewritten with as many levels as needed." [InodeBlockCountWrong];
        0x010080 BlockMapWithBigalloc Error stops by Inodes
            "Inode {inode} has an indirect block map, which is invalid with the bigalloc feature."
            => "inode cleared." [];
        0x010081 ExtentHeaderMissing Error stops by Inodes
            "Inode {inode} has the extents flag, but no extent header."
            => "empty extent tree written." [InodeBlockCountWrong InodeSizeWrong];
        0x010083 XattrValueInodeWrong Error stops by Inodes
            "Inode {inode}: attribute {name} has its value in inode {found}, which does not contain it."
            => "attribute removed." [];
        0x010086 XattrValueInodeFlagMissing Error stops by Inodes
            "Inode {found} contains an attribute value of inode {inode}, but lacks the ea_inode flag."
            => "flag set or attribute removed." [];
        0x010088 CasefoldFlagOnNonDirectory Error stops by Inodes
            "Inode {inode} has the casefold flag, but is not a directory."
            => "flag cleared." [];
        0x010089 CasefoldFlagWithoutFeature Error stops by Inodes
            "Directory {inode} has the casefold flag, but the volume lacks the casefold feature."
            => "flag cleared." [];
        0x01008a EncryptionXattrMissing Error stops by Inodes
            "Inode {inode} has the encrypt flag, but no encryption context."
            => "flag cleared." [];
        0x01008b EncryptionXattrCorrupt Error stops by Inodes
            "Inode {inode} has an invalid encryption context."
            => "inode cleared." [];
        0x01008d HtreeNeedsSiphash Error repairs by Directories
            "Directory {inode}: hash tree uses hash version {found}, but encrypted casefolding requires SipHash."
            => "flag cleared, then directory reindexed." [];
        0x01008e HtreeCannotUseSiphash Error repairs by Directories
            "Directory {inode}: hash tree uses SipHash, which is only valid for encrypted casefolding."
            => "flag cleared, then directory reindexed." [];
        0x01008f OrphanFileModeWrong Error repairs by Inodes
            "Orphan file {inode} is not a regular file."
            => "mode corrected." [];
        0x010091 XattrValueInodeNotRegular Error stops by Inodes
            "Inode {inode} has the ea_inode flag, but is not a regular file."
            => "flag cleared." [];
        0x010092 XattrValueInodeFeatureMissing Error repairs by Inodes
            "Inode {inode} has an attribute value in another inode, but the superblock lacks the ea_inode feature."
            => "feature set." [];
        0x0E0027 XattrValueSizeWrong Error stops by Inodes
            "Inode {inode}: attribute {name} has {found} bytes, but its value in inode {count} has {expected}."
            => "sizes and blocks corrected by the hash of the value." [InodeBlockCountWrong];
        0x0E0028 XattrValueInodeModeWrong Error stops by Inodes
            "Inode {inode} contains an attribute value, but is not a regular file."
            => "mode corrected." [];
        0x0E0008 IndirectBlockForeign Error repairs by Inodes
            "Inode {inode}: indirect block {block} has a wrong owner or checksum."
            => "owner and checksum corrected." [];
        0x0E002A ExtentTooLong Error stops by Inodes
            "Inode {inode}: extent at file block {file_block} (block {found}, {count} blocks) overlaps the one after it."
            => "extent shortened." [InodeBlockCountWrong];
    }
    in MultiplyClaimed {
        0x013001 FileSharesBlocks Error stops by Sharing
            "Inode {inode} has {count:multiply-claimed blocks}, shared with {found:other files}: {name}."
            => "blocks cloned for each file." [FileSharesWithMetadata];
        0x013003 FileSharesWithMetadata Error stops by Sharing
            "Inode {inode} has {count:multiply-claimed blocks}, some shared with file system metadata."
            => "blocks cloned for the file." [];
        0x0E001F InlineDataTooShort Error stops by Inodes
            "Inode {inode}: size is {found}, but its inline data has only {expected} bytes."
            => "size set to that of the data." [];
        0x0E001E InlineLinkTooShort Error stops by Inodes
            "Symbolic link {inode} has the inline data flag, but its target of {found} bytes is in the inode without it."
            => "flag removed." [];
        0x0E002B InodeXattrOffsetUnused Error stops by Inodes
            "Inode {inode} has inline data, and its attribute {name} has the offset {found} and its value in another inode."
            => "offset cleared." [];
        // found during a repair
        0x0E0025 BlocksRemovedForSpace Error stops by Sharing
            "Inode {inode}: there is no space to clone {count:multiply-claimed blocks}, and its block map had errors."
            => "the parts of the map that lead to them removed." [];
        0x0E001D FileClearedForSpace Error stops by Sharing
            "Inode {inode}: there is no space to clone its multiply-claimed blocks."
            => "file cleared; the other files retain the blocks." [];
    } } };
}
