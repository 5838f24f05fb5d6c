//! Power loss of the device beneath: all writes of the server are recorded, and states that a loss of power can leave
//! are constructed from them. Each state has all writes before one flush and some of those after it, one of them
//! possibly torn.

use crate::*;
use blockdev::{BlockDevice, OpenOptions};
use fuse_wire::{AttachOptions, Session};
use kero::Background;
use serve::FileOptions;
use simdev::{Log, Logged, Record};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// The recorded requests, and the synced files, each with the length of the log at the time of its sync.
struct Recording {
    log: Log,
    synced: Vec<(u64, u64, u64)>,
}

/// Runs the workload on the file system of an image, of which `base` becomes a copy, and records the device beneath.
fn record(kind: &Kind, image: &Path, base: &Path, at: &Path, rng: &mut Rng) -> Recording {
    copy(image, base);
    let options = OpenOptions { write: true, exclusive: true, ..OpenOptions::default() };
    let device = Arc::new(Record::in_memory(blockdev::open(image, options).unwrap()));
    let layer = Background::open(Arc::clone(&device) as Arc<dyn BlockDevice>, kero::Options::default());
    let options = FileOptions { name: "disk".to_owned(), read_only: false, punch: false };
    let file = Arc::new(serve::File::new(Arc::new(layer.unwrap()), options, |what: &str| panic!("{what}")));
    let folder = tempfile::tempdir().unwrap();
    let session = Session::mount(file, folder.path(), &AttachOptions::default()).unwrap();
    let unmounter = session.unmounter();
    let server = std::thread::spawn(|| session.run());
    let loop_device = attach(&folder.path().join("disk"));
    mount(kind, &loop_device, at);
    let (stop, synced) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    let note = |owner, number| synced.lock().unwrap().push((owner, number, device.point()));
    std::thread::scope(|scope| {
        for owner in 0..2 {
            let folder = at.join(format!("folder{owner}"));
            fs::create_dir(&folder).unwrap();
            sync_folder(at).unwrap();
            let (rng, stop, note) = (Rng::new(rng.next_u64()), &stop, &note);
            scope.spawn(move || work(owner, &folder, rng, stop, note));
        }
        std::thread::sleep(Duration::from_millis(1500));
        until("too few files are synced", || synced.lock().unwrap().len() > 4);
        stop.store(true, Ordering::Relaxed);
    });
    unmount(at);
    detach(&loop_device);
    unmounter.unmount().unwrap();
    server.join().unwrap().unwrap();
    Recording { log: device.log().unwrap(), synced: synced.into_inner().unwrap() }
}

fn copy(from: &Path, to: &Path) {
    must("cp", &["--sparse=always", from.to_str().unwrap(), to.to_str().unwrap()]);
}

/// Applies one entry of the log to an image; at most the first `most` bytes of a write.
fn apply(log: &Log, entry: usize, image: &File, most: u64) {
    match log.entries()[entry].what {
        Logged::Write { offset, .. } => {
            for (at, piece) in log.parts(entry) {
                let len = offset.saturating_add(most).saturating_sub(at).min(piece.len() as u64) as usize;
                image.write_all_at(&piece[..len], at).unwrap();
            }
        }
        Logged::Discard { offset, len } => {
            let zeros = vec![0; 1 << 20];
            for at in (offset..offset + len).step_by(zeros.len()) {
                let len = (offset + len - at).min(zeros.len() as u64) as usize;
                image.write_all_at(&zeros[..len], at).unwrap();
            }
        }
        _ => {}
    }
}

#[test]
fn file_systems_of_the_kernel_survive_a_cut_of_the_power() {
    if !can_run() {
        return;
    }
    let _alone = ONE.lock();
    for kind in KINDS.iter().filter(|kind| kind.flushes && is_installed(kind)) {
        let files = tempfile::tempdir().unwrap();
        let path = |name: &str| files.path().join(name);
        let image = made(kind, files.path());
        let at = path("mnt");
        fs::create_dir(&at).unwrap();
        let cases: Vec<_> = cases(&format!("the power is cut under {}", kind.name), 2).collect();
        let mut rng = cases[0].rng();
        let (base, state) = (path("base.img"), path("state.img"));
        let recording = record(kind, &image, &base, &at, &mut rng);
        let log = &recording.log;
        let flushes: Vec<usize> =
            (0..log.entries().len()).filter(|n| matches!(log.entries()[*n].what, Logged::Flush)).collect();
        assert!(flushes.len() > cases.len(), "{}: {} flushes", kind.name, flushes.len());
        let mut cuts: Vec<usize> = cases.iter().map(|_| rng.index(flushes.len() - 1)).collect();
        cuts.sort_unstable();
        let (mut applied, mut checked) = (0, 0);
        for (case, cut) in cases.iter().zip(&cuts) {
            let (start, end) = (flushes[*cut] + 1, flushes[cut + 1]);
            let whole = File::options().write(true).open(&base).unwrap();
            (applied..start).for_each(|entry| apply(log, entry, &whole, u64::MAX));
            applied = start;
            copy(&base, &state);
            let some = File::options().write(true).open(&state).unwrap();
            let there = rng.below(101);
            let chosen: Vec<usize> = (start..end).filter(|_| rng.chance(there)).collect();
            for entry in &chosen {
                let torn = Some(entry) == chosen.last() && rng.chance(50);
                apply(log, *entry, &some, if torn { 512 * rng.between(1, 7) } else { u64::MAX });
            }
            drop(some);
            let when = format!(
                "EXTANT_SEED={:#x} flush {cut} of {}, {} of {} writes",
                case.seed,
                flushes.len(),
                chosen.len(),
                end - start
            );
            let served = Served::new(&state);
            mount(kind, &served.device, &at);
            let durable = recording.synced.iter().filter(|(.., point)| *point as usize <= start);
            let durable: Vec<_> = durable.map(|(owner, number, _)| (*owner, *number)).collect();
            checked += durable.len();
            verify(kind, &at, durable.into_iter(), &when);
            unmount(&at);
            check(kind, &served.device, &when);
            served.end();
        }
        println!("{}: {} cuts, {} flushes, {checked} synced files compared", kind.name, cuts.len(), flushes.len());
    }
}
