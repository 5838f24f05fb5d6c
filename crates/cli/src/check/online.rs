//! `extant check --online`: checks a native volume in use through a snapshot that is taken for the check and deleted
//! afterwards. The blocks of a snapshot do not change, so concurrent changes do not appear as damage, and no process
//! has to wait. The volume's other snapshots are checked as well; if one is deleted meanwhile, problems found in it may
//! be false, and the check is repeated.

use super::config::Settings;
use super::progress_output::Watch;
use super::{Check, apply_no_ok};
use crate::device::{Device, SCHEMES, is_locked, open_unlayered};
use crate::error_report::Failure;
use blockdev::BlockDevice;
use check::render::escape;
use check::report::{Report, exit};
use check::{Glance, InUse, Options, Refusal};
use fuse::MountedSnapshots;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Prefix of the names of such snapshots, followed by the id of the process that created one.
const PREFIX: &str = ".extant-check-";

/// Maximum number of checks where snapshots are deleted meanwhile; the last one omits the other snapshots.
const ITERATIONS: u32 = 4;

/// A snapshot that exists for the duration of a check.
struct CheckSnapshot<'a> {
    snapshots: &'a MountedSnapshots,
    name: String,
}

impl<'a> CheckSnapshot<'a> {
    fn new(snapshots: &'a MountedSnapshots) -> io::Result<Self> {
        // left by checks that were killed
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

/// The reason why a path that is not a folder is not a volume in use: often it is a file on one.
fn not_mounted(device: &Device) -> String {
    let path = Path::new(device);
    if device.path().is_some_and(|path| path.metadata().is_err_and(|e| e.kind() == io::ErrorKind::NotFound)) {
        return "no such file or directory".to_owned();
    }
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
            format!("it is a file on the volume mounted on {top}: use that path or its device with --online")
        }
        None if is_locked(device) => {
            "it is in use by another process, and the list of mounts does not name it: it is served, or mounted under \
             another name (option fsname); unmount it there, and check it without --online"
                .to_owned()
        }
        None => "it is not mounted: check it without --online".to_owned(),
    }
}

/// The format of the volume mounted on a folder, if it is not the native one.
fn other_format(dir: &Path) -> Option<&'static str> {
    let source = blockdev::mount_source(dir).filter(|source| source.is_absolute())?;
    let device = open_unlayered(&source, blockdev::OpenOptions::default()).ok()?;
    let way = fs::OpenOptions { ignore_journal: true, ..fs::OpenOptions::default() };
    let volume = fs::Volume::open(Arc::clone(&device), &way).ok()?;
    (!check::Capabilities::of(&*device).online).then(|| volume.superblock().features.format_name())
}

impl Check {
    /// Checks a mounted volume, specified by a folder on it or by its device.
    pub(super) fn online(&self, settings: &Settings, watch: &Watch) -> Result<u8, Failure> {
        let failed = |e: io::Error| Failure::on(self.called(), e);
        let dir = if Path::new(&self.device).is_dir() {
            PathBuf::from(&self.device)
        } else {
            let at = blockdev::mounted(&self.device).and_then(|mounted| mounted.at);
            at.ok_or_else(|| Failure::on(self.called(), not_mounted(&self.device)))?
        };
        let snapshots = MountedSnapshots::of(&dir).map_err(|e| match other_format(&dir) {
            Some(format) => {
                let why = "only native volumes are checked with --online: unmount it and run `extant check -fn`";
                Failure::on(self.called(), format!("it is on a volume of type {format}: {why}"))
            }
            None => failed(e),
        })?;
        let source = blockdev::mount_source(&dir)
            .ok_or_else(|| Failure::on(self.called(), "the mounted file system does not answer"))?;
        // a relative source is a name chosen by the user, not a file in the folder of this process
        if !blockdev::path_beneath(source.as_os_str(), SCHEMES).is_some_and(Path::is_absolute) {
            let why = "the list of mounts does not name its device: mount it without the option fsname, or unmount it \
                       and check the device";
            return Err(Failure::on(self.called(), why));
        }
        let device = open_unlayered(&source, blockdev::OpenOptions { planned: true, ..Default::default() })?;
        let mut options = Options {
            problem_settings: settings.problem_settings.clone(),
            limits: self.limits(settings),
            ..Options::default()
        };
        if let Some(threads) = self.threads {
            options.threads = threads;
        }
        let outcome = self.in_use(&snapshots, &*device, &options, watch);
        watch.finish();
        match outcome? {
            Err(refusal) => self.refused(&refusal),
            Ok(mut report) => {
                report.place = Some(dir.to_string_lossy().into_owned());
                apply_no_ok(&mut report, settings);
                self.report(&report, settings)
            }
        }
    }

    /// Checks the volume with all its snapshots; repeats the check where one of them was deleted meanwhile, the last
    /// time without them.
    fn in_use(
        &self,
        snapshots: &MountedSnapshots,
        device: &dyn BlockDevice,
        options: &Options,
        watch: &Watch,
    ) -> Result<Result<Report, Refusal>, Failure> {
        let failed = |e: io::Error| Failure::on(self.called(), e);
        let before = Glance::of(device);
        let mut iteration = 1;
        loop {
            let snapshot = CheckSnapshot::new(snapshots).map_err(|e| match e.kind() {
                io::ErrorKind::ReadOnlyFilesystem => {
                    let why = "it is mounted read-only, so no snapshot can be taken: use check -fn on its device";
                    Failure::on(self.called(), why)
                }
                _ => failed(e),
            })?;
            let what = InUse { snapshot: snapshot.name.as_bytes(), before: &before, alone: iteration == ITERATIONS };
            let outcome = check::check_in_use(self.called(), device, &what, options, watch);
            snapshot.end().map_err(failed)?;
            let again = |report: &Report| !report.not_looked_at.is_empty() && report.exit & exit::CANCELLED == 0;
            if iteration == ITERATIONS || !outcome.as_ref().is_ok_and(again) {
                return Ok(outcome);
            }
            iteration += 1;
        }
    }
}
