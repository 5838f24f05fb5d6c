//! The possible repairs of a native volume: every generation is whole, so what is wrong with one has no other copy.
//! Four things remain.
//!
//! 1. A volume that was in use without consistency and was not unmounted, and that is consistent all the same, is
//!    marked so.
//! 2. Where the newest generation cannot be read, its map or what every mount reads, and the one before is intact, that
//!    one becomes the newest, and the report says so: what was done since is lost. Its blocks may have been written
//!    over, so that is seldom possible. Anything else that is wrong with the newest generation is left as it is.
//! 3. A superblock that is damaged so little that what it was is known is written anew, if its generation is intact.
//! 4. Where one of the two superblocks is damaged otherwise, the one in force is written in its place, if it leads to a
//!    map. Where that one is whole, but of another length or UUID, and the one in force has errors of its own, it is
//!    never written over: the volume goes back to its generation if that is intact.
//!
//! Each is one write of a superblock, to the block that is not in force.

use super::copies;
use super::layer::SIZE;
use crate::checker::Checker;
use crate::options::{Refusal, Repair};
use crate::problem::Problem;
use crate::report::{Report, Reported, exit};
use crate::table::{Code, Severity};
use blockdev::BlockDevice;
use format::native::superblock::{COPIES, LAST_GENERATION, NativeSuperblock};

/// Checks a native volume and repairs what [`Options::repair`] allows.
///
/// # Errors
/// [`Refusal`] where there is no volume to check and none before it, and where the device fails.
pub(crate) fn repair(checker: Checker<'_>) -> Result<Report, Refusal> {
    let Checker { device, options, .. } = checker;
    let outcome = checker.check();
    if matches!(&outcome, Ok(report) if report.clean || report.exit & exit::CANCELLED != 0)
        || matches!(&outcome, Err(refusal) if refusal.is_cancelled())
        || options.repair == Repair::No
    {
        return outcome;
    }
    let blocks = copies::read(device);
    let Ok((in_force, at)) = copies::in_force(device, &blocks) else { return outcome };
    let last = in_force.last_tried(&blocks);
    if last >= LAST_GENERATION {
        return outcome;
    }
    let next = |superblock: &NativeSuperblock| next_of(superblock, last);
    let other = COPIES - 1 - at;
    let damaged = |p: &Reported| p.code == Code::NativeSuperblockDamaged;
    if let Some((restored, _)) = copies::restored(device, &blocks, &in_force, at) {
        return match checker.check_generation(&restored) {
            Ok(mut report) if report.clean => {
                // the one in force stays until this is written
                write(device, other, &next(&restored))?;
                let was = outcome.iter().flat_map(|report| &report.problems).filter(|p| damaged(p));
                report.problems.splice(0..0, was.cloned());
                report.errors += 1;
                Ok(all_fixed(report))
            }
            _ => outcome,
        };
    }
    let abandoned = newer_than(&blocks, &in_force);
    if let (Some(newer), Repair::All) = (abandoned, options.repair) {
        return match checker.check_generation(&in_force) {
            Ok(report) if report.clean => {
                write(device, other, &next(&in_force))?;
                Ok(went_back(report, newer, in_force.generation, "it leads to no map"))
            }
            _ => outcome,
        };
    }
    // from here on the newest is in force
    if abandoned.is_some() || !copies::leads_to_a_map(device, &in_force) {
        return outcome;
    }
    if in_force.unordered {
        let calm = NativeSuperblock { unordered: false, ..in_force.clone() };
        let report = checker.check_generation(&calm)?;
        if !report.clean {
            return outcome;
        }
        write(device, other, &next(&in_force))?;
        return Ok(all_fixed(outcome.unwrap_or(report)));
    }
    if let Ok(report) = &outcome
        && report.problems.iter().any(damaged)
    {
        let alone = report.problems.iter().all(|p| damaged(p) || p.severity < Severity::Error);
        if !alone && options.repair != Repair::All {
            return outcome;
        }
        if let Some(whole) = copies::block_of(&blocks, other).and_then(|block| NativeSuperblock::parse(block).ok())
            && !alone
        {
            return instead(checker, outcome, &whole, &in_force, at, last);
        }
        // the one in force stays until this is written
        write(device, other, &next(&in_force))?;
        let mut report = report.clone();
        if alone {
            return Ok(all_fixed(report));
        }
        report.problems.iter_mut().filter(|p| damaged(p)).for_each(|p| p.fixed = true);
        report.repaired = true;
        return Ok(report);
    }
    go_back(checker, outcome, &blocks, &in_force, at, last)
}

/// Makes the generation before the newest one the newest, where that cannot be read and the one before is intact.
fn go_back(
    checker: Checker<'_>,
    outcome: Result<Report, Refusal>,
    blocks: &[u8],
    in_force: &NativeSuperblock,
    at: u64,
    last: u64,
) -> Result<Report, Refusal> {
    let found = whole(blocks);
    let Some((before, _)) = found.get(1).filter(|_| checker.options.repair == Repair::All) else { return outcome };
    let Some((physical, what)) = super::read_generation(checker.device, in_force.clone()).unreadable else {
        return outcome;
    };
    match checker.check_generation(before) {
        Ok(report) if report.clean => {
            // over the damaged one: the intact one stays until this is written
            write(checker.device, at, &next_of(before, last))?;
            let why = format!("block {physical} of the device: {what}");
            Ok(went_back(report, in_force.generation, before.generation, &why))
        }
        _ => outcome,
    }
}

/// Makes the generation of the other superblock the newest, where that is whole and says another length or UUID than
/// the one in force, which has errors of its own. It is never written over: it may be the one that is right.
fn instead(
    checker: Checker<'_>,
    outcome: Result<Report, Refusal>,
    whole: &NativeSuperblock,
    in_force: &NativeSuperblock,
    at: u64,
    last: u64,
) -> Result<Report, Refusal> {
    match checker.check_generation(whole) {
        Ok(report) if report.clean => {
            write(checker.device, at, &next_of(whole, last))?;
            let why = "its superblock contradicts the volume above its map";
            Ok(went_back(report, in_force.generation, whole.generation, why))
        }
        _ => outcome,
    }
}

/// A superblock as it is written anew, over the last that was tried.
fn next_of(superblock: &NativeSuperblock, last: u64) -> NativeSuperblock {
    NativeSuperblock { generation: last + 1, unordered: false, ..superblock.clone() }
}

/// The generation of the other superblock, where it counts and is newer than the one in force: then it leads to no map.
fn newer_than(blocks: &[u8], in_force: &NativeSuperblock) -> Option<u64> {
    let (newest, _) = NativeSuperblock::newest(blocks).ok()?;
    (newest.generation > in_force.generation).then_some(newest.generation)
}

/// The report on the generation that the volume went back to. What was wrong with the newer one is gone with it.
fn went_back(mut report: Report, from: u64, to: u64, why: &str) -> Report {
    let problem = Problem::new(Code::NativeWentBack).found(from).expected(to).name(why);
    report.problems.insert(0, Reported::from(&problem));
    report.errors += 1;
    all_fixed(report)
}

/// The superblocks that count, the newest first, with the blocks they lie in.
fn whole(blocks: &[u8]) -> Vec<(NativeSuperblock, u64)> {
    let copies = blocks.chunks(SIZE as usize).zip(0..);
    let mut found: Vec<_> = copies.filter_map(|(bytes, at)| Some((NativeSuperblock::parse(bytes).ok()?, at))).collect();
    found.sort_by_key(|(superblock, _)| std::cmp::Reverse(superblock.generation));
    let volume = found.first().map(|(newest, _)| (newest.uuid, newest.layout));
    found.retain(|(superblock, _)| Some((superblock.uuid, superblock.layout)) == volume);
    found
}

fn write(device: &dyn BlockDevice, at: u64, superblock: &NativeSuperblock) -> Result<(), Refusal> {
    let written = device.write(at * SIZE, &superblock.to_bytes()).and_then(|()| device.flush());
    written.map_err(|e| Refusal::new(e.to_string()))
}

/// Everything that was found is fixed.
fn all_fixed(mut report: Report) -> Report {
    report.problems.iter_mut().filter(|problem| problem.severity >= Severity::Error).for_each(|p| p.fixed = true);
    report.exit = exit::REPAIRED;
    report.repaired = true;
    report.clean = true;
    report
}
