//! The rows of [space maps](format::space_map), which e2fsck does not know.

macro_rules! space_map_rows {
    ([$next:ident $($more:ident)*] $($rows:tt)*) => { $next! { [$($more)*] $($rows)* in Bitmaps {
        0x0E0030 SpaceMapHeadWrong Error repairs by Bitmaps
            "The head of the space map of the groups from {group} on is damaged: {name}."
            => "Writes the space map anew, from what is in use." [GroupFreeBlockCountWrong];
        0x0E0031 SpaceMapTreeWrong Error repairs by Bitmaps
            "The space map of the groups from {group} on, in block {block}, is damaged: {name}."
            => "Writes the space map anew, from what is in use." [];
        0x0E0032 SpaceMapLogBlockWrong Error repairs by Bitmaps
            "Block {block} of the log of the space maps is damaged: {name}."
            => "Writes the space maps anew, and empties the log." [];
        0x0E0033 SpaceMapRecordFreesFree Error repairs by Bitmaps
            "A record in the log of the space maps frees the {count} blocks from {block} on, of which some are free."
            => "Writes the space maps anew, and empties the log." [];
        0x0E0034 SpaceMapRecordTakesUsed Error repairs by Bitmaps
            "A record in the log of the space maps allocates the {count} blocks from {block} on, of which some are in use."
            => "Writes the space maps anew, and empties the log." [];
        0x0E0035 SpaceMapDescriptorWrong Error repairs by Bitmaps
            "The descriptor of group {group} has {found} as {name}, where space maps want {expected}."
            => "Sets it." [GroupChecksumWrong];
    } } };
}
