//! The behaviour on damage, and the end of writing.

use crate::options::OnDamage;
use fs::Volume;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The outcome of unmounting the volume, once it is unmounted.
type Ended = Mutex<Option<Result<(), String>>>;

/// The behaviour of a mount on damage, and whether its volume is unmounted.
pub(super) struct Damage {
    /// The configured behaviour.
    errors: Option<OnDamage>,
    /// Whether damage was found.
    found: AtomicBool,
    ended: Arc<Ended>,
}

impl Damage {
    pub(super) fn new(errors: Option<OnDamage>) -> Self {
        Self { errors, found: AtomicBool::new(false), ended: Arc::default() }
    }

    /// Applies the configured behaviour, once.
    pub(super) fn record(&self, volume: &Arc<Volume>) {
        let Some(errors) = self.errors.filter(|_| volume.is_writable()) else { return };
        if self.found.swap(true, Ordering::AcqRel) {
            return;
        }
        let (volume, ended) = (Arc::clone(volume), Arc::clone(&self.ended));
        // the process that found it may belong to a transaction, which the end of writing ends
        std::thread::spawn(move || {
            volume.mark_for_check();
            if errors == OnDamage::ReadOnly {
                // the outcome is reported to the process that unmounts the volume
                let _ = unmount(&volume, &ended);
            }
        });
    }

    /// Unmounts the volume, unless it is unmounted; returns the outcome.
    pub(super) fn unmount(&self, volume: &Volume) -> Result<(), String> {
        unmount(volume, &self.ended)
    }

    /// The outcome of unmounting; `None` before.
    pub(super) fn outcome(&self) -> Option<Result<(), String>> {
        self.ended.lock().clone()
    }
}

fn unmount(volume: &Volume, ended: &Ended) -> Result<(), String> {
    let mut ended = ended.lock();
    let outcome = ended.get_or_insert_with(|| match volume.is_writable() {
        true => volume.unmount().map_err(|e| e.to_string()),
        false => Ok(()),
    });
    outcome.clone()
}
