//! The checker: reads all metadata of an ext2, ext3 or ext4 volume in disk order, finds what is wrong, and repairs it.
//!
//! It shares no code with the file system: both depend on `format` (the bytes) and `blockdev` only.
//!
//! | module | contents |
//! | --- | --- |
//! | `checker`, `checks`, `options`, `view` | one check from beginning to end; its options; its results |
//! | `capabilities` | the requests that the format of a volume allows |
//! | `phases` | what each phase checks |
//! | `scan` | reading in disk order; the rounds, one per tree level; what they find and how often they claim |
//! | `volume`, `context`, `inode_records`, `claims` | what the phases share: what is known of each inode and block |
//! | `system_zone`, `system_inode`, `space_maps` | the volume's own blocks and files; its space maps |
//! | `native` | native volumes: the metadata map, and the check of each version above it |
//! | `table`, `problem`, `report`, `render`, `paths` | what can be wrong, what was, and how it is reported |
//! | `problem_settings` | an administrator's settings for single problems |
//! | `repair`, `redo`, `undo` | what is repaired, in memory first; how it reaches the device; how it is reverted |
//! | `estimate` | how long a check will take |
//! | `memory` | the memory that a check needs and the machine has |
#![forbid(unsafe_code)]

mod capabilities;
mod checker;
mod checks;
mod claims;
mod context;
mod estimate;
mod inode_records;
mod memory;
mod native;
mod options;
mod paths;
mod phases;
mod problem_settings;
mod repair;
mod scan;
mod space_maps;
mod system_inode;
mod system_zone;
mod undo;
mod view;
mod volume;
mod volume_format;

pub mod problem;
pub mod redo;
pub mod render;
pub mod report;
pub mod table;

pub use capabilities::Capabilities;
pub use checker::{check, check_in_use};
pub use estimate::{DeviceSpeed, Estimate, Work, estimate, estimate_if_long};
pub use native::{Glance, InUse};
pub use options::{Options, Progress, Refusal, Repair};
pub use phases::superblock::begins_with_zeros;
pub use problem_settings::{ProblemSetting, ProblemSettings};
pub use redo::{half_written, unfinished};
pub use repair::{FreeSpaceForm, Replay, convert, first_sight, release_orphans, repair, replay};
pub use undo::undo;
pub use volume_format::format_name;
