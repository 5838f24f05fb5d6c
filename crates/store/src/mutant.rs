//! Defects made on purpose, for tests that they are detected. Only the cargo feature `mutants` allows to choose one;
//! without it nothing is stored or compared.

#[cfg(not(feature = "mutants"))]
use std::marker::PhantomData;

/// A defect of an engine, or of its recovery.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(not(feature = "mutants"), expect(unreachable_pub, dead_code, reason = "no other crate has it then"))]
pub enum Mutant {
    /// No defect.
    #[default]
    Identity,
    /// Blocks of metadata on a native volume are allocated again in the generation that frees them.
    ReusePhysical,
    /// The number of a generation whose superblock was torn is reused.
    ReuseNumber,
    /// Leaves of the map with entries in the map log are not written when these entries are removed from the log.
    SkipLogLeaves,
    /// The list of linked writes is written after the changes that it describes.
    ListAfterChanges,
    /// No flush between the list and the changes that it describes.
    NoFlushAfterList,
    /// All slots of the list are written to one location.
    OneSlot,
    /// Blocks that were allocated are written after the flush, not with the list.
    FreshAfterList,
    /// A slot lacks a run of blocks.
    LoseRun,
    /// A slot lacks a copy.
    LoseCopy,
    /// A slot is valid whatever became of the blocks that were allocated with it.
    TrustFresh,
    /// An older slot is valid together with any newer one.
    TrustStale,
    /// The repair is not logged before it begins.
    UnloggedRepair,
}

/// The mutant that a component is, of those of its layer: the identity, and no byte of memory, without the feature.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Injected<M>(#[cfg(feature = "mutants")] M, #[cfg(not(feature = "mutants"))] PhantomData<M>);

impl<M: Copy + Default + PartialEq> Injected<M> {
    /// Creates the mutant that a test chose.
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

    /// Whether it is this mutant.
    pub fn is(self, mutant: M) -> bool {
        self.mutant() == mutant
    }
}
