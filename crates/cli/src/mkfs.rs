//! `extant mkfs`: creates a volume.

use crate::copy_in::{FileAttributes, Filler, Folder, Input, Stop, bytes_below, on_signals, unpack};
use crate::device::{Device, SCHEMES, open_volume, refuse_layer};
use crate::error_report::{Failure, Result, say, with_place};
use crate::info::free_blocks;
use crate::output::{human, print_json_object, stdout};
use crate::progress::{Bar, Unit, on_terminal};
use crate::source::{for_writing, not_written};
use blockdev::{BlockDevice, FileDevice, OpenOptions};
use check::render::escape;
use clap::Args;
use fs::mkfs::{Kind, MkfsOptions, VolumeImage};
use fs::{Consistency, FsBlock, InodeNo, Placement, Timestamp, Volume, WriteOptions};
use serde_json::json;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::SystemTime;

mod contents;
mod created_file;
mod option_values;
mod unsupported;

use contents::Contents;
use created_file::{Cleanup, CreatedFile};
use unsupported::Unsupported;

const HELP: &str = "Examples:
  extant mkfs volume.img 1G                      also creates the file
  extant mkfs -t ext4 -L data -m 1 /dev/sdb1
  extant mkfs -t ext3 -b 1024 -O ^resize_inode -J size=8 small.img 64M
  extant mkfs -t ext4 -d ./root system.img 2G    with files, without root and without mounting
  extant mkfs -t extant snapshots.img 4G         Extant's native format
  extant mkfs -t rext3 -E region=4M big.img 64G  checked in one pass, however old it is
  extant mkfs -t spacemap big.img 64G            ext4 without block bitmaps
  extant mkfs -n -t ext4 -O bigalloc /dev/sdb1   prints what it would create

Without -t the volume is ext4, which every Linux system can use. The type extant is consistent at every instant: a mount after a \
    crash has nothing to recover. Only Extant can use it.

A volume of type ext2, ext3 or ext4 is as mke2fs 1.47 makes it with the same options, down to the location of its tables. Inode tables are \
    zeroed at once; with -E lazy_itable_init=1 the kernel does it later, in the background.

A device that is mounted or in use is always refused; one that contains a file system or a partition table, \
    unless -F is used. Its content is lost, backup superblocks included. With SOURCE_DATE_EPOCH in the \
    environment, -U and -E hash_seed, equal options make equal volumes.

The root directory belongs to the user and group who run this, so that they can write when they mount it; with -d \
    or SOURCE_DATE_EPOCH to root, as with mke2fs. -E root_owner sets another owner.

SIZE is in KiB, or in blocks with -b; a suffix k, m, g or t sets the unit, \
    and s means sectors of 512 bytes. Without SIZE the volume is as long as the device.

rext3 is ext3 laid out for fast checks: metadata is in regions, and its blocks name their owners. The inode tables and regions of \
    32 groups (or as many as -G says) are together. A full region grows. With -O extents files are mapped by extents. Only Extant can use such a volume: the \
    kernel and e2fsck refuse it.

spacemap is ext4 whose free space is recorded as extents and a log, not in block bitmaps: little is read and written to find and \
    allocate blocks, however large the volume is. The kernel mounts it with -o ro only, and e2fsck refuses it; extant convert makes \
    it ext4 and back. The feature space_maps does the same to ext3 and rext3, with flex_bg.

-d copies owners, permissions, times, extended attributes, access control lists, holes and hard links. Where an \
    archive has a list as text alone (tar --acls), names in it are looked up in /etc/passwd and /etc/group. \
    If DIR or TAR itself cannot be opened, nothing is created. Files that cannot be read or created are reported, and the volume \
    is complete but for them: exit status 1. Where the copy ends early (a volume that is too small, a damaged or truncated \
    archive, a signal), a file that this command created is removed; a device or file that existed before contains a \
    consistent but incomplete volume. In JSON `made` is whether there is a volume, `incomplete` whether the copy ended early.

Features for -O, each with ^ before it to omit it, `none` for no feature:
  has_journal ext_attr resize_inode dir_index sparse_super2 fast_commit stable_inodes orphan_file
  filetype meta_bg extent 64bit mmp flex_bg ea_inode metadata_csum_seed large_dir inline_data
  encrypt casefold sparse_super large_file huge_file uninit_bg dir_nlink extra_isize quota bigalloc
  metadata_csum project verity; space_maps, which only Extant can write

Extended options for -E:
  stride=BLOCKS, stripe_width=BLOCKS       geometry of a RAID
  resize=BLOCKS                            largest size it can grow to while mounted
  lazy_itable_init[=0], lazy_journal_init[=0], discard, nodiscard, packed_meta_blocks[=0]
  num_backup_sb=0|1|2                      with sparse_super2
  root_owner[=UID:GID]                     of the root directory; without numbers that of the user
  hash_seed=UUID, quotatype=usrquota:grpquota:prjquota
  encoding=utf8, encoding_flags=strict, mmp_update_interval=SECONDS, orphan_file_size=BYTES, test_fs
  linked[=SIZE]                            with ext2: the list of linked writes, 128K to 16M; 1/64
                                           of the volume by default
  region=SIZE                              with rext3: metadata region for each group at first, 1/64
                                           of it by default
  metablockgroup=SIZE                      with space_maps: a power of two of groups, usually 8g
  space_map_log=BLOCKS                     with space_maps: its log, usually 256, fewer on a small
                                           volume

Called as mkfs.ext2, mkfs.ext3, mkfs.ext4 or mkfs.extant, the program makes that type. mke2fs's options -c, -l, -D, -o, -r, -S and -z, and \
    the old -K, -R and -s, are refused with what to do instead.

Exit status: 0 created, 1 not created or not completely filled, also where values do not fit each other or the device, \
    2 an option or a value that no volume can have (mke2fs exits with 1 in all these cases).";

#[derive(Debug, Args)]
#[command(about = "Make a volume of type ext4, ext2, ext3, rext3, spacemap or extant", after_help = HELP)]
pub(crate) struct Mkfs {
    /// Device or file
    #[arg(value_name = "DEVICE")]
    device: Device,

    /// Length of the volume; creates the file if it does not exist
    #[arg(value_name = "SIZE")]
    size: Option<String>,

    /// ext4, ext2, ext3, rext3, spacemap or extant
    #[arg(short = 't', long = "type", value_name = "TYPE", default_value = "ext4", overrides_with = "kind")]
    kind: String,

    /// Features to add, or with ^ to omit
    #[arg(short = 'O', long, value_name = "FEATURES", allow_hyphen_values = true)]
    features: Vec<String>,

    /// Extended options
    #[arg(short = 'E', long, value_name = "OPTIONS")]
    extended: Vec<String>,

    /// Label
    #[arg(short = 'L', long, value_name = "LABEL")]
    label: Option<String>,

    /// UUID, or clear, random
    #[arg(short = 'U', long, value_name = "UUID")]
    uuid: Option<String>,

    /// Block size
    #[arg(short = 'b', long, value_name = "BYTES", value_parser = option_values::bytes)]
    block_size: Option<u32>,

    /// Percentage of blocks reserved for the superuser
    #[arg(short = 'm', long, value_name = "PERCENT", default_value_t = 5.0)]
    reserved: f64,

    /// Number of inodes
    #[arg(short = 'N', long, value_name = "COUNT")]
    inodes: Option<u64>,

    /// One inode for each BYTES
    #[arg(short = 'i', long, value_name = "BYTES", value_parser = option_values::bytes)]
    bytes_per_inode: Option<u32>,

    /// Inode size
    #[arg(short = 'I', long, value_name = "BYTES", value_parser = option_values::bytes)]
    inode_size: Option<u32>,

    /// Intended use: floppy, small, default, big, huge, news, largefile, largefile4, hurd
    #[arg(short = 'T', long, value_name = "USAGE")]
    usage: Option<String>,

    /// Create a journal
    #[arg(short = 'j', long)]
    journal: bool,

    /// Create a journal with these options: size=MIB, fast_commit_size=KIB
    #[arg(short = 'J', long, value_name = "OPTIONS")]
    journal_options: Vec<String>,

    /// Cluster size, with the feature bigalloc
    #[arg(short = 'C', long, value_name = "BYTES", value_parser = option_values::bytes)]
    cluster_size: Option<u32>,

    /// Blocks (with bigalloc: clusters) in a group
    #[arg(short = 'g', long, value_name = "BLOCKS")]
    blocks_per_group: Option<u32>,

    /// Number of groups whose tables are together, with the feature flex_bg
    #[arg(short = 'G', long, value_name = "GROUPS")]
    groups_per_flex: Option<u32>,

    /// Set the "last mounted on" directory
    #[arg(short = 'M', long, value_name = "DIR")]
    last_mounted: Option<String>,

    /// Behavior of the kernel on an error: continue, remount-ro, panic
    #[arg(short = 'e', long, value_name = "WHAT")]
    on_error: Option<String>,

    /// Fill the volume with the content of a directory or a tar archive (- for standard input)
    #[arg(short = 'd', long, value_name = "DIR|TAR", conflicts_with = "dry_run")]
    from: Option<PathBuf>,

    /// Block placement for files that -d copies: usual, or hint, which puts metadata at the front of each group to make
    /// later checks faster
    #[arg(long, value_name = "WHERE", default_value = "usual", requires = "from")]
    placement: Placement,

    /// Write nothing, print what would be created
    #[arg(short = 'n', long)]
    dry_run: bool,

    /// Overwrite a file system or a partition table
    #[arg(short = 'F', long)]
    force: bool,

    /// Print nothing
    #[arg(short, long)]
    quiet: bool,

    /// Print the locations of backup superblocks
    #[arg(short, long)]
    verbose: bool,

    /// Print the result as JSON
    #[arg(long, conflicts_with = "quiet")]
    json: bool,

    #[command(flatten)]
    unsupported: Unsupported,
}

impl Mkfs {
    pub(crate) fn run(&self) -> Result<u8> {
        let options = self.options()?;
        // an unreadable source must not cost the content of the device
        let from = self.from.as_deref().map(|from| Contents::open(from, self.device.as_ref())).transpose()?;
        // a device that exists ends as a volume, whenever the signal comes
        let interrupted = if from.is_some() && !self.is_missing() { on_signals()? } else { Arc::default() };
        let mut unfinished = None;
        let filled = if self.dry_run {
            self.plan(&options).map(|image| (image, None))
        } else {
            self.make(&options, from.is_some(), &mut unfinished).and_then(|(image, device)| {
                let filled = from.map(|from| self.fill_from(from, device, &options, interrupted)).transpose()?;
                Ok((image, filled))
            })
        };
        // from here on a signal ends the process only
        let created = unfinished.map(Cleanup::end);
        let (image, filled) = match filled {
            // not a volume
            Err(failure) if created.as_ref().is_some_and(CreatedFile::remove) => {
                return Err(match failure {
                    Failure::Message(why) => Failure::Message(format!("{why}; the unfinished file was removed")),
                    failure => failure,
                });
            }
            filled => filled?,
        };
        let removed = filled.as_ref().is_some_and(|filled| filled.incomplete && self.end_incomplete(created.as_ref()));
        for warning in image.warnings().iter().filter(|_| !removed) {
            say(&format!("{}: {warning}", escape(self.device.as_bytes())));
        }
        if self.json {
            print_json_object(&self.summary(&image, filled.as_ref(), removed)?)?;
        } else if !self.quiet && !removed {
            self.report(&image)?;
        }
        Ok(filled.map_or(0, |filled| filled.status))
    }

    /// Removes the file with an incomplete volume if it was created; returns whether it was removed.
    fn end_incomplete(&self, created: Option<&CreatedFile>) -> bool {
        let removed = created.is_some_and(CreatedFile::remove);
        let end = if removed { "the unfinished file was removed" } else { "the volume is incomplete" };
        say(&format!("{}: {end}", escape(self.device.as_bytes())));
        removed
    }

    /// The options for the library.
    fn options(&self) -> Result<MkfsOptions> {
        self.unsupported.check()?;
        let unknown = |why| Failure::Usage(format!("-t {}: unknown type; {why}", self.kind));
        let kind = self.kind.parse::<Kind>().map_err(unknown)?;
        let refused = || Failure::Usage(format!("-j and -J: a volume of type {kind} has no journal, and needs none"));
        let journal = self.journal || !self.journal_options.is_empty();
        let kind = if journal { kind.with_journal().ok_or_else(refused)? } else { kind };
        let mut options = MkfsOptions::new(kind);
        self.fill(&mut options).map_err(Failure::Usage)?;
        Ok(options)
    }

    fn fill(&self, options: &mut MkfsOptions) -> Result<(), String> {
        options.uuid = option_values::volume_uuid(self.uuid.as_deref().unwrap_or("random"))?;
        options.hash_seed = option_values::random_uuid()?;
        options.time = now();
        for list in &self.features {
            option_values::features(&mut options.features, list)?;
        }
        for list in &self.extended {
            option_values::extended(options, list)?;
        }
        for list in &self.journal_options {
            option_values::journal(options, list)?;
        }
        if let Some(list) = &self.usage {
            options.usage = option_values::usages(list)?;
        }
        if let Some(word) = &self.on_error {
            options.on_error = option_values::on_error(word)?;
        }
        option_values::check_ranges(self.block_size, self.inode_size, self.reserved)?;
        option_values::check_text("-L", self.label.as_deref(), 16)?;
        option_values::check_text("-M", self.last_mounted.as_deref(), 64)?;
        options.label = self.label.clone().unwrap_or_default().into_bytes();
        options.last_mounted = self.last_mounted.clone().unwrap_or_default().into_bytes();
        options.len = self.size.as_deref().map(|size| option_values::volume_size(size, self.block_size)).transpose()?;
        options.block_size = self.block_size;
        options.cluster_size = self.cluster_size;
        options.inode_size = self.inode_size;
        options.bytes_per_inode = self.bytes_per_inode.map(u64::from);
        options.inodes = self.inodes;
        options.blocks_per_group = self.blocks_per_group;
        options.groups_per_flex = self.groups_per_flex;
        options.reserved_percent = self.reserved;
        if self.is_users_own() {
            options.root_owner = option_values::runner();
        }
        Ok(())
    }

    /// Whether the root directory belongs to the calling user, who could otherwise not write to the volume when
    /// mounting it. A volume for others, or one that must not depend on the user, belongs to root as with mke2fs.
    fn is_users_own(&self) -> bool {
        let says_owner = self.extended.iter().any(|list| list.contains("root_owner"));
        let same_for_all = std::env::var_os("SOURCE_DATE_EPOCH").is_some();
        self.from.is_none() && !says_owner && !same_for_all
    }

    /// A failure that concerns the device.
    fn failure(&self, why: impl ToString) -> Failure {
        Failure::on(&self.device, why)
    }

    /// Whether DEVICE is the path of a file that does not exist.
    fn is_missing(&self) -> bool {
        let scheme =
            SCHEMES.iter().map(|scheme| scheme.prefix).chain(["mem:"]).any(|prefix| self.device.starts_with(prefix));
        !scheme && matches!(std::fs::metadata(&self.device), Err(e) if e.kind() == ErrorKind::NotFound)
    }

    /// The failure where a file is to be created and its length is unknown.
    fn without_size(&self) -> Failure {
        self.failure("no such file: add a SIZE to create it, for example 1G")
    }

    fn image(&self, len: u64, sector: u32, options: &MkfsOptions) -> Result<VolumeImage> {
        VolumeImage::new(len, sector, options).map_err(|e| {
            let of_size = |size| MkfsOptions { len: Some(size), ..options.clone() };
            let fits = |size| VolumeImage::new(size, sector, &of_size(size)).is_ok();
            match least_size(options.len.unwrap_or(len), fits) {
                // where the type has the same minimum with all options, the message names it
                Some(least) if options.kind.least_len().is_none() => {
                    self.failure(format!("{e}; the minimum for these options is {} KiB", least >> 10))
                }
                _ => self.failure(e),
            }
        })
    }

    /// The image alone, for a device that is only examined, or that SIZE describes.
    fn plan(&self, options: &MkfsOptions) -> Result<VolumeImage> {
        match options.len {
            Some(len) if self.is_missing() => self.image(len, 512, options),
            None if self.is_missing() => Err(self.without_size()),
            len => {
                let device = open_volume(&self.device, OpenOptions::default())?;
                let geometry = device.geometry();
                self.warn(&*device)?;
                let grows = std::fs::metadata(&self.device).is_ok_and(|metadata| metadata.is_file());
                let len = geometry.len.max(len.filter(|_| grows).unwrap_or(0));
                self.image(len, geometry.sector, options)
            }
        }
    }

    /// Warns of conditions that would refuse the device, with or without -F.
    fn warn(&self, device: &dyn BlockDevice) -> Result<()> {
        let name = escape(self.device.as_bytes());
        if let Some(mounted) = blockdev::mounted(&self.device) {
            let place = escape(mounted.place().as_bytes());
            say(&format!("{name}: it is mounted {place}; unmount it first"));
        } else if let Some(what) = fs::mkfs::contents(device).map_err(|e| self.failure(e))?.filter(|_| !self.force) {
            say(&format!("{name}: contains {what}; use -F to overwrite"));
        }
        Ok(())
    }

    /// Creates the volume; sets `unfinished` when the file itself was created. `fills`: files are copied into it
    /// afterwards, through the returned device, which remains locked: the path may name another file by then.
    fn make(&self, options: &MkfsOptions, fills: bool, unfinished: &mut Option<Cleanup>) -> Result<Made> {
        let image = |len, sector| {
            let image = self.image(len, sector, options)?;
            match fs::unwritable(&image.features()).filter(|_| fills) {
                Some(why) => Err(self.failure(format!("-d: {why}"))),
                None => Ok(image),
            }
        };
        match options.len {
            Some(len) if self.is_missing() => {
                let image = image(len, 512)?;
                let cleanup = Cleanup::of(&self.device, self.json, fills)?;
                let file = cleanup.create().map_err(|e| self.failure(e))?;
                *unfinished = Some(cleanup);
                file.set_len(len).map_err(|e| self.failure(e))?;
                let device: Arc<dyn BlockDevice> = Arc::new(FileDevice::of_new_file(file, &self.device)?);
                self.write(&device, &image)?;
                Ok((image, device))
            }
            None if self.is_missing() => Err(self.without_size()),
            Some(len) if self.is_shorter_file(len) => {
                // lengthened through the open file: its path may name another one by then
                let device = FileDevice::open(&self.device, for_writing(&self.device));
                let device = device.map_err(|e| with_place(&self.device, e.into()))?;
                refuse_layer(&device, self.device.as_ref())?;
                self.refuse_contents(&device)?;
                let image = image(len.max(device.geometry().len), device.geometry().sector)?;
                let device: Arc<dyn BlockDevice> = Arc::new(device.lengthened(len).map_err(|e| self.failure(e))?);
                self.write(&device, &image)?;
                Ok((image, device))
            }
            _ => {
                let device = self.open()?;
                self.refuse_contents(&*device)?;
                let image = image(device.geometry().len, device.geometry().sector)?;
                self.write(&device, &image)?;
                Ok((image, device))
            }
        }
    }

    /// Whether DEVICE is the path of a regular file of less than `len` bytes.
    fn is_shorter_file(&self, len: u64) -> bool {
        std::fs::metadata(&self.device).is_ok_and(|metadata| metadata.is_file() && metadata.len() < len)
    }

    /// Refuses a device with content, unless it is to be overwritten.
    fn refuse_contents(&self, device: &dyn BlockDevice) -> Result<()> {
        if self.force {
            return Ok(());
        }
        match fs::mkfs::contents(device).map_err(|e| self.failure(e))? {
            Some(what) => Err(self.failure(format!("contains {what}; use -F to overwrite"))),
            None => Ok(()),
        }
    }

    /// Opens the device for writing, locked against all other processes.
    fn open(&self) -> Result<Arc<dyn BlockDevice>> {
        open_volume(&self.device, for_writing(&self.device)).map_err(|e| with_place(&self.device, e))
    }

    fn write(&self, device: &Arc<dyn BlockDevice>, image: &VolumeImage) -> Result<()> {
        let bar = Bar::new("zeroing", 0, Unit::Bytes);
        let written = image.write(device, &mut |done, total| bar.set(done, total));
        bar.finish();
        written.map_err(|e| self.failure(e))
    }

    /// Fills the new volume. The root gets the attributes of the directory, or of the archive's entry for it; a
    /// specified owner takes precedence. `interrupted` ends the copy.
    fn fill_from(
        &self,
        from: Contents<'_>,
        device: Arc<dyn BlockDevice>,
        options: &MkfsOptions,
        interrupted: Arc<AtomicBool>,
    ) -> Result<Filled> {
        let time = options.time;
        let write = WriteOptions {
            // a new volume has nothing to lose
            consistency: Some(Consistency::None),
            clock: Arc::new(move || time),
            seed: Some(0),
            placement: self.placement,
            ..WriteOptions::default()
        };
        let open = fs::OpenOptions { write: Some(write), ..fs::OpenOptions::default() };
        let volume = Volume::open(device, &open).map_err(|e| self.failure(e))?;
        let waits = Arc::clone(&interrupted);
        let mut filler = Filler::new(&volume, &self.device, true, interrupted);
        let outcome = match from {
            Contents::Folder(from) => {
                if on_terminal() {
                    let counting = Bar::new("counting files", 0, Unit::Files);
                    let total = bytes_below(from, &counting);
                    counting.finish();
                    filler.bar = Bar::new("copying", total, Unit::Bytes);
                }
                filler.total = Some(Box::new(move || bytes_below(from, &Bar::hidden())));
                let owner = self.extended.iter().any(|list| list.contains("root_owner")).then_some(options.root_owner);
                let change = move |attributes: &mut FileAttributes| {
                    (attributes.uid, attributes.gid) = owner.unwrap_or((attributes.uid, attributes.gid))
                };
                Folder::new(&mut filler, &self.device).contents(from, InodeNo::ROOT, b"/", Some(&change))
            }
            Contents::StandardInput => {
                let mut archive = BufReader::with_capacity(1 << 20, Input::new(std::io::stdin(), waits));
                if archive.fill_buf().is_ok_and(<[u8]>::is_empty) {
                    Err(Stop::Unreadable(b"-".to_vec(), "standard input is empty".to_owned()))
                } else {
                    unpack(&mut filler, archive, b"-", InodeNo::ROOT)
                }
            }
            Contents::Archive(name, archive) => {
                filler.bar = Bar::new("copying", archive.metadata().map_or(0, |metadata| metadata.len()), Unit::Bytes);
                let archive = BufReader::with_capacity(1 << 20, Input::new(archive, waits));
                unpack(&mut filler, archive, name.as_os_str().as_bytes(), InodeNo::ROOT)
            }
        };
        let incomplete = outcome.is_err();
        let (status, copied) = filler.finish(outcome, self.verbose);
        volume.unmount().map_err(|e| not_written(&self.device, &e))?;
        Ok(Filled { status, copied, incomplete })
    }

    /// Number of free blocks of the volume on the device.
    fn free_blocks(&self) -> Result<u64> {
        let device = open_volume(&self.device, OpenOptions::default())?;
        let volume = Volume::open(device, &fs::OpenOptions::default()).map_err(|e| self.failure(e))?;
        free_blocks(&volume).map_err(|e| self.failure(e))
    }

    /// Prints a summary of the new volume as text.
    fn report(&self, image: &VolumeImage) -> Result<()> {
        let superblock = image.superblock();
        let geometry = &superblock.geometry;
        let block_size = u64::from(geometry.block_size);
        let mut out = stdout()?;
        writeln!(
            out,
            "{}: {} {}, {} in {} blocks of {}, {} inodes of {} bytes",
            escape(self.device.as_bytes()),
            if self.dry_run { "would be" } else { "is now" },
            image.format_name(),
            human(image.device_blocks().saturating_mul(block_size)),
            image.device_blocks(),
            human(block_size),
            geometry.inodes,
            geometry.inode_size,
        )?;
        writeln!(out, "UUID {}", uuid::Uuid::from_bytes(superblock.disk.s_uuid))?;
        match image.journal_blocks() {
            0 => writeln!(out, "no journal")?,
            blocks => writeln!(out, "journal of {}", human(blocks * block_size))?,
        }
        if self.verbose {
            writeln!(out, "features {}", image.features().names().join(" "))?;
        }
        let copies: Vec<String> = backup_blocks(image).map(|block| block.to_string()).collect();
        if !copies.is_empty() {
            let s = if copies.len() == 1 { "" } else { "s" };
            writeln!(out, "backup superblock{s} in block{s} {}", copies.join(", "))?;
        }
        Ok(out.flush()?)
    }

    /// A summary of the new volume as JSON; `removed`: there is no volume any more.
    fn summary(&self, image: &VolumeImage, filled: Option<&Filled>, removed: bool) -> Result<serde_json::Value> {
        let superblock = image.superblock();
        let geometry = &superblock.geometry;
        let free_blocks = if filled.is_some() && !removed { self.free_blocks()? } else { image.free_blocks() };
        Ok(json!({
            "device": &*self.device,
            "made": !self.dry_run && !removed,
            "incomplete": filled.is_some_and(|filled| filled.incomplete),
            "copied": filled.map(|filled| &filled.copied),
            "format": image.format_name(),
            "uuid": uuid::Uuid::from_bytes(superblock.disk.s_uuid).to_string(),
            "label": superblock.disk.label(),
            "block_size": geometry.block_size,
            "blocks": image.device_blocks(),
            "cluster_size": geometry.block_size.saturating_mul(geometry.cluster_blocks),
            "reserved_blocks": superblock.disk.reserved_blocks_count(),
            "free_blocks": free_blocks,
            "journal_blocks": image.journal_blocks(),
            "inodes": geometry.inodes,
            "inode_size": geometry.inode_size,
            "groups": geometry.groups,
            "blocks_per_group": geometry.blocks_per_group,
            "inodes_per_group": geometry.inodes_per_group,
            "features": image.features().names(),
            "backup_superblocks": backup_blocks(image).map(FsBlock::get).collect::<Vec<_>>(),
            "warnings": image.warnings().iter().map(ToString::to_string).collect::<Vec<_>>(),
        }))
    }
}

/// A volume that was made, and its device.
type Made = (VolumeImage, Arc<dyn BlockDevice>);

/// The outcome of `-d`.
struct Filled {
    /// The exit status.
    status: u8,
    /// The amounts copied.
    copied: serde_json::Value,
    /// The copy ended early, not only without files that have errors.
    incomplete: bool,
}

/// The minimum size that fits, in steps of 1 KiB, if `size` is too small. Searched up to 16 GiB.
fn least_size(size: u64, fits: impl Fn(u64) -> bool) -> Option<u64> {
    const STEP: u64 = 1 << 10;
    const MOST: u64 = 16 << 30;
    if size > MOST || fits(size) {
        return None;
    }
    let mut short = size / STEP;
    let mut enough = short.max(32);
    while !fits(enough * STEP) {
        short = enough;
        enough *= 2;
        if enough * STEP > MOST {
            return None;
        }
    }
    while enough - short > 1 {
        let between = short + (enough - short) / 2;
        if fits(between * STEP) {
            enough = between;
        } else {
            short = between;
        }
    }
    Some(enough * STEP)
}

fn backup_blocks(image: &VolumeImage) -> impl Iterator<Item = FsBlock> + '_ {
    let geometry = &image.superblock().geometry;
    geometry.backup_groups().filter_map(|group| geometry.superblock_block(group))
}

/// The creation time: now, or SOURCE_DATE_EPOCH, so that equal input makes equal volumes.
fn now() -> Timestamp {
    let epoch = std::env::var("SOURCE_DATE_EPOCH").ok().and_then(|seconds| seconds.parse().ok());
    let clock = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    Timestamp { seconds: epoch.unwrap_or_else(|| clock().cast_signed()), nanos: 0 }
}
