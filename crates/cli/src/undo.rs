//! `extant undo`: reverts the changes of a repair.

use crate::device::{Device, open_volume};
use crate::error_report::{Failure, with_place};
use crate::output::{human, stdout};
use blockdev::Error;
use clap::Args;
use std::io::{ErrorKind, Write};
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(
    about = "Undo a repair, from the file that check -z wrote",
    after_help = "Examples:
  extant check -fy -z before volume.img   repair, with an undo file
  extant undo before volume.img           restore every byte

If the superblock or a block that the repair changed has changed since the repair, the file belongs to another device, or the \
    volume was used since: nothing is restored. Changes elsewhere stay. If the command was interrupted, run it again \
    before anything else writes to the volume, `check -p` at boot included: after that the file no longer fits, and \
    the rest is not restored. Until then the volume is marked as having errors.

Exit status: 0 restored, 1 refused or failed, 2 wrong usage."
)]
pub(crate) struct Undo {
    /// File written by `check -z`
    #[arg(value_name = "UNDO")]
    file: PathBuf,

    /// Volume: a path
    #[arg(value_name = "DEVICE")]
    device: Device,
}

impl Undo {
    pub(crate) fn run(&self) -> Result<u8, Failure> {
        let device = open_volume(&self.device, crate::source::for_writing(&self.device))
            .map_err(|e| with_place(&self.device, of_volume(e)))?;
        let bytes = check::undo(&self.file, &*device).map_err(|e| self.failure(e))?;
        let mut out = stdout()?;
        let name = check::render::escape(self.device.as_bytes());
        writeln!(out, "{name}: restored {}; the blocks that the repair changed are as before it", human(bytes))?;
        out.flush()?;
        Ok(0)
    }

    fn failure(&self, e: Error) -> Failure {
        match e {
            // it was opened, and is not an undo file
            Error::Open { device: file, source } if source.kind() == ErrorKind::InvalidData => {
                Failure::on(&file, source)
            }
            unopened @ Error::Open { .. } => unopened.into(),
            of_device => Failure::on(&self.device, of_device),
        }
    }
}

/// Adds which of the two files cannot be opened.
fn of_volume(failure: Failure) -> Failure {
    let name = |sentence: String| match sentence.strip_prefix("cannot open ") {
        Some(rest) => format!("cannot open the volume {rest}"),
        None => sentence,
    };
    match failure {
        Failure::Message(sentence) => Failure::Message(name(sentence)),
        Failure::Refused(sentence) => Failure::Refused(name(sentence)),
        failure => failure,
    }
}
