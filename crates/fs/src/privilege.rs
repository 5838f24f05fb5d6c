//! On whose behalf a thread works: whether it may use the blocks that a volume keeps back.

use crate::Base;
use space::Claim;
use std::cell::Cell;

thread_local! {
    static MAY_USE_KEPT: Cell<bool> = const { Cell::new(false) };
}

/// Puts back what was there before, also where the work panics.
struct Before(bool);

impl Drop for Before {
    fn drop(&mut self) {
        MAY_USE_KEPT.set(self.0);
    }
}

impl Base {
    /// Does `work` for a user of a group: what this thread allocates meanwhile may come from the blocks that are kept back,
    /// where the user is root, or they are kept for this user (`s_def_resuid`) or this group (`s_def_resgid`, unless 0).
    pub fn on_behalf_of<R>(&self, uid: u32, gid: u32, work: impl FnOnce() -> R) -> R {
        let sb = &self.sb.disk;
        let group = u32::from(sb.s_def_resgid.get());
        let may = uid == 0 || uid == u32::from(sb.s_def_resuid.get()) || (group != 0 && gid == group);
        let _before = Before(MAY_USE_KEPT.replace(may));
        work()
    }

    /// What whoever works on the volume may use.
    pub(crate) fn usual_claim(&self) -> Claim {
        let all = self.writing.as_ref().is_some_and(|writing| writing.options.superuser);
        if all || MAY_USE_KEPT.get() { Claim::Superuser } else { Claim::Ordinary }
    }
}
