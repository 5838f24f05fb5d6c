//! The server is killed during the work.
//!
//! ext2 has no journal and does not order its writes by flushes: for it only the files present at a sync(2) on a quiet
//! volume count.

use crate::*;
use std::os::unix::fs::FileExt;

/// Time after a sync(2) within which the layer ends its group on a busy machine.
const QUIET: Duration = Duration::from_secs(4);

/// Without a flush, written data is on the device some seconds later.
#[test]
fn a_quiet_second_ends_a_group() {
    if !can_run() {
        return;
    }
    let _alone = ONE.lock();
    let files = tempfile::tempdir().unwrap();
    let image = files.path().join("quiet.img");
    File::create(&image).unwrap().set_len(96 << 20).unwrap();
    must(EXTANT, &["kero", "format", "--empty", "--log", "16M", image.to_str().unwrap()]);
    let mut served = Served::new(&image);
    let disk = File::options().write(true).open(served.folder.path().join("disk")).unwrap();
    disk.write_all_at(&[1; 8192], 0).unwrap();
    disk.sync_all().unwrap();
    disk.write_all_at(&[2; 8192], 0).unwrap();
    std::thread::sleep(QUIET);
    served.kill();
    drop(disk);
    served.end();
    let served = Served::new(&image);
    assert!(fs::read(served.folder.path().join("disk")).unwrap()[..8192] == [2; 8192], "it is lost");
    served.end();
}

#[test]
fn file_systems_of_the_kernel_survive_a_killed_server() {
    if !can_run() {
        return;
    }
    let _alone = ONE.lock();
    for kind in KINDS.iter().filter(|kind| is_installed(kind)) {
        let files = tempfile::tempdir().unwrap();
        let image = made(kind, files.path());
        let at = files.path().join("mnt");
        fs::create_dir(&at).unwrap();
        let mut durable: Vec<(u64, u64)> = Vec::new();
        for (round, case) in cases(&format!("a killed server under {}", kind.name), 1).enumerate() {
            let mut rng = case.rng();
            let mut served = Served::new(&image);
            mount(kind, &served.device, &at);
            let (stop, synced) = (AtomicBool::new(false), Mutex::new(Vec::new()));
            let note = |owner, number| synced.lock().unwrap().push((owner, number));
            std::thread::scope(|scope| {
                for n in 0..3 {
                    let owner = round as u64 * 10 + n;
                    let folder = at.join(format!("folder{owner}"));
                    fs::create_dir(&folder).unwrap();
                    sync_folder(&at).unwrap();
                    let (rng, stop, note) = (Rng::new(rng.next_u64()), &stop, &note);
                    scope.spawn(move || work(owner, &folder, rng, stop, note));
                }
                std::thread::sleep(Duration::from_millis(rng.between(500, 3000)));
                until("nothing is synced", || !synced.lock().unwrap().is_empty());
                if !kind.flushes {
                    stop.store(true, Ordering::Relaxed);
                } else {
                    served.kill();
                }
            });
            if !kind.flushes {
                // it sends no flush after that: the layer ends its group after a second without writes
                syncfs(File::open(&at).unwrap()).unwrap();
                std::thread::sleep(QUIET);
                served.kill();
            }
            durable.extend(synced.into_inner().unwrap());
            assert!(!durable.is_empty(), "EXTANT_SEED={:#x}: nothing was synced", case.seed);
            unmount(&at);
            served.end();
            // the kernel replays its log, and finds the acknowledged data
            let served = Served::new(&image);
            mount(kind, &served.device, &at);
            let when = format!("EXTANT_SEED={:#x}", case.seed);
            verify(kind, &at, durable.iter().copied(), &when);
            unmount(&at);
            check(kind, &served.device, &when);
            served.end();
        }
        println!("{}: {} synced files", kind.name, durable.len());
        // likewise as a plain device
        must(EXTANT, &["kero", "drain", image.to_str().unwrap()]);
        check(kind, image.to_str().unwrap(), "drained");
    }
}
