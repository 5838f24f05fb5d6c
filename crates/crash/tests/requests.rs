//! The requests to the device, byte for byte and in order, in every mode on every format. Refactoring does not change
//! these hashes. A commit that intentionally changes the writes updates them (a failure prints the table) and explains
//! why.

use std::sync::Arc;

use blockdev::{BlockDevice, Overlay};
use extant_crash::extant_system::Ext;
use extant_crash::generate;
use extant_crash::op::Workload;
use extant_crash::system::System;
use fs::mkfs::Kind;
use simdev::Record;
use xxhash_rust::xxh3::xxh3_64;

/// Format and mode; the hash of the volume after mkfs, and of all requests of the workloads and of the recovery after
/// each.
type Row = (&'static str, &'static str, u64, u64);

const EXPECTED: &[Row] = &[
    ("extant", "none", 0x556e4234e148b285, 0xbc01cd45c31a8a0e),
    ("extant", "snapshot", 0x556e4234e148b285, 0xf72614d8f6fc86af),
    ("extant", "snapshot-cow", 0x556e4234e148b285, 0xf2ab499b0d7cece2),
    ("ext2", "none", 0x37ebe18c8c3dcc78, 0x51cb71d9199d8162),
    ("ext2", "dirty-bit", 0x37ebe18c8c3dcc78, 0x9a4604e28c5bd6bc),
    ("ext2", "linked", 0x5a8f1ce36196295a, 0x050625bd630ffa50),
    ("ext3", "none", 0x37ebe18c8c3dcc78, 0x51cb71d9199d8162),
    ("ext3", "dirty-bit", 0x37ebe18c8c3dcc78, 0x9a4604e28c5bd6bc),
    ("ext3", "journal", 0x1a87dbffb0f670af, 0xde61703a597a90e3),
    ("ext3", "journal-data", 0x1a87dbffb0f670af, 0x8eb106c31deb8980),
    ("ext3", "journal-writeback", 0x1a87dbffb0f670af, 0xde61703a597a90e3),
    ("ext4", "none", 0x2f4df5a396931157, 0xe6d16d9bed2678bb),
    ("ext4", "dirty-bit", 0x2f4df5a396931157, 0x5129ef7eba1cf120),
    ("ext4", "journal", 0xdc2fc2474f6389dd, 0x3c0d529b875b8631),
    ("ext4", "journal-data", 0xdc2fc2474f6389dd, 0x0adc67e97300f4d5),
    ("ext4", "journal-writeback", 0xdc2fc2474f6389dd, 0x3c0d529b875b8631),
    ("rext3", "none", 0x4b8837c2c513463c, 0x282b4ce920341b23),
    ("rext3", "dirty-bit", 0x4b8837c2c513463c, 0x63266539a2f41204),
    ("rext3", "journal", 0x280103f5f912c438, 0x8fa9931121d79641),
    ("rext3", "journal-data", 0x280103f5f912c438, 0x6298e5a09699db3b),
    ("rext3", "journal-writeback", 0x280103f5f912c438, 0x8fa9931121d79641),
    ("spacemap", "none", 0xb755a5884f67ec23, 0x318646abcc6007c6),
    ("spacemap", "dirty-bit", 0xb755a5884f67ec23, 0xde2cdd22583ac397),
    ("spacemap", "journal", 0xc0f6501e4800ce0e, 0x66248b00354dc667),
    ("spacemap", "journal-data", 0xc0f6501e4800ce0e, 0x3da98b141d164545),
    ("spacemap", "journal-writeback", 0xc0f6501e4800ce0e, 0x66248b00354dc667),
];

/// All workloads of one operation, long mixtures, and versions, which only some modes support: others refuse them.
fn workloads() -> Vec<Workload> {
    let mut workloads = generate::one();
    workloads.extend((1..=4).map(|seed| generate::random(seed, 120)));
    workloads.extend(generate::versions().into_iter().step_by(7));
    workloads.extend((1..=4).map(|seed| generate::random_versions(seed, 120)));
    workloads
}

/// All requests to a device, and the results of operations.
fn requests(ext: &Ext, fresh: &Arc<dyn BlockDevice>, workload: &Workload, crash: bool) -> Vec<u8> {
    let base = Overlay::new(fresh.clone());
    let record = Arc::new(Record::in_memory(base));
    let mut session = ext.mount(record.clone()).expect("mounted");
    for op in workload.setup.iter().chain(&workload.ops) {
        let answer = session.apply(op);
        record.mark(&format!("{op}: {answer:?}")).expect("a mark");
    }
    if crash {
        drop(session);
    } else {
        session.unmount().expect("unmounted");
    }
    let recovered = ext.recover(record.clone());
    record.mark(&format!("recovered: {recovered:?}")).expect("a mark");
    let record = Arc::into_inner(record).expect("the only reference");
    record.finish().expect("all is in the log").1
}

fn bytes(device: &dyn BlockDevice) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(device.geometry().len).expect("small")];
    device.read(0, &mut bytes).expect("read");
    bytes
}

fn row(format: &'static str, mode: &'static str) -> Option<Row> {
    let ext = Ext::new(mode, Some(format)).expect("a mode and a format");
    let fresh = ext.format().ok()?;
    ext.mount(Arc::new(Overlay::new(fresh.clone()))).ok()?.unmount().expect("unmounted");
    let hashes: Vec<u8> = (workloads().iter().enumerate())
        .flat_map(|(n, workload)| xxh3_64(&requests(&ext, &fresh, workload, n % 2 == 0)).to_le_bytes())
        .collect();
    Some((format, mode, xxh3_64(&bytes(&*fresh)), xxh3_64(&hashes)))
}

#[test]
fn what_the_device_is_asked_stays_as_it_is() {
    let pairs: Vec<_> = Kind::ALL.iter().flat_map(|format| fs::MODES.map(|mode| (format.name(), mode.name))).collect();
    let half = pairs.len().div_ceil(2);
    let rows: Vec<Row> = std::thread::scope(|scope| {
        let parts: Vec<_> = pairs
            .chunks(half)
            .map(|part| scope.spawn(|| part.iter().filter_map(|(format, mode)| row(format, mode)).collect::<Vec<_>>()))
            .collect();
        parts.into_iter().flat_map(|part| part.join().expect("no panic")).collect()
    });
    let table: String = rows
        .iter()
        .map(|(f, m, made, asked)| format!("    (\"{f}\", \"{m}\", {made:#018x}, {asked:#018x}),\n"))
        .collect();
    assert!(rows == EXPECTED, "other requests than before:\n{table}");
}
