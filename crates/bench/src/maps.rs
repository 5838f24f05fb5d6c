//! The experiments of *Taking Linux Filesystems to the Space Age: Space Maps in Ext4* (section 4): space maps and block
//! bitmaps on a modelled disk.
//!
//! 1. *Small files* (4.1): PostMark with more files each time.
//! 2. *Small and large files at once* (4.2): five trees of small files beside five large files, five times.
//! 3. *Free space* (4.3): its fragmentation after seven rounds of 2.
//! 4. *Mount*, the paper's own first limitation: a volume 160 times as long, with 2 000 holes in each metablockgroup,
//!    is opened; measured until a block was allocated, and until a contiguous GiB was found after metablockgroups
//!    without one.
//! 5. *Age*: fragments of large files on an aged volume, a fifth as long; each file is a tenth of it.
//! 6. *Memory* with all groups read, of the volume of 4 and of one with every second block free.
//!
//! The main figures are the disk requests for allocation metadata, and the non-contiguous ones among them, which need a
//! seek. There are two columns for bitmaps: with mke2fs's default layout, and with flexible groups as large as a
//! metablockgroup, to separate the effect of the layout from that of the maps. File data is allocated but not written.
//! The result depends on the seed alone, except for the kernel: it does 1 to 3 in the same two layouts, on a loop
//! device, if the process may mount it.
//!
//! | file | contents |
//! | --- | --- |
//! | `figures` | [`Options`] and [`Figures`] |
//! | `text` | the figures as tables |
//! | `work` | the work, on any tree |
//! | `contents` | the locations of allocation metadata, and the requests for it |
//! | `free_space` | the distribution of free space |
//! | `disk` | Extant's volumes on a modelled disk |
//! | `kernel` | the same work by the kernel |
//! | `aged` | large files on an aged volume |
//! | `memory` | memory of free space |

mod aged;
mod contents;
mod disk;
mod figures;
mod free_space;
mod kernel;
mod memory;
mod text;
mod work;

pub use figures::{Aged, Figures, Free, Memory, Mounted, Options, Worked};

use crate::Result;
use disk::{Disk, LARGE_BLOCK, VolumeSize};
use figures::{FLEXIBLE, LAYOUTS};
use work::{BLOCK, COUNTED_ROUNDS, Plan, ROUNDS};

/// Length of the volume that is opened, in lengths of the others.
const LARGER: u64 = 160;

/// Runs the experiments. `say` is called before each step, and with the reason where figures of the kernel are missing.
///
/// # Errors
/// The first error, except for the kernel's, which is in [`Figures::kernel_missing`].
pub fn run(options: &Options, say: &dyn Fn(&str)) -> Result<Figures> {
    let mut figures = Figures::default();
    for layout in LAYOUTS {
        works(options, layout, &mut figures, say)?;
        say(&format!("{layout}: opening a large volume with holes"));
        let large = VolumeSize { size: LARGER * options.size, block_size: LARGE_BLOCK };
        Disk::with(options, large, layout, |disk| {
            figures.mounts.push(disk.opened(layout)?);
            // bitmaps take the same memory in each layout
            if layout != FLEXIBLE {
                figures.memory.push(memory::of(disk, layout, memory::WITH_HOLES)?);
            }
            Ok(())
        })?;
        if layout != FLEXIBLE {
            say(&format!("{layout}: memory with every second block free"));
            figures.memory.push(memory::every_second(options, layout)?);
        }
        say(&format!("{layout}: large files on an aged volume"));
        figures.aged.push(aged::measure(options, layout)?);
    }
    kernel::measure(options, &mut figures, say);
    figures.compare();
    Ok(figures)
}

/// The work on one layout of Extant.
fn works(options: &Options, layout: &'static str, figures: &mut Figures, say: &dyn Fn(&str)) -> Result<()> {
    let plan = Plan::of(options);
    let volume_size = VolumeSize { size: options.size, block_size: BLOCK };
    for (files, name) in plan.postmarks() {
        say(&format!("{layout}: {name}"));
        let work = |disk: &Disk| disk.measured(name, layout, |job| plan.postmark(job, files));
        figures.work.push(Disk::with(options, volume_size, layout, work)?);
    }
    Disk::with(options, volume_size, layout, |disk| {
        for round in 1..=ROUNDS {
            let name = format!("trees and large files, round {round}");
            say(&format!("{layout}: {name}"));
            let worked = disk.measured(name, layout, |job| plan.mixed(job, round))?;
            if round <= COUNTED_ROUNDS {
                figures.work.push(worked);
            }
        }
        figures.free.push(disk.free(layout)?);
        Ok(())
    })
}
