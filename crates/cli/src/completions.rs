//! `extant completions`: what a shell needs to complete the command line.

use crate::failure::Result;
use crate::output::stdout;
use clap::{Args, CommandFactory};
use clap_complete::Shell;
use std::io::Write;

#[derive(Debug, Args)]
#[command(
    about = "Print what a shell needs to complete the command line",
    after_help = "Examples:
  extant completions bash > /etc/bash_completion.d/extant
  extant completions zsh > ~/.zfunc/_extant
  extant completions fish > ~/.config/fish/completions/extant.fish

Exit status: 0 printed, 2 wrong usage."
)]
pub(crate) struct Completions {
    /// The shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(&self) -> Result<u8> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut crate::Cli::command(), "extant", &mut script);
        let mut out = stdout()?;
        out.write_all(&script)?;
        out.flush()?;
        Ok(0)
    }
}
