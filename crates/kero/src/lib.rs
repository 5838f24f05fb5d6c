//! Kero: a device on top of another. Each logical block is at its home, its own address, or in a log at the end of the
//! device; all writes between two flushes survive together or not at all.
//!
//! ```text
//! Kero (device.rs) ──► open group (group.rs), in memory, over the
//!                      table (table.rs): block → slot of the log
//!        flush ──► records (state.rs, bytes.rs) ──► head of the ring (ring.rs, gap.rs): one write, one flush
//!        idle, or a full log ──► moving home (home.rs)
//! Background (background.rs): a thread for it; `kero:DEVICE`. Joined (joined.rs): a log on another device
//! open ──► the superblocks (locate.rs), newest complete checkpoint, then records (recover.rs)   format, drain (make.rs)
//! ```
//!
//! The reasons are in docs/design/kero.md, the bytes in FORMAT.md.
//!
//! ```
//! use blockdev::{BlockDevice, MemoryDevice};
//! use extant_kero::{FormatOptions, Kero, Options, drain, format};
//!
//! let device = MemoryDevice::zeroed(16 << 20)?;
//! format(&device, &FormatOptions::default())?;
//! let kero = Kero::open(&device, Options::default())?;
//! kero.write(0, &[1; 8192])?;
//! kero.write(1 << 20, &[2; 512])?;
//! kero.flush()?; // both or neither survive a loss of power before this returns, both one after it
//! drop(kero);
//! drain(&device, Options::default())?; // a plain device again
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod background;
pub mod bytes;
mod device;
mod error;
mod gap;
mod group;
mod home;
mod joined;
mod layout;
mod locate;
mod make;
mod mutant;
mod recover;
mod ring;
mod state;
mod table;
mod verify;

pub use background::{Background, SCHEME, beneath};
pub use device::{Kero, Options, Stats};
pub use error::{Corrupt, Error, Result};
pub use gap::Gap;
pub use joined::Joined;
pub use layout::{BLOCK, LEAST_LOG, Layout, MIB, MOST_LOG, MOVED};
pub use make::{Drained, FormatOptions, drain, drain_with, format, is_layered};
#[doc(hidden)]
pub use mutant::Mutant;
