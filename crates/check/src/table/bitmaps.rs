//! Rows of the bitmaps and free counts, and of what is done last; e2fsck's passes 5 and 6, and Extant's own closing remarks.

macro_rules! bitmap_rows {
    ([$next:ident $($more:ident)*] $($rows:tt)*) => { $next! { [$($more)*] $($rows)* in Bitmaps {
        0x050001 InodeBitmapPaddingWrong Error repairs by Bitmaps
            "The inode bitmap of group {group} has zeros beyond its last inode."
            => "Sets the bits." [];
        0x050002 BlockBitmapPaddingWrong Error repairs by Bitmaps
            "The block bitmap of group {group} has zeros beyond its last block."
            => "Sets the bits." [];
        0x050004 BlockMarkedButUnused Error repairs by Bitmaps
            "Block {block} is marked as used, but nothing has it."
            => "Clears the bit." [GroupFreeBlockCountWrong BlockBitmapChecksumWrong];
        0x050005 BlockUsedButUnmarked Error repairs by Bitmaps
            "Block {block} is marked as free, but is used."
            => "Sets the bit." [GroupFreeBlockCountWrong BlockBitmapChecksumWrong];
        0x050008 InodeMarkedButUnused Error repairs by Bitmaps
            "Inode {inode} is marked as used, but is free."
            => "Clears the bit." [GroupFreeInodeCountWrong InodeBitmapChecksumWrong];
        0x050009 InodeUsedButUnmarked Error repairs by Bitmaps
            "Inode {inode} is marked as free, but is used."
            => "Sets the bit." [GroupFreeInodeCountWrong InodeBitmapChecksumWrong];
        0x05000b GroupFreeInodeCountWrong Error repairs by Bitmaps
            "Group {group} counts {found} free inodes, but has {expected}."
            => "Sets the count." [FreeInodeCountWrong];
        0x05000c GroupDirectoryCountWrong Error repairs by Bitmaps
            "Group {group} counts {found} directories, but has {expected}."
            => "Sets the count." [];
        // advice: the kernel keeps the totals of the groups, and writes these two only when it unmounts
        0x05000d FreeInodeCountWrong Advice repairs by Bitmaps
            "The superblock counts {found} free inodes, but there are {expected}."
            => "Sets the count." [];
        0x05000e GroupFreeBlockCountWrong Error repairs by Bitmaps
            "Group {group} counts {found} free blocks, but has {expected}."
            => "Sets the count." [FreeBlockCountWrong];
        0x05000f FreeBlockCountWrong Advice repairs by Bitmaps
            "The superblock counts {found} free blocks, but there are {expected}."
            => "Sets the count." [];
        0x050014 BlockRangeMarkedButUnused Error repairs by Bitmaps
            "The {count} blocks from {block} on are marked as used, but nothing has them."
            => "Clears the bits." [GroupFreeBlockCountWrong BlockBitmapChecksumWrong];
        0x050015 BlockRangeUsedButUnmarked Error repairs by Bitmaps
            "The {count} blocks from {block} on are marked as free, but are used."
            => "Sets the bits." [GroupFreeBlockCountWrong BlockBitmapChecksumWrong];
        0x050016 InodeRangeMarkedButUnused Error repairs by Bitmaps
            "The {count} inodes from {inode} on are marked as used, but are free."
            => "Clears the bits." [GroupFreeInodeCountWrong InodeBitmapChecksumWrong];
        0x050017 InodeRangeUsedButUnmarked Error repairs by Bitmaps
            "The {count} inodes from {inode} on are marked as free, but are used."
            => "Sets the bits." [GroupFreeInodeCountWrong InodeBitmapChecksumWrong];
        0x050018 GroupBlockUninitInUse Error repairs by Bitmaps
            "Group {group} is marked as having no block bitmap, but has blocks in use."
            => "Clears the mark." [GroupChecksumWrong];
        0x050019 GroupInodeUninitInUse Error repairs by Bitmaps
            "Group {group} is marked as having no inodes, but has some in use."
            => "Clears the mark." [GroupChecksumWrong];
        0x05001a InodeBitmapChecksumWrong Error repairs by Bitmaps
            "The inode bitmap of group {group} has checksum {found:x}, computed is {expected:x}."
            => "Computes it anew." [];
        0x05001b BlockBitmapChecksumWrong Error repairs by Bitmaps
            "The block bitmap of group {group} has checksum {found:x}, computed is {expected:x}."
            => "Computes it anew." [];
    }
    in After {
        0x060002 QuotaUsageWrong Error repairs by Quota
            "Quota file {inode} does not agree with what is in use: {name}."
            => "Writes the usage anew." [];
        0x060007 OrphanFileWithoutJournal Error repairs by SystemInodes
            "The volume has an orphan file, but no journal."
            => "Clears the feature and the file." [];
        0x060009 OrphanFileInodeBad Error repairs by SystemInodes
            "The orphan file {inode} is not sound."
            => "Makes it anew." [];
        0x06000c OrphanFileBlockNotClean Error repairs by Orphans
            "Block {file_block} of the orphan file {inode} names inodes, though none are orphans."
            => "Clears the block." [];
        0x06000d OrphanPresentButFileClean Advice repairs by SystemInodes
            "The superblock says that the orphan file names inodes, but it names none."
            => "Clears the orphan_present feature." [];
        0x06000e OrphanPresentWithoutFile Error repairs by SystemInodes
            "The superblock says that the orphan file names inodes, but the volume has none."
            => "Clears the orphan_present feature." [];
        0x0E0006 TooManyProblems Advice stops by None
            "{count} more problems of kind {name} were found and are not listed."
            => "Nothing; the problems it counts are treated like the others." [];
    } } };
}
