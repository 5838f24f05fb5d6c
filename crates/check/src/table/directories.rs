//! Rows of directory blocks, their entries and hash trees, of what hangs on the root, and of link counts; e2fsck's passes
//! 2 to 4. Some of e2fsck's pass 2 are about the inode an entry names; this checker finds them as it reads the inode.

macro_rules! directory_rows {
    ([$next:ident $($more:ident)*] $($rows:tt)*) => { $next! { [$($more)*] $($rows)* in Directories {
        0x020001 DotInodeWrong Error stops by Directories
            "Entry '.' of directory {dir} names inode {found}, not the directory."
            => "Sets the inode." [];
        0x020002 EntryInodeOutOfRange Error stops by Directories
            "Entry '{name}' of directory {dir} names inode {inode}, which cannot be."
            => "Clears the entry." [];
        0x020003 EntryInodeUnused Error repairs by Directories
            "Entry '{name}' of directory {dir} names inode {inode}, which is not in use."
            => "Clears the entry." [];
        0x020004 EntryLinksItself Error stops by Directories
            "Entry '{name}' of directory {dir} is one more link to the directory itself."
            => "Clears the entry." [];
        0x020006 EntryLinksDirectory Error stops by Directories
            "Entry '{name}' of directory {dir} is one more link to directory {inode}, which another names already."
            => "Clears the entry." [];
        0x020007 EntryLinksRoot Error stops by Directories
            "Entry '{name}' of directory {dir} is a link to the root."
            => "Clears the entry." [];
        0x020008 EntryNameIllegal Error stops by Directories
            "Entry '{name}' of directory {dir} has bytes no name may have."
            => "Puts dots in their place." [];
        0x020009 DotMissing Error stops by Directories
            "Directory {dir} has no entry '.'."
            => "Makes it." [];
        0x02000a DotDotMissing Error stops by Directories
            "Directory {dir} has no entry '..'."
            => "Makes it." [DotDotWrong];
        0x02000b FirstEntryNotDot Error stops by Directories
            "The first entry of directory {dir} is '{name}', not '.'."
            => "Puts '.' in its place." [];
        0x02000c SecondEntryNotDotDot Error stops by Directories
            "The second entry of directory {dir} is '{name}', not '..'."
            => "Puts '..' in its place." [];
        0x02000d FragmentAddressNotZero Error stops by Inodes
            "Inode {inode} has fragment address {found}, which must be 0."
            => "Sets it to 0." [];
        0x020012 InodeModeWrong Error stops by Inodes
            "Inode {inode} has mode {found:o}, which is no kind of file."
            => "Clears the inode and its entry." [];
        0x020013 DirectoryBlockCorrupt Error stops by Directories
            "Block {file_block} of directory {dir} has an entry at offset {found} that does not fit."
            => "Cuts the block's chain of entries there." [InodeUnattached DirectoryUnconnected];
        0x020015 DirectoryHole Error stops by Directories
            "Directory {dir} has no block {file_block}."
            => "Puts an empty block there." [];
        0x020016 DotNotTerminated Error stops by Directories
            "Entry '.' of directory {dir} does not end with a zero byte."
            => "Writes the byte." [];
        0x020017 DotDotNotTerminated Error stops by Directories
            "Entry '..' of directory {dir} does not end with a zero byte."
            => "Writes the byte." [];
        0x020018 CharacterDeviceBad Error stops by Inodes
            "Inode {inode} is a character device with stray fields."
            => "Clears the inode and its entry." [];
        0x020019 BlockDeviceBad Error stops by Inodes
            "Inode {inode} is a block device with stray fields."
            => "Clears the inode and its entry." [];
        0x02001a DotDuplicate Error stops by Directories
            "Directory {dir} has a second entry '.' in block {file_block}."
            => "Clears the second." [];
        0x02001b DotDotDuplicate Error stops by Directories
            "Directory {dir} has a second entry '..' in block {file_block}."
            => "Clears the second." [];
        0x020020 DirectoryBlockUnreadable Error stops by None
            "Block {file_block} of directory {dir} cannot be read (block {block} of the volume)."
            => "Nothing; copy the device before anything else." [ReadError];
        0x020024 DotEntryLarge Advice stops by Directories
            "Entry '.' of directory {dir} takes up {found} bytes."
            => "Splits it." [];
        0x020025 FifoBad Error stops by Inodes
            "Inode {inode} is a pipe with stray fields."
            => "Clears the inode and its entry." [];
        0x020026 SocketBad Error stops by Inodes
            "Inode {inode} is a socket with stray fields."
            => "Clears the inode and its entry." [];
        0x020027 EntryTypeMissing Advice repairs by Directories
            "Entry '{name}' of directory {dir} does not say the type of its inode, {expected:type}."
            => "Sets the type." [];
        0x020028 EntryTypeWrong Error stops by Directories
            "Entry '{name}' of directory {dir} says type {found:type}, its inode {inode} is of type {expected:type}."
            => "Sets the type." [];
        0x020029 EntryTypeWithoutFeature Error repairs by Directories
            "Entry '{name}' of directory {dir} says type {found:type}, but the volume lacks the filetype feature."
            => "Clears the type." [];
        0x020030 EntryNameEmpty Error stops by Directories
            "Directory {dir} has an entry without a name in block {file_block}."
            => "Clears the entry." [InodeUnattached];
        0x020031 SymlinkInvalid Error stops by Inodes
            "Symbolic link {inode} has no sound target."
            => "Clears the inode and its entry." [];
        0x020032 XattrBlockOutOfRange Error stops by Inodes
            "Inode {inode} has extended attribute block {block}, which is not on the volume."
            => "Sets it to 0." [];
        0x020033 LargeFileFeatureMissing Error repairs by Links
            "File {inode} is larger than 2 GiB, but the superblock lacks the large_file feature."
            => "Sets the feature." [];
        0x020034 HtreeBlockUnreferenced Error stops by Directories
            "No node of the hash tree of directory {dir} refers to its block {file_block}."
            => "Indexes the directory anew." [];
        0x020035 HtreeBlockReferencedTwice Error stops by Directories
            "Two nodes of the hash tree of directory {dir} refer to its block {file_block}."
            => "Indexes the directory anew." [];
        0x020036 HtreeMinimumHashWrong Error stops by Directories
            "Block {file_block} of directory {dir} has a name with a hash below what its node says ({found:x} below {expected:x})."
            => "Indexes the directory anew." [];
        0x020037 HtreeMaximumHashWrong Error stops by Directories
            "Block {file_block} of directory {dir} has a name with a hash above what its node says ({found:x} above {expected:x})."
            => "Indexes the directory anew." [];
        0x020038 HtreeInvalid Error stops by Directories
            "Directory {dir} has a hash tree that cannot be used."
            => "Indexes the directory anew." [];
        0x020039 LargeDirFeatureMissing Error repairs by Links
            "Directory {inode} is larger than 2 GiB, but the superblock lacks the large_dir feature."
            => "Sets the feature." [];
        0x02003a HtreeBlockOutOfRange Error stops by Directories
            "A node of the hash tree of directory {dir} refers to block {found}, which the directory lacks."
            => "Indexes the directory anew." [];
        0x02003c HtreeRootInvalid Error repairs by Directories
            "The root of the hash tree of directory {dir} is not sound."
            => "Indexes the directory anew." [];
        0x02003d HtreeLimitWrong Error repairs by Directories
            "The node at block {file_block} of the hash tree of directory {dir} has limit {found}, expected is {expected}."
            => "Indexes the directory anew." [];
        0x02003e HtreeCountWrong Error repairs by Directories
            "The node at block {file_block} of the hash tree of directory {dir} counts {found} entries, but has room for {expected}."
            => "Indexes the directory anew." [];
        0x02003f HtreeHashOrderWrong Error repairs by Directories
            "The node at block {file_block} of the hash tree of directory {dir} is not in the order of its hashes."
            => "Indexes the directory anew." [];
        0x020040 HtreeDepthWrong Error stops by Directories
            "The node at block {file_block} of the hash tree of directory {dir} lies at level {found}, expected is {expected}."
            => "Indexes the directory anew." [];
        0x020043 EntryDuplicate Error stops by Directories
            "Directory {dir} has more than one entry '{name}'."
            => "Indexes the directory anew; renames or clears the second." [];
        0x020044 BlockCountHighNotZero Error stops by Inodes
            "Inode {inode} has {found} in the upper part of its sector count, which must be 0."
            => "Sets it to 0." [];
        0x020046 EntryInodeGroupUninit Error repairs by Descriptors
            "Entry '{name}' of directory {dir} names inode {inode}, whose group {group} is marked as having none."
            => "Clears the mark." [GroupChecksumWrong];
        0x020047 EntryInodeInUnusedPart Error repairs by Descriptors
            "Entry '{name}' of directory {dir} names inode {inode}, which group {group} counts as never used."
            => "Sets the count." [GroupChecksumWrong GroupFreeInodeCountWrong];
        0x020048 XattrBlockHighNotZero Error repairs by Inodes
            "Inode {inode} has {found} in the upper part of its extended attribute block, which must be 0."
            => "Sets it to 0." [];
        0x020049 HtreeRootChecksumWrong Error repairs by Directories
            "The root of the hash tree of directory {dir} has no valid checksum: {name}."
            => "Indexes the directory anew." [];
        0x02004a HtreeNodeChecksumWrong Error repairs by Directories
            "The node at block {file_block} of the hash tree of directory {dir} has no valid checksum: {name}."
            => "Indexes the directory anew." [];
        0x02004c DirectoryChecksumTailMissing Error repairs by Directories
            "Block {file_block} of directory {dir} has no room for its checksum."
            => "Makes room." [];
        0x02004d DirectoryBlockChecksumWrong Error repairs by Directories
            "Block {file_block} of directory {dir} has checksum {found:x}, computed is {expected:x}; its entries look sound."
            => "Computes it anew." [];
        0x020050 EntryEncryptedNameTooShort Error stops by Directories
            "Entry '{name}' of the encrypted directory {dir} is shorter than any encrypted name."
            => "Clears the entry." [];
        0x020051 EntryNotEncrypted Error stops by Directories
            "The encrypted directory {dir} has an entry '{name}' for inode {inode}, which is not encrypted."
            => "Clears the entry." [];
        0x020052 EncryptionPolicyDiffers Error stops by Directories
            "The encrypted directory {dir} has an entry '{name}' for inode {inode}, which has another policy."
            => "Clears the entry." [];
        0x020053 EntryNameBadEncoding Error stops by Directories
            "Entry '{name}' of directory {dir} is not valid in the volume's encoding."
            => "Renames it." [];
        0x020055 EntryLinksXattrInode Error stops by Directories
            "Entry '{name}' of directory {dir} names inode {inode}, which holds an attribute value."
            => "Clears the entry." [];
    }
    in Connectivity {
        0x030001 RootMissing Error stops by Connections
            "The root inode is not in use."
            => "Makes a new root." [DirectoryUnconnected];
        0x030003 DirectoryUnconnected Error stops by Connections
            "Directory {inode} (in {found}, by its '..') is not reached from the root."
            => "Links it into lost+found." [LinkCountWrong];
        // seen, for all of lost+found: e2fsck -n looks for it only when it needs it; f_expandroot_create_lnf exits 0
        0x030004 LostAndFoundMissing Advice repairs by Connections
            "The root has no directory lost+found."
            => "Makes it." [];
        0x030005 DotDotWrong Error stops by Connections
            "Entry '..' of directory {inode} names {found}, but {expected} is its parent."
            => "Sets the inode." [LinkCountWrong];
        0x03001d DirectoryLoop Error stops by Connections
            "Directory {inode} (in {found}, by its '..') lies below itself."
            => "Cuts the loop and links it into lost+found." [DirectoryUnconnected];
    }
    in Links {
        0x040001 InodeUnattachedEmpty Advice repairs by Links
            "Inode {inode} is empty and no directory names it."
            => "Clears the inode." [];
        0x040002 InodeUnattached Error stops by Links
            "Inode {inode} is in use, but no directory names it."
            => "Links it into lost+found." [LinkCountWrong];
        0x040003 LinkCountWrong Error repairs by Links
            "Inode {inode} counts {found} links, but has {expected}."
            => "Sets the count." [];
        0x040005 XattrValueInodeRefcountWrong Error repairs by Links
            "Inode {inode} holds an attribute value and counts {found} users, but has {expected}."
            => "Sets the count." [];
        0x040006 DirNlinkFeatureMissing Error stops by Links
            "Directory {inode} has more subdirectories than it can count, but the superblock lacks the dir_nlink feature."
            => "Sets the feature." [];
        0x040007 DirectoryLinkCountOverflow Error repairs by Links
            "Directory {inode} counts {found} links, but has so many ({expected}) that the count should be 1."
            => "Sets the count to 1." [];
        0x040008 XattrValueInodeFlagStray Error repairs by Links
            "Inode {inode} is marked as holding an attribute value, but directories name it as a file."
            => "Clears the flag." [];
    } } };
}
