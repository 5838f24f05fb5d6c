//! `extant watchdog`: the process beside one that serves, which ends the connection when that is killed. `extant mount`
//! starts it.

use crate::failure::{Failure, Result};
use clap::Args;
use std::ffi::OsString;

/// The command line that starts it, but for its arguments. The program is this one, also where its path has gone.
pub(crate) fn line() -> Vec<OsString> {
    ["/proc/self/exe", "watchdog"].map(OsString::from).to_vec()
}

#[derive(Debug, Args)]
#[command(
    hide = true,
    about = "End the connection of a mount when the process that serves it is killed",
    after_help = "Examples:
  extant mount starts it by itself, as: extant watchdog 4711 59

Exit status: 0 the process has ended, and so has the connection, 1 it could not be ended."
)]
pub(crate) struct Watchdog {
    /// The process that serves, which started this one
    #[arg(value_name = "PID")]
    server: i32,

    /// The number of the connection
    #[arg(value_name = "NUMBER")]
    connection: u32,
}

impl Watchdog {
    pub(crate) fn run(&self) -> Result<u8> {
        let ended = fuse::watchdog(self.server, self.connection);
        ended.map(|()| 0).map_err(|e| Failure::Message(format!("the connection cannot be ended: {e}")))
    }
}
