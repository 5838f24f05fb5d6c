//! What can be mended of a native volume: every generation is whole, so what is wrong with one has no other copy. Three
//! things remain.
//!
//! 1. A volume that was in use without consistency and was not unmounted, and that is sound all the same, is told so.
//! 2. Where the newest generation is damaged and the one before is sound, that one becomes the newest: what was done since is
//!    lost. Its places may have been written over, so that is seldom possible.
//! 3. Where one of the two superblocks is damaged, the one in force is written anew in its place.
//!
//! Each is one write of a superblock, to the place that is not in force.

use super::{SIZE, copies};
use crate::checker::{self, Options, Progress, Repair};
use crate::open::Refusal;
use crate::report::{Report, Reported, exit};
use crate::table::{Code, Severity};
use blockdev::BlockDevice;
use format::native::superblock::{COPIES, NativeSuperblock};

/// Checks a native volume and mends what [`Options::repair`] allows.
///
/// # Errors
/// [`Refusal`] where there is no volume to check and none before it, and where the device fails.
pub(crate) fn repair(
    name: &str,
    device: &dyn BlockDevice,
    options: &Options,
    progress: &dyn Progress,
) -> Result<Report, Refusal> {
    let outcome = checker::check(name, device, options, progress);
    if matches!(&outcome, Ok(report) if report.clean || report.exit & exit::CANCELLED != 0)
        || options.repair == Repair::No
    {
        return outcome;
    }
    let blocks = copies::read(device);
    let found = whole(&blocks);
    let Some((newest, at)) = found.first() else { return outcome };
    let next = |sb: &NativeSuperblock| NativeSuperblock {
        generation: newest.last_tried(&blocks).saturating_add(1),
        unordered: false,
        ..sb.clone()
    };
    if newest.unordered {
        let calm = NativeSuperblock { unordered: false, ..newest.clone() };
        let report = checker::check_generation(name, device, &calm, options, progress)?;
        if !report.clean {
            return outcome;
        }
        write(device, COPIES - 1 - at, &next(newest))?;
        return Ok(mended(outcome.unwrap_or(report)));
    }
    let damaged = |p: &Reported| p.code == Code::NativeSuperblockDamaged;
    if found.len() == 1
        && let Ok(report) = &outcome
        && report.problems.iter().any(damaged)
    {
        let alone = report.problems.iter().all(|p| damaged(p) || p.severity < Severity::Error);
        if !alone && options.repair != Repair::All {
            return outcome;
        }
        // the one in force stays until this is written
        write(device, COPIES - 1 - at, &next(newest))?;
        let mut report = report.clone();
        if alone {
            return Ok(mended(report));
        }
        report.problems.iter_mut().filter(|p| damaged(p)).for_each(|p| p.fixed = true);
        report.mended = true;
        return Ok(report);
    }
    let Some((before, _)) = found.get(1).filter(|_| options.repair == Repair::All) else { return outcome };
    match checker::check_generation(name, device, before, options, progress) {
        Ok(report) if report.clean => {
            // over the damaged one: the sound one stays until this is written
            write(device, *at, &next(before))?;
            Ok(mended(outcome.unwrap_or(report)))
        }
        _ => outcome,
    }
}

/// The superblocks that count, the newest first, with the blocks they lie in.
fn whole(blocks: &[u8]) -> Vec<(NativeSuperblock, u64)> {
    let copies = blocks.chunks(SIZE as usize).zip(0..);
    let mut found: Vec<_> = copies.filter_map(|(bytes, at)| Some((NativeSuperblock::parse(bytes).ok()?, at))).collect();
    found.sort_by_key(|(superblock, _)| std::cmp::Reverse(superblock.generation));
    let volume = found.first().map(|(newest, _)| (newest.uuid, newest.shape));
    found.retain(|(superblock, _)| Some((superblock.uuid, superblock.shape)) == volume);
    found
}

fn write(device: &dyn BlockDevice, at: u64, superblock: &NativeSuperblock) -> Result<(), Refusal> {
    let written = device.write(at * SIZE, &superblock.to_bytes()).and_then(|()| device.flush());
    written.map_err(|e| Refusal::new(e.to_string()))
}

/// Everything that was found is mended.
fn mended(mut report: Report) -> Report {
    report.problems.iter_mut().filter(|problem| problem.severity >= Severity::Error).for_each(|p| p.fixed = true);
    report.exit = exit::MENDED;
    report.mended = true;
    report.clean = true;
    report
}
