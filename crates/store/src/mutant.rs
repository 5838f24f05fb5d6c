//! Faults made on purpose, for tests that they are caught. One can be chosen with the cargo feature `mutants` alone;
//! without it nothing is stored or compared.

#[cfg(not(feature = "mutants"))]
use std::marker::PhantomData;

/// One thing that an engine, or the recovery that belongs to it, does wrong.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(not(feature = "mutants"), expect(unreachable_pub, dead_code, reason = "no other crate has it then"))]
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

/// The mutant that a part is, of those of its layer: the identity, and no byte of memory, without the feature.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Injected<M>(#[cfg(feature = "mutants")] M, #[cfg(not(feature = "mutants"))] PhantomData<M>);

impl<M: Copy + Default + PartialEq> Injected<M> {
    /// One that a test chose.
    #[cfg(feature = "mutants")]
    pub const fn new(mutant: M) -> Self {
        Self(mutant)
    }

    /// The mutant itself.
    pub fn mutant(self) -> M {
        #[cfg(feature = "mutants")]
        return self.0;
        #[cfg(not(feature = "mutants"))]
        M::default()
    }

    /// Whether it is this one.
    pub fn is(self, mutant: M) -> bool {
        self.mutant() == mutant
    }
}
