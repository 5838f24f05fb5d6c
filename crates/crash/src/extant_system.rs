//! This repository's file system as a [`System`]: a small volume, mounted in one of its modes, without background
//! threads, with a clock that the explorer sets.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use blockdev::{BlockDevice, MemoryDevice};
use check::{Options as CheckOptions, Repair};
use format::feature::{Compat, RoCompat};
use format::superblock::{DiskSuperblock, OFFSET, State as VolumeState, Superblock};
use fs::mkfs::{Kind, MkfsOptions};
use fs::{
    AllocateMode, Clock, FileKind, InodeNo, Log, NewFile, OpenOptions, RenameFlags, SetAttributes, Timestamp,
    Transaction, Volume, WriteOptions, XattrMode,
};
use rustix::io::Errno;

use crate::e2fsck_view;
use crate::guarantee::{Guarantee, Recovery};
use crate::model::State;
use crate::op::{FallocateHow, Op, RenameHow, pattern};
use crate::read_state;
use crate::system::{Refused, Session, System};

/// Start time of all volumes, in seconds since 1970.
const START: i64 = 1_700_000_000;
/// Interval of background ticks while time passes.
const TICK: Duration = Duration::from_millis(500);

/// A volume of this file system in one mode.
#[derive(Debug, Clone)]
pub struct Ext {
    guarantee: &'static Guarantee,
    /// The format of the volumes.
    pub format: Kind,
    /// Block size in bytes.
    pub block_size: u32,
    /// Length of a volume in bytes.
    pub len: u64,
    /// Number of inodes in a volume.
    pub inodes: u64,
    /// A deliberate fault of the file system, for a test that detects it.
    #[cfg(feature = "mutants")]
    pub mutant: fs::Mutant,
}

fn mode_of(how: FallocateHow) -> AllocateMode {
    match how {
        FallocateHow::Plain => AllocateMode::Extend,
        FallocateHow::KeepSize => AllocateMode::KeepSize,
        FallocateHow::Zero => AllocateMode::Zero,
        FallocateHow::ZeroKeepSize => AllocateMode::ZeroKeepSize,
        FallocateHow::Punch => AllocateMode::PunchHole,
        FallocateHow::Collapse => AllocateMode::Collapse,
        FallocateHow::Insert => AllocateMode::Insert,
    }
}

/// Default length of a volume in bytes: two groups of blocks of 1 KiB, so that there is a backup superblock.
pub const LEN: u64 = 9 << 20;

/// Default length for formats that do not allow [`LEN`].
const LONG_LEN: u64 = 24 << 20;

impl Ext {
    /// Volumes of a format in a mode, both by name, by default the mode's format, with [`LEN`] bytes in blocks of 1
    /// KiB, or the format's minimum; `None` for an unknown mode or format. A journal is created if the mode needs one.
    #[must_use]
    pub fn new(mode: &str, format: Option<&str>) -> Option<Self> {
        let guarantee = Guarantee::of(mode)?;
        let format = match format {
            Some(name) => name.parse().ok()?,
            None => guarantee.mode.consistency.formats().next()?,
        };
        let len = if format.least_len().is_none_or(|least| least <= LEN) { LEN } else { LONG_LEN };
        Some(Self {
            guarantee,
            format,
            block_size: format.fixed_block_size().unwrap_or(1024),
            len,
            inodes: 96,
            #[cfg(feature = "mutants")]
            mutant: fs::Mutant::Identity,
        })
    }

    /// The minimum length in bytes of a volume with space for its own structures and some files.
    #[must_use]
    pub fn shortest(&self) -> u64 {
        let logs = self.log() != Log::Nothing;
        self.format.least_len().unwrap_or(if logs { 2 << 20 } else { 1 << 20 })
    }

    /// The log that the mode requires.
    fn log(&self) -> Log {
        self.guarantee.mode.consistency.log()
    }

    /// Whether the volume has more than one group, and therefore a backup superblock.
    fn has_copy(&self) -> bool {
        self.len / u64::from(self.block_size) > 8 * u64::from(self.block_size)
    }

    fn mount_once(&self, device: Arc<dyn BlockDevice>) -> Result<(), Refused> {
        let mounted = self.open(device).map_err(|e| format!("mounting: {e}"))?;
        mounted.volume.unmount().map_err(|e| format!("unmounting: {e}"))
    }

    fn open(&self, device: Arc<dyn BlockDevice>) -> Result<Mounted, fs::Error> {
        // later than all times on the volume, so that no change has a time before the mount
        let before = last_write(&device).unwrap_or(START);
        let time = Arc::new(AtomicI64::new((before - START + 60) * 1000));
        let write = WriteOptions {
            consistency: Some(self.guarantee.mode.consistency),
            data: self.guarantee.mode.data,
            #[cfg(feature = "mutants")]
            mutant: self.mutant,
            clock: clock(time.clone()),
            seed: Some(1),
            ..WriteOptions::default()
        };
        let options = OpenOptions { cache_bytes: 1 << 20, write: Some(write), ..OpenOptions::default() };
        let volume = Arc::new(Volume::open(device, &options)?);
        Ok(Mounted { volume, time, open: BTreeMap::new(), unnamed: HashSet::new(), transaction: None })
    }
}

/// A clock that shows the start time plus `millis`.
fn clock(millis: Arc<AtomicI64>) -> Clock {
    Arc::new(move || {
        let millis = millis.load(Ordering::Relaxed);
        Timestamp { seconds: START + millis / 1000, nanos: (millis % 1000) as u32 * 1_000_000 }
    })
}

impl System for Ext {
    fn arguments(&self) -> String {
        let size =
            if self.len == LEN || self.len == LONG_LEN { String::new() } else { format!(" --size {}", self.len) };
        format!("--mode {} --format {}{size}", self.guarantee.mode.name, self.format)
    }

    fn e2fsck_can_read(&self) -> bool {
        self.format.kernel_writes() || self.format.has_map()
    }

    fn write_for_e2fsck(&self, device: &Arc<dyn BlockDevice>, file: &File) -> Result<(), Refused> {
        if self.format.has_map() { e2fsck_view::write(device, file) } else { e2fsck_view::copy(&**device, file) }
    }

    fn is_known_to_e2fsck(&self, said: &str) -> bool {
        self.format.has_map() && e2fsck_view::has_only_expected(said)
    }

    /// The superblock is 1 KiB with one checksum: no ext file system survives half of it without backup superblocks,
    /// which a mount does not read; a small volume has none.
    fn whole(&self) -> Range<u64> {
        // that of a volume above a map can be torn: each sector identifies its generation
        let one = self.log() != Log::Nothing || !self.has_copy();
        if one && !self.format.has_map() { OFFSET..OFFSET + DiskSuperblock::SIZE as u64 } else { 0..0 }
    }

    fn guarantee(&self) -> &'static Guarantee {
        self.guarantee
    }

    fn block_size(&self) -> u64 {
        u64::from(self.block_size)
    }

    fn format(&self) -> Result<Arc<dyn BlockDevice>, Refused> {
        let device = MemoryDevice::zeroed(self.len).map_err(|e| e.to_string())?;
        let mut options = MkfsOptions::new(self.format);
        options.block_size = Some(self.block_size);
        options.inodes = Some(self.inodes);
        options.uuid = [7; 16];
        options.hash_seed = [9; 16];
        options.time = Timestamp { seconds: START, nanos: 0 };
        let features = self.format.features();
        if features.ro_compat.contains(RoCompat::EXTANT_RO) {
            // space maps: each group is a metablockgroup, and the log wraps around after a few generations
            (options.metablockgroup_bytes, options.space_map_log) = (Some(8 << 20), Some(4));
        }
        if self.log() == Log::Journal {
            options.journal_mib = Some(1);
        } else if features.compat.contains(Compat::HAS_JOURNAL) {
            options.features.add("^has_journal").map_err(|e| e.to_string())?;
        }
        options.linked_len = (self.log() == Log::List).then_some(self.len / 8);
        fs::mkfs::make(&device, &options).map_err(|e| e.to_string())?;
        Ok(Arc::new(device))
    }

    fn mount(&self, device: Arc<dyn BlockDevice>) -> Result<Box<dyn Session>, Refused> {
        Ok(Box::new(self.open(device).map_err(|e| e.to_string())?))
    }

    fn recover(&self, device: Arc<dyn BlockDevice>) -> Result<bool, Refused> {
        if self.guarantee.recovery == Recovery::Mount {
            self.mount_once(device)?;
            return Ok(false);
        }
        if self.guarantee.recovery == Recovery::CheckUnlessClean
            && let Some(sb) = clean_superblock(&*device)
        {
            // files open without a name wait for the next mount, also on a consistent volume
            if sb.disk.s_last_orphan.get() != 0 {
                self.mount_once(device)?;
            }
            return Ok(true);
        }
        let options = CheckOptions { repair: Repair::All, now: Some(START as u64), ..check_options() };
        let report = check::repair("volume", &device, &options, &(), None).map_err(|e| e.to_string())?;
        if report.exit > 1 {
            let left = report.problems.iter().find(|problem| !problem.fixed).map_or("", |problem| &problem.text);
            return Err(format!("the repair ends with status {}: {left}", report.exit));
        }
        Ok(false)
    }

    fn problems(&self, device: &dyn BlockDevice) -> Result<Vec<String>, Refused> {
        let report = check::check("volume", device, &check_options(), &()).map_err(|e| e.to_string())?;
        let texts = report.problems.into_iter().map(|problem| problem.text);
        Ok(if report.clean { Vec::new() } else { texts.collect() })
    }

    fn observe(&self, device: Arc<dyn BlockDevice>) -> Result<State, Refused> {
        read_state::tree(device)
    }
}

fn check_options() -> CheckOptions {
    CheckOptions { threads: 1, ..CheckOptions::default() }
}

/// The time of the last write to a volume, in seconds since 1970.
fn last_write(device: &Arc<dyn BlockDevice>) -> Option<i64> {
    let disk = match superblock(&**device) {
        Some(sb) => sb.disk,
        // the volume above a map
        None => Volume::open(Arc::clone(device), &OpenOptions::default()).ok()?.superblock().disk,
    };
    Some(i64::from(disk.s_wtime.get()))
}

fn superblock(device: &dyn BlockDevice) -> Option<Superblock> {
    let mut bytes = [0; DiskSuperblock::SIZE];
    device.read(OFFSET, &mut bytes).ok()?;
    Superblock::parse(&bytes).ok()
}

/// The superblock of a volume that is marked clean; `None` without a superblock, or if a repair was interrupted and
/// must be completed.
fn clean_superblock(device: &dyn BlockDevice) -> Option<Superblock> {
    let sb = superblock(device).filter(|_| !check::unfinished(device))?;
    let state = VolumeState::from_bits_retain(sb.disk.s_state.get());
    (state.contains(VolumeState::VALID) && !state.contains(VolumeState::ERROR)).then_some(sb)
}

/// A mounted volume and its open files.
struct Mounted {
    volume: Arc<Volume>,
    /// Milliseconds since the start time.
    time: Arc<AtomicI64>,
    open: BTreeMap<String, InodeNo>,
    /// Files that never had a name.
    unnamed: HashSet<InodeNo>,
    /// The running transaction, and the files that were unnamed at its beginning.
    transaction: Option<(Transaction, HashSet<InodeNo>)>,
}

impl Mounted {
    /// The inode number of a file by path, or of an open one; symbolic links are not followed.
    fn file(&self, path: &str) -> Result<InodeNo, Errno> {
        match path.strip_prefix('@') {
            Some(name) => self.open.get(name).copied().ok_or(Errno::BADF),
            None => self.volume.resolve_nofollow(format!("/{path}").as_bytes()).map_err(|e| errno(&e)),
        }
    }

    /// The parent directory of a path, and the last name.
    fn place<'p>(&self, path: &'p str) -> Result<(InodeNo, &'p [u8]), Errno> {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        let dir = self.volume.resolve(format!("/{dir}/").as_bytes()).map_err(|e| errno(&e))?;
        Ok((dir, name.as_bytes()))
    }

    fn new_file(kind: FileKind, mode: u16) -> NewFile {
        NewFile { kind, mode, umask: 0, uid: 0, gid: 0, device: (0, 0) }
    }

    fn open_file(&mut self, name: &str, number: InodeNo) {
        self.volume.add_lookup(number);
        self.open.insert(name.to_owned(), number);
    }

    /// Writes once; returns the number of bytes written.
    fn write(&self, path: &str, offset: u64, len: u64, seed: u32) -> Result<u64, Errno> {
        let number = self.file(path)?;
        written(self.volume.write_at(number, offset, &pattern(seed, offset, len)).map_err(|e| errno(&e)))
    }

    /// Runs one operation, within the transaction of this thread.
    fn change(&mut self, op: &Op) -> Result<u64, Errno> {
        let volume = &self.volume;
        let done = match op {
            Op::Create { path } => {
                let (dir, name) = self.place(path)?;
                volume.create(dir, name, &Self::new_file(FileKind::Regular, 0o644)).map(|_| ())
            }
            Op::Mkdir { path } => {
                let (dir, name) = self.place(path)?;
                volume.create(dir, name, &Self::new_file(FileKind::Directory, 0o755)).map(|_| ())
            }
            Op::Symlink { target, path } => {
                let (dir, name) = self.place(path)?;
                volume.symlink(dir, name, target.as_bytes(), 0, 0).map(|_| ())
            }
            Op::Rmdir { path } => {
                let (dir, name) = self.place(path)?;
                volume.rmdir(dir, name)
            }
            Op::Unlink { path } => {
                let (dir, name) = self.place(path)?;
                volume.unlink(dir, name)
            }
            Op::Link { from, to } => {
                let number = self.file(from)?;
                let (dir, name) = self.place(to)?;
                // as the kernel does before it calls a file system
                let dir_inode = volume.inode(dir).map_err(|e| errno(&e))?;
                match volume.lookup(&dir_inode, name) {
                    Ok(_) => Err(fs::Error::Exists),
                    Err(fs::Error::NotFound) => {
                        let links = volume.attributes_of(number).map_err(|e| errno(&e))?.links;
                        if links == 0 && !self.unnamed.remove(&number) {
                            return Err(Errno::NOENT);
                        }
                        volume.link(number, dir, name).map(|_| ())
                    }
                    Err(e) => Err(e),
                }
            }
            Op::Rename { from, to, how } => {
                let ((old, old_name), (new, new_name)) = (self.place(from)?, self.place(to)?);
                let flags = RenameFlags {
                    no_replace: *how == RenameHow::NoReplace,
                    exchange: *how == RenameHow::Exchange,
                    ..RenameFlags::default()
                };
                volume.rename(old, old_name, new, new_name, flags)
            }
            Op::Write { path, offset, len, seed } => return self.write(path, *offset, *len, *seed),
            Op::Append { path, len, seed } => {
                let size = volume.attributes_of(self.file(path)?).map_err(|e| errno(&e))?.size;
                return self.write(path, size, *len, *seed);
            }
            Op::Read { path } => return self.read(path).map(|_| 0),
            Op::Truncate { path, size } => volume.truncate(self.file(path)?, *size),
            Op::Fallocate { path, how, offset, len } => volume.allocate(self.file(path)?, mode_of(*how), *offset, *len),
            Op::SetXattr { path, name, len, seed } => {
                let value = pattern(*seed, 0, *len);
                volume.set_xattr(self.file(path)?, name.as_bytes(), &value, XattrMode::Any)
            }
            Op::RemoveXattr { path, name } => volume.remove_xattr(self.file(path)?, name.as_bytes()),
            Op::Chmod { path, mode } => {
                let set = SetAttributes { mode: Some(*mode), ..SetAttributes::default() };
                volume.set_attributes(self.file(path)?, &set).map(|_| ())
            }
            Op::Open { path } => {
                let number = self.file(path)?;
                self.open_file(path, number);
                return Ok(0);
            }
            Op::Close { path } => {
                let number = self.open.remove(path.trim_start_matches('@')).ok_or(Errno::BADF)?;
                self.volume.forget(number, 1)
            }
            Op::Tmpfile { dir, path } => {
                let file = Self::new_file(FileKind::Regular, 0o644);
                let made = volume.tmpfile(self.file(dir)?, &file).map_err(|e| errno(&e))?;
                self.open.insert(path.clone(), made.number);
                self.unnamed.insert(made.number);
                return Ok(0);
            }
            Op::Fsync { path } => volume.fsync(self.file(path)?, false),
            Op::Fdatasync { path } => volume.fsync(self.file(path)?, true),
            Op::Sync => volume.sync(),
            Op::Wait { seconds } => self.wait(Duration::from_secs(u64::from(*seconds))),
            // not within a transaction
            Op::CreateSnapshot { .. } | Op::DeleteSnapshot { .. } | Op::Begin | Op::Commit | Op::Rollback => {
                return Err(Errno::BUSY);
            }
        };
        done.map(|()| 0).map_err(|e| errno(&e))
    }

    /// Runs an operation on snapshots, or one that begins or ends a transaction.
    fn versions(&mut self, op: &Op) -> Option<fs::Result<()>> {
        Some(match op {
            Op::CreateSnapshot { name } => self.volume.create_snapshot(name.as_bytes()).map(drop),
            Op::DeleteSnapshot { name } => self.volume.delete_snapshot(name.as_bytes()),
            Op::Begin => self.volume.transaction(Duration::from_secs(3600)).map(|transaction| {
                self.transaction = Some((transaction, self.unnamed.clone()));
            }),
            Op::Commit | Op::Rollback => {
                let (transaction, unnamed) = self.transaction.take()?;
                let outcome = if *op == Op::Commit { transaction.commit() } else { transaction.rollback().map(drop) };
                if *op == Op::Rollback || outcome.is_err() {
                    self.unnamed = unnamed;
                }
                outcome
            }
            _ => return None,
        })
    }

    fn wait(&self, time: Duration) -> fs::Result<()> {
        let mut rest = time;
        while !rest.is_zero() {
            let step = rest.min(TICK);
            rest -= step;
            let millis = step.as_millis() as i64;
            let now = self.time.fetch_add(millis, Ordering::Relaxed) + millis;
            self.volume.tick(Duration::from_millis(now.unsigned_abs()))?;
        }
        Ok(())
    }
}

impl Session for Mounted {
    fn apply(&mut self, op: &Op) -> Result<u64, Errno> {
        // no two operations have the same time
        self.time.fetch_add(1, Ordering::Relaxed);
        if let Some(done) = self.versions(op) {
            return done.map(|()| 0).map_err(|e| errno(&e));
        }
        let Some((transaction, unnamed)) = self.transaction.take() else { return self.change(op) };
        let inside = transaction.enter();
        let done = self.change(op);
        drop(inside);
        self.transaction = Some((transaction, unnamed));
        done
    }

    fn read(&mut self, path: &str) -> Result<Vec<u8>, Errno> {
        let read = |number| {
            // delayed data counts
            let size = self.volume.attributes_of(number)?.size;
            read_state::bytes(&self.volume, &*self.volume.inode(number)?, size)
        };
        read(self.file(path)?).map_err(|e| errno(&e))
    }

    fn unmount(mut self: Box<Self>) -> Result<(), Refused> {
        if let Some((transaction, _)) = self.transaction.take() {
            transaction.rollback().map_err(|e| e.to_string())?;
        }
        // as the kernel does before an unmount
        for (_, number) in std::mem::take(&mut self.open) {
            self.volume.forget(number, 1).map_err(|e| e.to_string())?;
        }
        self.volume.unmount().map_err(|e| e.to_string())
    }
}

/// The number of bytes that one call wrote. A short write ends the operation: the rest would be another one, and a crash
/// may come between the two.
pub(crate) fn written(outcome: Result<usize, Errno>) -> Result<u64, Errno> {
    match outcome? {
        0 => Err(Errno::IO),
        written => Ok(written as u64),
    }
}

/// The errno of POSIX for an error.
fn errno(e: &fs::Error) -> Errno {
    use fs::Error as E;
    match e {
        E::Io(_) => Errno::IO,
        E::Unsupported(_) => Errno::OPNOTSUPP,
        E::Corrupt { .. } | E::NoSuperblock(_) | E::Native { .. } => Errno::UCLEAN,
        E::NotFound => Errno::NOENT,
        E::Stale(_) => Errno::STALE,
        E::NotADirectory => Errno::NOTDIR,
        E::IsADirectory => Errno::ISDIR,
        E::NameTooLong => Errno::NAMETOOLONG,
        E::TooManyLinks => Errno::LOOP,
        E::NoAttribute => Errno::NODATA,
        E::Encrypted => Errno::NOKEY,
        E::Invalid(_) => Errno::INVAL,
        E::NoSpace => Errno::NOSPC,
        E::Exists => Errno::EXIST,
        E::NotEmpty => Errno::NOTEMPTY,
        E::TooManyNames => Errno::MLINK,
        E::FileTooLarge => Errno::FBIG,
        E::NotPermitted(_) => Errno::PERM,
        E::TransactionTooLarge { .. } => Errno::FBIG,
        E::Cancelled(_) => Errno::CANCELED,
        E::Busy => Errno::BUSY,
        E::ReadOnly(_) => Errno::ROFS,
        E::Impossible(_) => Errno::INVAL,
    }
}
