//! One check from beginning to end: phase 0 opens the volume, the rounds read it, the phases after compare the records.

use crate::capabilities::Capabilities;
use crate::checks::Checks;
use crate::context::Context;
use crate::estimate;
use crate::inode_records::Directories;
use crate::memory;
use crate::native::{self, Identities, InUse, PhysicalLayer, Version, VersionsChecked};
use crate::options::{Options, Progress, Refusal};
use crate::paths::Paths;
use crate::phases::bitmaps::Bitmaps;
use crate::phases::directories::Names;
use crate::phases::inodes::xattrs;
use crate::phases::multiply_claimed::{Owners, Sharing};
use crate::phases::{connectivity, links, quota, superblock};
use crate::problem::{Limits, Problem, Problems};
use crate::report::{ChosenSuperblock, Counts, Report, Scan};
use crate::scan::found::DirRun;
use crate::scan::log::ScanLog;
use crate::scan::regions::Layers;
use crate::scan::rounds::{Outcome, Rounds};
use crate::scan::{Counters, Scanner};
use crate::system_zone;
use crate::table::{Code, Phase};
use crate::view::{View, Walk};
use crate::volume_format;
use blockdev::BlockDevice;
use format::InodeNo;
use format::feature::{Incompat, RoCompat};
use format::native::superblock::NativeSuperblock;
use std::sync::OnceLock;
use std::time::Instant;

/// Divisor of the estimated bytes: the time of the check is predicted once this fraction of them was read.
const FORECAST_DIVISOR: u64 = 20;

/// Checks the volume on `device`, which the report calls `name`. Nothing is written.
///
/// # Errors
/// [`Refusal`] where there is no volume to check: one sentence, and the exit status.
pub fn check(
    name: &str,
    device: &dyn BlockDevice,
    options: &Options,
    progress: &dyn Progress,
) -> Result<Report, Refusal> {
    let checker = Checker { name, device, options, progress };
    if native::is_native(device) {
        return native::check(checker);
    }
    let mut report = checker.check()?;
    report.chosen = options.superblock.map(|block| {
        let primary_is_usable = superblock::primary_is_usable(device);
        ChosenSuperblock { block, primary_is_usable }
    });
    Ok(report)
}

/// Checks a native volume that is in use, in the state of a snapshot created for the check, with all other snapshots.
/// Parts that the report lists as [not checked](Report::not_looked_at) can be covered by a further check of another
/// snapshot. Nothing is written.
///
/// # Errors
/// [`Refusal`] where the device has no such snapshot, or it was deleted before the check ended.
pub fn check_in_use(
    name: &str,
    device: &dyn BlockDevice,
    what: &InUse<'_>,
    options: &Options,
    progress: &dyn Progress,
) -> Result<Report, Refusal> {
    let missing = |e| Refusal::new(format!("the generation to check is missing: {e}"));
    let layer = native::read_in_use(device, what).map_err(missing)?;
    let mut report = Checker { name, device, options, progress }.check_versions(&layer)?;
    let mut left_out: Vec<String> = layer.left_out.iter().map(|name| format!("the snapshot {name}")).collect();
    let gone = native::gone_of(device, &layer, what).map_err(missing)?;
    left_out.extend(gone.iter().map(|name| format!("the snapshot {name}, which was deleted while the check ran")));
    report.mounted = true;
    if !left_out.is_empty() {
        left_out.push("the blocks pinned by all snapshots together".to_owned());
        report.leave_out(left_out);
    }
    Ok(report)
}

/// One check: its volume, its options, and the receiver of its progress.
#[derive(Clone, Copy)]
pub(crate) struct Checker<'a> {
    /// The name of the volume in the report.
    pub(crate) name: &'a str,
    pub(crate) device: &'a dyn BlockDevice,
    pub(crate) options: &'a Options,
    pub(crate) progress: &'a dyn Progress,
}

/// A version of a native volume, and the physical layer that it was found in.
type LayeredVersion<'a> = (&'a PhysicalLayer, &'a Version);

impl<'a> Checker<'a> {
    /// Checks a native volume in its newest generation and all snapshots.
    pub(crate) fn check_native(self) -> Result<Report, Refusal> {
        let layer = native::read(self.device)?;
        self.check_versions(&layer)
    }

    /// Checks an ext volume.
    pub(crate) fn check(self) -> Result<Report, Refusal> {
        self.examine(|_| ()).map(|(report, ())| report)
    }

    /// Checks a generation of a native volume, by its superblock.
    pub(crate) fn check_generation(self, superblock: &NativeSuperblock) -> Result<Report, Refusal> {
        let layer = native::read_generation(self.device, superblock.clone());
        self.check_versions(&layer)
    }

    /// Checks an ext volume and passes all results to `see` before the report is built.
    pub(crate) fn examine<T>(self, see: impl FnOnce(&View<'_>) -> T) -> Result<(Report, T), Refusal> {
        self.examine_ext(None, see)
    }

    /// Checks the volume of the newest generation of a native one, and that of each snapshot.
    fn check_versions(self, layer: &PhysicalLayer) -> Result<Report, Refusal> {
        let image = native::Image::new(self.device, layer, &layer.live);
        let outcome = (Checker { device: &image, ..self }).examine_ext(Some((layer, &layer.live)), |_| ());
        let (mut report, unchecked) = match outcome {
            Ok((report, ())) => (report, false),
            // the errors beneath the volume are the reason why there is none
            Err(refusal) if layer.is_damaged() && !refusal.is_cancelled() => (self.no_newest_volume(layer), true),
            Err(refusal) => return Err(of_a_native_volume(refusal)),
        };
        report.format = volume_format::NATIVE.to_owned();
        report.capabilities = Capabilities::NATIVE;
        report.goes_back = layer.abandoned;
        report.scan = report.scan.and(&layer.scan);
        // the errors of the layer, of whichever version, are among those of the newest one
        let intact = report.clean || report.errors <= layer.errors();
        let mut versions = VersionsChecked::default();
        for snapshot in layer.others(report.clean) {
            if self.progress.cancelled() {
                report.cancel();
                break;
            }
            let image = native::Image::new(self.device, layer, snapshot);
            let checked = match (Checker { device: &image, ..self }).examine_ext(Some((layer, snapshot)), |_| ()) {
                Ok((checked, ())) => {
                    versions.add(snapshot, Some(&checked));
                    checked
                }
                Err(refusal) if refusal.is_cancelled() => {
                    report.cancel();
                    break;
                }
                Err(refusal) => {
                    versions.add(snapshot, None);
                    no_volume(snapshot, &of_a_native_volume(refusal))
                }
            };
            report.add_snapshot(snapshot.name.as_deref().unwrap_or_default(), checked);
        }
        if !report.clean {
            report.native = Some(versions.state(layer, unchecked, intact));
        }
        Ok(report)
    }

    /// The report on a native volume whose newest generation has no volume that can be checked.
    fn no_newest_volume(self, layer: &PhysicalLayer) -> Report {
        let problems = Problems::new(self.options.limits);
        layer.report(&problems);
        Report::new(self.name.to_owned(), String::new(), &problems.finish(), Scan::default(), Counts::default())
    }

    /// Checks the ext volume on the device, which may be the one above a generation of a native volume.
    fn examine_ext<T>(
        self,
        layered: Option<LayeredVersion<'_>>,
        see: impl FnOnce(&View<'_>) -> T,
    ) -> Result<(Report, T), Refusal> {
        let Self { name, device, options, progress } = self;
        let start = Instant::now();
        let counters = Counters::default();
        let problems = Problems::new(options.limits);
        // set before any read is skipped, and never cleared: the skipped parts stay unread
        let cancelled = || {
            if progress.cancelled() {
                problems.close();
            }
            problems.is_closed()
        };
        let total = OnceLock::new();
        let forecast_seconds = OnceLock::new();
        let scanner = Scanner {
            device,
            threads: options.threads.max(1),
            gap: options.gap,
            counters: &counters,
            cancelled: &cancelled,
            advanced: &|_| {
                let (done, total) = (counters.totals().0, total.get().copied().unwrap_or(0));
                if total > 0 && done >= total / FORECAST_DIVISOR && forecast_seconds.get().is_none() {
                    let _ = forecast_seconds.set(start.elapsed().as_secs_f64() * total as f64 / done.max(1) as f64);
                }
                progress.advanced(done, total);
            },
        };
        progress.phase(Phase::Superblock);
        let opened = superblock::open(&scanner, options, layered.is_some(), &problems);
        let volume = opened.map_err(|refusal| if cancelled() { Refusal::cancelled() } else { refusal })?;
        if options.superblock.is_none() && !problems.is_fatal() {
            superblock::copies::check(&scanner, &volume, &problems);
        }
        // errors in the physical layer, of whichever version, are reported with the newest one
        if let Some((layer, version)) = layered
            && std::ptr::eq(version, &layer.live)
        {
            layer.report(&problems);
        }
        if !cancelled() {
            // set nowhere else
            let _ = total.set(estimate::of_volume(&volume).bytes);
        }
        let view = View { volume: &volume, scanner: &scanner, problems: &problems, walk: None };
        let (counts, seen) = match problems.is_fatal() || cancelled() {
            true => (Counts::default(), see(&view)),
            false => self.phases(&view, layered, see),
        };
        let cancelled = cancelled();
        let findings = problems.finish();
        let (bytes, reads, seeks) = counters.totals();
        let scan = Scan {
            bytes,
            reads,
            seeks,
            seconds: start.elapsed().as_secs_f64(),
            estimate_seconds: forecast_seconds.get().copied(),
            peak_rss_bytes: memory::peak(),
        };
        let mut report =
            Report::new(name.to_owned(), volume.features.format_name().to_owned(), &findings, scan, counts);
        if cancelled {
            report.cancel();
        }
        Ok((report, seen))
    }

    /// All phases after phase 0.
    fn phases<T>(
        self,
        view: &View<'_>,
        layered: Option<LayeredVersion<'_>>,
        see: impl FnOnce(&View<'_>) -> T,
    ) -> (Counts, T) {
        let View { volume, scanner, problems, .. } = *view;
        let progress = self.progress;
        progress.phase(Phase::Inodes);
        let identities = layered.map(|(layer, version)| Identities::new(layer, version));
        let ctx = Context { identities, ..Context::new(volume, problems) };
        system_zone::claim(&ctx, scanner);
        if (scanner.cancelled)() {
            return (Counts::default(), see(view));
        }
        for blocks in layered.iter().flat_map(|(_, version)| &version.taken) {
            ctx.claims.claim(ctx.claims.clusters_of(blocks));
        }
        let bitmaps = Bitmaps::new(volume);
        let directories = OnceLock::new();
        let names = OnceLock::new();
        let checks = Checks { ctx: &ctx, bitmaps: &bitmaps, directories: &directories, names: &names };
        let log = ScanLog::new(self.options.scan_segments);
        let layers = Layers::of(&ctx);
        let claimer = &ctx.claims;
        let rounds = Rounds { ctx: &ctx, scanner, claimer, layers: layers.as_ref(), log: &log, only: None };
        let Outcome { mut counts, large_file, large_directory, mut dir_runs, quota: mut used } = rounds.run(&checks);
        if (scanner.cancelled)() {
            return (counts, see(view));
        }
        xattrs::check_values(&ctx);
        let mut sharing = Sharing::default();
        let segments = ctx.claims.conflicting_segments();
        if let Some(owners) = Owners::of(&ctx, &segments) {
            progress.phase(Phase::MultiplyClaimed);
            Rounds { claimer: &owners, ..rounds }.retrace(&log.read_in(&segments));
            let on_purpose = volume.features.ro_compat.contains(RoCompat::SHARED_BLOCKS);
            sharing = owners.report(&ctx, scanner, &log, on_purpose && !self.options.unshare_blocks);
        }
        progress.phase(Phase::Directories);
        check_size_features(&ctx, large_file, large_directory);
        let directories = directories.get_or_init(Directories::default);
        if let Some(mut names) = names.into_inner() {
            dir_runs.sort_unstable_by_key(|run| (run.inode, run.first));
            check_holes(&names, directories, &dir_runs);
            let items = names.again(&dir_runs);
            scanner.read_ascending(&items, |item, bytes| names.check_again(&item.tag, bytes));
            if (scanner.cancelled)() {
                return (counts, see(view));
            }
            names.finish();
        }
        progress.phase(Phase::Connectivity);
        connectivity::check(&ctx, directories);
        progress.phase(Phase::Links);
        counts.links = links::check(&ctx);
        progress.phase(Phase::Bitmaps);
        let blocks = layered.map_or(volume.geometry.blocks, |(layer, _)| layer.superblock.layout.blocks());
        bitmaps.compare(&ctx, blocks, &mut counts);
        if let Some(identities) = &ctx.identities {
            identities.check_rest(&ctx);
        }
        progress.phase(Phase::After);
        used.charge(ctx.values.take_charges());
        quota::check(scanner, &ctx, &used);
        let paths = Paths::find(&ctx, scanner, directories, &dir_runs, problems.owners());
        problems.set_paths(|inode| paths.get(inode));
        let walk = Walk { ctx: &ctx, directories, used: &used, sharing: &sharing };
        (counts, see(&View { walk: Some(walk), ..*view }))
    }
}

/// The refusal of the volume above a map: a missing one is damage, as the native superblock identifies the device.
fn of_a_native_volume(refusal: Refusal) -> Refusal {
    match refusal.sentence.strip_prefix(superblock::NO_VOLUME) {
        Some(rest) => Refusal::new(format!("a damaged native volume without a superblock above its map{rest}")),
        None => refusal,
    }
}

/// The report on a snapshot whose map contains no volume that can be checked.
fn no_volume(snapshot: &Version, refusal: &Refusal) -> Report {
    let problems = Problems::new(Limits::default());
    problems.report(native::wrong_structure(snapshot.root.physical, &refusal.to_string()));
    Report::new(String::new(), String::new(), &problems.finish(), Scan::default(), Counts::default())
}

/// Blocks of a directory that its map leaves out. `runs` ascend by inode and block.
fn check_holes(names: &Names<'_>, directories: &Directories, runs: &[DirRun]) {
    for runs in runs.chunk_by(|a, b| a.inode == b.inode) {
        let Some(dir) = runs.first().and_then(|run| directories.get(run.inode)) else { continue };
        let mut next = 0;
        for run in runs {
            // one report per hole: damage can make a hole of any length
            if next < run.first.min(dir.blocks) {
                names.check_hole(dir.inode, next);
            }
            next = next.max(run.first.saturating_add(run.len));
        }
    }
}

/// Reports files and directories of 2 GiB or more on a volume without the features that allow them.
fn check_size_features(ctx: &Context<'_>, large_file: Option<InodeNo>, large_directory: Option<InodeNo>) {
    let features = &ctx.volume.features;
    if let Some(file) = large_file.filter(|_| !features.ro_compat.contains(RoCompat::LARGE_FILE)) {
        ctx.report(Problem::new(Code::LargeFileFeatureMissing).inode(file));
    }
    if let Some(dir) = large_directory.filter(|_| !features.incompat.contains(Incompat::LARGE_DIR)) {
        ctx.report(Problem::new(Code::LargeDirFeatureMissing).inode(dir));
    }
}
