//! `extant man`: manual pages, generated from the text of `--help`.

use crate::error_report::{Failure, Result};
use crate::output::stdout;
use clap::{Args, CommandFactory};
use clap_mangen::Man as Page;
use std::io::Write;
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(
    about = "Print or write the manual pages",
    after_help = "Examples:
  extant man check | man -l -                   read the page of a command
  extant man --out /usr/local/share/man/man1    write all pages

Exit status: 0 printed or written, 1 a page could not be written, 2 wrong usage."
)]
pub(crate) struct Man {
    /// The command whose page to print; by default the program's
    #[arg(value_name = "COMMAND", conflicts_with = "out")]
    command: Option<String>,

    /// Write all pages into this directory, created if it does not exist
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

impl Man {
    pub(crate) fn run(&self) -> Result<u8> {
        let mut program = crate::Cli::command().disable_help_subcommand(true);
        if let Some(folder) = &self.out {
            let made = std::fs::create_dir_all(folder).and_then(|()| clap_mangen::generate_to(program, folder));
            return match made {
                Ok(()) => Ok(0),
                Err(e) => Err(Failure::on(&folder.display().to_string(), e)),
            };
        }
        program.build();
        let command = match &self.command {
            None => program,
            Some(name) => program
                .find_subcommand(name)
                .ok_or_else(|| Failure::Usage(format!("unknown command '{name}': see extant --help")))?
                .clone(),
        };
        let mut out = stdout()?;
        Page::new(command).render(&mut out)?;
        out.flush()?;
        Ok(0)
    }
}
