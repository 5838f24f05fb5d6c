//! What the tests of this crate share: a volume mounted by this process.

#![allow(dead_code, reason = "each test program uses some of it")]

use blockdev::{BlockDevice, FileDevice};
use extant_fuse::{MountOptions, Unmounter, mount};
use fs::Volume;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// A volume mounted by this process; unmounted when dropped.
pub(crate) struct Served {
    dir: tempfile::TempDir,
    unmounter: Unmounter,
    thread: Option<JoinHandle<extant_fuse::Result<()>>>,
    problems: Arc<Mutex<Vec<String>>>,
}

/// Whether volumes can be made and mounted here; says why not.
pub(crate) fn ready() -> bool {
    testkit::need(&["mke2fs", "debugfs"]) && testkit::tools::has_fuse()
}

/// The volume in an image file.
pub(crate) fn open(image: &Path) -> Volume {
    let device = FileDevice::open(image, blockdev::OpenOptions::default()).expect("opening an image");
    Volume::open(Arc::new(device), &fs::OpenOptions::default()).expect("opening a volume")
}

/// Mounts the volume in an image file.
pub(crate) fn serve(image: &Path) -> Served {
    serve_volume(open(image))
}

/// Mounts the volume on a device; `None` where it cannot be opened.
pub(crate) fn serve_device(device: Arc<dyn BlockDevice>) -> Option<Served> {
    Volume::open(device, &fs::OpenOptions::default()).ok().map(serve_volume)
}

fn serve_volume(volume: Volume) -> Served {
    let dir = tempfile::Builder::new().prefix("extant-fuse-").tempdir().expect("a temporary folder");
    let problems = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&problems);
    let options = MountOptions::parse(&["ro,fsname=test"]).expect("options");
    let hear = move |problem: &str| told.lock().expect("problems").push(problem.to_owned());
    let session = mount(Arc::new(volume), dir.path(), &options, hear).expect("mount");
    let unmounter = session.unmounter();
    Served { dir, unmounter, thread: Some(std::thread::spawn(|| session.run())), problems }
}

impl Served {
    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// What the user was told so far.
    pub(crate) fn problems(&self) -> Vec<String> {
        self.problems.lock().expect("problems").clone()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let unmounted = self.unmounter.unmount();
        if !std::thread::panicking() {
            unmounted.expect("unmount");
            let served = self.thread.take().expect("one thread").join().expect("no panic outside of a request");
            served.expect("the session ends well");
        }
    }
}
