//! Faults made on purpose, for tests that they are caught.

/// One thing that the engine, or the file system above it, does wrong.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Mutant {
    /// Nothing.
    #[default]
    Identity,
    /// Blocks of metadata on a native volume are allocated again in the generation that frees them.
    ReusePhysical,
    /// The number of a generation whose superblock was torn is used once more.
    ReuseNumber,
    /// Leaves of the map whose entries the map log has are not written when these entries go.
    SkipLogLeaves,
    /// A caller that asks for a generation to be durable gets the one before.
    ShortSync,
    /// Blocks are allocated again at once when they are freed, although a crash may bring back what used them.
    ReuseAtOnce,
    /// The head of a folded tree of space maps is written a generation before the tree.
    HeadBeforeTree,
    /// A tree of space maps is folded into the place that its head leads to.
    FoldInPlace,
    /// The sequence of space maps begins anew with each mount.
    RestartSequence,
    /// A record of each generation does not get into the log of space maps.
    LoseRecord,
    /// The log of space maps is written over before the heads have what stands there.
    TailBeforeHeads,
    /// Data that snapshots use is written over in its place.
    OverwritePinned,
    /// The list of linked writes is written behind what it lists.
    ListBehind,
    /// No flush between the list and what it lists.
    NoFlushBehindList,
    /// All slots of the list go to one place.
    OneSlot,
    /// Blocks that were allocated are written behind the flush, not with the list.
    FreshBehind,
    /// A slot lacks a run of blocks.
    LoseRun,
    /// A slot lacks a copy.
    LoseCopy,
    /// A slot counts whatever became of the blocks that were allocated with it.
    BelieveFresh,
    /// An older slot counts beside any newer one.
    BelieveStale,
    /// The repair is not logged before it begins.
    Unlogged,
}
