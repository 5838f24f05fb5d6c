//! The user on whose behalf a thread works, which determines whether it may use the root reserve.

use crate::Base;
use space::Privilege;
use std::cell::Cell;

thread_local! {
    static MAY_USE_RESERVE: Cell<bool> = const { Cell::new(false) };
}

/// Restores the previous privilege, also after a panic.
struct Before(bool);

impl Drop for Before {
    fn drop(&mut self) {
        MAY_USE_RESERVE.set(self.0);
    }
}

impl Base {
    /// Calls `work` on behalf of a user and group: allocations of this thread meanwhile may use the root reserve if the
    /// user is root, or the reserve is for this user (`s_def_resuid`) or this group (`s_def_resgid`, unless 0).
    pub fn on_behalf_of<R>(&self, uid: u32, gid: u32, work: impl FnOnce() -> R) -> R {
        let sb = &self.sb.disk;
        let group = u32::from(sb.s_def_resgid.get());
        let may = uid == 0 || uid == u32::from(sb.s_def_resuid.get()) || (group != 0 && gid == group);
        let _before = Before(MAY_USE_RESERVE.replace(may));
        work()
    }

    /// The free blocks that this thread may use.
    pub(crate) fn usual_privilege(&self) -> Privilege {
        let all = self.writing.as_ref().is_some_and(|writing| writing.options.superuser);
        if all || MAY_USE_RESERVE.get() { Privilege::Superuser } else { Privilege::Ordinary }
    }
}
