//! `extant watchdog`: a process started by `extant mount`, which ends the FUSE connection when the serving process is
//! killed.

use crate::error_report::{Failure, Result};
use clap::Args;
use std::ffi::OsString;

/// The command line of the watchdog, without arguments. The program is this one, even if its path no longer exists.
pub(crate) fn line() -> Vec<OsString> {
    ["/proc/self/exe", "watchdog"].map(OsString::from).to_vec()
}

#[derive(Debug, Args)]
#[command(
    hide = true,
    about = "End the connection of a mount when the serving process is killed",
    after_help = "Examples:
  extant mount starts it by itself, as: extant watchdog 4711 59

Exit status: 0 process and connection have ended, 1 the connection could not be ended."
)]
pub(crate) struct Watchdog {
    /// Id of the serving process, which started this one
    #[arg(value_name = "PID")]
    server: i32,

    /// Number of the FUSE connection
    #[arg(value_name = "NUMBER")]
    connection: u32,
}

impl Watchdog {
    pub(crate) fn run(&self) -> Result<u8> {
        let ended = fuse::watchdog(self.server, self.connection);
        ended.map(|()| 0).map_err(|e| Failure::Message(format!("the connection cannot be ended: {e}")))
    }
}
