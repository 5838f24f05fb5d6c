//! Intentional defects, for tests that they are detected. One can be chosen only with the cargo feature `mutants`;
//! without it nothing is stored or compared.

use blockdev::BlockDevice;
use format::superblock::Superblock;
use std::sync::Arc;
use store::engine::{CopyOnWrite, Linked};
use store::recovery::linked::{self, Finding, List};

/// A defect of the file system, or of the store beneath it.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(not(feature = "mutants"), expect(unreachable_pub, reason = "no other crate has it then"))]
pub enum Mutant {
    /// No defect.
    #[default]
    Identity,
    /// A call to make a generation durable returns when the one before is.
    ShortSync,
    /// Freed blocks are allocated again at once, although a crash may restore their old use.
    ReuseAtOnce,
    /// Data used by snapshots is overwritten in place.
    OverwritePinned,
    /// The head of a folded tree of space maps is written a generation before the tree.
    HeadBeforeTree,
    /// A tree of space maps is folded into its active copy.
    FoldInPlace,
    /// A tree of space maps is folded twice in one close, the second time into the copy that its durable head refers to.
    FoldTwice,
    /// A second fold of each tree in one close, which waits as it should.
    FoldAgain,
    /// The sequence of space maps restarts with each mount.
    RestartSequence,
    /// A record of each generation is missing from the log of space maps.
    LoseRecord,
    /// The log of space maps is overwritten before the heads include its records.
    TailBeforeHeads,
    /// A defect of an engine of the store, or of its recovery.
    #[cfg(feature = "mutants")]
    Store(store::Mutant),
}

/// The injected mutant.
pub(crate) type Injected = store::Injected<Mutant>;

/// The part of an [`Injected`] for the store.
pub(crate) trait InjectedInStore {
    /// The engine, with the injected defect if any.
    fn copy_on_write(self, engine: CopyOnWrite) -> store::Result<CopyOnWrite>;

    /// As [`InjectedInStore::copy_on_write`].
    fn linked(self, engine: Linked) -> Linked;

    /// As [`linked::find`], with the injected defect of recovery if any.
    fn find_linked(self, volume: &Arc<dyn BlockDevice>, sb: &Superblock, list: List) -> store::Result<Finding>;
}

impl InjectedInStore for Injected {
    fn copy_on_write(self, engine: CopyOnWrite) -> store::Result<CopyOnWrite> {
        #[cfg(feature = "mutants")]
        return engine.mutated(of_store(self));
        #[cfg(not(feature = "mutants"))]
        Ok(engine)
    }

    fn linked(self, engine: Linked) -> Linked {
        #[cfg(feature = "mutants")]
        return engine.mutated(of_store(self));
        #[cfg(not(feature = "mutants"))]
        engine
    }

    fn find_linked(self, volume: &Arc<dyn BlockDevice>, sb: &Superblock, list: List) -> store::Result<Finding> {
        #[cfg(feature = "mutants")]
        return linked::find_mutated(volume, sb, list, of_store(self));
        #[cfg(not(feature = "mutants"))]
        linked::find(volume, sb, list)
    }
}

/// The mutant of the store.
#[cfg(feature = "mutants")]
fn of_store(injected: Injected) -> store::Mutant {
    match injected.mutant() {
        Mutant::Store(mutant) => mutant,
        _ => store::Mutant::Identity,
    }
}
