//! Instruments: devices over a device that measure what is asked of it, record it, or make it fail. No volume needs
//! one.
//!
//! | device | what it is |
//! | --- | --- |
//! | [`Trace`] | a device that counts requests, bytes and seeks |
//! | [`Record`] | a device that logs every change; a [`Log`] makes any state again that it went through |
//! | [`Faulty`] | a device that fails as a plan of [`Fault`]s says |
//! | [`PageCache`] | a device with memory over it that forgets to write what failed once, as the kernel's does |
//! | [`Model`] | a device with the speed of a hard disk or a flash disk, on a virtual clock; [`MODEL`] is its scheme |

#![forbid(unsafe_code)]

mod fault;
mod log;
mod model;
mod page_cache;
mod record;
mod trace;

pub use fault::{Fault, Faulty, Injected};
pub use log::{Entry, Log, Logged};
pub use model::{DiskParameters, FlashParameters, MODEL, Model, Order, Parameters, Rate, Report, time_trace};
pub use page_cache::PageCache;
pub use record::Record;
pub use trace::{Counts, Event, Trace, TraceCounts};
