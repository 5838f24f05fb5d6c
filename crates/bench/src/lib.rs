//! Benchmarks of Extant and its peers, measured in the same run.
//!
//! Absolute figures depend on the machine and its current load. So all peers are measured together, round by round, and
//! ratios are computed from pairs of samples of the same round.
//!
//! | file | contents |
//! | --- | --- |
//! | `runner` | [`Peer`], an implementation; [`interleave`], the order of samples; [`Sample`]; [`Step`], the progress |
//! | `figures` | figures of all peers for the same work |
//! | `statistics` | [`Spread`]: median with extremes, ratios pair by pair |
//! | `interruption` | what to undo where a signal ends a benchmark |
//! | `cache` | the page cache, emptied of one file |
//! | `process` | a sample that is a child process: time, CPU, resident memory |
//! | `cpu` | CPU time of this process and of the server of a mount |
//! | `processors` | the processors that the work runs on |
//! | `transport` | the transport of FUSE requests: /dev/fuse or io_uring |
//! | `block_events` | the kernel's requests to a loop device |
//! | `strace` | the reads of a process from a volume, as reported by strace |
//! | `picture` | a drawing of the order and location of reads |
//! | `lower_bound` | reading only the bytes that a check needs |
//! | `check` | the checker, e2fsck and the lower bound |
//! | `modelled` | the reads of both on a modelled disk |
//! | `mount` | mounted file systems: Extant's, the kernel's, and the upper bound |
//! | `upper_bound` | a FUSE file system in memory: the upper bound of speed through FUSE |
//! | `workload` | [`Workload`]: work in a mounted tree |
//! | `maps` | the experiments of the paper on space maps, on a modelled disk and, for comparison, with the kernel |
//! | `kero` | the experiments of the paper on decoupled address updates, on a modelled disk |
//! | `linked` | the workloads of the paper on the dirty bit and linked writes, and recovery, on a modelled disk |
//! | `paper` | the experiments of the paper on ffsck: rext3 and ext3 on a modelled disk |
//! | `read` | reading through FUSE and through the kernel's own mount |
//! | `write` | writing through FUSE, the library, the kernel and fuse2fs |
//! | `volumes` | typical volumes, created by mke2fs and the kernel |
//! | `age` | aged volumes |
//! | `environment` | the machine and the programs that a figure belongs to |
//! | `table` | results as Markdown tables |
//!
//! Figures are reported with their spread and without an evaluation.
#![forbid(unsafe_code)]

pub mod age;
mod block_events;
mod cache;
pub mod check;
mod cpu;
pub mod environment;
mod error;
pub mod figures;
pub mod interruption;
pub mod kero;
pub mod linked;
mod lower_bound;
pub mod maps;
pub mod modelled;
mod mount;
pub mod paper;
pub mod picture;
mod process;
mod processors;
pub mod read;
mod runner;
mod statistics;
mod strace;
mod table;
mod transport;
mod upper_bound;
pub mod volumes;
mod workload;
pub mod write;

pub use error::{Error, Result};
pub use runner::{Peer, Sample, Series, Step, Watch, interleave};
pub use statistics::Spread;
pub use strace::Reads;
pub use transport::{IoUring, Transport};
pub use workload::{SequentialRead, Walk, Workload};
