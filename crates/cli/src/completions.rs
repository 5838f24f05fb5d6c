//! `extant completions`: shell completions.

use crate::error_report::Result;
use crate::output::stdout;
use clap::{Args, Command, CommandFactory};
use clap_complete::Shell;
use std::io::Write;

#[derive(Debug, Args)]
#[command(
    about = "Generate shell completions",
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
        clap_complete::generate(self.shell, &mut shown(&crate::Cli::command()), "extant", &mut script);
        let mut out = stdout()?;
        out.write_all(&script)?;
        out.flush()?;
        Ok(0)
    }
}

/// A command without its hidden arguments and subcommands, which shells would offer.
fn shown(command: &Command) -> Command {
    // names are static: a few bytes, in a program that exits after printing
    let name: &'static str = command.get_name().to_owned().leak();
    let mut shown = Command::new(name).version(env!("CARGO_PKG_VERSION"));
    shown = shown.args(command.get_arguments().filter(|argument| !argument.is_hide_set()));
    if let Some(about) = command.get_about() {
        shown = shown.about(about.clone());
    }
    shown.subcommands(command.get_subcommands().filter(|command| !command.is_hide_set()).map(self::shown))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shells_do_not_offer_hidden_arguments() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish, Shell::Elvish, Shell::PowerShell] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut shown(&crate::Cli::command()), "extant", &mut script);
            let script = String::from_utf8(script).expect("text");
            for hidden in ["watchdog", "as-fsck", "rollback-on-failure"] {
                assert!(!script.contains(hidden), "{shell}: {hidden}");
            }
            for offered in ["snapshot", "rollback", "commit-on-failure", "online", "version"] {
                assert!(script.contains(offered), "{shell}: {offered}");
            }
        }
    }
}
