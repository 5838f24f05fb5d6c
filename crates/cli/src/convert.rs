//! `extant convert`: changes how a volume records its free space.

use crate::check::progress_output::Watch;
use crate::device::{Device, open_volume};
use crate::error_report::{Failure, with_place};
use crate::output::stdout;
use blockdev::OpenOptions;
use check::render::escape;
use check::{FreeSpaceForm, Options};
use clap::{Args, ValueEnum};
use std::io::Write;

#[derive(Debug, Args)]
#[command(
    about = "Convert an ext4 volume to spacemap, or back",
    after_help = "Examples:
  extant convert --to spacemap volume.img   free space as extents and a log, not as bitmaps
  extant convert --to ext4 volume.img       back, for any kernel and e2fsprogs

The volume is checked first, and must have no errors. Only the records of free space are written; files do not move. \
    Space maps need contiguous free blocks: one run for the table and the log, and one for each metablockgroup; where one is \
    missing, a message says how long it should be. A conversion that is interrupted between two writes is finished by the \
    next one, or by `extant check -p` or `-y`.

Space maps need the features extent and flex_bg: `tune2fs -O extents,flex_bg DEVICE` adds them to an older volume. A volume \
    with space maps is mounted read-only by the kernel, and not read by e2fsck. Volumes of type ext2, ext3, rext3 and extant are \
    refused: tune2fs(8) makes ext4 of the first two.

Exit status: 0 converted, or already in that format; 1 refused or failed, and nothing was changed; \
    2 wrong usage."
)]
pub(crate) struct Convert {
    /// Format to convert to
    #[arg(long, value_name = "FORMAT")]
    to: Format,

    /// Groups in a metablockgroup, a power of two; by default as many as fit in 8 GiB, at most 4096
    #[arg(long, value_name = "GROUPS", value_parser = groups)]
    metablockgroup: Option<u32>,

    /// Volume: a path
    #[arg(value_name = "DEVICE")]
    device: Device,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// ext4 with space maps
    Spacemap,
    /// ext4 with block bitmaps
    Ext4,
}

/// Parses the number of groups in a metablockgroup.
fn groups(word: &str) -> Result<u32, String> {
    let most = format::space_map::MOST_GROUPS;
    let groups = word.parse::<u32>().ok().filter(|groups| groups.is_power_of_two() && *groups <= most);
    groups.ok_or_else(|| format!("must be a power of two, from 1 to {most}"))
}

impl Convert {
    pub(crate) fn run(&self) -> Result<u8, Failure> {
        let to = match self.to {
            Format::Spacemap => FreeSpaceForm::SpaceMaps { groups: self.metablockgroup },
            Format::Ext4 if self.metablockgroup.is_some() => {
                return Err(Failure::Usage("--metablockgroup requires --to spacemap".to_owned()));
            }
            Format::Ext4 => FreeSpaceForm::Bitmaps,
        };
        let open = OpenOptions { planned: true, ..crate::source::for_writing(&self.device) };
        let device = open_volume(&self.device, open).map_err(|e| with_place(&self.device, e))?;
        let watch = Watch::new(&self.device, None)?;
        let outcome = check::convert(&self.device, &device, to, &Options::default(), &watch);
        watch.finish();
        let done = outcome.map_err(|refusal| Failure::on(&self.device, refusal))?;
        let name = self.to.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
        let said = match (done, self.to) {
            (true, _) => format!("converted to {name}"),
            (false, Format::Ext4) => "nothing to do: it has block bitmaps".to_owned(),
            (false, Format::Spacemap) => "nothing to do: it has space maps".to_owned(),
        };
        let mut out = stdout()?;
        writeln!(out, "{}: {said}", escape(self.device.as_bytes()))?;
        out.flush()?;
        Ok(0)
    }
}
