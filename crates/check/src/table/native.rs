//! The row of the native format's own structures, which e2fsck does not know.

macro_rules! native_rows {
    ([$next:ident $($more:ident)*] $($rows:tt)*) => { $next! { [$($more)*] $($rows)* in Superblock {
        0x0E0010 NativeStructureWrong Error stops by Nobody
            "Block {block} of the device: {name}."
            => "Nothing: only an older generation, or a snapshot, can take its place." [];
    } } };
}
