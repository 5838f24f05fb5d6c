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
    ("extant", "none", 0x556e_4234_e148_b285, 0x4f17_d935_019e_5d3b),
    ("extant", "snapshot", 0x556e_4234_e148_b285, 0x2112_002b_6f75_786e),
    ("extant", "snapshot-cow", 0x556e_4234_e148_b285, 0x48d4_6283_ae6e_67d7),
    ("ext2", "none", 0x37eb_e18c_8c3d_cc78, 0x69c3_3a68_083c_798f),
    ("ext2", "dirty-bit", 0x37eb_e18c_8c3d_cc78, 0xd94a_9d20_3daa_1de6),
    ("ext2", "linked", 0x5a8f_1ce3_6196_295a, 0xe405_21d8_af87_8742),
    ("ext3", "none", 0x37eb_e18c_8c3d_cc78, 0x69c3_3a68_083c_798f),
    ("ext3", "dirty-bit", 0x37eb_e18c_8c3d_cc78, 0xd94a_9d20_3daa_1de6),
    ("ext3", "journal", 0x1a87_dbff_b0f6_70af, 0x60c9_ffe8_30ad_0dad),
    ("ext3", "journal-data", 0x1a87_dbff_b0f6_70af, 0xeb61_3620_93cc_5b40),
    ("ext3", "journal-writeback", 0x1a87_dbff_b0f6_70af, 0x60c9_ffe8_30ad_0dad),
    ("ext4", "none", 0x2f4d_f5a3_9693_1157, 0x5c3c_2ffc_0249_9b34),
    ("ext4", "dirty-bit", 0x2f4d_f5a3_9693_1157, 0xf418_af8b_8335_c91c),
    ("ext4", "journal", 0xdc2f_c247_4f63_89dd, 0x86e4_8853_7b84_b1b0),
    ("ext4", "journal-data", 0xdc2f_c247_4f63_89dd, 0xd17c_13cb_0c0f_03d1),
    ("ext4", "journal-writeback", 0xdc2f_c247_4f63_89dd, 0x86e4_8853_7b84_b1b0),
    ("rext3", "none", 0x4b88_37c2_c513_463c, 0x2ea9_1a9f_6860_5edc),
    ("rext3", "dirty-bit", 0x4b88_37c2_c513_463c, 0x5fe5_a1e2_a991_f052),
    ("rext3", "journal", 0x2801_03f5_f912_c438, 0xedba_f0b9_eb2a_666b),
    ("rext3", "journal-data", 0x2801_03f5_f912_c438, 0xbbcb_07b6_f59f_32be),
    ("rext3", "journal-writeback", 0x2801_03f5_f912_c438, 0xedba_f0b9_eb2a_666b),
    ("spacemap", "none", 0xb755_a588_4f67_ec23, 0xfcff_bdb1_e994_726d),
    ("spacemap", "dirty-bit", 0xb755_a588_4f67_ec23, 0x24b8_9a87_e967_8e94),
    ("spacemap", "journal", 0xc0f6501e4800ce0e, 0x1bd9b66bb9e874f4),
    ("spacemap", "journal-data", 0xc0f6501e4800ce0e, 0x64a7a6f3a4c711d1),
    ("spacemap", "journal-writeback", 0xc0f6501e4800ce0e, 0x1bd9b66bb9e874f4),
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
