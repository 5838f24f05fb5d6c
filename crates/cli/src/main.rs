//! The `extant` program: one file per command, and what they share.
//!
//! | file | content |
//! | --- | --- |
//! | `check`, `info`, `ls`, `tree`, `stat`, `cat`, `get`, … | one command each: flags, help, implementation |
//! | `source` | DEVICE: opens a volume and finds files on it |
//! | `file_meta`, `output` | the metadata of a file, in text and in JSON |
//! | `error_report` | errors: one sentence, an exit status |
//! | `progress` | a bar with the remaining time |
//! | `allocator` | the program's memory allocator |
//! | `multicall` | `fsck.ext4`, `mount.extant` and other names of this program |
#![forbid(unsafe_code)]

mod age;
mod allocator;
mod bench;
mod cat;
mod check;
mod completions;
mod convert;
mod copy_in;
mod crash;
mod damage;
mod device;
mod error_report;
mod extents;
mod file_meta;
mod frag;
mod get;
mod info;
mod kero;
mod ls;
mod man;
mod mkfs;
mod mount;
mod multicall;
mod output;
mod path_stack;
mod progress;
mod put;
mod rm;
mod serve;
mod snapshot;
mod source;
mod stat;
mod tree;
mod txn;
mod umount;
mod undo;
mod watchdog;

use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};
use error_report::{Failure, Result, say};
use multicall::Line;
use output::print_json_error;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::process::ExitCode;

/// Creates, reads, writes, mounts, checks and repairs ext2, ext3, ext4 and Extant volumes in user space.
#[derive(Debug, Parser)]
#[command(
    name = "extant",
    version,
    propagate_version = true,
    max_term_width = 110,
    after_help = "Examples:
  extant info volume.img           superblock, features and layout
  extant ls -l volume.img /etc     look inside without mounting it
  extant check -fn volume.img      check for errors, change nothing
  extant help check                the help of a command, as extant check --help

DEVICE is a path, mem:SIZE, kero:DEVICE, or model:KIND:DEVICE: a device with a virtual clock, where KIND is hdd, ssd or \
    a file of parameters. Each command's --help has examples and its exit status. The \
    commands that have --json print JSON also where they fail: an object with the fields error and exit. Errors of \
    single files are in errors, with path and reason (the first 1000), warnings in warnings, and what check finds on a volume is in problems."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Info(info::Info),
    Ls(ls::Ls),
    Tree(tree::Tree),
    Stat(stat::Stat),
    Frag(frag::Frag),
    Cat(cat::Cat),
    Get(get::Get),
    Put(put::Put),
    Rm(rm::Rm),
    Mkfs(Box<mkfs::Mkfs>),
    Mount(mount::Mount),
    Umount(umount::Umount),
    Serve(serve::Serve),
    Kero(Box<kero::Kero>),
    Check(check::Check),
    Snapshot(snapshot::Snapshot),
    Txn(txn::Txn),
    Undo(undo::Undo),
    Convert(convert::Convert),
    Bench(bench::Bench),
    Age(age::Age),
    Crash(crash::Crash),
    Damage(damage::Damage),
    Completions(completions::Completions),
    Man(man::Man),
    Watchdog(watchdog::Watchdog),
}

impl Command {
    fn run(&self) -> Result<u8> {
        match self {
            Command::Info(command) => command.run(),
            Command::Ls(command) => command.run(),
            Command::Tree(command) => command.run(),
            Command::Stat(command) => command.run(),
            Command::Frag(command) => command.run(),
            Command::Cat(command) => command.run(),
            Command::Get(command) => command.run(),
            Command::Put(command) => command.run(),
            Command::Rm(command) => command.run(),
            Command::Mkfs(command) => command.run(),
            Command::Mount(command) => command.run(),
            Command::Umount(command) => command.run(),
            Command::Serve(command) => command.run(),
            Command::Kero(command) => command.run(),
            Command::Check(command) => command.run(),
            Command::Snapshot(command) => command.run(),
            Command::Txn(command) => command.run(),
            Command::Undo(command) => command.run(),
            Command::Convert(command) => command.run(),
            Command::Bench(command) => command.run(),
            Command::Age(command) => command.run(),
            Command::Crash(command) => command.run(),
            Command::Damage(command) => command.run(),
            Command::Completions(command) => command.run(),
            Command::Man(command) => command.run(),
            Command::Watchdog(command) => command.run(),
        }
    }

    /// The exit status for a usage error.
    fn usage(&self) -> u8 {
        match self {
            Command::Check(_) => check::Check::USAGE,
            Command::Mount(command) => command.usage(),
            _ => 2,
        }
    }

    /// The exit status of any other [`Failure`] of the command.
    fn failure(&self) -> u8 {
        match self {
            Command::Check(_) => check::Check::FAILURE,
            Command::Txn(_) => txn::FAILURE,
            Command::Mount(command) => command.failure(),
            _ => 1,
        }
    }
}

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    let program = with_usage(with_one_name(Cli::command()), multicall::usage(&words));
    let line = match multicall::read(words) {
        Line::Run(line) => line,
        Line::Nothing => return ExitCode::SUCCESS,
        Line::Wrong(sentence, status) => {
            say(&sentence);
            return status.into();
        }
    };
    let parsed = program.try_get_matches_from(&line).and_then(|matches| {
        let cli = Cli::from_arg_matches(&matches).map_err(|e| e.format(&mut Cli::command()))?;
        Ok((cli, wants_json(&matches)))
    });
    let (cli, json) = match parsed {
        Ok(parsed) => parsed,
        Err(e) => return usage(&e, &line),
    };
    let (sentence, status) = match cli.command.run() {
        Ok(status) => return status.into(),
        Err(Failure::ReaderGone) => return ExitCode::SUCCESS,
        Err(Failure::Message(sentence) | Failure::Refused(sentence)) => (sentence, cli.command.failure()),
        Err(Failure::Usage(sentence)) => (sentence, cli.command.usage()),
    };
    say(&sentence);
    if json {
        print_json_error(&sentence, status);
    }
    status.into()
}

/// Sets the program's name for every command in the output of --version.
fn with_one_name(command: clap::Command) -> clap::Command {
    command.mut_subcommands(|below| with_one_name(below.display_name("extant")))
}

/// Sets the usage of the command for which the program was called by another name.
fn with_usage(program: clap::Command, called: Option<(&'static str, String)>) -> clap::Command {
    match called {
        Some((command, usage)) => program.mut_subcommand(command, |command| command.override_usage(usage)),
        None => program,
    }
}

/// Whether JSON output was requested.
fn wants_json(mut matches: &ArgMatches) -> bool {
    while let Some((_, below)) = matches.subcommand() {
        matches = below;
    }
    // most commands have no such flag
    matches.try_get_one::<bool>("json").ok().flatten().copied().unwrap_or(false)
}

/// Prints the help, the version, or an error of the command line.
fn usage(e: &clap::Error, line: &[OsString]) -> ExitCode {
    let printed = e.print().and_then(|()| io::stdout().flush());
    if !e.use_stderr() {
        return match printed.map_err(Failure::from) {
            Err(Failure::Message(sentence)) => {
                say(&sentence);
                1.into()
            }
            _ => ExitCode::SUCCESS,
        };
    }
    let command = line.get(1).map(OsString::as_os_str);
    let status = if command == Some(OsStr::new("check")) { check::Check::USAGE } else { 2 };
    if line.iter().map(OsString::as_os_str).take_while(|word| *word != "--").any(|word| word == "--json") {
        let text = e.render().to_string();
        // the paragraphs after the first are advice
        let first = text.split("\n\n").next().unwrap_or_default();
        let words: Vec<_> = first.trim_start_matches("error: ").split_whitespace().collect();
        print_json_error(&words.join(" "), status);
    }
    status.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every_command(command: &clap::Command, see: &mut impl FnMut(&clap::Command)) {
        see(command);
        for below in command.get_subcommands() {
            every_command(below, see);
        }
    }

    #[test]
    fn the_command_line_holds_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_an_example_and_says_its_exit_status() {
        let mut count = 0;
        every_command(&Cli::command(), &mut |command| {
            count += 1;
            let name = command.get_name();
            let help = command.get_after_help().unwrap_or_else(|| panic!("{name}: no after_help")).to_string();
            assert!(help.starts_with("Examples:\n  extant "), "{name}: {help}");
            assert!(help.to_lowercase().contains("exit status"), "{name}: {help}");
            assert!(command.get_about().is_some(), "{name}: no about");
            for argument in command.get_arguments().filter(|argument| argument.get_id() != "help") {
                assert!(argument.get_help().is_some(), "{name}: {} is not explained", argument.get_id());
            }
        });
        assert!(count >= 10, "{count}");
    }

    /// Lines wrapped by hand are no longer than the help is wide if the width is unknown. A paragraph in one line fits
    /// any width.
    #[test]
    fn help_is_not_wrapped_twice() {
        every_command(&Cli::command(), &mut |command| {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let lines: Vec<&str> = help.lines().collect();
            for (n, line) in lines.iter().enumerate().filter(|(_, line)| line.chars().count() > 100) {
                let begins = n.checked_sub(1).and_then(|n| lines.get(n)).is_none_or(|before| before.is_empty());
                let ends = lines.get(n + 1).is_none_or(|after| after.is_empty() || after.starts_with(' '));
                assert!(begins && ends && !line.starts_with(' '), "{}: {line}", command.get_name());
            }
        });
    }
}
