//! Faults made on purpose, for tests that they are caught. One can be chosen with the cargo feature `mutants` alone;
//! without it nothing is stored or compared.

use blockdev::BlockDevice;
use format::superblock::Superblock;
use std::sync::Arc;
use store::engine::{CopyOnWrite, Linked};
use store::recovery::linked::{self, Finding, List};

/// One thing that the file system does wrong, or the store beneath it.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(not(feature = "mutants"), expect(unreachable_pub, reason = "no other crate has it then"))]
pub enum Mutant {
    /// Nothing.
    #[default]
    Identity,
    /// A caller that asks for a generation to be durable gets the one before.
    ShortSync,
    /// Blocks are allocated again at once when they are freed, although a crash may bring back what used them.
    ReuseAtOnce,
    /// Data that snapshots use is written over in its place.
    OverwritePinned,
    /// The head of a folded tree of space maps is written a generation before the tree.
    HeadBeforeTree,
    /// A tree of space maps is folded into the place that its head leads to.
    FoldInPlace,
    /// A tree of space maps is folded twice in one close, the second time into the place that its durable head leads to.
    FoldTwice,
    /// A second fold of each tree in one close, which waits as it should.
    FoldAgain,
    /// The sequence of space maps begins anew with each mount.
    RestartSequence,
    /// A record of each generation does not get into the log of space maps.
    LoseRecord,
    /// The log of space maps is written over before the heads have what stands there.
    TailBeforeHeads,
    /// What an engine of the store, or its recovery, does wrong.
    #[cfg(feature = "mutants")]
    Store(store::Mutant),
}

/// The mutant that a part of the file system is.
pub(crate) type Injected = store::Injected<Mutant>;

/// The part of an [`Injected`] that is for the store.
pub(crate) trait InjectedBelow {
    /// The engine, with its defect where it has one.
    fn copy_on_write(self, engine: CopyOnWrite) -> store::Result<CopyOnWrite>;

    /// As [`InjectedBelow::copy_on_write`].
    fn linked(self, engine: Linked) -> Linked;

    /// As [`linked::find`], with the recovery's defect where it has one.
    fn find_linked(self, volume: &Arc<dyn BlockDevice>, sb: &Superblock, list: List) -> store::Result<Finding>;
}

impl InjectedBelow for Injected {
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
