//! `extant umount`: unmounts a volume mounted with `extant mount`.

use crate::error_report::{Failure, Result, say, without_errno};
use check::render::escape;
use clap::Args;
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(
    about = "Unmount a volume and wait until everything is written to its device",
    after_help = "Examples:
  extant umount /mnt
  extant umount ./mnt && extant check volume.img

umount(8) and fusermount3 -u do the same, but return before the process behind the mount has \
    ended and, unless root mounted it, before all data is on the device; neither reports write \
    errors. With files still open, nothing is done: fuser -vm DIR lists the processes that use them.

Exit status: 0 unmounted, 1 not unmounted, or unmounted and not all that was written reached the \
    device (the message says which), 2 wrong usage."
)]
pub(crate) struct Umount {
    /// Directory on which it is mounted
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

impl Umount {
    pub(crate) fn run(&self) -> Result<u8> {
        let back_to = fuse::MountedSnapshots::of(&self.dir).and_then(|mounted| mounted.scheduled_rollback());
        match fuse::unmount(&self.dir) {
            Ok(()) => {
                // without an answer of the mount no rollback is reported
                if let Ok(Some(name)) = back_to {
                    say(&format!("the volume was rolled back to snapshot {}", escape(&name)));
                }
                Ok(0)
            }
            Err(e) => Err(Failure::Message(without_errno(&escape(e.to_string().as_bytes())))),
        }
    }
}
