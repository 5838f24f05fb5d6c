//! The peers: a fresh volume each, mounted by Extant, the kernel or fuse2fs, or used through the library.

use super::clients::{Client, LibraryClient, MountedClient};
use super::file_ops::{FileOps, Library, Mounted};
use super::raw_log::RawLog;
use super::sets::Target;
use super::written::Written;
use crate::block_events::BlockEvents;
use crate::cache::drop_cached;
use crate::cpu;
use crate::error::Trying;
use crate::mount::Attached;
use crate::process::{must, need};
use crate::upper_bound::Tree;
use crate::{Error, IoUring, Result, Transport};
use blockdev::BlockDevice;
use fs::mkfs::Kind;
use fs::{DataMode, MODES, Mode, OpenOptions, UnknownName, Volume, WriteOptions};
use simdev::Trace;
use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of a volume, which is a sparse file.
const SIZE: u64 = 6 << 30;
/// Bytes of the library's metadata cache; data is cached in the page cache of the volume, as with every peer.
const CACHE: usize = 256 << 20;

/// The implementation that does the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    /// Extant through FUSE.
    Extant,
    /// Extant's library, in this process.
    Library,
    /// The kernel through a loop device.
    Kernel,
    /// e2fsprogs' fuse2fs.
    Fuse2fs,
    /// A file system in memory through Extant's FUSE transport: the upper bound of speed through FUSE.
    UpperBound,
    /// The raw-log baseline, not a file system: data, a record in a log, one flush.
    RawLog,
}

/// The implementation that does the work, its format, and its mode: `kernel:ext4`, `kernel:btrfs`,
/// `extant:ext3:journal`, `library:extant:snapshot`, `fuse2fs:ext4`, `upper-bound:ext4` and `raw-log:log` (which have
/// no format). The part after the format is one of [`MODES`], by name or by its `data=`, or options for the kernel's
/// `-o`. For `extant` and `upper-bound` the name of a [`Transport`] may follow, `extant:ext4:journal@dev-fuse` say;
/// without it `extant mount` chooses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    by: By,
    format: String,
    mode: Option<String>,
    /// The transport that is asked for.
    transport: Option<Transport>,
}

impl FromStr for Spec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (peer, transport) = split_transport(text)?;
        let mut parts = peer.splitn(3, ':');
        let by = match parts.next() {
            Some("extant") => By::Extant,
            Some("library") => By::Library,
            Some("kernel") => By::Kernel,
            Some("fuse2fs") => By::Fuse2fs,
            Some("upper-bound") => By::UpperBound,
            Some("raw-log") => By::RawLog,
            _ => {
                let peers = "extant, library, kernel, fuse2fs, upper-bound or raw-log";
                return Err(format!("{text}: a peer is {peers}, a colon, and a format"));
            }
        };
        let ours = matches!(by, By::Extant | By::Library);
        let known = |format: &&str| match (format.parse::<Kind>(), *format) {
            (Ok(kind), _) if kind.kernel_writes() => by != By::RawLog,
            (Ok(_), _) => ours,
            (Err(_), "btrfs") => by == By::Kernel,
            (Err(_), "log") => by == By::RawLog,
            (Err(_), _) => false,
        };
        let format = parts.next().filter(known);
        let no_format = || {
            let (all, ours): (Vec<_>, Vec<_>) = Kind::ALL.iter().partition(|kind| kind.kernel_writes());
            let names = |kinds: Vec<&Kind>| kinds.iter().map(|kind| kind.name()).collect::<Vec<_>>().join(", ");
            let (all, ours) = (names(all), names(ours));
            format!("{text}: the format is one of {all}; for Extant also {ours}; for the kernel also btrfs")
        };
        let format = format.ok_or_else(no_format)?.to_owned();
        let mode = parts.next().map(str::to_owned);
        if by == By::Library
            && let Some(mode) = &mode
        {
            known_mode(mode).map_err(|why| format!("{text}: the mode is {why}"))?;
        }
        // other words are options of a mount
        if let (true, Some(mode), Ok(kind)) = (ours, &mode, format.parse::<Kind>())
            && let Ok(mode) = known_mode(mode)
            && !mode.consistency.formats().any(|format| format == kind)
        {
            return Err(format!("{text}: a volume of type {kind} cannot have the mode {}", mode.name));
        }
        Ok(Self { by, format, mode, transport })
    }
}

/// Splits a peer's name into the part before the transport, and the transport.
fn split_transport(text: &str) -> Result<(&str, Option<Transport>), String> {
    let Some((peer, name)) = text.rsplit_once('@') else { return Ok((text, None)) };
    let has_one = ["extant:", "upper-bound:"].iter().any(|by| text.starts_with(by));
    match name.parse::<Transport>() {
        Ok(transport) if has_one => Ok((peer, Some(transport))),
        Ok(_) => Err(format!("{text}: only extant and upper-bound are mounted with a transport that can be chosen")),
        Err(why) if has_one => Err(format!("{text}: {why}")),
        // part of the options of another mount
        Err(_) => Ok((text, None)),
    }
}

impl Spec {
    /// Checks that the kernel offers the transport that is asked for.
    ///
    /// # Errors
    /// [`Error::Unsupported`] with the way to enable io_uring.
    pub(crate) fn check_transport(&self, io_uring: IoUring) -> Result<()> {
        io_uring.allow(&self.to_string(), self.transport)
    }

    /// A format that only Extant knows.
    fn is_ours(&self) -> bool {
        self.format.parse::<Kind>().is_ok_and(|kind| !kind.kernel_writes())
    }
}

impl std::fmt::Display for Spec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let by = match self.by {
            By::Extant => "extant",
            By::Library => "library",
            By::Kernel => "kernel",
            By::Fuse2fs => "fuse2fs",
            By::UpperBound => "upper-bound",
            By::RawLog => "raw-log",
        };
        write!(f, "{by}:{}", self.format)?;
        self.mode.iter().try_for_each(|mode| write!(f, ":{mode}"))?;
        self.transport.iter().try_for_each(|transport| write!(f, "@{transport}"))
    }
}

/// A mode by its name, or by the option that says how it treats data, `data=journal` say.
fn known_mode(text: &str) -> Result<Mode, String> {
    let by_data = |mode: &&Mode| mode.data != DataMode::Ordered && text.strip_prefix("data=") == Some(mode.data.name());
    match MODES.iter().find(by_data) {
        Some(mode) => Ok(*mode),
        None => text.parse().map_err(|why: UnknownName| why.to_string()),
    }
}

/// The options with which the library opens a volume for a mode.
fn writing(mode: Mode) -> WriteOptions {
    WriteOptions { consistency: Some(mode.consistency), data: mode.data, ..WriteOptions::default() }
}

enum State {
    Mounted(Attached, Mounted),
    Open(Arc<Volume>, Library),
    RawLog(RawLog),
    Away,
}

/// A peer with its volume.
pub(crate) struct Stage<'a> {
    spec: &'a Spec,
    extant: &'a Path,
    image: PathBuf,
    /// The tree of an upper bound, preserved while it is not mounted.
    memory: Arc<Tree>,
    state: State,
    counter: Counter,
    /// The transport that the mount reported; `None` where it has none, or its server does not report it.
    transport: Option<String>,
}

/// A device whose writes are counted.
type Counted = Arc<Trace<Arc<dyn BlockDevice>>>;

/// The counter of writes.
enum Counter {
    Library(Counted),
    Kernel(BlockEvents),
    None,
}

impl<'a> Stage<'a> {
    /// Creates a volume in `dir` and mounts it.
    pub(crate) fn fresh(spec: &'a Spec, extant: &'a Path, dir: &Path) -> Result<Self> {
        let image = dir.join("volume.img");
        File::create(&image).and_then(|file| file.set_len(SIZE)).trying("make", &image)?;
        // lazy initialisation would be done by some peers only
        let lazy = ["-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard"];
        let args = ["-q", "-F", "-t", &spec.format].into_iter().chain(lazy).map(OsStr::new);
        if spec.is_ours() {
            must(extant, [OsStr::new("mkfs")].into_iter().chain(args).chain([image.as_os_str()]))?;
        } else if spec.format == "btrfs" {
            must(
                &need("mkfs.btrfs", "btrfs-progs")?,
                ["-q".as_ref(), "-f".as_ref(), "-K".as_ref(), image.as_os_str()],
            )?;
        } else if spec.by != By::RawLog {
            must(&need("mke2fs", "e2fsprogs")?, args.chain([image.as_os_str()]))?;
        }
        let memory = Arc::new(Tree::empty());
        let (state, counter) = (State::Away, Counter::None);
        let mut stage = Self { spec, extant, image, memory, state, counter, transport: None };
        stage.enter()?;
        Ok(stage)
    }

    fn enter(&mut self) -> Result<()> {
        let mode = self.spec.mode.as_deref();
        self.state = match self.spec.by {
            By::Library => {
                let (volume, trace) = self.open(mode)?;
                self.counter = Counter::Library(trace);
                let volume = Arc::new(volume);
                volume.start_background();
                State::Open(Arc::clone(&volume), Library::new(volume))
            }
            By::Kernel => {
                // the kernel would write inode tables in the background
                let ours = if self.spec.format == "ext4" { "loop,noinit_itable" } else { "loop" };
                let options = mode.map_or(ours.to_owned(), |mode| format!("{ours},{mode}"));
                let mounted = self.mounted(Attached::by_kernel(&self.image, Some(&self.spec.format), &options)?);
                // without it there are no counts
                self.counter = BlockEvents::of(&self.image).map_or(Counter::None, Counter::Kernel);
                mounted
            }
            By::Extant => {
                let mut options = mode.map_or("rw".to_owned(), |mode| {
                    known_mode(mode).map_or_else(|_| mode.to_owned(), |mode| mode.options())
                });
                if let Some(transport) = self.spec.transport {
                    options = format!("{options},{}", transport.option());
                }
                let args = ["mount", "-f", "-o", &options].map(OsStr::new);
                self.mounted(Attached::by_server(self.extant, &args, &self.image)?)
            }
            By::Fuse2fs => {
                let args = ["-f", "-o", mode.unwrap_or("rw")].map(OsStr::new);
                self.mounted(Attached::by_server(&need("fuse2fs", "fuse2fs")?, &args, &self.image)?)
            }
            By::UpperBound => self.mounted(Attached::by_upper_bound(&self.memory, self.spec.transport)?),
            By::RawLog => State::RawLog(RawLog::new(&self.image)?),
        };
        let failed = |e| Error::Failed(format!("{}: {e}", self.spec));
        self.transport = match &self.state {
            State::Mounted(attached, _) => match self.spec.by {
                // libfuse reads /dev/fuse unless an option asks for io_uring
                By::Fuse2fs => mode.is_none_or(|mode| !mode.contains("uring")).then(|| "/dev/fuse".to_owned()),
                _ => attached.transport(self.spec.transport).map_err(failed)?,
            },
            State::Open(..) | State::RawLog(_) | State::Away => None,
        };
        Ok(())
    }

    /// The transport of the mount's requests; `None` without FUSE.
    pub(crate) fn transport(&self) -> Option<&str> {
        self.transport.as_deref()
    }

    fn open(&self, mode: Option<&str>) -> Result<(Volume, Counted)> {
        let write = match mode {
            Some(mode) => known_mode(mode).map(writing).map_err(Error::Failed)?,
            None => WriteOptions::default(),
        };
        let device =
            blockdev::open(&self.image, blockdev::OpenOptions { write: true, exclusive: true, ..Default::default() })?;
        let options = OpenOptions { cache_bytes: CACHE, write: Some(write), ..OpenOptions::default() };
        let failed = |e| Error::Failed(format!("{}: {e}", self.image.display()));
        let trace = Arc::new(Trace::with_events(device, usize::MAX));
        Ok((Volume::open(Arc::clone(&trace) as Arc<dyn BlockDevice>, &options).map_err(failed)?, trace))
    }

    fn mounted(&self, attached: Attached) -> State {
        let tree = Mounted::new(attached.path(), &self.image);
        State::Mounted(attached, tree)
    }

    fn leave(&mut self) -> Result<()> {
        self.counter = Counter::None;
        match std::mem::replace(&mut self.state, State::Away) {
            State::Mounted(attached, tree) => {
                drop(tree);
                attached.detach()
            }
            State::Open(volume, library) => {
                drop(library);
                volume.unmount().map_err(|e| Error::Failed(format!("{}: {e}", self.image.display())))
            }
            State::RawLog(_) | State::Away => Ok(()),
        }
    }

    /// Unmounts the volume and checks with e2fsck (or `extant check`, where e2fsck does not know the format) that it is
    /// consistent, so that the times are valid.
    pub(crate) fn finish(mut self) -> Result<()> {
        self.leave()?;
        if self.spec.is_ours() {
            return must(self.extant, ["check".as_ref(), "-fn".as_ref(), self.image.as_os_str()]);
        }
        if self.spec.by == By::RawLog {
            return Ok(());
        }
        if self.spec.format == "btrfs" {
            return must(
                &need("btrfs", "btrfs-progs")?,
                ["check".as_ref(), "--readonly".as_ref(), self.image.as_os_str()],
            );
        }
        must(&need("e2fsck", "e2fsprogs")?, ["-fn".as_ref(), self.image.as_os_str()])
    }
}

impl Target for Stage<'_> {
    fn ops(&mut self) -> &mut dyn FileOps {
        match &mut self.state {
            State::Mounted(_, tree) => tree,
            State::Open(_, tree) => tree,
            State::RawLog(tree) => tree,
            State::Away => unreachable!("a stage is left only by `remount`, which enters it again, and by `finish`"),
        }
    }

    fn clients(&mut self, count: usize) -> Result<Vec<Box<dyn Client>>> {
        let one = || -> Result<Box<dyn Client>> {
            match &self.state {
                State::Mounted(attached, _) => {
                    Ok(Box::new(MountedClient::new(Mounted::new(attached.path(), &self.image))))
                }
                State::Open(volume, _) => Ok(Box::new(LibraryClient::new(Library::new(Arc::clone(volume))))),
                State::RawLog(_) | State::Away => {
                    Err(Error::Unsupported(format!("{}: there are no clients without a file system", self.spec)))
                }
            }
        };
        (0..count).map(|_| one()).collect()
    }

    fn cpu(&self) -> Option<Duration> {
        match &self.state {
            State::Mounted(attached, _) => cpu::with_server(attached.server()),
            State::Open(..) | State::RawLog(_) => cpu::with_server(None),
            State::Away => None,
        }
    }

    fn written(&mut self) -> Option<Written> {
        match &self.counter {
            Counter::Library(trace) => {
                let written = Written::of(&trace.events());
                trace.reset();
                Some(written)
            }
            Counter::Kernel(events) => events.take().map(|events| Written::of(&events)),
            Counter::None => None,
        }
    }

    fn remount(&mut self) -> Result<()> {
        self.leave()?;
        drop_cached(&self.image)?;
        self.enter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        text.parse::<Spec>().unwrap_err()
    }

    #[test]
    fn a_transport_follows_the_format_or_the_mode() {
        for (text, transport, mode) in [
            ("extant:ext4", None, None),
            ("extant:ext4@dev-fuse", Some(Transport::DevFuse), None),
            ("extant:ext4:journal@io_uring", Some(Transport::IoUring), Some("journal")),
            ("extant:ext4:data=journal,noatime@dev-fuse", Some(Transport::DevFuse), Some("data=journal,noatime")),
            ("upper-bound:ext4@io_uring", Some(Transport::IoUring), None),
            // an option of another mount
            ("kernel:ext4:fsname=a@b", None, Some("fsname=a@b")),
        ] {
            let spec: Spec = text.parse().unwrap();
            assert_eq!((spec.transport, spec.mode.as_deref()), (transport, mode), "{text}");
            assert_eq!(spec.to_string(), text);
        }
        let [plain, chosen] = ["extant:ext4", "extant:ext4@dev-fuse"].map(|text| text.parse::<Spec>().unwrap());
        assert_ne!(plain, chosen);
    }

    #[test]
    fn transports_that_cannot_be_are_refused() {
        for text in ["extant:ext4@pigeon", "upper-bound:ext4@", "extant:ext4:journal@/dev/fuse"] {
            let error = refused(text);
            assert!(error.starts_with(text) && error.ends_with("a transport is dev-fuse or io_uring"), "{error}");
        }
        for text in
            ["kernel:ext4@io_uring", "library:ext4:none@dev-fuse", "fuse2fs:ext4@dev-fuse", "raw-log:log@io_uring"]
        {
            let error = refused(text);
            assert!(error.starts_with(text) && error.contains("only extant and upper-bound"), "{error}");
        }
        // a transport does not change the other rules
        assert!(refused("extant:btrfs@io_uring").contains("the format is one of"));
    }

    #[test]
    fn io_uring_is_asked_for_only_by_name() {
        let allowed = |text: &str, state| text.parse::<Spec>().unwrap().check_transport(state);
        for state in [IoUring::On, IoUring::Off, IoUring::Missing] {
            assert!(allowed("extant:ext4", state).is_ok() && allowed("upper-bound:ext4@dev-fuse", state).is_ok());
        }
        for peer in ["extant:ext4@io_uring", "upper-bound:ext4@io_uring"] {
            allowed(peer, IoUring::On).unwrap();
            let error = allowed(peer, IoUring::Off).unwrap_err().to_string();
            assert!(error.starts_with(peer) && error.contains("enable_uring"), "{error}");
        }
    }
}
