//! Rows of the bitmaps, free counts, quota and orphan file; e2fsck's passes 5 and 6, and problems that are not listed.

macro_rules! bitmap_rows {
    ([$next:ident $($more:ident)*] $($rows:tt)*) => { $next! { [$($more)*] $($rows)* in Bitmaps {
        0x050001 InodeBitmapPaddingWrong Error repairs by Bitmaps
            "Group {group}: padding of the inode bitmap is not set."
            => "bits set." [];
        0x050002 BlockBitmapPaddingWrong Error repairs by Bitmaps
            "Group {group}: padding of the block bitmap is not set."
            => "bits set." [];
        0x050004 BlockMarkedButUnused Error repairs by Bitmaps
            "Block {block} is marked used but not referenced."
            => "bit cleared." [GroupFreeBlockCountWrong BlockBitmapChecksumWrong];
        0x050005 BlockUsedButUnmarked Error repairs by Bitmaps
            "Block {block} is marked free but in use."
            => "bit set." [GroupFreeBlockCountWrong BlockBitmapChecksumWrong];
        0x050008 InodeMarkedButUnused Error repairs by Bitmaps
            "Inode {inode} is marked used but not in use."
            => "bit cleared." [GroupFreeInodeCountWrong InodeBitmapChecksumWrong];
        0x050009 InodeUsedButUnmarked Error repairs by Bitmaps
            "Inode {inode} is marked free but in use."
            => "bit set." [GroupFreeInodeCountWrong InodeBitmapChecksumWrong];
        0x05000b GroupFreeInodeCountWrong Error repairs by Bitmaps
            "Group {group}: free inode count is {found}, should be {expected}."
            => "count corrected." [FreeInodeCountWrong];
        0x05000c GroupDirectoryCountWrong Error repairs by Bitmaps
            "Group {group}: directory count is {found}, should be {expected}."
            => "count corrected." [];
        // advice: the kernel uses the counts of the groups, and writes these two only at unmount
        0x05000d FreeInodeCountWrong Advice repairs by Bitmaps
            "Superblock: free inode count is {found}, should be {expected}."
            => "count corrected." [];
        0x05000e GroupFreeBlockCountWrong Error repairs by Bitmaps
            "Group {group}: free block count is {found}, should be {expected}."
            => "count corrected." [FreeBlockCountWrong];
        0x05000f FreeBlockCountWrong Advice repairs by Bitmaps
            "Superblock: free block count is {found}, should be {expected}."
            => "count corrected." [];
        0x050014 BlockRangeMarkedButUnused Error repairs by Bitmaps
            "{count} blocks from {block} on are marked used but not referenced."
            => "bits cleared." [GroupFreeBlockCountWrong BlockBitmapChecksumWrong];
        0x050015 BlockRangeUsedButUnmarked Error repairs by Bitmaps
            "{count} blocks from {block} on are marked free but in use."
            => "bits set." [GroupFreeBlockCountWrong BlockBitmapChecksumWrong];
        0x050016 InodeRangeMarkedButUnused Error repairs by Bitmaps
            "{count} inodes from {inode} on are marked used but not in use."
            => "bits cleared." [GroupFreeInodeCountWrong InodeBitmapChecksumWrong];
        0x050017 InodeRangeUsedButUnmarked Error repairs by Bitmaps
            "{count} inodes from {inode} on are marked free but in use."
            => "bits set." [GroupFreeInodeCountWrong InodeBitmapChecksumWrong];
        0x050018 GroupBlockUninitInUse Error repairs by Bitmaps
            "Group {group} is marked BLOCK_UNINIT, but has blocks in use."
            => "flag cleared." [GroupChecksumWrong];
        0x050019 GroupInodeUninitInUse Error repairs by Bitmaps
            "Group {group} is marked INODE_UNINIT, but has inodes in use."
            => "flag cleared." [GroupChecksumWrong];
        0x05001a InodeBitmapChecksumWrong Error repairs by Bitmaps
            "Group {group}: inode bitmap checksum is {found:x}, should be {expected:x}."
            => "checksum recomputed." [];
        0x05001b BlockBitmapChecksumWrong Error repairs by Bitmaps
            "Group {group}: block bitmap checksum is {found:x}, should be {expected:x}."
            => "checksum recomputed." [];
    }
    in After {
        0x060002 QuotaUsageWrong Error repairs by Quota
            "Quota file {inode} does not match the actual usage: {name}."
            => "usage rewritten." [];
        0x060007 OrphanFileWithoutJournal Error repairs by SystemInodes
            "The volume has an orphan file, but no journal."
            => "feature and file cleared." [];
        0x060009 OrphanFileInodeBad Error repairs by SystemInodes
            "Orphan file {inode} is invalid."
            => "file recreated." [];
        0x06000c OrphanFileBlockNotClean Error repairs by Orphans
            "Orphan file {inode}: block {file_block} is not clean (lists inodes)."
            => "block cleared." [];
        0x06000d OrphanPresentButFileClean Advice repairs by SystemInodes
            "Superblock: the orphan_present feature is set, but the orphan file is clean."
            => "orphan_present cleared." [];
        0x06000e OrphanPresentWithoutFile Error repairs by SystemInodes
            "Superblock: the orphan_present feature is set, but the volume has no orphan file."
            => "orphan_present cleared." [];
        0x0E0006 TooManyProblems Advice stops by None
            "{count} more {name} not listed; the option --max-problems sets the limit."
            => "none; problems not listed are treated like those listed." [];
    } } };
}
