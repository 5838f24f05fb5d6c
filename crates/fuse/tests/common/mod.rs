//! The code shared by the tests of this crate: a volume mounted by this process.

#![allow(dead_code, reason = "each test program uses some of it")]

use blockdev::{BlockDevice, FileDevice};
use extant_fuse::{MountOptions, Unmounter, mount};
use fs::Volume;
use parking_lot::Mutex;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

/// A volume mounted by this process, and unmounted when this is dropped.
pub(crate) struct Served {
    dir: tempfile::TempDir,
    unmounter: Unmounter,
    thread: Option<JoinHandle<extant_fuse::Result<()>>>,
    problems: Arc<Mutex<Vec<String>>>,
}

/// Whether volumes can be made and mounted here; prints the reason if not.
pub(crate) fn ready() -> bool {
    testkit::need(&["mke2fs", "debugfs"]) && testkit::tools::has_fuse()
}

/// Opens the volume in an image file.
pub(crate) fn open(image: &Path) -> Volume {
    let device = FileDevice::open(image, blockdev::OpenOptions::default()).expect("opening an image");
    Volume::open(Arc::new(device), &fs::OpenOptions::default()).expect("opening a volume")
}

/// Mounts the volume in an image file.
pub(crate) fn serve(image: &Path) -> Served {
    serve_volume(open(image), "ro,fsname=test")
}

/// Mounts the volume in an image file for writing, with further `options`.
pub(crate) fn serve_writable(image: &Path, options: &str) -> Served {
    let access = blockdev::OpenOptions { write: true, ..blockdev::OpenOptions::default() };
    let begin = std::time::Instant::now();
    let device = loop {
        match FileDevice::open(image, access) {
            // a program that another test starts at this moment has the file of an ended session open until its exec
            Err(_) if begin.elapsed().as_secs() < 10 => std::thread::sleep(std::time::Duration::from_millis(10)),
            opened => break opened.expect("opening an image"),
        }
    };
    serve_with(Arc::new(device), Some(image), &format!("rw,{options}")).expect("opening a volume")
}

/// Mounts the volume on a device with options; `image` is its image file, if it has one.
pub(crate) fn serve_with(device: Arc<dyn BlockDevice>, image: Option<&Path>, options: &str) -> fs::Result<Served> {
    let mut options = MountOptions::parse(&[options]).expect("options");
    let way = options.volume_options().pop().expect("one way to open it");
    options.mount.device = image.map(Path::to_owned);
    Volume::open(device, &way).map(|volume| serve_volume_as(volume, &options))
}

/// The mount options for both transports.
pub(crate) const TRANSPORTS: [&str; 2] = ["transport=best", "transport=device"];

/// Mounts the volume on a device; `None` where it cannot be opened.
pub(crate) fn serve_device(device: Arc<dyn BlockDevice>) -> Option<Served> {
    serve_with(device, None, "ro").ok()
}

/// Encodes an access control list as programs pass it to the kernel. An entry: tag, permissions, ID of a user or group.
pub(crate) fn acl_bytes(entries: [(u16, u16, u32); 5]) -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

fn serve_volume(volume: Volume, options: &str) -> Served {
    serve_volume_as(volume, &MountOptions::parse(&[options]).expect("options"))
}

fn serve_volume_as(volume: Volume, options: &MountOptions) -> Served {
    let dir = tempfile::Builder::new().prefix("extant-fuse-").tempdir().expect("a temporary folder");
    let problems = Arc::new(Mutex::new(Vec::new()));
    let reported = Arc::clone(&problems);
    let hear = move |problem: &str| reported.lock().push(problem.to_owned());
    let session = mount(Arc::new(volume), dir.path(), options, hear).expect("mount");
    let unmounter = session.unmounter();
    Served { dir, unmounter, thread: Some(std::thread::spawn(|| session.run())), problems }
}

impl Served {
    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Unmounts the volume and waits for the end of the session; returns its result.
    pub(crate) fn end(mut self) -> extant_fuse::Result<()> {
        let unmounted = self.unmounter.unmount();
        let ended = self.thread.take().expect("one thread").join().expect("no panic outside of a request");
        unmounted.and(ended)
    }

    /// The problems reported to the user so far.
    pub(crate) fn problems(&self) -> Vec<String> {
        self.problems.lock().clone()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        let unmounted = self.unmounter.unmount();
        if !std::thread::panicking() {
            unmounted.expect("unmount");
            let served = thread.join().expect("no panic outside of a request");
            served.expect("the session ends well");
        }
    }
}
