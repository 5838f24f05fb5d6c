//! What an administrator has laid down for single problems, as the `[problems]` stanzas of e2fsck.conf do.

use crate::table::{Code, Fixer, Preen, Severity};
use std::collections::BTreeMap;

/// What is laid down for one problem; nothing in it leaves the matter to the table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rule {
    /// Whether `-p` may repair it (`preen_ok`).
    pub preen: Option<bool>,
    /// It is never repaired, whatever was asked for (`force_no`).
    pub never: bool,
    /// Whether repairing it leaves the exit status as it is (`not_a_fix`).
    pub not_a_fix: Option<bool>,
}

/// The rules by problem.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules(BTreeMap<Code, Rule>);

impl Rules {
    /// The rule of a problem, to be changed.
    pub fn of(&mut self, code: Code) -> &mut Rule {
        self.0.entry(code).or_default()
    }

    fn get(&self, code: Code) -> Rule {
        self.0.get(&code).copied().unwrap_or_default()
    }

    /// What `-p` does on meeting it.
    #[must_use]
    pub fn preen(&self, code: Code) -> Preen {
        match self.get(code).preen {
            Some(true) => Preen::Fixes,
            Some(false) => Preen::Stops,
            None => code.preen(),
        }
    }

    /// Whether `-p` passes it by: it is none of its business, and the volume is sound with it.
    pub(crate) fn preen_leaves(&self, code: Code) -> bool {
        let told = self.get(code).preen.is_some();
        code.preen() == Preen::Leaves && !told
            || self.preen(code) == Preen::Stops && code.severity() == Severity::Advice && !told
    }

    /// Whether it is never repaired.
    #[must_use]
    pub fn never(&self, code: Code) -> bool {
        self.get(code).never
    }

    /// Whether repairing it is counted, so that the exit status says 1. As with e2fsck, what a mount does as well is not: it
    /// replays the journal and works off the orphans; nor are dates and the volume's number.
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

    /// Whether any of what was repaired counts. With orphans, so are the blocks and inodes that they held.
    pub(crate) fn any_fix(&self, repaired: &[Code]) -> bool {
        let orphans = repaired.iter().any(|code| matches!(code, Code::OrphanPending | Code::OrphanFileBlockNotClean));
        repaired.iter().any(|code| self.is_fix(*code) && !(orphans && code.fixer() == Fixer::Bitmaps))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_decides_where_nothing_is_laid_down() {
        let rules = Rules::default();
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
    fn what_is_laid_down_goes_before_the_table() {
        let mut rules = Rules::default();
        *rules.of(Code::LinkCountWrong) = Rule { preen: Some(false), never: true, not_a_fix: Some(true) };
        rules.of(Code::DirectoryUnconnected).preen = Some(true);
        assert_eq!(rules.preen(Code::LinkCountWrong), Preen::Stops);
        assert_eq!(rules.preen(Code::DirectoryUnconnected), Preen::Fixes);
        assert!(rules.never(Code::LinkCountWrong) && !rules.any_fix(&[Code::LinkCountWrong]));
        // advice is passed by unless somebody asked to stop there
        assert!(rules.preen_leaves(Code::MinExtraSizeWrong));
        rules.of(Code::MinExtraSizeWrong).preen = Some(false);
        assert!(!rules.preen_leaves(Code::MinExtraSizeWrong));
    }
}
