//! The rows of [space maps](format::space_map), which e2fsck does not know.

macro_rules! space_map_rows {
    ([$next:ident $($more:ident)*] $($rows:tt)*) => { $next! { [$($more)*] $($rows)* in Bitmaps {
        0x0E0030 SpaceMapHeadWrong Error repairs by Bitmaps
            "The head of the space map for groups {group} and up is damaged: {name}."
            => "space map rebuilt from the blocks in use." [GroupFreeBlockCountWrong];
        0x0E0031 SpaceMapTreeWrong Error repairs by Bitmaps
            "The space map for groups {group} and up, in block {block}, is damaged: {name}."
            => "space map rebuilt from the blocks in use." [];
        0x0E0032 SpaceMapLogBlockWrong Error repairs by Bitmaps
            "Block {block} of the space map log is damaged: {name}."
            => "space maps rebuilt and log emptied." [];
        0x0E0033 SpaceMapRecordFreesFree Error repairs by Bitmaps
            "A space map log record frees {count} blocks from {block} on, some of which are already free."
            => "space maps rebuilt and log emptied." [];
        0x0E0034 SpaceMapRecordTakesUsed Error repairs by Bitmaps
            "A space map log record allocates {count} blocks from {block} on, some of which are already in use."
            => "space maps rebuilt and log emptied." [];
        0x0E0035 SpaceMapDescriptorWrong Error repairs by Bitmaps
            "Group {group}: {name} is {found}, should be {expected} with space maps."
            => "value corrected." [GroupChecksumWrong];
    } } };
}
