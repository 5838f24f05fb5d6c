//! The rows of the native format's own structures, which e2fsck does not know.

macro_rules! native_rows {
    ([$next:ident $($more:ident)*] $($rows:tt)*) => { $next! { [$($more)*] $($rows)* in Superblock {
        0x0E0010 NativeStructureWrong Error stops by None
            "Block {block} of the device{name}."
            => "none; only an older generation or a snapshot can replace it." [];
        0x0E0013 NativeSuperblockDamaged Error repairs by Superblock
            "The superblock in block {block} of the device is unusable {name}."
            => "superblock rewritten." [];
        0x0E0020 NativeWentBack Error repairs by Superblock
            "Rolled back to generation {expected}: generation {found} cannot be read ({name}); all changes of generation {found} are lost."
            => "superblock of the older generation written over that of the newer." [];
        0x0E0021 NativeNotUnmounted Error repairs by Superblock
            "The volume was in use without consistency and was not unmounted."
            => "mark removed." [];
        0x0E0022 NativeTruncated Error stops by None
            "The device has {found} blocks, the volume {expected}: it was truncated."
            => "none; get a complete copy of the image." [];
        0x0E0023 NativeBlockUnused Error stops by None
            "The map refers to {name}."
            => "none; only an older generation or a snapshot can replace the map." [];
        0x0E0024 NativeSuperblockTorn Advice stops by None
            "The superblock in block {block} of the device was not written completely: generation {found} was interrupted, the volume is at generation {expected}."
            => "none; the next write replaces it." [];
    } } };
}
