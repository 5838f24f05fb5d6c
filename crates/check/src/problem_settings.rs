//! The administrator's settings for single problems, as in the `[problems]` stanzas of e2fsck.conf.

use crate::table::{Code, Fixer, Preen, Severity};
use std::collections::BTreeMap;

/// The settings for one problem; where they are empty, the table decides.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProblemSetting {
    /// Whether `-p` may repair it (`preen_ok`).
    pub preen: Option<bool>,
    /// Whether it is never repaired, whatever the options (`force_no`).
    pub never: bool,
    /// Whether its repair leaves the exit status unchanged (`not_a_fix`).
    pub not_a_fix: Option<bool>,
}

/// The settings by problem.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProblemSettings(BTreeMap<Code, ProblemSetting>);

impl ProblemSettings {
    /// The settings of a problem, for changes.
    pub fn of(&mut self, code: Code) -> &mut ProblemSetting {
        self.0.entry(code).or_default()
    }

    fn get(&self, code: Code) -> ProblemSetting {
        self.0.get(&code).copied().unwrap_or_default()
    }

    /// Action of `-p` on it.
    #[must_use]
    pub fn preen(&self, code: Code) -> Preen {
        match self.get(code).preen {
            Some(true) => Preen::Fixes,
            Some(false) => Preen::Stops,
            None => code.preen(),
        }
    }

    /// Whether `-p` skips it, and the volume counts as clean with it.
    pub(crate) fn preen_leaves(&self, code: Code) -> bool {
        let has_rule = self.get(code).preen.is_some();
        code.preen() == Preen::Leaves && !has_rule
            || self.preen(code) == Preen::Stops && code.severity() == Severity::Advice && !has_rule
    }

    /// Whether it is never repaired.
    #[must_use]
    pub fn never(&self, code: Code) -> bool {
        self.get(code).never
    }

    /// Whether its repair counts, so that the exit status is 1. As with e2fsck, repairs that a mount does as well do
    /// not (replaying the journal, processing orphans), nor do dates and the volume's UUID.
    pub(crate) fn is_fix(&self, code: Code) -> bool {
        let of_itself = !matches!(
            code,
            Code::JournalNotReplayed
                | Code::JournalRecoveryOfNothing
                | Code::OrphanPending
                | Code::OrphanFileBlockNotClean
                | Code::LastMountInFuture
                | Code::LastMountBarelyInFuture
                | Code::LastWriteInFuture
                | Code::LastWriteBarelyInFuture
                | Code::UuidMissing
        );
        self.get(code).not_a_fix.map_or(of_itself, |not| !not)
    }

    /// Whether any of the repairs counts. With orphans, freeing their blocks and inodes does not; it clears no flag of a
    /// group that denies inodes in use.
    pub(crate) fn any_fix(&self, repaired: &[Code]) -> bool {
        let orphans = repaired.iter().any(|code| matches!(code, Code::OrphanPending | Code::OrphanFileBlockNotClean));
        let follows = |code: Code| code.fixer() == Fixer::Bitmaps && code != Code::GroupInodeUninitInUse;
        repaired.iter().any(|code| self.is_fix(*code) && !(orphans && follows(*code)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_decides_where_there_is_no_rule() {
        let rules = ProblemSettings::default();
        for &code in Code::ALL {
            assert_eq!((rules.preen(code), rules.never(code)), (code.preen(), false), "{code}");
        }
        assert!(rules.any_fix(&[Code::LinkCountWrong, Code::JournalNotReplayed]));
        assert!(!rules.any_fix(&[Code::JournalNotReplayed]) && !rules.any_fix(&[]));
        assert!(!rules.any_fix(&[Code::OrphanPending, Code::FreeBlockCountWrong]));
        assert!(rules.any_fix(&[Code::FreeBlockCountWrong]));
        assert!(rules.any_fix(&[Code::OrphanPending, Code::LinkCountWrong]));
    }

    #[test]
    fn a_rule_takes_precedence_over_the_table() {
        let mut rules = ProblemSettings::default();
        *rules.of(Code::LinkCountWrong) = ProblemSetting { preen: Some(false), never: true, not_a_fix: Some(true) };
        rules.of(Code::DirectoryUnconnected).preen = Some(true);
        assert_eq!(rules.preen(Code::LinkCountWrong), Preen::Stops);
        assert_eq!(rules.preen(Code::DirectoryUnconnected), Preen::Fixes);
        assert!(rules.never(Code::LinkCountWrong) && !rules.any_fix(&[Code::LinkCountWrong]));
        // advice is skipped unless a setting requires a stop there
        assert!(rules.preen_leaves(Code::ResizeInodeBad));
        rules.of(Code::ResizeInodeBad).preen = Some(false);
        assert!(!rules.preen_leaves(Code::ResizeInodeBad));
        // -p stops where the volume cannot be mounted
        assert!(!rules.preen_leaves(Code::MinExtraSizeWrong));
    }
}
