//! A volume as a FUSE file system: its operations, its snapshots, its transactions.

use crate::ops::Ops;
use crate::options::MountOptions;
use crate::problem_reports::ProblemSink;
use crate::snapshots::WithSnapshots;
use crate::transactions::WithTransactions;
use fs::Volume;
use fuse_wire::{Filesystem, Result, Session};
use std::path::Path;
use std::sync::Arc;

/// Mounts a volume on a directory. Requests are answered only by [`Session::run`].
///
/// `on_problem` receives one sentence for each file in which damage is found, from any thread.
///
/// # Errors
/// [`Error::Mount`](crate::Error::Mount) where the directory, the system or the user's privileges do not allow it.
pub fn mount(
    volume: Arc<Volume>,
    dir: &Path,
    options: &MountOptions,
    on_problem: impl Fn(&str) + Send + Sync + 'static,
) -> Result<Session> {
    volume.start_background();
    Session::mount(answering(volume, Some(dir), options, on_problem), dir, &options.mount)
}

/// The file system that answers requests about a volume mounted on a directory, or, for [`Messages`](crate::Messages),
/// not mounted. `on_problem` as for [`mount`].
pub fn answering(
    volume: Arc<Volume>,
    dir: Option<&Path>,
    options: &MountOptions,
    on_problem: impl Fn(&str) + Send + Sync + 'static,
) -> Arc<dyn Filesystem> {
    let on_problem: ProblemSink = Arc::new(on_problem);
    let ops = Ops::new(Arc::clone(&volume), options, Arc::clone(&on_problem));
    if options.snapshot.is_some() || !volume.has_snapshots() {
        return Arc::new(ops);
    }
    let mounted_on = dir.map(|dir| dir.canonicalize().unwrap_or_else(|_| dir.to_owned()));
    let filesystem = WithSnapshots::new(ops, options, on_problem, mounted_on.clone());
    // the empty path is not a directory
    let mounted_on = mounted_on.unwrap_or_default();
    Arc::new(WithTransactions::new(filesystem, volume, mounted_on, options.writeback_cache))
}
