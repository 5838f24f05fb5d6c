//! Instruments: devices on top of a device that measure its requests, record them, or make them fail. No volume needs
//! one.
//!
//! | device | description |
//! | --- | --- |
//! | [`Trace`] | a device that counts requests, bytes and seeks |
//! | [`Record`] | a device that logs every change; a [`Log`] can reproduce any state in between |
//! | [`Faulty`] | a device that fails according to a plan of [`Fault`]s |
//! | [`PageCache`] | a device with a cache that, like the kernel's, does not retry a write that failed once |
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
