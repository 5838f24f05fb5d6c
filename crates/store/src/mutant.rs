//! What is done wrong on purpose, for tests that it is caught.

/// One thing that the engine, or the file system above it, does wrong.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Mutant {
    /// Nothing.
    #[default]
    Identity,
    /// Blocks of metadata on a native volume are allocated again in the generation that frees them.
    ReusePlaces,
    /// The number of a generation whose superblock was torn is used once more.
    ReuseNumber,
    /// Leaves of the map whose entries the superblock has are not written when these entries go.
    KeepLeaves,
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
}
