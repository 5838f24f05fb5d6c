//! The consistency modes that a volume can have, and the engine of each: the only table that chooses one. A new mode is
//! an engine in `store`, a name in [`Consistency`], and a row here.

use crate::memory_budget;
use crate::mkfs::Kind;
use crate::mutant::InjectedInStore;
use crate::{Consistency, DataMode, Error, Log, Maps, Result, WriteOptions};
use format::feature::{Compat, Incompat};
use std::sync::Arc;
use std::time::Duration;
use store::engine::{CopyOnWrite, DirtyBit, Journal, JournalOptions, Limits, Linked, NativeUnordered, Unordered};
use store::{CommitHooks, Engine, EngineWithSpace, SpaceHooks, Store};

/// Minimum number of blocks that a generation may contain, whatever the options: four of the largest operations.
const LEAST_DIRTY: usize = 512;

/// A mode on the volumes that can have it.
pub(crate) struct PossibleMode {
    pub(crate) consistency: Consistency,
    /// The formats that can have it, by default or if created for it; the most usual first.
    formats: &'static [Kind],
    /// The log that it writes.
    log: Log,
    /// Whether it can write to a volume that was not unmounted.
    pub(crate) takes_unclean: bool,
    /// The data modes that a user can choose.
    data: &'static [DataMode],
    /// Refuses a volume that lacks a requirement of the mode.
    needs: fn(&Maps) -> Result<()>,
    make: fn(&Maps, &WriteOptions, &Sizes) -> Result<NewEngine>,
}

/// All modes of all volumes; the first one that a volume can have is its default.
static TABLE: [PossibleMode; 6] = [
    PossibleMode {
        consistency: Consistency::Snapshot,
        formats: &[Kind::Extant],
        log: Log::Nothing,
        takes_unclean: false,
        data: &[DataMode::Ordered, DataMode::NewBlocks],
        needs: needs_versions,
        make: copy_on_write,
    },
    PossibleMode {
        consistency: Consistency::Journal,
        formats: &[Kind::Ext4, Kind::Ext3, Kind::Rext3, Kind::SpaceMap],
        log: Log::Journal,
        takes_unclean: false,
        data: &[DataMode::Ordered, DataMode::Writeback, DataMode::Journal],
        needs: needs_journal,
        make: journal,
    },
    PossibleMode {
        consistency: Consistency::DirtyBit,
        formats: &[Kind::Ext2, Kind::Ext3, Kind::Ext4, Kind::Rext3, Kind::SpaceMap],
        log: Log::Nothing,
        takes_unclean: false,
        data: &[],
        needs: needs_fixed_locations,
        make: |_, _, sizes| Ok(NewEngine::plain(DirtyBit::new(sizes.block, sizes.dirty_blocks))),
    },
    PossibleMode {
        consistency: Consistency::Linked,
        formats: &[Kind::Ext2],
        log: Log::List,
        takes_unclean: false,
        data: &[],
        needs: needs_list,
        make: linked,
    },
    PossibleMode {
        consistency: Consistency::None,
        formats: &[Kind::Ext2, Kind::Ext3, Kind::Ext4, Kind::Rext3, Kind::SpaceMap],
        log: Log::Nothing,
        takes_unclean: true,
        data: &[],
        needs: needs_fixed_locations,
        make: |_, _, sizes| Ok(NewEngine::plain(Unordered::new(sizes.block, sizes.dirty_blocks))),
    },
    PossibleMode {
        consistency: Consistency::None,
        formats: &[Kind::Extant],
        log: Log::Nothing,
        takes_unclean: true,
        data: &[],
        needs: needs_versions,
        make: |volume, _, sizes| {
            let engine = NativeUnordered::new(&volume.versions()?.mapped, sizes.dirty_blocks)?;
            Ok(NewEngine::WithSpace(Box::new(engine)))
        },
    },
];

impl Consistency {
    /// The formats that can have this mode, the most usual first.
    pub fn formats(self) -> impl Iterator<Item = Kind> {
        self.rows().flat_map(|mode| mode.formats.iter().copied())
    }

    /// The log that this mode writes.
    #[must_use]
    pub fn log(self) -> Log {
        self.rows().next().map_or(Log::Nothing, |mode| mode.log)
    }

    fn rows(self) -> impl Iterator<Item = &'static PossibleMode> {
        TABLE.iter().filter(move |mode| mode.consistency == self)
    }
}

/// An engine for a store that is not open for writing yet.
pub(crate) enum NewEngine {
    /// An engine without space of its own.
    Plain(Box<dyn Engine>),
    /// An engine that stores metadata in space of its own.
    WithSpace(Box<dyn EngineWithSpace>),
}

impl NewEngine {
    pub(crate) fn plain(engine: impl Engine + 'static) -> Self {
        Self::Plain(Box::new(engine))
    }

    pub(crate) fn limits(&self) -> Limits {
        match self {
            Self::Plain(engine) => engine.limits(),
            Self::WithSpace(engine) => engine.limits(),
        }
    }

    /// Opens the store for writing; generations close after `interval` at the latest.
    ///
    /// # Errors
    /// Those of the device.
    pub(crate) fn start<H: SpaceHooks + 'static>(
        self,
        store: &Store,
        hooks: Arc<H>,
        interval: Duration,
    ) -> store::Result<()> {
        match self {
            Self::Plain(engine) => store.start_writing(engine, hooks as Arc<dyn CommitHooks>, interval),
            Self::WithSpace(engine) => store.start_writing_with_space(engine, hooks as Arc<dyn SpaceHooks>, interval),
        }
    }
}

/// Sizes in memory that an engine must respect.
struct Sizes {
    /// Bytes of a block.
    block: u32,
    /// Maximum number of changed blocks of a generation.
    dirty_blocks: usize,
    /// Maximum number of bytes of a transaction.
    transaction: usize,
}

impl Maps {
    /// The mode requested by the options, or the default of the volume.
    ///
    /// # Errors
    /// [`Error::Impossible`] if the volume cannot have it, or not with the requested data mode; those of the device.
    pub(crate) fn possible_mode(&self, options: &WriteOptions) -> Result<&'static PossibleMode> {
        let mut refused = Error::Impossible("the volume has no such mode");
        let asked = |mode: &&PossibleMode| options.consistency.is_none_or(|asked| asked == mode.consistency);
        for mode in TABLE.iter().filter(asked) {
            match (mode.needs)(self) {
                Ok(()) => return mode.handles(options).map(|()| mode),
                Err(e) => refused = e,
            }
        }
        Err(refused)
    }
}

impl PossibleMode {
    /// The engine of this mode for a volume that can have it.
    ///
    /// # Errors
    /// Those of the device; [`Error::Corrupt`] if structures that the engine needs are damaged.
    pub(crate) fn engine(&self, volume: &Maps, options: &WriteOptions) -> Result<NewEngine> {
        let block = volume.sb.geometry.block_size;
        let transaction = memory_budget::budget().transaction_blocks;
        let dirty_blocks = (options.dirty_bytes.min(transaction) / block as usize).max(LEAST_DIRTY);
        (self.make)(volume, options, &Sizes { block, dirty_blocks, transaction })
    }

    /// Refuses a data mode that the mode does not have.
    fn handles(&self, options: &WriteOptions) -> Result<()> {
        let insisted = options.data_insisted || options.data == DataMode::NewBlocks;
        if !insisted || self.data.contains(&options.data) {
            return Ok(());
        }
        Err(Error::Impossible(match options.data {
            DataMode::Ordered => "`data=ordered` needs a journal or a native volume",
            DataMode::Writeback => "`data=writeback` needs a journal",
            DataMode::Journal => "`data=journal` needs a journal",
            DataMode::NewBlocks => "`data=cow` needs a native volume with `consistency=snapshot`",
        }))
    }
}

fn needs_versions(volume: &Maps) -> Result<()> {
    const NONE: &str = "`consistency=snapshot` needs a native volume: `extant mkfs -t extant` creates one";
    volume.layout.versions().map(|_| ()).ok_or(Error::Impossible(NONE))
}

/// Refuses a volume whose metadata moves: an engine with weaker guarantees than snapshots would be misleading.
fn needs_fixed_locations(volume: &Maps) -> Result<()> {
    const NATIVE: Error = Error::Impossible("a native volume needs `consistency=snapshot` or `none`");
    if volume.layout.versions().is_some() { Err(NATIVE) } else { Ok(()) }
}

fn needs_journal(volume: &Maps) -> Result<()> {
    const NONE: Error = Error::Impossible("`consistency=journal` needs a journal, and the volume has none");
    needs_fixed_locations(volume)?;
    if volume.sb.features.compat.contains(Compat::HAS_JOURNAL) { Ok(()) } else { Err(NONE) }
}

fn needs_list(volume: &Maps) -> Result<()> {
    needs_fixed_locations(volume)?;
    volume.linked_list().map(drop)
}

fn copy_on_write(volume: &Maps, options: &WriteOptions, sizes: &Sizes) -> Result<NewEngine> {
    let engine = CopyOnWrite::new(&volume.versions()?.mapped, sizes.dirty_blocks)?;
    Ok(NewEngine::WithSpace(Box::new(options.mutant().copy_on_write(engine)?)))
}

fn linked(volume: &Maps, options: &WriteOptions, sizes: &Sizes) -> Result<NewEngine> {
    let engine = Linked::new(&volume.sb, volume.linked_list()?, sizes.dirty_blocks);
    Ok(NewEngine::plain(options.mutant().linked(engine)))
}

fn journal(volume: &Maps, options: &WriteOptions, sizes: &Sizes) -> Result<NewEngine> {
    let clock = Arc::clone(&options.clock);
    // content of the open generation, of the one being committed, and twice as much in the log
    let content = (sizes.transaction / 4 / sizes.block as usize).max(LEAST_DIRTY);
    let journal_data = options.data == DataMode::Journal;
    let journal = JournalOptions {
        journal_data,
        checksums: volume.sb.geometry.metadata_csum,
        wide: volume.sb.features.incompat.contains(Incompat::BIT64),
        dirty_blocks: if journal_data { sizes.dirty_blocks.min(content) } else { sizes.dirty_blocks },
        clock: Arc::new(move || {
            let now = clock();
            // a time before 1970 counts as 1970
            Duration::new(u64::try_from(now.seconds).unwrap_or_default(), now.nanos)
        }),
    };
    Ok(NewEngine::plain(Journal::new(volume.journal()?, journal)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mkfs::{MkfsOptions, make};
    use crate::{OpenOptions, Volume};
    use blockdev::{BlockDevice, MemoryDevice};

    /// The formats of each row are those whose volumes meet its condition.
    #[test]
    fn formats_can_have_the_modes_that_their_volumes_can_have() {
        for &kind in Kind::ALL {
            let device = MemoryDevice::zeroed(64 << 20).expect("a device");
            let mut options = MkfsOptions::new(kind);
            options.linked_len = Consistency::Linked.formats().any(|format| format == kind).then_some(0);
            make(&device, &options).expect("made");
            let device: Arc<dyn BlockDevice> = Arc::new(device);
            let volume = Volume::open(device, &OpenOptions::default()).expect("opening a volume");
            let fits: Vec<bool> = TABLE.iter().map(|mode| (mode.needs)(&volume).is_ok()).collect();
            let said: Vec<bool> = TABLE.iter().map(|mode| mode.formats.contains(&kind)).collect();
            assert_eq!(fits, said, "{kind}");
        }
    }
}
