//! The repairs of a native volume. Metadata has no second copy within a generation, so only four are possible.
//!
//! 1. A volume that was in use without consistency and was not unmounted, but is consistent, is marked clean.
//! 2. Where the newest generation cannot be read (its map, or a block that every mount reads) and the one before is
//!    intact, the volume is rolled back to that one, and the report says so: all later changes are lost. Its blocks may
//!    have been overwritten, so that is seldom possible. Other errors in the newest generation are not repaired.
//! 3. A damaged superblock whose content can be reconstructed is rewritten, if its generation is intact. So is a torn
//!    one that is complete but for the number in one sector.
//! 4. Where one of the two superblocks is damaged otherwise, the active one is written over it, if it leads to a map.
//!    Where the other one is valid but has another length or UUID, and the active one has errors of its own, the other
//!    is never overwritten: the volume is rolled back to its generation if that is intact.
//!
//! Each is one write of a superblock, to the inactive block.

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
/// [`Refusal`] where no generation can be checked, and where the device fails.
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
    let Ok((active, at)) = copies::active(device, &blocks) else { return outcome };
    let last = active.last_tried(&blocks);
    if last >= LAST_GENERATION {
        return outcome;
    }
    let next = |superblock: &NativeSuperblock| next_of(superblock, last);
    let other = COPIES - 1 - at;
    let damaged = |p: &Reported| p.code == Code::NativeSuperblockDamaged;
    if let Some((restored, _)) = copies::restored(device, &blocks, &active, at) {
        return match checker.check_generation(&restored) {
            Ok(mut report) if report.clean => {
                // the active one is valid until this is written
                write(device, other, &next(&restored))?;
                let was = outcome.iter().flat_map(|report| &report.problems).filter(|p| damaged(p));
                report.problems.splice(0..0, was.cloned());
                report.errors += 1;
                Ok(all_fixed(report))
            }
            _ => outcome,
        };
    }
    let abandoned = newer_than(&blocks, &active);
    if let (Some(newer), Repair::All) = (abandoned, options.repair) {
        return match checker.check_generation(&active) {
            Ok(report) if report.clean => {
                write(device, other, &next(&active))?;
                Ok(went_back(report, newer, active.generation, "it leads to no map"))
            }
            _ => outcome,
        };
    }
    // from here on the newest is active
    if abandoned.is_some() || !copies::leads_to_a_map(device, &active) {
        return outcome;
    }
    if active.unordered {
        let calm = NativeSuperblock { unordered: false, ..active.clone() };
        let report = checker.check_generation(&calm)?;
        if !report.clean {
            return outcome;
        }
        write(device, other, &next(&active))?;
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
            return instead(checker, outcome, &whole, &active, at, last);
        }
        // the active one is valid until this is written
        write(device, other, &next(&active))?;
        let mut report = report.clone();
        if alone {
            return Ok(all_fixed(report));
        }
        report.problems.iter_mut().filter(|p| damaged(p)).for_each(|p| p.fixed = true);
        report.repaired = true;
        return Ok(report);
    }
    go_back(checker, outcome, &blocks, &active, at, last)
}

/// Rolls back to the generation before the newest one, where that cannot be read and the one before is intact.
fn go_back(
    checker: Checker<'_>,
    outcome: Result<Report, Refusal>,
    blocks: &[u8],
    active: &NativeSuperblock,
    at: u64,
    last: u64,
) -> Result<Report, Refusal> {
    let found = whole(blocks);
    let Some((before, _)) = found.get(1).filter(|_| checker.options.repair == Repair::All) else { return outcome };
    let Some((physical, what)) = super::read_generation(checker.device, active.clone()).unreadable else {
        return outcome;
    };
    match checker.check_generation(before) {
        Ok(report) if report.clean => {
            // over the damaged one: the intact one is valid until this is written
            write(checker.device, at, &next_of(before, last))?;
            let why = format!("block {physical} of the device: {what}");
            Ok(went_back(report, active.generation, before.generation, &why))
        }
        _ => outcome,
    }
}

/// Rolls back to the generation of the other superblock, where that is valid and has another length or UUID than the
/// active one, which has errors of its own. It is never overwritten: it may be the right one.
fn instead(
    checker: Checker<'_>,
    outcome: Result<Report, Refusal>,
    whole: &NativeSuperblock,
    active: &NativeSuperblock,
    at: u64,
    last: u64,
) -> Result<Report, Refusal> {
    match checker.check_generation(whole) {
        Ok(report) if report.clean => {
            write(checker.device, at, &next_of(whole, last))?;
            let why = "its superblock contradicts the volume above its map";
            Ok(went_back(report, active.generation, whole.generation, why))
        }
        _ => outcome,
    }
}

/// A superblock with the generation number that follows `last`, to be written.
fn next_of(superblock: &NativeSuperblock, last: u64) -> NativeSuperblock {
    NativeSuperblock { generation: last + 1, unordered: false, ..superblock.clone() }
}

/// The generation of the other superblock, where it is valid and newer than the active one: then it leads to no map.
fn newer_than(blocks: &[u8], active: &NativeSuperblock) -> Option<u64> {
    let (newest, _) = NativeSuperblock::newest(blocks).ok()?;
    (newest.generation > active.generation).then_some(newest.generation)
}

/// The report on the generation that the volume was rolled back to. The errors of the newer one are gone.
fn went_back(mut report: Report, from: u64, to: u64, why: &str) -> Report {
    let problem = Problem::new(Code::NativeWentBack).found(from).expected(to).name(why);
    report.problems.insert(0, Reported::from(&problem));
    report.errors += 1;
    all_fixed(report)
}

/// The valid superblocks with the UUID and layout of the newest, the newest first, and their blocks.
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

/// The report with every problem marked as fixed.
fn all_fixed(mut report: Report) -> Report {
    report.problems.iter_mut().filter(|problem| problem.severity >= Severity::Error).for_each(|p| p.fixed = true);
    report.exit = exit::REPAIRED;
    report.repaired = true;
    report.clean = true;
    report
}
