//! The behavior of each mode on faults of the device.

use std::sync::Arc;

use blockdev::{BlockDevice, MemoryDevice};
use extant_crash::extant_system::Ext;
use extant_crash::faults::{self, Counts};
use extant_crash::generate;
use extant_crash::model::{Body, State};
use extant_crash::op::pattern;
use extant_crash::system::System;
use fs::{OpenOptions, Volume};
use rustix::io::Errno;
use simdev::{Fault, Faulty};

/// Makes every request of a few workloads fail.
fn loop_of_failures(mode: &str, format: &str) {
    let ext = Ext::new(mode, Some(format)).expect("a mode");
    let mut workloads: Vec<_> = generate::one().into_iter().step_by(61).collect();
    workloads.extend([3, 4].map(|seed| generate::random(seed, 8)));
    workloads.extend(generate::Pairs::new().sample(1, 12));
    workloads.push(
        "create f; append f 300000 =1 | truncate f 2000; append f 9000 =2; unlink f".parse().expect("a workload"),
    );
    let mut counts = Counts::default();
    let found: Vec<_> =
        workloads.iter().flat_map(|workload| faults::every_request(&ext, workload, 12, &mut counts)).collect();
    println!("{mode}: {counts:?}");
    assert!(found.is_empty(), "{} findings\n{}", found.len(), found.join("\n"));
    assert!(counts.reads > 50 && counts.writes > 50 && counts.flushes > 20, "{counts:?}");
    assert!(counts.answered > (counts.writes + counts.flushes), "{counts:?}");
}

#[test]
fn none_answers_failures() {
    loop_of_failures("none", "ext2");
}

#[test]
fn dirty_bit_answers_failures() {
    loop_of_failures("dirty-bit", "ext2");
}

#[test]
fn journal_answers_failures() {
    loop_of_failures("journal", "ext4");
}

#[test]
fn journal_without_extents_answers_failures() {
    loop_of_failures("journal", "ext3");
}

#[test]
fn journal_data_answers_failures() {
    loop_of_failures("journal-data", "ext3");
}

#[test]
fn journal_data_with_extents_answers_failures() {
    loop_of_failures("journal-data", "ext4");
}

#[test]
fn snapshot_answers_failures() {
    loop_of_failures("snapshot", "extant");
}

#[test]
fn journal_writeback_answers_failures() {
    loop_of_failures("journal-writeback", "ext4");
}

/// A volume with two files, whose contents are `pattern(1)` and `pattern(2)`, and its bytes.
fn two_files(ext: &Ext) -> Vec<u8> {
    let device = ext.format().expect("a volume");
    let mut session = ext.mount(device.clone()).expect("mounted");
    for op in ["create a", "append a 3000 =1", "create b", "append b 3000 =2", "sync"] {
        session.apply(&op.parse().expect("an operation")).expect(op);
    }
    session.unmount().expect("unmounted");
    let mut bytes = vec![0; device.geometry().len as usize];
    device.read(0, &mut bytes).expect("read");
    bytes
}

fn read(volume: &Volume, path: &[u8]) -> fs::Result<Vec<u8>> {
    let inode = volume.inode(volume.resolve(path)?)?;
    let mut bytes = vec![0; 3000];
    volume.read_at(&inode, 0, &mut bytes).map(|_| bytes)
}

#[test]
fn a_latent_sector_costs_its_file_alone() {
    let ext = Ext::new("journal", Some("ext4")).expect("a mode");
    let bytes = two_files(&ext);
    let wanted = pattern(1, 0, 1024);
    let at = bytes.chunks(1024).position(|block| block == wanted).expect("the content of a") as u64 * 1024;
    let bad = || vec![Fault::LatentSector { range: at..at + 512 }];
    let device = Arc::new(Faulty::new(MemoryDevice::from_vec(bytes.clone()), bad()));
    let volume = Volume::open(device, &OpenOptions::default()).expect("open");
    for _ in 0..2 {
        assert!(matches!(read(&volume, b"/a"), Err(fs::Error::Io(_))));
        assert_eq!(read(&volume, b"/b").expect("b"), pattern(2, 0, 3000));
    }
    // it can be overwritten, and is readable again
    let device = Arc::new(Faulty::new(MemoryDevice::from_vec(bytes), bad()));
    let mut session = ext.mount(device.clone()).expect("mounted");
    for op in ["append b 100 =3", "write a 0 1024 =4", "sync"] {
        session.apply(&op.parse().expect("an operation")).expect(op);
    }
    session.unmount().expect("unmounted");
    let volume = Volume::open(device, &OpenOptions::default()).expect("open");
    assert_eq!(read(&volume, b"/a").expect("a")[..1024], pattern(4, 0, 1024));
}

#[test]
fn a_device_that_shrinks_is_refused_or_answers_errors() {
    for mode in ["none", "dirty-bit", "journal"] {
        let ext = Ext::new(mode, None).expect("a mode");
        let bytes = two_files(&ext);
        let half = bytes.len() as u64 / 2;
        let mut refused = 0;
        for request in 0..40 {
            for len in [0, 700, 1500, 40 << 10, half] {
                let shrink = vec![Fault::Shrink { request, len }];
                let device = Arc::new(Faulty::new(MemoryDevice::from_vec(bytes.clone()), shrink));
                let Ok(mut session) = ext.mount(device) else {
                    refused += 1;
                    continue;
                };
                for op in ["append a 3000 =5", "create c", "fsync a", "sync"] {
                    let got = session.apply(&op.parse().expect("an operation"));
                    assert!(
                        matches!(got, Ok(_) | Err(Errno::IO | Errno::ROFS | Errno::NOSPC)),
                        "{mode} {request} {len}: {got:?}"
                    );
                }
                let _ = session.unmount();
            }
        }
        assert!(refused >= 5, "{mode}: {refused}");
    }
}

/// The state without the bytes of files, for which the format has no checksum.
fn blank(state: &State) -> State {
    let mut state = state.clone();
    for node in state.nodes.values_mut() {
        if let Some(len) = node.data().map(|data| data.len()) {
            Arc::make_mut(node).body = Body::File(Arc::new(vec![0; len]));
        }
    }
    state
}

/// The results of the checker and the checksums when the n-th write fails silently, for every n: the numbers of
/// detected faults, of harmless ones, of undetected wrong bytes of files, and of other undetected faults.
fn silent(fault: impl Fn(u64) -> Fault) -> [u64; 4] {
    let ext = Ext::new("journal", Some("ext4")).expect("a mode");
    let bytes = two_files(&ext);
    let ops = ["mkdir d", "create d/x", "append d/x 2000 =5", "append b 5000 =6", "unlink a", "sync"];
    let work = |plan: Vec<Fault>| {
        let device = Arc::new(Faulty::new(MemoryDevice::from_vec(bytes.clone()), plan));
        let mounted = ext.mount(device.clone());
        let done = mounted.map_err(|_| ()).and_then(|mut session| {
            ops.iter()
                .try_for_each(|op| session.apply(&op.parse().expect("an operation")).map(drop).map_err(|_| ()))?;
            session.unmount().map_err(|_| ())
        });
        (device, done)
    };
    let (intact, _) = work(Vec::new());
    let wanted = ext.observe(intact).expect("read");
    let mut counts = [0; 4];
    for write in 0.. {
        let (device, done) = work(vec![fault(write)]);
        if device.injected().is_empty() {
            break;
        }
        let found = done.is_err() || ext.problems(&device).map_or(true, |problems| !problems.is_empty());
        let left = if found { wanted.clone() } else { ext.observe(device).expect("read") };
        let same = |a: &State, b: &State| extant_crash::guarantee::same(a, b).is_ok();
        let outcome = match found {
            true => 0,
            false if same(&wanted, &left) => 1,
            false if same(&blank(&wanted), &blank(&left)) => 2,
            false => 3,
        };
        counts[outcome] += 1;
    }
    println!("found, harmless, bytes, anything else: {counts:?}");
    counts
}

#[test]
fn misdirected_writes_are_found_in_metadata() {
    // onto the first group's descriptors, which have checksums
    let counts = silent(|write| Fault::MisdirectedWrite { write, to: 2048 });
    assert!(counts[0] > 5 && counts[2] <= 3 && counts[3] == 0, "{counts:?}");
}

#[test]
fn lost_writes_are_found_where_structures_disagree() {
    // file content has no checksum; an outdated table block is detected by its dependents
    let counts = silent(|write| Fault::LostWrite { write });
    assert!(counts[0] > 3 && counts[2] <= 3 && counts[3] == 0, "{counts:?}");
}
