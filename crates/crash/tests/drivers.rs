//! One workload run in three ways: by the library, through Extant's FUSE mount, through the kernel's mount. All results
//! and trees must equal the model's; afterwards the volumes are consistent for e2fsck and for Extant's checker.

use blockdev::{BlockDevice, FileDevice};
use extant_crash::directory::Directory;
use extant_crash::execute::{self, Answer};
use extant_crash::extant_system::Ext;
use extant_crash::generate;
use extant_crash::guarantee::same;
use extant_crash::history::History;
use extant_crash::minimise::minimise;
use extant_crash::model::State;
use extant_crash::op::{FallocateHow, Op, Workload};
use extant_crash::paper_workloads;
use extant_crash::system::{Session, System};
use std::path::Path;
use std::sync::Arc;
use testkit::{Image, cases, oracle, tools};

const BLOCK: u64 = 1024;

/// The operations, each with its result.
type Answers = Vec<(String, Answer)>;

type Outcome = Result<(Answers, State), String>;

/// Runs the workload including its setup, and compares the content with the model. Returns the results and the model.
fn play(
    mut session: Box<dyn Session>,
    first: State,
    workload: &Workload,
    observe: impl FnOnce(Box<dyn Session>) -> Result<State, String>,
) -> Outcome {
    let mut history = History::new(first, BLOCK);
    let mut answers = Vec::new();
    for op in workload.setup.iter().chain(&workload.ops) {
        let answer = execute::step(&mut *session, &mut history, op)?;
        answers.push((op.to_string(), answer));
    }
    same(history.last(), &observe(session)?)?;
    Ok((answers, history.last().clone()))
}

fn consistent(ext: &Ext, device: &dyn BlockDevice) -> Result<(), String> {
    match ext.problems(device)?.first() {
        Some(problem) => Err(format!("our checker: {problem}")),
        None => Ok(()),
    }
}

fn with_library(ext: &Ext, workload: &Workload) -> Outcome {
    let device = ext.format()?;
    let first = ext.observe(device.clone())?;
    play(ext.mount(device.clone())?, first, workload, |session| {
        session.unmount()?;
        consistent(ext, &*device)?;
        ext.observe(device)
    })
}

/// A new volume in an image file.
fn image(ext: &Ext) -> Image {
    let device = ext.format().expect("a volume");
    let mut bytes = vec![0; device.geometry().len as usize];
    device.read(0, &mut bytes).expect("read");
    Image::from_bytes(&bytes)
}

/// Runs it on a mounted directory.
fn with_directory(root: &Path, workload: &Workload) -> Outcome {
    let first = Directory::new(root).observe()?;
    play(Box::new(Directory::new(root)), first, workload, |session| {
        session.unmount()?;
        Directory::new(root).observe()
    })
}

/// Verifies a volume after its unmount.
fn verify(ext: &Ext, image: &Image, outcome: Outcome) -> Outcome {
    let (answers, model) = outcome?;
    let verdict = oracle::e2fsck(image.path());
    if !verdict.clean {
        return Err(verdict.text);
    }
    let device = Arc::new(FileDevice::open(image.path(), blockdev::OpenOptions::default()).expect("opened"));
    consistent(ext, &*device)?;
    same(&model, &ext.observe(device)?).map_err(|why| format!("unmounted: {why}"))?;
    Ok((answers, model))
}

fn with_kernel(ext: &Ext, workload: &Workload) -> Outcome {
    let image = image(ext);
    let mounted = oracle::kernel_mount(image.path(), "")?;
    let outcome = with_directory(mounted.path(), workload);
    mounted.unmount();
    verify(ext, &image, outcome)
}

fn with_fuse(ext: &Ext, workload: &Workload) -> Outcome {
    let image = image(ext);
    let dir = tempfile::tempdir().expect("a folder");
    let mode = ext.guarantee().mode.name;
    let mut options = fuse::MountOptions::parse(&[format!("rw,consistency={mode}")]).expect("options");
    let way = options.volume_options().pop().expect("one way to open it");
    options.mount.device = Some(image.path().to_owned());
    let access = blockdev::OpenOptions { write: true, ..blockdev::OpenOptions::default() };
    let device = FileDevice::open(image.path(), access).expect("opened");
    let volume = fs::Volume::open(Arc::new(device), &way).expect("a volume");
    let report = |problem: &str| eprintln!("{problem}");
    let session = fuse::mount(Arc::new(volume), dir.path(), &options, report).expect("mounted");
    let unmounter = session.unmounter();
    let served = std::thread::spawn(move || session.run());
    let outcome = with_directory(dir.path(), workload);
    unmounter.unmount().expect("unmounted");
    served.join().expect("no panic").expect("the session ends well");
    verify(ext, &image, outcome)
}

/// Whether this machine supports all three; reports the reason otherwise.
fn ready() -> bool {
    let ready = testkit::need(&["mount", "umount", "e2fsck"]) && tools::has_loop() && tools::has_fuse();
    // modes are those of the workload
    rustix::process::umask(rustix::fs::Mode::empty());
    ready
}

/// Operations for which the kernel's FUSE has no request.
fn moves(op: &Op) -> bool {
    matches!(op, Op::Fallocate { how: FallocateHow::Collapse | FallocateHow::Insert, .. })
}

/// Compares the library with another way: equal results, equal trees.
fn alike(ext: &Ext, other: fn(&Ext, &Workload) -> Outcome, workload: &Workload) -> Result<(), String> {
    let (library, tree) = with_library(ext, workload).map_err(|why| format!("the library: {why}"))?;
    let (theirs, their_tree) = other(ext, workload)?;
    if let Some((ours, theirs)) = library.iter().zip(&theirs).find(|(ours, theirs)| ours != theirs) {
        return Err(format!("{theirs:?}; the library: {ours:?}"));
    }
    same(&tree, &their_tree)
}

fn compare(ext: &Ext, workload: &Workload) {
    let mut plain = workload.clone();
    plain.setup.retain(|op| !moves(op));
    plain.ops.retain(|op| !moves(op));
    type Driver = fn(&Ext, &Workload) -> Outcome;
    for (who, driver, workload) in
        [("the kernel", with_kernel as Driver, workload), ("FUSE", with_fuse as Driver, &plain)]
    {
        if alike(ext, driver, workload).is_err() {
            let small = minimise(workload, 150, |smaller| alike(ext, driver, smaller).is_err());
            let why = alike(ext, driver, &small).expect_err("it was wrong before");
            panic!("{who}, {}: {why}\n{small}", ext.arguments());
        }
    }
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
    for workload in paper_workloads::sample(7, paper_workloads::PAPERS.len()).iter().step_by(2) {
        compare(&ext, workload);
    }
}
