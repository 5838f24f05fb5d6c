//! Mutants of space maps: in folding a tree, in the log, and in reallocation.

use super::{Explorer, FindingKind, Options};
use extant_crash::extant_system::Ext;
use extant_crash::op::Workload;
use fs::Mutant;
use std::fmt::Write;

/// Many generations, each with its own records, so that the log of four blocks wraps around and trees are folded
/// repeatedly; then the volume is mounted again.
fn workloads() -> Vec<Workload> {
    let mut text = String::from("create a; append a 9000 =1; create z; append z 30000 =2; sync");
    text += " | ";
    for n in 0..7 {
        let _ = write!(text, "create f{n}; append f{n} {} =3; fsync f{n}; ", 2000 + n * 1500);
    }
    text += "unlink a; sync; unlink f2; create b; append b 9000 =4; fsync b";
    let reuse = "create f; append f 9000 =1 | unlink f; create g; append g 9000 =2; fsync g; unlink g; create h; append h \
                 20000 =3; fsync h";
    [&text, reuse].map(|text| text.parse().expect("a workload")).into()
}

fn explored(mode: &str, mutant: Mutant) -> (Option<extant_crash::explore::Finding>, u64) {
    let mut ext = Ext::new(mode, Some("spacemap")).expect("a mode");
    ext.mutant = mutant;
    let options = Options { work_on_every: 1, nested_every: 0, deeper_every: 0, again_every: 8, ..Options::default() };
    let mut explorer = Explorer::new(&ext, &options);
    let found = workloads().iter().find_map(|workload| explorer.explore(workload));
    (found, explorer.counts.distinct)
}

#[track_caller]
fn caught(mode: &str, mutant: Mutant) {
    let (found, states) = explored(mode, mutant);
    let found = found.unwrap_or_else(|| panic!("{mutant:?} is not detected in {states} states"));
    assert!(found.kind != FindingKind::Panic, "{found}");
    println!("{mode}, {mutant:?}: detected after {states} states: {found}");
}

#[test]
fn space_maps_without_a_fault_pass() {
    for mode in ["none", "dirty-bit", "journal", "journal-data", "journal-writeback"] {
        let (found, states) = explored(mode, Mutant::Identity);
        assert!(found.is_none(), "{}", found.expect("just looked"));
        println!("{mode}: {states} states");
        assert!(states > 50, "{mode}: {states}");
    }
}

#[test]
fn a_head_before_its_tree() {
    caught("journal", Mutant::HeadBeforeTree);
}

#[test]
fn a_fold_into_the_tree_in_use() {
    caught("journal", Mutant::FoldInPlace);
}

/// Two folds in quick succession: the second would overwrite the tree of the durable head. On two requests, a correct
/// volume folds once.
#[test]
fn a_second_fold_before_the_first_is_durable() {
    caught("journal", Mutant::FoldTwice);
    let (found, states) = explored("journal", Mutant::FoldAgain);
    assert!(found.is_none(), "{}", found.expect("just looked"));
    assert!(states > 50, "{states}");
}

#[test]
fn a_sequence_that_begins_again() {
    caught("journal", Mutant::RestartSequence);
}

#[test]
fn a_record_that_is_lost() {
    caught("journal", Mutant::LoseRecord);
}

#[test]
fn a_log_that_is_written_over_too_early() {
    caught("journal", Mutant::TailBeforeHeads);
}

#[test]
fn blocks_of_space_maps_that_are_allocated_again_at_once() {
    caught("journal", Mutant::ReuseAtOnce);
}
