//! Extant measured beside its peers, in one run.
//!
//! A figure says little alone: machines differ, and one machine differs from hour to hour. So whatever is claimed is
//! measured together with what it is compared to, round by round, and the ratio is taken pair by pair.
//!
//! | file | holds |
//! | --- | --- |
//! | `runner` | [`Peer`], what is sampled; [`interleave`], who is next; [`Sample`], what that cost; [`Step`], where a measurement is |
//! | `figures` | what peers took for the same work, beside each other |
//! | `statistics` | [`Spread`]: median with extremes, ratios pair by pair |
//! | `process` | a sample that is a child process: time, CPU, resident memory |
//! | `strace` | what a process reads from a volume, as the system saw it |
//! | `picture` | where reads fall, drawn |
//! | `lower_bound` | reading what a check needs and nothing else |
//! | `check` | the checker beside e2fsck and the lower bound |
//! | `modelled` | the reads of both on a modelled disk |
//! | `mount` | file systems that come and go: Extant's, the kernel's, and the upper bound |
//! | `upper_bound` | a FUSE file system in memory: what no FUSE file system can beat |
//! | `workload` | [`Workload`], what is done in a mounted tree |
//! | `maps` | the experiments of the paper on space maps, on a modelled disk |
//! | `paper` | the experiments of the paper on ffsck: rext3 beside ext3 on a modelled disk |
//! | `read` | reading through FUSE beside the kernel's own mount |
//! | `write` | writing through FUSE and the library beside the kernel and fuse2fs |
//! | `volumes` | volumes as users have them, made by the kernel |
//! | `age` | volumes as if they had been in use for years |
//! | `environment` | the machine and the programs that a figure belongs to |
//! | `table` | results for people; as JSON they serialise themselves |
//!
//! Nothing here is rated: a figure is reported, with its spread, and the reader decides.
#![forbid(unsafe_code)]

pub mod age;
mod cache;
pub mod check;
pub mod environment;
mod error;
pub mod figures;
mod lower_bound;
pub mod maps;
pub mod modelled;
mod mount;
pub mod paper;
pub mod picture;
mod process;
pub mod read;
mod runner;
mod statistics;
mod strace;
mod table;
mod upper_bound;
pub mod volumes;
mod workload;
pub mod write;

pub use error::{Error, Result};
pub use runner::{Peer, Sample, Series, Step, Watch, interleave};
pub use statistics::Spread;
pub use strace::Reads;
pub use workload::{SequentialRead, Walk, Workload};
