//! `extant damage`: writes known damage into a volume, to test checkers.

use crate::device::{Device, open_volume};
use crate::error_report::{Failure, Result, with_place};
use crate::output::{print_json, stdout};
use ::damage::{Kind, TABLE2};
use blockdev::{BlockDevice, Overlay};
use check::render::escape;
use check::table::Code;
use clap::Args;
use serde::Serialize;
use std::io::Write;
use std::str::FromStr;
use std::sync::Arc;

#[derive(Debug, Args)]
#[command(
    about = "Write known damage into a volume, to test a checker",
    long_about = "Write damage of these kinds into an ext2, ext3, ext4 or rext3 volume, one after the other, and print which structures were \
                  changed. A kind is a problem of the checker, by its name or by e2fsck's number, or a corruption of the \
                  ffsck paper's Table II. Everything else stays consistent: what is changed gets the checksum it should have, \
                  unless the checksum is what is damaged. The same volume, kinds and seed cause the same damage. \
                  Only a volume without errors is certain to have each kind afterwards: earlier damage may hide it or make \
                  it impossible. Of a few kinds, for which the output states it, the checker may correct the structure \
                  first and report another problem instead. Native volumes are refused.",
    after_help = "Examples:
  extant damage --list                               every kind
  extant damage volume.img LinkCountWrong            by name
  extant damage volume.img 0x040003 --seed 7         the same, elsewhere
  extant damage volume.img inode.shared inode.links  both, or neither if one is not possible
  extant damage volume.img inode.size && extant check -fy volume.img

Exit status: 0 damaged or listed, 1 refused or failed, 2 wrong usage."
)]
pub(crate) struct Damage {
    /// The volume to damage, a path; use a copy, since overwritten data is lost
    #[arg(value_name = "DEVICE", required_unless_present = "list")]
    device: Option<Device>,

    /// The damage to write: a problem's name or number, or a corruption of Table II
    #[arg(value_name = "KIND", required_unless_present = "list")]
    kinds: Vec<Named>,

    /// Random seed: chooses the file, block or group where there is a choice
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// List every kind, and write nothing
    #[arg(long, conflicts_with_all = ["device", "kinds"])]
    list: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A kind of damage and its name for display.
#[derive(Debug, Clone)]
struct Named {
    kind: Kind,
    name: String,
}

impl FromStr for Named {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let number = text.strip_prefix("0x").and_then(|digits| u32::from_str_radix(digits, 16).ok());
        let code = Code::ALL.iter().find(|code| Some(code.number()) == number || format!("{code:?}") == text);
        match (Kind::named(text), code) {
            (Some(kind), _) => Ok(Self { kind, name: text.to_owned() }),
            (None, Some(code)) => Ok(Self { kind: Kind::Problem(code.number()), name: format!("{code:?}") }),
            (None, None) => Err("unknown kind; --list shows all".to_owned()),
        }
    }
}

/// A kind as JSON.
#[derive(Serialize)]
struct Listed {
    kind: String,
    code: Option<Code>,
    does: String,
    /// The problem that the checker may report instead.
    instead: Option<String>,
}

/// One kind of damage that was written, as JSON.
#[derive(Serialize)]
struct Done<'a> {
    kind: &'a str,
    changed: Vec<String>,
    /// The problem that the checker may report instead.
    instead: Option<String>,
}

/// The name of the problem that the checker may report instead of a kind.
fn instead_of(kind: Kind) -> Option<String> {
    kind.reported_instead().and_then(Code::from_number).map(|code| format!("{code:?}"))
}

/// The addition to a line about a kind of damage.
fn remark(instead: Option<&str>) -> String {
    instead.map_or_else(String::new, |instead| format!(" (check may report {instead} instead)"))
}

impl Damage {
    pub(crate) fn run(&self) -> Result<u8> {
        if self.list {
            return self.list();
        }
        let name = &self.device.clone().unwrap_or_default();
        let device = open_volume(name, crate::source::for_writing(name)).map_err(|e| with_place(name, e))?;
        if !check::Capabilities::of(&*device).damage {
            let why = "native volumes are not supported: use an ext2, ext3, ext4 or rext3 volume";
            return Err(Failure::on(name, why));
        }
        // everything in memory first: an impossible kind must not leave an earlier one written
        let overlay = Overlay::new(Arc::clone(&device));
        self.kinds.iter().try_for_each(|kind| self.write(&overlay, kind).map(drop))?;
        drop(overlay);
        let mut done = Vec::new();
        for kind in &self.kinds {
            let (what, changed) = (&kind.name, self.write(&*device, kind)?);
            let instead = instead_of(kind.kind);
            if !self.json {
                let mut out = stdout()?;
                let (name, remark) = (escape(name.as_bytes()), remark(instead.as_deref()));
                writeln!(out, "{name}: {what}: changed {}{remark}", changed.join(", "))?;
                out.flush()?;
            }
            done.push(Done { kind: what, changed, instead });
        }
        if self.json {
            print_json(&done)?;
        }
        Ok(0)
    }

    /// Writes damage of one kind; returns descriptions of the changed structures.
    fn write(&self, device: &dyn BlockDevice, Named { kind, name: what }: &Named) -> Result<Vec<String>> {
        let failed = |error| {
            let name = self.device.as_ref().map(|device| escape(device.as_bytes())).unwrap_or_default();
            Failure::Message(format!("{name}: {what}: {error}"))
        };
        ::damage::damage(device, *kind, self.seed).map_err(failed)
    }

    fn list(&self) -> Result<u8> {
        let all: Vec<Listed> = Kind::all()
            .filter_map(|kind| match kind {
                Kind::Table2(n) => {
                    let row = TABLE2.get(n)?;
                    Some(Listed { kind: row.name.to_owned(), code: None, does: row.does.to_owned(), instead: None })
                }
                Kind::Problem(number) => {
                    let code = Code::from_number(number)?;
                    let (kind, does) = (format!("{code:?}"), code.text().to_owned());
                    Some(Listed { kind, code: Some(code), does, instead: instead_of(Kind::Problem(number)) })
                }
            })
            .collect();
        if self.json {
            return print_json(&all).map(|()| 0);
        }
        let mut out = stdout()?;
        for Listed { kind, code, does, instead } in &all {
            let number = code.map_or_else(|| "Table II".to_owned(), |code| code.to_string());
            writeln!(out, "{number}  {kind}: {does}{}", remark(instead.as_deref()))?;
        }
        out.flush()?;
        Ok(0)
    }
}
