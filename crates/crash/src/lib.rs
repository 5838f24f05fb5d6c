//! The crash explorer: every state that a loss of power can leave of a volume, compared with what its mode guarantees.
//!
//! A [`op::Workload`] is run on a recorded device; from the log [`enumerate`] makes the states; each is recovered,
//! checked, read, and compared with the [`model`] by the [`guarantee`] of the mode. What is explored is a
//! [`system::System`]: the file system of this repository in one of its modes, or a broken variant of it that must be
//! caught.
//!
//! | module | contents |
//! | --- | --- |
//! | [`op`] | operations and workloads, as values and as text |
//! | [`generate`], [`papers`], [`full`], [`mod@minimise`] | where workloads come from, and how they become small |
//! | [`model`] | the file system in memory that says what should be there |
//! | [`history`], [`guarantee`] | what happened, what was durable when, and what each mode guarantees of it |
//! | [`enumerate`] | the states of a log |
//! | [`system`], [`ext`], [`directory`] | what can be explored; the library in each mode; a mounted directory |
//! | [`play`] | one operation, on a mounted volume and on the model |
//! | [`explore`], [`campaign`] | one workload; many, on all cores |
//! | [`faults`] | one workload on a device whose n-th request fails |
#![forbid(unsafe_code)]

mod above;
pub mod campaign;
pub mod directory;
pub mod enumerate;
pub mod explore;
pub mod ext;
pub mod faults;
pub mod full;
pub mod generate;
pub mod guarantee;
pub mod history;
pub mod minimise;
pub mod model;
pub mod op;
pub mod papers;
pub mod play;
pub mod read;
pub mod system;
