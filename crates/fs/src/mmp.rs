//! Multiple-mount protection: a block that shows other hosts with access to the device that a volume is in use.
//!
//! While the volume is open for writing, the sequence number in the block changes every few seconds. A host that opens
//! it waits longer than that, and considers the volume unused if the number has not changed.
//!
//! The block is not part of any generation: it is written directly to the device, and never through the cache.

use crate::{Base, Error, Result, WriteOptions};
use blockdev::BlockDevice;
use format::mmp::{DiskMmp, Mmp, SEQ_CLEAN, SEQ_MAX, Use};
use format::{FsBlock, Structure, Where};
use std::sync::Arc;
use std::time::Duration;
use zerocopy::IntoBytes;

/// Default seconds between changes of the number, if the superblock does not specify it.
const INTERVAL: u16 = 5;
/// Maximum interval accepted, in seconds.
const MAX_INTERVAL: u16 = 300;

/// The multiple-mount-protection block of a volume in use.
pub(crate) struct Heartbeat {
    device: Arc<dyn BlockDevice>,
    at: u64,
    block: FsBlock,
    seed: Option<u32>,
    disk: DiskMmp,
    interval: Duration,
    /// The time of the last change of the number, on the clock of [`Volume::tick`](crate::Volume::tick).
    changed: Duration,
}

impl Heartbeat {
    /// Verifies that no other host uses the volume, and marks it as in use. Takes as long as the volume's interval
    /// requires: some seconds. `None` if the volume has no such block.
    ///
    /// # Errors
    /// [`Error::ReadOnly`] if it is in use; [`Error::Corrupt`] for an invalid block.
    pub(crate) fn begin(volume: &Base, options: &WriteOptions) -> Result<Option<Self>> {
        let Some(block) = volume.sb.mmp_block() else { return Ok(None) };
        let geometry = &volume.sb.geometry;
        let place = geometry.byte_offset(block).filter(|_| block.get() > u64::from(geometry.first_data_block));
        let Some(at) = place else {
            return Err(Error::corrupt(Structure::Mmp, Where::Block(block), "lies outside the volume"));
        };
        let seed = geometry.metadata_csum.then_some(geometry.checksum_seed);
        let interval = match volume.sb.disk.s_mmp_interval.get() {
            0 => INTERVAL,
            seconds => seconds.min(MAX_INTERVAL),
        };
        let device = Arc::clone(volume.device());
        let disk = DiskMmp::clean(0, interval, seed);
        let interval = Duration::from_secs(interval.into());
        let mut heartbeat = Self { device, at, block, seed, disk, interval, changed: Duration::ZERO };
        let found = heartbeat.read()?;
        let refuse = |found: &Mmp, what: &str| {
            let host = String::from_utf8_lossy(found.node_name()).into_owned();
            Err(Error::ReadOnly(format!("the volume cannot be written: {what} on host {host:?}")))
        };
        match found.disk().usage() {
            Use::Clean => {}
            Use::Fsck => return refuse(&found, "it is being checked"),
            Use::Mounted(_) | Use::Invalid(_) => {
                let theirs = Duration::from_secs(found.disk().mmp_check_interval.get().min(MAX_INTERVAL).into());
                heartbeat.wait(theirs.max(heartbeat.interval));
                if heartbeat.read()?.disk().mmp_seq != found.disk().mmp_seq {
                    return refuse(&found, "it is mounted");
                }
            }
        }
        heartbeat.disk = *found.disk();
        heartbeat.set_owner();
        heartbeat.write(1 + options.seed() as u32 % SEQ_MAX, options)?;
        // two hosts that begin at the same moment both write; the one that wrote last continues
        heartbeat.wait(heartbeat.interval);
        let seen = heartbeat.read()?;
        if !heartbeat.is_ours(&seen) {
            return refuse(&seen, "it is mounted");
        }
        Ok(Some(heartbeat))
    }

    /// Sets the host and the program that use the volume.
    fn set_owner(&mut self) {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        fill(&mut self.disk.mmp_nodename, host.trim().as_bytes());
        fill(&mut self.disk.mmp_bdevname, b"extant");
    }

    /// Waits longer than the maximum time between number changes of another user.
    fn wait(&self, interval: Duration) {
        let grace = Duration::from_secs(1);
        std::thread::sleep((interval * 2 + grace).min(interval + 60 * grace));
    }

    fn read(&self) -> Result<Mmp> {
        let mut bytes = [0; DiskMmp::SIZE];
        self.device.read(self.at, &mut bytes)?;
        Ok(Mmp::parse(&bytes, self.seed).map_err(|e| e.at(Where::Block(self.block)))?)
    }

    fn write(&mut self, number: u32, options: &WriteOptions) -> Result<()> {
        self.disk.mmp_seq = number.into();
        self.disk.mmp_time = (options.clock)().seconds.cast_unsigned().into();
        self.disk.mmp_checksum = self.seed.map_or(0, |seed| self.disk.checksum(seed)).into();
        self.device.write(self.at, self.disk.as_bytes())?;
        Ok(self.device.flush()?)
    }

    fn is_ours(&self, seen: &Mmp) -> bool {
        seen.disk().mmp_seq == self.disk.mmp_seq && seen.disk().mmp_nodename == self.disk.mmp_nodename
    }

    /// The time of the next change of the number, on the clock of [`Heartbeat::tick`].
    pub(crate) fn due(&self) -> Duration {
        self.changed.saturating_add(self.interval)
    }

    /// Changes the number when it is due, and verifies that no other host has.
    ///
    /// # Errors
    /// [`Error::ReadOnly`] if another host has: then nothing may be written any more.
    pub(crate) fn tick(&mut self, now: Duration, options: &WriteOptions) -> Result<()> {
        if now.saturating_sub(self.changed) < self.interval {
            return Ok(());
        }
        self.changed = now;
        let seen = self.read()?;
        if !self.is_ours(&seen) {
            let host = String::from_utf8_lossy(seen.node_name()).into_owned();
            return Err(Error::ReadOnly(format!("the volume was mounted a second time, on host {host:?}")));
        }
        let number = self.disk.mmp_seq.get();
        self.write(if number >= SEQ_MAX { 1 } else { number + 1 }, options)
    }

    /// Marks the volume as no longer in use.
    pub(crate) fn clear(&mut self, options: &WriteOptions) -> Result<()> {
        self.write(SEQ_CLEAN, options)
    }
}

fn fill<const N: usize>(field: &mut [u8; N], text: &[u8]) {
    let length = text.len().min(N - 1);
    *field = [0; N];
    field[..length].copy_from_slice(&text[..length]);
}
