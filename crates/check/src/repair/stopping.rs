//! The stop of `-p` where the administrator must decide, and the report on the volume that remains then.

use super::Iterations;
use crate::checker::Checker;
use crate::options::{Refusal, Repair};
use crate::problem::Problem;
use crate::report::{Report, Reported, exit};
use crate::table::{Code, Fixer, Preen};
use blockdev::Overlay;
use std::collections::HashSet;

impl Iterations<'_> {
    /// Whether `-p` stops at the problem: the administrator must decide whether another descriptor table is the right
    /// one, and whether the volume or a log that it does not need, or that cannot be read, is newer.
    pub(super) fn needs_decision(&self, problem: &Problem) -> bool {
        match problem.code {
            Code::GroupDescriptorsTryBackup
            | Code::JournalTypeUnknown
            | Code::JournalFeatureUnknown
            | Code::JournalReadOnlyFeatureUnknown => true,
            code => code == Code::JournalRecoveryFlagMissing && self.problem_settings.preen(code) == Preen::Stops,
        }
    }

    /// The resize inode, where it is wrong: what else is repaired could depend on the blocks that it claims.
    pub(super) fn wrong_resize_inode<'p>(&self, problems: &'p [Problem]) -> Option<&'p Problem> {
        let replays = problems.iter().any(|p| p.code.fixer() == Fixer::Replay && self.may_fix(p));
        let stops = self.problem_settings.preen(Code::ResizeInodeBad) == Preen::Stops;
        problems.iter().find(|p| p.code == Code::ResizeInodeBad && stops && !replays)
    }

    /// The first of these problems at which `-p` stops. An unattached inode that is empty is cleared, before it would
    /// be connected.
    pub(super) fn stopping_among<'p>(&self, problems: &[&'p Problem]) -> Option<&'p Problem> {
        let empty: HashSet<_> =
            problems.iter().filter(|p| p.code == Code::InodeUnattachedEmpty).map(|p| p.inode).collect();
        let is_cleared = |p: &Problem| p.code == Code::InodeUnattached && empty.contains(&p.inode);
        let stops = |p: &Problem| self.problem_settings.preen(p.code) == Preen::Stops && !is_cleared(p);
        problems.iter().copied().find(|problem| stops(problem))
    }

    /// Whether errors are left after the repair.
    pub(super) fn leaves_errors(&self, report: &Report) -> bool {
        // a volume with a log that the administrator must decide on cannot be mounted
        let undecided = self.stopped.as_ref();
        let undecided =
            undecided.is_some_and(|p| matches!(p.code, Code::JournalRecoveryFlagMissing | Code::ResizeInodeBad));
        !report.clean || self.mode == Repair::Safe && undecided
    }

    /// Whether `-p` stops after these iterations, so that their repairs are discarded.
    pub(super) fn stops(&self, report: &Report) -> bool {
        let allowed = |p: &Reported| !p.severity.is_error() || self.problem_settings.never(p.code);
        let tolerable = report.errors > 0 && report.problems.iter().all(allowed);
        self.mode == Repair::Safe && self.leaves_errors(report) && !tolerable
    }

    /// The volume that remains where `-p` stops: as it was found, with its journal replayed.
    pub(super) fn remaining(&self) -> &Overlay {
        self.replayed.as_ref().unwrap_or(&self.found)
    }

    /// The problems that were repaired; where `-p` stops, only those of a journal that was replayed.
    pub(super) fn take_repaired(&mut self, stopped: bool) -> Vec<Problem> {
        let replayed = self.remaining().fingerprint() != self.found.fingerprint();
        let mut repaired = std::mem::take(&mut self.repaired);
        repaired.retain(|problem| !stopped || replayed && problem.code.fixer() == Fixer::Replay);
        repaired
    }

    /// The report where `-p` stops: from one more check, of the volume that remains. The last iteration checked it with
    /// repairs that are discarded, so its report lacks what they removed, and its numbers are not those on the volume.
    pub(super) fn describe_remaining(&self, report: Report, checker: Checker<'_>) -> Result<Report, Refusal> {
        let state = self.remaining();
        if report.cut_short() || state.fingerprint() == self.overlay.fingerprint() {
            return Ok(report);
        }
        let (found, ()) = Checker { device: state, ..checker }.examine(|_| ())?;
        let scan = report.scan.and(&found.scan);
        if found.exit & exit::CANCELLED != 0 {
            return Ok(Report { scan, ..found });
        }
        if found.cut_short() {
            // without the repairs hardly anything can be checked
            return Ok(Report { scan, ..report });
        }
        let mut found = Report { clean: false, exit: found.exit | exit::LEFT, scan, ..found };
        if found.errors == 0 {
            // they show only after other repairs
            let errors = report.problems.into_iter().filter(|problem| problem.severity.is_error());
            found.problems.extend(errors);
            found.problems.sort_by_key(|problem| problem.phase);
            found.errors = report.errors;
            found.unlisted = report.unlisted;
        }
        Ok(found)
    }

    /// The problem at which `-p` stopped, with the numbers of the report where that has it too.
    pub(super) fn stopped_at(&self, report: &Report) -> Option<String> {
        let stopping = Reported::from(self.stopped.as_ref()?);
        let place = |p: &Reported| (p.code, p.group, p.inode, p.dir, p.file_block, p.block);
        let found = report.problems.iter().find(|&problem| place(problem) == place(&stopping));
        Some(found.unwrap_or(&stopping).text.clone())
    }
}
