//! One workload in three ways: by the library, through our FUSE mount, through the kernel's own mount. All answer as the
//! model does, and hold the same tree; afterwards the volumes are sound for e2fsck and for our checker.

use blockdev::{BlockDevice, FileDevice};
use extant_crash::directory::Directory;
use extant_crash::ext::Ext;
use extant_crash::generate;
use extant_crash::history::History;
use extant_crash::model::State;
use extant_crash::op::{FallocateHow, Op, Workload};
use extant_crash::papers;
use extant_crash::play::{self, Answer};
use extant_crash::promise::same;
use extant_crash::system::{Session, System};
use std::path::Path;
use std::sync::Arc;
use testkit::{Image, cases, oracle, tools};

const BLOCK: u64 = 1024;

/// What an operation was, and what came of it.
type Answers = Vec<(String, Answer)>;

/// Does the workload, setup and all, and compares what is there with the model. Returns the answers and the model.
fn play(
    who: &str,
    mut session: Box<dyn Session>,
    first: State,
    workload: &Workload,
    observe: impl FnOnce(Box<dyn Session>) -> State,
) -> (Answers, State) {
    let mut history = History::new(first, BLOCK);
    let mut answers = Vec::new();
    for op in workload.setup.iter().chain(&workload.ops) {
        let answer = play::step(&mut *session, &mut history, op);
        answers.push((op.to_string(), answer.unwrap_or_else(|why| panic!("{who}: {why}\n{workload}"))));
    }
    let observed = observe(session);
    same(history.last(), &observed).unwrap_or_else(|why| panic!("{who}: {why}\n{workload}"));
    (answers, history.last().clone())
}

fn with_library(ext: &Ext, workload: &Workload) -> (Answers, State) {
    let device = ext.format().expect("a volume");
    let first = ext.observe(device.clone()).expect("the first state");
    let session = ext.mount(device.clone()).expect("mounted");
    play("the library", session, first, workload, |session| {
        session.unmount().expect("unmounted");
        let problems = ext.problems(&*device).expect("checked");
        assert!(problems.is_empty(), "{problems:?}\n{workload}");
        ext.observe(device).expect("read")
    })
}

/// A new volume in a file.
fn image(ext: &Ext) -> Image {
    let device = ext.format().expect("a volume");
    let mut bytes = vec![0; device.geometry().len as usize];
    device.read(0, &mut bytes).expect("read");
    Image::from_bytes(&bytes)
}

/// On a mounted directory.
fn with_directory(who: &str, root: &Path, workload: &Workload) -> (Answers, State) {
    let first = Directory::new(root).observe().expect("the first state");
    play(who, Box::new(Directory::new(root)), first, workload, |session| {
        session.unmount().expect("synced");
        Directory::new(root).observe().expect("read")
    })
}

/// What is left of a volume that was unmounted.
fn judge(who: &str, ext: &Ext, image: &Image, workload: &Workload, model: &State) {
    let verdict = oracle::e2fsck(image.path());
    assert!(verdict.clean, "{who}: {}\n{workload}", verdict.text);
    let device = Arc::new(FileDevice::open(image.path(), blockdev::OpenOptions::default()).expect("opened"));
    let problems = ext.problems(&*device).expect("checked");
    assert!(problems.is_empty(), "{who}: {problems:?}\n{workload}");
    let observed = ext.observe(device).expect("read");
    same(model, &observed).unwrap_or_else(|why| panic!("{who}, unmounted: {why}\n{workload}"));
}

fn with_kernel(ext: &Ext, workload: &Workload) -> (Answers, State) {
    let image = image(ext);
    let mounted = oracle::kernel_mount(image.path(), "").expect("mounted");
    let (answers, model) = with_directory("the kernel", mounted.path(), workload);
    mounted.unmount();
    judge("the kernel", ext, &image, workload, &model);
    (answers, model)
}

fn with_fuse(ext: &Ext, workload: &Workload) -> (Answers, State) {
    let image = image(ext);
    let dir = tempfile::tempdir().expect("a folder");
    let mode = ext.promise().mode;
    let mut options = fuse::MountOptions::parse(&[format!("rw,consistency={mode}")]).expect("options");
    let way = options.volume_options().pop().expect("one way to open it");
    options.device = Some(image.path().to_owned());
    let access = blockdev::OpenOptions { write: true, ..blockdev::OpenOptions::default() };
    let device = FileDevice::open(image.path(), access).expect("opened");
    let volume = fs::Volume::open(Arc::new(device), &way).expect("a volume");
    let tell = |problem: &str| eprintln!("{problem}");
    let session = fuse::mount(Arc::new(volume), dir.path(), &options, tell).expect("mounted");
    let unmounter = session.unmounter();
    let (answers, model) = std::thread::scope(|scope| {
        let served = scope.spawn(move || session.run());
        let played = std::panic::catch_unwind(|| with_directory("FUSE", dir.path(), workload));
        unmounter.unmount().expect("unmounted");
        served.join().expect("no panic").expect("the session ends well");
        played.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    judge("FUSE", ext, &image, workload, &model);
    (answers, model)
}

/// Whether this machine can do all three; says why not.
fn ready() -> bool {
    let ready = testkit::need(&["mount", "umount", "e2fsck"]) && tools::has_loop() && tools::has_fuse();
    // modes are those that the workload says
    rustix::process::umask(rustix::fs::Mode::empty());
    ready
}

/// The kernel's FUSE has no call for these.
fn moves(op: &Op) -> bool {
    matches!(op, Op::Fallocate { how: FallocateHow::Collapse | FallocateHow::Insert, .. })
}

fn compare(ext: &Ext, workload: &Workload) {
    let (library, tree) = with_library(ext, workload);
    let (kernel, kernels) = with_kernel(ext, workload);
    assert_eq!(library, kernel, "{workload}");
    same(&tree, &kernels).expect("the trees of the models");
    let mut plain = workload.clone();
    plain.setup.retain(|op| !moves(op));
    plain.ops.retain(|op| !moves(op));
    let (library, tree) = with_library(ext, &plain);
    let (fuse, fuses) = with_fuse(ext, &plain);
    assert_eq!(library, fuse, "{plain}");
    same(&tree, &fuses).expect("the trees of the models");
}

const MODES: [(&str, &str); 3] = [("journal", "ext4"), ("none", "ext2"), ("journal", "ext3")];

#[test]
fn random_workloads_are_the_same_in_all_three() {
    if !ready() {
        return;
    }
    for case in cases("drivers", 6) {
        let mut numbers = case.rng();
        let (mode, format) = *numbers.pick(&MODES);
        let ext = Ext::new(mode, Some(format)).expect("a mode");
        compare(&ext, &generate::random(numbers.next_u64(), 120));
    }
}

#[test]
fn the_papers_workloads_are_the_same_in_all_three() {
    if !ready() {
        return;
    }
    let ext = Ext::new("journal", None).expect("a mode");
    for workload in papers::sample(7, papers::PAPERS.len()).iter().step_by(2) {
        compare(&ext, workload);
    }
}
