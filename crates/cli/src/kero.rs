//! `extant kero`: a layer that makes each flush of a device atomic. Commands to create, examine, serve and remove it.

mod numbers;
mod volume;

use crate::device::{Device, SCHEMES};
use crate::error_report::{Failure, Result, say, with_place};
use crate::output::{human, print_json, stdout};
use crate::progress::{Bar, Unit};
use crate::serve::{Holes, Serving};
use crate::source::for_writing;
use ::kero::{Background, FormatOptions, Joined, Options, beneath, drain_with, format};
use blockdev::{BlockDevice, OpenOptions};
use check::render::escape;
use clap::{Args, Subcommand};
use parking_lot::Mutex;
use serde_json::json;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use volume::Found;

/// Interval at which a server writes its statistics.
const STATISTICS_INTERVAL: Duration = Duration::from_secs(5);

#[derive(Debug, Args)]
#[command(
    about = "Make the writes between two flushes of a device atomic",
    after_help = "Examples:
  extant kero format /dev/sdb1                      its content stays; the log takes its end
  extant mkfs -t ext2 kero:/dev/sdb1                every command takes kero:DEVICE
  extant mount kero:/dev/sdb1 /mnt
  extant kero serve /dev/sdb1 --nbd unix:/run/k     for the kernel and others
  extant kero stat /dev/sdb1
  extant kero drain /dev/sdb1                       a plain device again

New content goes to a log at the end of the device, and content that is no longer being written moves to its own location later. Repeated writes of a block of 4 KiB are written once each, with no second copy in \
    a journal. After a crash the device has the state of one flush: the last that returned, or one that was in progress.

File systems that order their writes by flushes are consistent after any crash. The kernel's ext2 is consistent as of \
    its last sync, if it was idle or frozen then.

Exit status: 0 done, 1 not done, 2 wrong usage."
)]
pub(crate) struct Kero {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Format(Format),
    Stat(Stat),
    Drain(Drain),
    Serve(Serve),
}

impl Kero {
    pub(crate) fn run(&self) -> Result<u8> {
        match &self.command {
            Command::Format(command) => command.run(),
            Command::Stat(command) => command.run(),
            Command::Drain(command) => command.run(),
            Command::Serve(command) => command.run(),
        }
    }
}

#[derive(Debug, Args)]
#[command(
    about = "Add the layer to a device",
    after_help = "Examples:
  extant kero format /dev/sdb1                        its content stays
  extant kero format --empty volume.img               its content is discarded
  extant kero format --log 1G /dev/sdb1
  extant kero format --log-device /dev/nvme0n1p3 /dev/sdb1

Everything on the device stays, at the same addresses of kero:DEVICE, unless --empty is used. The log takes \
    the end of the device, a 64th of it (4 MiB to 4 GiB) unless --log is used; if a volume extends into that, the command \
    refuses: shrink the volume first (resize2fs). On a log device it takes all of that, or --log of it, and the \
    whole device stays for data; the previous content of the log device is lost.

Placeholders in blocks 0 and 16 mark the layer, so that no program that looks for a superblock in its usual place \
    takes the device for the volume beneath; e2fsck -y, which goes on to backup superblocks, must not be run on it. \
    If the command was interrupted, drain the device, then run it again.

Exit status: 0 done, 1 not done, and the device is unchanged or marked as unfinished, 2 wrong usage."
)]
struct Format {
    /// Device: a path
    #[arg(value_name = "DEVICE")]
    device: Device,

    /// Size of the log: a number with K, M or G
    #[arg(long, value_name = "SIZE", value_parser = blockdev::parse_size)]
    log: Option<u64>,

    /// Separate device for the log
    #[arg(long, value_name = "DEVICE")]
    log_device: Option<Device>,

    /// Discard the content of the device
    #[arg(long)]
    empty: bool,

    /// Proceed although the end of the device's content is unknown, or the log device is not empty
    #[arg(short = 'F', long)]
    force: bool,
}

impl Format {
    fn run(&self) -> Result<u8> {
        let device = open(&self.device, self.log_device.as_ref(), for_writing(&self.device))
            .map_err(|e| with_place(&self.device, e))?;
        let mut options = FormatOptions { log: self.log, empty: self.empty, ..FormatOptions::default() };
        if let Some(log) = &self.log_device {
            self.require_empty_log(&*device.data, log)?;
            options.split = device.split;
        }
        if !self.empty && !::kero::is_layered(&*device.whole) {
            let data = Arc::clone(&device.data);
            options.volume = self.end(&data, &options)?;
        }
        format(&device.whole, &options).map_err(|e| Failure::on(&self.device, e))?;
        let kero = ::kero::Kero::open(&*device.whole, Options::default()).map_err(|e| Failure::on(&self.device, e))?;
        let layout = kero.layout();
        let mut out = stdout()?;
        writeln!(
            out,
            "{}: Kero layer with {} of data and a log of {}",
            escape(self.device.as_bytes()),
            human(u64::from(layout.data) * ::kero::BLOCK),
            human(u64::from(layout.log) * ::kero::BLOCK)
        )?;
        out.flush()?;
        Ok(0)
    }

    /// Determines the end of the volume on the device.
    fn end(&self, data: &Arc<dyn BlockDevice>, options: &FormatOptions) -> Result<Option<u64>> {
        let failed = |e: blockdev::Error| Failure::on(&self.device, e);
        match volume::found(&**data).map_err(failed)? {
            Found::Ends(end) => Ok(Some(end)),
            _ if self.force || options.split.is_some() => Ok(None),
            Found::Unknown(what) => {
                let why = format!(
                    "it contains {what} of unknown length: --empty discards it, -F preserves the part before the log"
                );
                Err(Failure::on(&self.device, why))
            }
            Found::Nothing => {
                let bar = Bar::new("looking for content", 0, Unit::Bytes);
                let last = volume::last_content(&**data, options, &mut |done, total| bar.set(done, total));
                bar.finish();
                match last.map_err(failed)? {
                    None => Ok(None),
                    Some(at) => {
                        let why = format!(
                            "the log would overwrite the content at byte {at}: --empty discards all content, -F only that part"
                        );
                        Err(Failure::on(&self.device, why))
                    }
                }
            }
        }
    }

    /// Refuses a log device that is not empty.
    fn require_empty_log(&self, data: &dyn BlockDevice, log: &Device) -> Result<()> {
        let opened = crate::device::open(log, OpenOptions { exclusive: false, ..OpenOptions::default() })?;
        if opened.geometry().len == 0 || data.geometry().len == 0 {
            return Err(Failure::on(log, "it is empty"));
        }
        let contents = volume::contents(&*opened).map_err(|e| Failure::on(log, e))?;
        match contents.filter(|_| !self.force) {
            Some(what) => Err(Failure::on(log, format!("contains {what}; use -F to overwrite"))),
            None => Ok(()),
        }
    }
}

/// A device with its log.
struct Beneath {
    /// Both devices, concatenated.
    whole: Arc<dyn BlockDevice>,
    /// The device with the data.
    data: Arc<dyn BlockDevice>,
    /// The block at which the log device begins.
    split: Option<u64>,
}

/// Opens a device and its log device.
fn open(device: &Device, log: Option<&Device>, options: OpenOptions) -> Result<Beneath> {
    let exclusive = OpenOptions { exclusive: true, ..options };
    let data = crate::device::open(device, exclusive)?;
    let Some(log) = log else { return Ok(Beneath { whole: Arc::clone(&data), data, split: None }) };
    let joined = Joined::new(Arc::clone(&data), crate::device::open(log, exclusive)?);
    let split = Some(joined.split() / ::kero::BLOCK);
    Ok(Beneath { whole: Arc::new(joined), data, split })
}

#[derive(Debug, Args)]
#[command(
    about = "Show the state of a layer",
    after_help = "Examples:
  extant kero stat volume.img
  extant kero stat --json /dev/sdb1
  extant kero stat --prometheus /dev/sdb1 > /var/lib/node_exporter/kero.prom

It reads the log, as every opening does; nothing is written. A device that is in use is refused: for a layer that is \
    served, `extant kero serve --stats FILE` writes the numbers, including those since it was opened.

Exit status: 0 printed, 1 no layer, or an unusable one, 2 wrong usage."
)]
struct Stat {
    #[command(flatten)]
    layered: Layered,

    /// Print JSON
    #[arg(long)]
    json: bool,

    /// Print the text format of Prometheus
    #[arg(long, conflicts_with = "json")]
    prometheus: bool,
}

// a device with a layer
#[derive(Debug, Args)]
struct Layered {
    /// Device: a path, without the prefix kero:
    #[arg(value_name = "DEVICE")]
    device: Device,

    /// Separate device with the log, if any
    #[arg(long, value_name = "DEVICE")]
    log_device: Option<Device>,
}

impl Layered {
    /// The failure of a command that takes the device without the prefix.
    fn failure(&self, why: &::kero::Error) -> Failure {
        match why {
            ::kero::Error::NotFormatted => {
                Failure::on(&self.device, "the device has no Kero layer (block 0 contains no placeholder)")
            }
            _ => Failure::on(&self.device, why),
        }
    }

    fn open(&self, options: OpenOptions) -> Result<Arc<dyn BlockDevice>> {
        let opened = beneath(&self.device, self.log_device.as_deref(), options, SCHEMES);
        opened.map_err(|e| with_place(&self.device, e.into()))
    }
}

impl Stat {
    fn run(&self) -> Result<u8> {
        let device = self.layered.open(OpenOptions::default())?;
        let failed = |e: ::kero::Error| self.layered.failure(&e);
        let kero = ::kero::Kero::open(&*device, Options { read_only: true, ..Options::default() }).map_err(failed)?;
        let rows = numbers::rows(&kero, false);
        if self.json {
            let values: serde_json::Map<_, _> = rows.iter().map(|row| (row.name.to_owned(), row.json())).collect();
            print_json(&json!({
                "device": &*self.layered.device,
                "uuid": uuid::Uuid::from_bytes(kero.uuid()).to_string(),
                "numbers": values,
            }))?;
            return Ok(0);
        }
        let mut out = stdout()?;
        if self.prometheus {
            out.write_all(numbers::prometheus(&rows, &self.layered.device).as_bytes())?;
        } else {
            let name = escape(self.layered.device.as_bytes());
            writeln!(out, "{name}: Kero layer {}", uuid::Uuid::from_bytes(kero.uuid()))?;
            rows.iter().try_for_each(|row| writeln!(out, "  {:28} {}", row.text, row.shown()))?;
        }
        out.flush()?;
        Ok(0)
    }
}

#[derive(Debug, Args)]
#[command(
    about = "Remove the layer: all content moves to its own location",
    after_help = "Examples:
  extant kero drain volume.img
  extant kero drain --log-device /dev/nvme0n1p3 /dev/sdb1

The result is a plain device with the same content. If the command was interrupted, run it again: nothing is lost. Discarded \
    ranges have undefined content then.

With --force a device is accepted whose placeholder is gone because it was written to without the layer: the content of \
    the log overwrites those writes. Content that is damaged in the log (its checksum is wrong) is moved as it is; without \
    --force the command ends there, and nothing is lost.

Exit status: 0 done, 1 not done, or not all of it, 2 wrong usage."
)]
struct Drain {
    #[command(flatten)]
    layered: Layered,

    /// Proceed although the device was written to without the layer
    #[arg(long)]
    force: bool,
}

impl Drain {
    fn run(&self) -> Result<u8> {
        let device = self.layered.open(for_writing(&self.layered.device))?;
        let bar = Bar::new("writing back", 0, Unit::Bytes);
        let options = Options { force: self.force, ..Options::default() };
        let drained = drain_with(&device, options, &mut |so_far| bar.set(so_far.done, so_far.total));
        bar.finish();
        let drained = drained.map_err(|e| self.layered.failure(&e))?;
        let mut out = stdout()?;
        let name = escape(self.layered.device.as_bytes());
        writeln!(out, "{name}: a plain device again, {} written back", human(drained.total))?;
        out.flush()?;
        Ok(0)
    }
}

#[derive(Debug, Args)]
#[command(
    about = "Serve the layer of a device over the network, a Unix socket (NBD), or as a file (FUSE)",
    after_help = "Examples:
  extant kero serve /dev/sdb1 --file /run/kero                the file /run/kero/disk
  losetup -b 4096 --direct-io=on -f --show /run/kero/disk     and a block device of it, as root
  extant kero serve volume.img --nbd unix:/run/kero.sock
  extant kero serve /dev/sdb1 --nbd 127.0.0.1:10809 --stats /var/lib/node_exporter/kero.prom

As `extant serve kero:DEVICE`; see there for the address, who can connect, the file, and signals. A flush of a client, or a \
    write with FUA, ends a group: all that any client had written until then survives together or not at all; so does an \
    fsync(2) of the file. No holes can be punched into the file, so a file system on it discards nothing; over NBD it \
    does. A group also ends \
    when nothing was written for a second, when it is 5 seconds old, and when the log has no space for more of it. When \
    there are no requests, blocks that are no longer being written move to their own locations.

Exit status: 0 ended by a signal, 1 not served, or not all that was written may have reached the \
device (the message says which), 2 wrong usage."
)]
struct Serve {
    #[command(flatten)]
    serving: Serving,

    /// Separate device with the log, if any
    #[arg(long, value_name = "DEVICE")]
    log_device: Option<Device>,

    /// Write statistics in the text format of Prometheus to this file every 5 seconds, and at the end
    #[arg(long, value_name = "FILE")]
    stats: Option<PathBuf>,
}

impl Serve {
    fn run(&self) -> Result<u8> {
        let opened: Mutex<Option<Arc<Background>>> = Mutex::new(None);
        let name = &self.serving.device;
        let open = |access| {
            let device = beneath(name, self.log_device.as_deref(), access, SCHEMES)?;
            let layer = Background::open(device, Options::default()).map_err(|e| Failure::on(name, e))?;
            let layer = Arc::new(layer);
            if let Some(file) = &self.stats {
                write_numbers(&layer, name, file).map_err(|e| Failure::on(&file.to_string_lossy(), e))?;
                let (weak, name, file) = (Arc::downgrade(&layer), name.to_string(), file.clone());
                std::thread::spawn(move || {
                    loop {
                        std::thread::sleep(STATISTICS_INTERVAL);
                        let Some(layer) = weak.upgrade() else { return };
                        if let Err(e) = write_numbers(&layer, &name, &file) {
                            say(&format!("{}: {e}", escape(file.to_string_lossy().as_bytes())));
                            return;
                        }
                    }
                });
            }
            *opened.lock() = Some(Arc::clone(&layer));
            Ok(layer as Arc<dyn BlockDevice>)
        };
        // the layer has no holes inside content: it would write zeroes
        let served = self.serving.run(Holes::Refused, open);
        let opened = opened.into_inner();
        if let (Some(layer), Some(file)) = (opened, &self.stats) {
            write_numbers(&layer, name, file).map_err(|e| Failure::on(&file.to_string_lossy(), e))?;
        }
        served
    }
}

/// Replaces the statistics file as a whole, so that no process reads a partial one.
fn write_numbers(layer: &Background, name: &str, file: &Path) -> std::io::Result<()> {
    let mut beside = file.as_os_str().to_owned();
    beside.push(".new");
    std::fs::write(&beside, numbers::prometheus(&numbers::rows(layer.layer(), true), name))?;
    std::fs::rename(&beside, file)
}
