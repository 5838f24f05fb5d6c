//! `extant serve`: serves a device to NBD clients, or as a file.

mod file;

use crate::copy_in::not_ignored;
use crate::device::{Device, open};
use crate::error_report::{Failure, Result, say, with_place, without_errno};
use crate::output::{human, stdout};
use crate::source::for_writing;
use ::serve::{Address, Notice, Options, Server};
use blockdev::BlockDevice;
use check::render::escape;
use clap::{ArgGroup, Args};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

#[derive(Debug, Args)]
#[command(
    about = "Serve a device over the network, a Unix socket (NBD), or as a file (FUSE)",
    after_help = "Examples:
  extant serve volume.img --nbd unix:/run/volume.sock
  extant serve /dev/sdb1 --read-only --nbd 127.0.0.1:10809
  extant serve mem:1G --file /mnt/mem                        the file /mnt/mem/disk
  losetup -b 4096 --direct-io=on -f --show /mnt/mem/disk     a block device of it (as root)
  nbdinfo 'nbd+unix:///?socket=/run/volume.sock'             show it, from another terminal
  nbdcopy 'nbd+unix:///?socket=/run/volume.sock' copy.img    copy it
  nbd-client -unix /run/volume.sock /dev/nbd0 -C 4           a block device (as root)

NBD has no authentication, and this server has no TLS: everyone who can connect can read and, without \
    --read-only, change every byte. A Unix socket is accessible only to its user (mode 0600). With \
    HOST:PORT, choose an address that only trusted machines reach, or use an encrypted tunnel.

With --file, DIR contains one file that is the device, of the same length: for programs that open files, and for \
    losetup. Only its user can access it, the kernel does not cache it, and fsync(2) is a flush.

The command prints the address for clients, or the file's path, when it can be used, and serves until \
    SIGINT, SIGTERM or SIGHUP, or until DIR is unmounted: then requests in progress are finished, \
    everything is flushed, and the socket or the mount is removed. Programs that have the file open then get \
    errors: detach loop devices first. Meanwhile the device is locked: no other program on this machine writes \
    to it. A reply to a flush, or to a write with FUA, means that the bytes survive a loss of power as \
    far as the device guarantees that; a flush covers the writes of all connections. After a flush that \
    failed all changes are refused. If a client disconnects, nothing that was acknowledged and \
    flushed is lost.

Exit status: 0 ended by a signal or unmounted, 1 not served, or not all that was written may have \
    reached the device (the message says which), 2 wrong usage."
)]
pub(crate) struct Serve {
    #[command(flatten)]
    serving: Serving,
}

// options of `extant serve` and `extant kero serve`
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("place").args(["nbd", "file"]).required(true))]
pub(crate) struct Serving {
    /// Device to serve: a path, or mem:SIZE
    #[arg(value_name = "DEVICE")]
    pub(crate) device: Device,

    /// Serve NBD at unix:PATH or HOST:PORT
    #[arg(long, value_name = "ADDRESS")]
    nbd: Option<Address>,

    /// Serve a file: mount a file system with only this file on DIR
    #[arg(long, value_name = "DIR", conflicts_with_all = ["connections", "verbose"])]
    file: Option<PathBuf>,

    /// Refuse all changes
    #[arg(long)]
    read_only: bool,

    /// Name of the export, also used for clients that specify none; or of the file, by default `disk`
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// Maximum number of connections; each may take 64 MiB of memory for its requests
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    connections: u16,

    /// Report connections on standard error
    #[arg(short, long)]
    verbose: bool,
}

impl Serve {
    pub(crate) fn run(&self) -> Result<u8> {
        self.serving.run(Holes::Punched, |access| Ok(open(&self.serving.device, access)?))
    }
}

/// The handling of requests to punch holes into a served file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Holes {
    /// Allowed; holes read as zeroes.
    Punched,
    /// Refused: the device would write zeroes.
    Refused,
}

impl Serving {
    /// Serves the device opened by `open`, until a signal.
    pub(crate) fn run(
        &self,
        holes: Holes,
        open: impl FnOnce(blockdev::OpenOptions) -> Result<Arc<dyn BlockDevice>>,
    ) -> Result<u8> {
        if self.file.is_some() {
            file::expect_writes_of_the_kernel();
        }
        // before the socket exists: afterwards a signal must not leave it behind
        let signals = Signals::new(not_ignored([SIGHUP]).chain([SIGINT, SIGTERM]))?;
        let access = if self.read_only {
            blockdev::OpenOptions { exclusive: true, ..blockdev::OpenOptions::default() }
        } else {
            for_writing(&self.device)
        };
        let device = open(access).map_err(|e| with_place(&self.device, e))?;
        match (&self.file, &self.nbd) {
            (Some(dir), _) => self.serve_file(device, dir, holes, signals),
            (_, Some(address)) => self.serve_nbd(device, address, signals),
            (None, None) => Err(Failure::Message("specify --nbd ADDRESS or --file DIR".to_owned())),
        }
    }

    fn serve_nbd(&self, device: Arc<dyn BlockDevice>, address: &Address, mut signals: Signals) -> Result<u8> {
        let len = device.geometry().len;
        let options = Options {
            name: self.name.clone().unwrap_or_default(),
            read_only: self.read_only,
            connections: self.connections.into(),
            ..Options::default()
        };
        let server = Server::bind(device, address, options).map_err(|e| sentence(&e))?;
        let stopper = server.stopper();
        std::thread::spawn(move || signals.forever().for_each(|_| stopper.stop()));
        self.announce(len, server.uri().as_bytes())?;
        server
            .run(&|notice| match notice {
                Notice::Problem(_) => say(&self.about(&notice)),
                _ if self.verbose => say(&self.about(&notice)),
                _ => {}
            })
            .map_err(|e| sentence(&e))?;
        Ok(0)
    }

    /// Prints the address or path, once it can be used.
    fn announce(&self, len: u64, place: &[u8]) -> Result<()> {
        let mut out = stdout()?;
        writeln!(out, "{}: serving {} at {}", escape(self.device.as_bytes()), human(len), escape(place))?;
        Ok(out.flush()?)
    }

    fn about(&self, notice: &Notice) -> String {
        let notice = without_errno(&escape(notice.to_string().as_bytes()));
        format!("{}: {notice}", escape(self.device.as_bytes()))
    }
}

fn sentence(e: &::serve::Error) -> Failure {
    Failure::Message(without_errno(&escape(e.to_string().as_bytes())))
}
