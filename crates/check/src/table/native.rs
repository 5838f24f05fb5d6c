//! The rows of the native format's own structures, which e2fsck does not know.

macro_rules! native_rows {
    ([$next:ident $($more:ident)*] $($rows:tt)*) => { $next! { [$($more)*] $($rows)* in Superblock {
        0x0E0010 NativeStructureWrong Error stops by None
            "Block {block} of the device: {name}."
            => "Nothing: only an older generation, or a snapshot, can take its place." [];
        0x0E0013 NativeSuperblockDamaged Error repairs by Superblock
            "The superblock in block {block} of the device is not usable: {name}."
            => "Writes a sound superblock into its place: its own where that can be had, else the one in force." [];
        0x0E0020 NativeWentBack Error repairs by Superblock
            "The volume went back to generation {expected}, as generation {found} cannot be read ({name}); what was written in generation {found} is lost."
            => "Writes the superblock of the older generation over that of the newer." [];
    } } };
}
