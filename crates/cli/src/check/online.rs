//! `extant check --online`: a native volume that is in use, by a snapshot that is made for it and deleted afterwards. What a
//! snapshot keeps stays as it is, so nothing that is done meanwhile looks like damage, and nobody has to wait. The volume's other
//! snapshots are looked at with it; where one is deleted meanwhile, what was found there may mean nothing, and the check
//! begins anew.

use super::config::Settings;
use super::watch::Watch;
use super::{Check, declined};
use crate::failure::Failure;
use blockdev::BlockDevice;
use check::render::escape;
use check::report::{Report, exit};
use check::{Glance, InUse, Options, Refusal};
use fuse::MountedSnapshots;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// How the names of such snapshots begin; the process that made one follows.
const PREFIX: &str = ".extant-check-";

/// How often a check is done at most because snapshots are deleted meanwhile; the last time without them.
const TURNS: u32 = 4;

/// A snapshot for as long as a check takes.
struct Held<'a> {
    snapshots: &'a MountedSnapshots,
    name: String,
}

impl<'a> Held<'a> {
    fn new(snapshots: &'a MountedSnapshots) -> io::Result<Self> {
        // those of checks that were killed
        for (info, _) in snapshots.list(false)? {
            let maker = std::str::from_utf8(&info.name).ok().and_then(|name| name.strip_prefix(PREFIX));
            if maker.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
                snapshots.delete(&info.name)?;
            }
        }
        let name = format!("{PREFIX}{}", std::process::id());
        snapshots.create(name.as_bytes())?;
        Ok(Self { snapshots, name })
    }

    fn end(&self) -> io::Result<()> {
        self.snapshots.delete(self.name.as_bytes())
    }
}

/// Why a path that is no folder stands for no volume in use: often it is a file on one.
fn not_mounted(path: &Path) -> String {
    let mount = || {
        let path = path.canonicalize().ok()?;
        let device = path.metadata().ok()?.dev();
        let same = |dir: &&Path| dir.metadata().is_ok_and(|metadata| metadata.dev() == device);
        let top = path.ancestors().take_while(same).last()?.to_owned();
        MountedSnapshots::of(&top).is_ok().then_some(top)
    };
    match mount() {
        Some(top) => {
            let top = escape(top.as_os_str().as_bytes());
            format!(
                "it is a file on the volume that is mounted on {top}: --online takes that folder, or the volume's device"
            )
        }
        None => "it is not mounted: --online is for volumes in use, and this one can be checked without".to_owned(),
    }
}

impl Check {
    /// Checks a volume that is mounted, named by a folder of it or by its device.
    pub(super) fn online(&self, settings: &Settings, watch: &Watch) -> Result<u8, Failure> {
        let failed = |e: io::Error| Failure::on(self.called(), e);
        let dir = if Path::new(&self.device).is_dir() {
            PathBuf::from(&self.device)
        } else {
            let at = blockdev::mounted(&self.device).and_then(|mounted| mounted.at);
            at.ok_or_else(|| Failure::on(self.called(), not_mounted(Path::new(&self.device))))?
        };
        let snapshots = MountedSnapshots::of(&dir).map_err(failed)?;
        let source = blockdev::mount_source(&dir)
            .ok_or_else(|| Failure::on(self.called(), "nobody tells what is mounted there"))?;
        let device = blockdev::open(&source, blockdev::OpenOptions { planned: true, ..Default::default() })?;
        let mut options = Options { rules: settings.rules.clone(), ..Options::default() };
        if let Some(threads) = self.threads {
            options.threads = threads;
        }
        let outcome = self.in_use(&snapshots, &*device, &options, watch);
        watch.finish();
        match outcome? {
            Err(refusal) => self.refused(&refusal),
            Ok(mut report) => {
                declined(&mut report, settings);
                self.report(&report, settings)
            }
        }
    }

    /// Checks the volume with all its snapshots; once more where one of them was deleted meanwhile, and in the end without them.
    fn in_use(
        &self,
        snapshots: &MountedSnapshots,
        device: &dyn BlockDevice,
        options: &Options,
        watch: &Watch,
    ) -> Result<Result<Report, Refusal>, Failure> {
        let failed = |e: io::Error| Failure::on(self.called(), e);
        let before = Glance::of(device);
        let mut turn = 1;
        loop {
            let held = Held::new(snapshots).map_err(|e| match e.kind() {
                io::ErrorKind::ReadOnlyFilesystem => {
                    let why = "it is mounted read-only, so no snapshot can be made for the check: nothing changes it, and \
                               check -fn on its device checks it as it is";
                    Failure::on(self.called(), why)
                }
                _ => failed(e),
            })?;
            let what = InUse { snapshot: held.name.as_bytes(), before: &before, alone: turn == TURNS };
            let outcome = check::check_in_use(self.called(), device, &what, options, watch);
            held.end().map_err(failed)?;
            let again = |report: &Report| !report.not_looked_at.is_empty() && report.exit & exit::CANCELLED == 0;
            if turn == TURNS || !outcome.as_ref().is_ok_and(again) {
                return Ok(outcome);
            }
            turn += 1;
        }
    }
}
