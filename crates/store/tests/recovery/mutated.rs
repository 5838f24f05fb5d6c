//! Journals with random damage: recovery ends on any bytes, and its result can be read.

use super::written::{Sums, Writer, transactions};
use super::*;
use testkit::{cases, damage::Damager, need};

#[test]
fn damaged_journals_never_panic() {
    if !need(&["mke2fs", "debugfs"]) {
        return;
    }
    let (base, runs) = volume(&["-t", "ext4", "-b", "1024"], 6);
    let mut refused = 0;
    for (sums, wide) in [(Sums::None, false), (Sums::V1, true), (Sums::V3, true)] {
        for case in cases(&format!("damaged {sums:?}"), 40) {
            let mut rng = case.rng();
            let mut writer = Writer::new(base.bytes(), &runs, sums, wide, 1, 1);
            transactions(&mut writer, &mut rng, &mut Model::new(), 12);
            let intact = writer.finish();
            // the superblock and the used part of the log
            let start = runs[0].first.get() as usize * 1024;
            let damager = Damager::within(1024, std::iter::once(start..start + 100 * 1024));
            for _ in 0..5 {
                let mut bytes = intact.clone();
                let count = rng.magnitude(64);
                damager.flip_bytes(&mut bytes, &mut rng, count);
                for _ in 0..rng.below(4) {
                    damager.extreme_number(&mut bytes, &mut rng);
                }
                match open(bytes, &runs) {
                    Ok((recovered, replayed)) => {
                        let mut block = [0; 1024];
                        for home in recovered.blocks() {
                            replayed.read(home.get() * 1024, &mut block).unwrap();
                        }
                    }
                    Err(extant_store::Error::Format(_)) => refused += 1,
                    Err(other) => panic!("{other}"),
                }
            }
        }
    }
    assert!(refused > 0, "no damage reached the journal's superblock");
}
