//! Every state that a loss of power can leave is that of one flush; and deliberate defects are found.

mod common;

use std::time::Instant;

use std::sync::Arc;

use blockdev::{BlockDevice, MemoryDevice, Overlay};
use common::explore::{Count, PendingChange, Plan, changes, explore};
use common::{format_options, mutated};
use extant_kero::{BLOCK, Kero, Mutant, format};
use simdev::Record;
use testkit::cases;

/// Explores, and prints the counts.
fn all(name: &str, plan: &Plan, seeds: u64, laps: f64) -> Count {
    let begun = Instant::now();
    let mut total = Count::default();
    for case in cases(name, seeds) {
        let found = explore(plan, Mutant::Identity, &mut case.rng());
        let count = found.unwrap_or_else(|what| panic!("{name}: {what}"));
        assert!(count.laps >= laps, "{name}: the log was written only {} times", count.laps);
        total.add(&count);
    }
    println!(
        "{name}: {} states, {} of them torn, {} with more work; {:.0} laps of the log, {} checkpoints, {} cleaning groups, \
         {} KiB gone home, {} KiB again; {:.1} s",
        total.states,
        total.torn,
        total.nested,
        total.laps,
        total.stats.checkpoints,
        total.stats.cleaning_groups,
        total.stats.gone_home_bytes >> 10,
        total.stats.again_bytes >> 10,
        begun.elapsed().as_secs_f64()
    );
    total
}

#[test]
fn every_state_is_that_of_one_flush() {
    let total = all("narrow", &Plan::narrow(), 8, 3.0);
    assert!(total.states > 40_000 && total.nested > 20, "{total:?}");
}

#[test]
fn every_state_of_work_on_states_is_that_of_one_flush() {
    all("deep", &Plan::deep(), 2, 0.5);
}

#[test]
fn every_state_of_a_wide_log_is_that_of_one_flush() {
    all("wide", &Plan::wide(), 2, 3.0);
}

/// Prints the number of seeds until a mutant is found, and the finding.
fn caught(mutant: Mutant, plan: &Plan, seeds: u64) {
    let begun = Instant::now();
    for (number, case) in cases(&format!("{mutant:?}"), seeds).enumerate() {
        if let Err(what) = explore(plan, mutant, &mut case.rng()) {
            println!("{mutant:?}: run {}, {:.1} s: {what}", number + 1, begun.elapsed().as_secs_f64());
            return;
        }
    }
    panic!("{mutant:?} was not found in {seeds} runs");
}

macro_rules! mutants {
    ($($name:ident: $mutant:ident, $plan:ident, $seeds:literal;)+) => {$(
        #[test]
        fn $name() {
            caught(Mutant::$mutant, &Plan::$plan(), $seeds);
        }
    )+};
}

mutants! {
    cold_writes_in_place: ColdInPlace, narrow, 4;
    a_home_write_outside_its_record: HomeUnrecorded, narrow, 4;
    home_entries_that_are_not_verified: HomeUnverified, narrow, 4;
    headers_without_a_checksum: HeaderUnchecked, wide, 8;
    an_old_record_as_the_end_of_a_new_group: OldEnd, narrow, 20;
    slots_reused_early: ReuseEarly, narrow, 8;
    the_log_forgets_before_blocks_are_home: TailBeforeHome, narrow, 4;
    a_checkpoint_that_is_not_written: CheckpointUnwritten, narrow, 8;
    a_discard_without_an_entry: DiscardUnrecorded, narrow, 4;
    a_late_home_write: LateHome, narrow, 8;
    a_fresh_write_over_what_is_verified: FreshOverLast, narrow, 8;
    a_gap_before_the_first_record: GapAtOnce, deep, 20;
}

/// All writes of a recording, in order.
fn writes(device: &Record<Overlay, Vec<u8>>) -> Vec<PendingChange> {
    let log = device.log().unwrap();
    (0..log.entries().len()).flat_map(|index| changes(&log, index)).collect()
}

/// The content of blocks 5 and 6 after: a flush of ones; a group that writes twos to both, of which block 5 is lost;
/// and another that writes a two to block 5, of which only that block reaches the device.
fn lost_and_found(mutant: Mutant) -> [u8; 2] {
    let base = Overlay::new(Arc::new(MemoryDevice::zeroed(3 << 20).unwrap()));
    format(&base, &format_options(512 << 10, false)).unwrap();
    let kero = Kero::open(&base, mutated(mutant)).unwrap();
    kero.write(5 * BLOCK, &[1; 2 * BLOCK as usize]).unwrap();
    kero.flush().unwrap();

    let crashed = base.clone();
    let record = Record::in_memory(base);
    let kero = Kero::open(&record, mutated(mutant)).unwrap();
    kero.write(5 * BLOCK, &[2; 2 * BLOCK as usize]).unwrap();
    kero.flush().unwrap();
    let group = writes(&record);
    // the content that opening accepted comes first: ones, and a superblock
    let group = &group[group.len() - 3..];
    assert_eq!(group.len(), 3, "a header and two blocks");
    group[0].apply(&crashed, None);
    group[2].apply(&crashed, None);

    let again = crashed.clone();
    let record = Record::in_memory(crashed);
    let kero = Kero::open(&record, mutated(mutant)).unwrap();
    let seen = |device: &dyn BlockDevice| {
        let mut bytes = [0; 2 * BLOCK as usize];
        device.read(5 * BLOCK, &mut bytes).unwrap();
        [bytes[0], bytes[BLOCK as usize]]
    };
    assert_eq!(seen(&kero), [1, 1]);
    kero.write(5 * BLOCK, &[2; BLOCK as usize]).unwrap();
    kero.flush().unwrap();
    for change in writes(&record) {
        // the block itself, not the headers
        let is_superblock = |at: &u64| kero.layout().superblocks().contains(&(at / BLOCK));
        if matches!(&change, PendingChange::Write(at, _) if is_superblock(at)) {
            continue;
        }
        if matches!(&change, PendingChange::Write(_, bytes) if bytes[..] == [2; BLOCK as usize]) {
            change.apply(&again, None);
        } else if mutant == Mutant::Identity {
            // its header is durable by then, which is the purpose of this test
            change.apply(&again, None);
            break;
        }
    }
    seen(&Kero::open(&again, mutated(mutant)).unwrap())
}

#[test]
fn a_refused_group_does_not_come_back() {
    assert_eq!(lost_and_found(Mutant::Identity), [1, 1]);
    assert_eq!(lost_and_found(Mutant::RejectedNotVoided), [2, 2], "the mutant shows a state of no flush");
}
