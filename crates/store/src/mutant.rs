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
    /// Data that snapshots use is written over in its place.
    OverwritePinned,
}
