//! The rows of the native format's own structures, which e2fsck does not know.

macro_rules! native_rows {
    ([$next:ident $($more:ident)*] $($rows:tt)*) => { $next! { [$($more)*] $($rows)* in Superblock {
        0x0E0010 NativeStructureWrong Error stops by Nobody
            "Block {block} of the device: {name}."
            => "Nothing: only an older generation, or a snapshot, can take its place." [];
        0x0E0013 NativeSuperblockDamaged Error mends by Superblock
            "The superblock in block {block} of the device is not usable: {name}."
            => "Writes the superblock in force into its place." [];
    } } };
}
