//! The state of a volume that is marked clean while in use: everything up to some moment, including content.

use std::sync::Arc;

use blockdev::{BlockDevice, Overlay};
use extant_crash::campaign;
use extant_crash::explore::Options;
use extant_crash::extant_system::Ext;
use extant_crash::generate::Pairs;
use extant_crash::op::{Op, Workload};
use extant_crash::system::System;
use fs::{OpenOptions, Volume};
use simdev::{Logged, Record};

/// Byte offset of `s_state`, whose lowest bit marks the volume as clean.
const S_STATE: u64 = 1024 + 0x3A;

fn is_clean(device: &dyn BlockDevice) -> bool {
    let mut state = [0; 2];
    device.read(S_STATE, &mut state).expect("read");
    state[0] & 1 == 1
}

#[test]
fn one_mark_in_use_and_one_clean_for_a_burst_and_content_between() {
    let ext = Ext::new("dirty-bit", None).expect("a mode");
    let base = Overlay::new(ext.format().expect("a volume"));
    let record = Arc::new(Record::in_memory(base.clone()));
    let mut session = ext.mount(record.clone()).expect("mounted");
    for op in ["create a", "append a 10000 =1", "create b", "append b 300 =2", "wait 4"] {
        session.apply(&op.parse::<Op>().expect("an operation")).expect(op);
    }
    // like a loss of power
    drop(session);
    let log = record.log().expect("a log");
    let mut marks = Vec::new();
    for (at, entry) in log.entries().iter().enumerate() {
        if !matches!(entry.what, Logged::Write { offset, len } if (offset..offset + len).contains(&S_STATE)) {
            continue;
        }
        let there = base.clone();
        log.replay_to(at + 1, &there).expect("replayed");
        marks.push(is_clean(&there));
        // the writes before it, without concurrent ones
        let before = log.entries()[..at].iter().rposition(|entry| matches!(entry.what, Logged::Flush));
        if is_clean(&there) {
            let durable = Arc::new(base.clone());
            log.replay_to(before.map_or(0, |flush| flush + 1), &durable).expect("replayed");
            let volume = Volume::open(durable, &OpenOptions::default()).expect("a volume");
            let size = |path: &[u8]| volume.inode(volume.resolve(path).expect("a file")).expect("an inode").size;
            assert_eq!((size(b"/a"), size(b"/b")), (10_000, 300), "marked clean, with delayed data");
        }
    }
    marks.dedup();
    assert_eq!(marks, [false, true], "once in use, once clean");
}

#[test]
fn a_volume_that_says_it_is_clean_has_everything() {
    let ext = Ext::new("dirty-bit", None).expect("a mode");
    let texts = [
        "append f 9000 =2; wait 3; append f 100 =3; wait 3",
        "create f; append f 9000 =2; wait 1; append f 100 =3; wait 4; unlink f; wait 2",
        "create a; append a 10000 =1; create b; fsync b; wait 3",
        "create f; write f 0 3000 =1; wait 2; write f 100 2000 =2; wait 2; write f 50000 700 =3; wait 2",
    ];
    let setup = |text: &str| if text.starts_with("append") { format!("create f | {text}") } else { text.to_owned() };
    let mut workloads: Vec<Workload> = texts.iter().map(|text| setup(text).parse().expect("a workload")).collect();
    workloads.extend(Pairs::new().sample(5, 40).into_iter().map(|mut workload| {
        workload.ops.push(Op::Wait { seconds: 3 });
        workload
    }));
    let report = campaign::run(&ext, &workloads, &Options::default(), 2, 3, &|_| {});
    println!("{:?} in {} s", report.counts, report.seconds);
    let found: Vec<_> = report.findings.iter().map(ToString::to_string).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}
