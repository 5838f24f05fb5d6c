//! The crash explorer: compares every state that a loss of power can leave of a volume with the guarantee of its mode.
//!
//! A [`op::Workload`] is run on a recorded device; from the log [`enumerate`] constructs the states; each is recovered,
//! checked, read, and compared with the [`model`] by the [`guarantee`] of the mode. The system under test is a
//! [`system::System`]: this repository's file system in one of its modes, or a deliberately broken variant of it that
//! must be detected.
//!
//! | module | contents |
//! | --- | --- |
//! | [`op`] | operations and workloads, as values and in text form |
//! | [`generate`], [`paper_workloads`], [`full_volume`], [`mod@minimise`] | sources of workloads; minimization |
//! | [`model`] | the file system in memory that defines the expected content |
//! | [`history`], [`guarantee`] | operations and durable states, and the guarantee of each mode for them |
//! | [`enumerate`] | the states of a log |
//! | [`system`], [`extant_system`], [`directory`] | systems under test; the library in each mode; a mounted directory |
//! | [`execute`], [`read_state`] | operations carried out on a system; its content read back |
//! | [`explore`], [`campaign`] | one workload; many, on all cores |
//! | [`faults`] | one workload on a device whose n-th request fails |
#![forbid(unsafe_code)]

pub mod campaign;
pub mod directory;
mod e2fsck_view;
pub mod enumerate;
pub mod execute;
pub mod explore;
pub mod extant_system;
pub mod faults;
pub mod full_volume;
pub mod generate;
pub mod guarantee;
pub mod history;
pub mod minimise;
pub mod model;
pub mod op;
pub mod paper_workloads;
pub mod read_state;
pub mod system;
