//! Rows of directory blocks, their entries and hash trees, of connectivity and of link counts; e2fsck's passes 2 to 4.
//! Some of e2fsck's pass 2 are about the inode an entry refers to; this checker finds them as it reads the inode.

macro_rules! directory_rows {
    ([$next:ident $($more:ident)*] $($rows:tt)*) => { $next! { [$($more)*] $($rows)* in Directories {
        0x020001 DotInodeWrong Error stops by Directories
            "Entry '.' in directory {dir}: inode is {found}, should be {dir}."
            => "inode corrected." [];
        0x020002 EntryInodeOutOfRange Error stops by Directories
            "Entry '{name}' in directory {dir}: inode number {inode} is invalid."
            => "entry cleared." [];
        0x020003 EntryInodeUnused Error repairs by Directories
            "Entry '{name}' in directory {dir} refers to inode {inode}, which is not in use."
            => "entry cleared." [];
        0x020004 EntryLinksItself Error stops by Directories
            "Entry '{name}' in directory {dir} is a link to the directory itself."
            => "entry cleared." [];
        0x020006 EntryLinksDirectory Error stops by Directories
            "Entry '{name}' in directory {dir} is a second link to directory {inode}."
            => "entry cleared." [];
        0x020007 EntryLinksRoot Error stops by Directories
            "Entry '{name}' in directory {dir} is a link to the root directory."
            => "entry cleared." [];
        0x020008 EntryNameIllegal Error stops by Directories
            "Entry '{name}' in directory {dir} has illegal characters in its name."
            => "characters replaced by dots." [];
        0x020009 DotMissing Error stops by Directories
            "Directory {dir}: entry '.' is missing."
            => "entry created." [];
        0x02000a DotDotMissing Error stops by Directories
            "Directory {dir}: entry '..' is missing."
            => "entry created." [DotDotWrong];
        0x02000b FirstEntryNotDot Error stops by Directories
            "Directory {dir}: first entry is '{name}', should be '.'."
            => "entry replaced by '.'." [];
        0x02000c SecondEntryNotDotDot Error stops by Directories
            "Directory {dir}: second entry is '{name}', should be '..'."
            => "entry replaced by '..'." [];
        0x02000d FragmentAddressNotZero Error stops by Inodes
            "Inode {inode}: fragment address is {found}, should be 0."
            => "set to 0." [];
        0x020012 InodeModeWrong Error stops by Inodes
            "Inode {inode}: mode {found:o} is invalid."
            => "inode and its entry cleared." [];
        0x020013 DirectoryBlockCorrupt Error stops by Directories
            "Directory {dir}: block {file_block} has an invalid entry at offset {found}."
            => "chain of entries ended there." [InodeUnattached DirectoryUnconnected];
        0x020015 DirectoryHole Error stops by Directories
            "Directory {dir}: block {file_block} is not allocated."
            => "empty block allocated." [];
        0x020016 DotNotTerminated Error stops by Directories
            "Entry '.' in directory {dir} is not terminated by a zero byte."
            => "byte written." [];
        0x020017 DotDotNotTerminated Error stops by Directories
            "Entry '..' in directory {dir} is not terminated by a zero byte."
            => "byte written." [];
        0x020018 CharacterDeviceBad Error stops by Inodes
            "Inode {inode} is an invalid character device (unexpected fields are set)."
            => "inode and its entry cleared." [];
        0x020019 BlockDeviceBad Error stops by Inodes
            "Inode {inode} is an invalid block device (unexpected fields are set)."
            => "inode and its entry cleared." [];
        0x02001a DotDuplicate Error stops by Directories
            "Directory {dir}: duplicate entry '.' in block {file_block}."
            => "duplicate cleared." [];
        0x02001b DotDotDuplicate Error stops by Directories
            "Directory {dir}: duplicate entry '..' in block {file_block}."
            => "duplicate cleared." [];
        0x020020 DirectoryBlockUnreadable Error stops by None
            "Directory {dir}: block {file_block} (block {block} of the volume) cannot be read."
            => "none; copy the device before anything else." [ReadError];
        0x020024 DotEntryLarge Advice stops by Directories
            "Entry '.' in directory {dir} is too long ({found} bytes)."
            => "entry split." [];
        0x020025 FifoBad Error stops by Inodes
            "Inode {inode} is an invalid named pipe (unexpected fields are set)."
            => "inode and its entry cleared." [];
        0x020026 SocketBad Error stops by Inodes
            "Inode {inode} is an invalid socket (unexpected fields are set)."
            => "inode and its entry cleared." [];
        0x020027 EntryTypeMissing Advice repairs by Directories
            "Entry '{name}' in directory {dir}: file type is not set, should be {expected:type}."
            => "type set." [];
        0x020028 EntryTypeWrong Error stops by Directories
            "Entry '{name}' in directory {dir} (inode {inode}): file type is {found:type}, should be {expected:type}."
            => "type corrected." [];
        0x020029 EntryTypeWithoutFeature Error repairs by Directories
            "Entry '{name}' in directory {dir}: file type is {found:type}, but the volume lacks the filetype feature."
            => "type cleared." [];
        0x020030 EntryNameEmpty Error stops by Directories
            "Directory {dir}: block {file_block} has an entry with an empty name."
            => "entry cleared." [InodeUnattached];
        0x020031 SymlinkInvalid Error stops by Inodes
            "Symbolic link {inode} has an invalid target."
            => "inode and its entry cleared." [];
        0x020032 XattrBlockOutOfRange Error stops by Inodes
            "Inode {inode}: extended attribute block {block} is outside the volume."
            => "set to 0." [];
        0x020033 LargeFileFeatureMissing Error repairs by Links
            "File {inode} is larger than 2 GiB, but the superblock lacks the large_file feature."
            => "feature set." [];
        0x020034 HtreeBlockUnreferenced Error stops by Directories
            "Directory {dir}: block {file_block} is not referenced in the hash tree."
            => "directory reindexed." [];
        0x020035 HtreeBlockReferencedTwice Error stops by Directories
            "Directory {dir}: block {file_block} is referenced twice in the hash tree."
            => "directory reindexed." [];
        0x020036 HtreeMinimumHashWrong Error stops by Directories
            "Directory {dir}: minimum hash of block {file_block} is {found:x}, should be at least {expected:x}."
            => "directory reindexed." [];
        0x020037 HtreeMaximumHashWrong Error stops by Directories
            "Directory {dir}: maximum hash of block {file_block} is {found:x}, should be at most {expected:x}."
            => "directory reindexed." [];
        0x020038 HtreeInvalid Error stops by Directories
            "Directory {dir}: hash tree is unusable."
            => "directory reindexed." [];
        0x020039 LargeDirFeatureMissing Error repairs by Links
            "Directory {inode} is larger than 2 GiB, but the superblock lacks the large_dir feature."
            => "feature set." [];
        0x02003a HtreeBlockOutOfRange Error stops by Directories
            "Directory {dir}: hash tree refers to block {found}, which does not exist."
            => "directory reindexed." [];
        0x02003c HtreeRootInvalid Error repairs by Directories
            "Directory {dir}: root of the hash tree is invalid."
            => "directory reindexed." [];
        0x02003d HtreeLimitWrong Error repairs by Directories
            "Directory {dir}: limit of the hash tree node in block {file_block} is {found}, should be {expected}."
            => "directory reindexed." [];
        0x02003e HtreeCountWrong Error repairs by Directories
            "Directory {dir}: hash tree node in block {file_block} has {found} entries, maximum is {expected}."
            => "directory reindexed." [];
        0x02003f HtreeHashOrderWrong Error repairs by Directories
            "Directory {dir}: hashes of the hash tree node in block {file_block} are out of order."
            => "directory reindexed." [];
        0x020040 HtreeDepthWrong Error stops by Directories
            "Directory {dir}: level of the hash tree node in block {file_block} is {found}, should be {expected}."
            => "directory reindexed." [];
        0x020043 EntryDuplicate Error stops by Directories
            "Directory {dir}: duplicate entry '{name}'."
            => "directory reindexed; second entry renamed or cleared." [];
        0x020044 BlockCountHighNotZero Error stops by Inodes
            "Inode {inode}: upper part of the block count is {found}, should be 0."
            => "set to 0." [];
        0x020046 EntryInodeGroupUninit Error repairs by Descriptors
            "Entry '{name}' in directory {dir} refers to inode {inode}, but its group {group} is marked INODE_UNINIT."
            => "flag cleared." [GroupChecksumWrong];
        0x020047 EntryInodeInUnusedPart Error repairs by Descriptors
            "Entry '{name}' in directory {dir} refers to inode {inode} in the unused inodes area of group {group}."
            => "count corrected." [GroupChecksumWrong GroupFreeInodeCountWrong];
        0x020048 XattrBlockHighNotZero Error repairs by Inodes
            "Inode {inode}: upper part of the extended attribute block is {found}, should be 0."
            => "set to 0." [];
        0x020049 HtreeRootChecksumWrong Error repairs by Directories
            "Directory {dir}: root of the hash tree has an invalid checksum: {name}."
            => "directory reindexed." [];
        0x02004a HtreeNodeChecksumWrong Error repairs by Directories
            "Directory {dir}: hash tree node in block {file_block} has an invalid checksum: {name}."
            => "directory reindexed." [];
        0x02004c DirectoryChecksumTailMissing Error repairs by Directories
            "Directory {dir}: block {file_block} has no space for its checksum."
            => "space made." [];
        0x02004d DirectoryBlockChecksumWrong Error repairs by Directories
            "Directory {dir}, block {file_block}: checksum is {found:x}, should be {expected:x}; its entries look valid."
            => "checksum recomputed." [];
        0x020050 EntryEncryptedNameTooShort Error stops by Directories
            "Encrypted directory {dir}: name of entry '{name}' is too short to be encrypted."
            => "entry cleared." [];
        0x020051 EntryNotEncrypted Error stops by Directories
            "Encrypted directory {dir}: entry '{name}' refers to inode {inode}, which is not encrypted."
            => "entry cleared." [];
        0x020052 EncryptionPolicyDiffers Error stops by Directories
            "Encrypted directory {dir}: entry '{name}' refers to inode {inode}, which has another encryption policy."
            => "entry cleared." [];
        0x020053 EntryNameBadEncoding Error stops by Directories
            "Entry '{name}' in directory {dir}: name is invalid in the volume's encoding."
            => "entry renamed." [];
        0x020055 EntryLinksXattrInode Error stops by Directories
            "Entry '{name}' in directory {dir} refers to inode {inode}, which contains an attribute value."
            => "entry cleared." [];
        0x0E0029 DotLengthWrong Error stops by Directories
            "Entry '.' in directory {dir} has a length of {found} bytes, should be 12: '..' follows there."
            => "length corrected." [];
    }
    in Connectivity {
        0x030001 RootMissing Error stops by Connections
            "The root inode is not in use."
            => "new root created." [DirectoryUnconnected];
        0x030003 DirectoryUnconnected Error stops by Connections
            "Directory {inode} (parent by '..': {found}) is not connected to the root."
            => "connected to lost+found." [LinkCountWrong];
        // seen, for all of lost+found: e2fsck -n looks for it only when it needs it; f_expandroot_create_lnf exits 0
        0x030004 LostAndFoundMissing Advice repairs by Connections
            "Directory lost+found is missing."
            => "directory created." [];
        0x030005 DotDotWrong Error stops by Connections
            "Entry '..' in directory {inode}: inode is {found}, should be {expected}."
            => "inode corrected." [LinkCountWrong];
        0x03001d DirectoryLoop Error stops by Connections
            "Directory {inode} (parent by '..': {found}) is its own ancestor (loop)."
            => "loop broken and directory connected to lost+found." [DirectoryUnconnected];
    }
    in Links {
        0x040001 InodeUnattachedEmpty Advice repairs by Links
            "Inode {inode} is empty and not referenced by any directory."
            => "inode cleared." [];
        0x040002 InodeUnattached Error stops by Links
            "Inode {inode} is not referenced by any directory (unattached)."
            => "connected to lost+found." [LinkCountWrong];
        0x040003 LinkCountWrong Error repairs by Links
            "Inode {inode}: link count is {found}, should be {expected}."
            => "count corrected." [];
        0x040005 XattrValueInodeRefcountWrong Error repairs by Links
            "Inode {inode} (attribute value): reference count is {found}, should be {expected}."
            => "count corrected." [];
        0x040006 DirNlinkFeatureMissing Error stops by Links
            "Directory {inode} has too many subdirectories for its link count without the dir_nlink feature."
            => "feature set." [];
        0x040007 DirectoryLinkCountOverflow Error repairs by Links
            "Directory {inode}: link count is {found}, should be 1 (too many links to count: {expected})."
            => "count set to 1." [];
        0x040008 XattrValueInodeFlagStray Error repairs by Links
            "Inode {inode} has the ea_inode flag, but is referenced by directories."
            => "flag cleared." [];
    } } };
}
