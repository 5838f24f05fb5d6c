//! The devices of the measurement: a file that is never flushed, and a device that counts requests by location and
//! loses writes as a loss of power does.

use blockdev::{BlockDevice, Extent, FileDevice, Geometry, Read, Result, Write};
use format::linked::{Areas, INCOMPLETE, Slot};
use parking_lot::Mutex;
use simdev::Model;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// The modelled disk.
pub(super) type Disk = Model<Unflushed>;

/// A file whose flushes do nothing: a volume for a measurement does not have to survive one, and thousands of flushes
/// of the system would take longer than all other work.
pub(super) struct Unflushed(pub(super) FileDevice);

impl BlockDevice for Unflushed {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.0.read(offset, buf)
    }

    fn read_many(&self, reads: &mut [Read<'_>]) {
        self.0.read_many(reads);
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.0.write(offset, data)
    }

    fn write_many(&self, writes: &mut [Write<'_>]) {
        self.0.write_many(writes);
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        self.0.write_zeroes(offset, len)
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn extent(&self, offset: u64, len: u64) -> Result<Extent> {
        self.0.extent(offset, len)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.0.discard(offset, len)
    }
}

/// The locations of a volume's logs, in bytes.
#[derive(Debug, Default)]
pub(super) struct Locations {
    /// The start and the areas of the list of linked writes.
    pub(super) list: Option<(u64, Areas)>,
    /// The ranges of the journal.
    pub(super) journal: Vec<Range<u64>>,
}

impl Locations {
    /// The number of bytes of the list in a range.
    fn of_list(&self, range: &Range<u64>) -> u64 {
        self.list.map_or(0, |(at, areas)| overlap(&(at..at + areas.len()), range))
    }
}

/// The number of bytes that two ranges have in common.
fn overlap(a: &Range<u64>, b: &Range<u64>) -> u64 {
    a.end.min(b.end).saturating_sub(a.start.max(b.start))
}

/// Totals of requests. Bytes of slots are those in use, without padding.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    /// Reads and writes.
    pub(super) requests: u64,
    /// Those that did not begin where the previous one ended.
    pub(super) seeks: u64,
    pub(super) flushes: u64,
    /// Bytes written.
    pub(super) written: u64,
    /// Those to the journal.
    pub(super) journal: u64,
    /// Those to the list.
    pub(super) list: u64,
    /// Slots written to the list.
    pub(super) slots: u64,
    /// The incomplete ones among them.
    pub(super) incomplete: u64,
    /// Bytes of records in slots, headers and whole inodes included.
    pub(super) records: u64,
    /// Bytes of copies of sectors in slots.
    pub(super) copies: u64,
}

/// The progress of a loss of power.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Cut {
    /// None is planned.
    #[default]
    Never,
    /// It waits for the next write to the list.
    BeforeSlot,
    /// It waits for the flush after that.
    BeforeFlush,
    /// Every second write is lost; `next`: the next one is.
    Losing { next: bool },
    /// All writes are lost.
    Off,
}

#[derive(Debug, Default)]
struct State {
    counts: Counts,
    position: Option<u64>,
    cut: Cut,
}

impl State {
    fn transferred(&mut self, offset: u64, len: u64) {
        self.counts.requests += 1;
        self.counts.seeks += u64::from(self.position.is_some_and(|position| position != offset));
        self.position = Some(offset + len);
    }

    fn written(&mut self, locations: &Locations, offset: u64, data: &[u8]) {
        let range = offset..offset + data.len() as u64;
        self.transferred(offset, data.len() as u64);
        let counts = &mut self.counts;
        counts.written += data.len() as u64;
        counts.journal += locations.journal.iter().map(|part| overlap(part, &range)).sum::<u64>();
        counts.list += locations.of_list(&range);
        let Some((at, areas)) = locations.list else { return };
        for start in [0, 1].map(|counter| at + areas.slot_at(counter)) {
            // a request may begin with blocks before the slot
            let slot = start.checked_sub(offset).and_then(|from| data.get(from as usize..)).map(Slot::parse);
            if let Some(Ok(slot)) = slot {
                counts.slots += 1;
                counts.incomplete += u64::from(slot.header.ll_flags.get() & INCOMPLETE != 0);
                counts.records += slot.records_len() as u64;
                counts.copies += (slot.len() - slot.records_len()) as u64;
            }
        }
    }

    /// Notes the beginning of a batch of writes; `in_list`: one of them is to the list.
    fn begin(&mut self, in_list: bool) {
        self.cut = match self.cut {
            Cut::BeforeSlot if in_list => Cut::BeforeFlush,
            // the next generation
            Cut::Losing { .. } if in_list => Cut::Off,
            other => other,
        };
    }

    /// Whether the next write reaches the disk.
    fn lands(&mut self) -> bool {
        match self.cut {
            Cut::Losing { next } => {
                self.cut = Cut::Losing { next: !next };
                !next
            }
            Cut::Off => false,
            Cut::Never | Cut::BeforeSlot | Cut::BeforeFlush => true,
        }
    }

    fn flushed(&mut self) {
        self.counts.flushes += 1;
        self.cut = match self.cut {
            Cut::BeforeFlush => Cut::Losing { next: true },
            Cut::Losing { .. } => Cut::Off,
            other => other,
        };
    }
}

/// A modelled disk whose requests are counted by location.
pub(super) struct Watched {
    disk: Arc<Disk>,
    locations: Locations,
    state: Mutex<State>,
}

impl Watched {
    /// Wraps `disk`, with the volume's logs in `locations`.
    pub(super) fn new(disk: Arc<Disk>, locations: Locations) -> Self {
        Self { disk, locations, state: Mutex::default() }
    }

    /// The counts since the last [`Watched::reset`].
    pub(super) fn counts(&self) -> Counts {
        self.state.lock().counts
    }

    /// Resets counts and position.
    pub(super) fn reset(&self) {
        *self.state.lock() = State::default();
    }

    /// Plans a loss of power in the second stage of the next generation of linked writes: its slot is written and
    /// flushed, of its other writes every second one is lost, and all writes after these. They still succeed.
    pub(super) fn cut(&self) {
        self.state.lock().cut = Cut::BeforeSlot;
    }

    /// Records a write; whether it reaches the disk.
    fn record(&self, offset: u64, data: &[u8]) -> bool {
        let mut state = self.state.lock();
        state.begin(self.locations.of_list(&(offset..offset + data.len() as u64)) > 0);
        state.written(&self.locations, offset, data);
        state.lands()
    }
}

impl BlockDevice for Watched {
    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.state.lock().transferred(offset, buf.len() as u64);
        self.disk.read(offset, buf)
    }

    fn read_many(&self, reads: &mut [Read<'_>]) {
        let mut state = self.state.lock();
        reads.iter().for_each(|read| state.transferred(read.offset, read.buf.len() as u64));
        drop(state);
        self.disk.read_many(reads);
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        if self.record(offset, data) { self.disk.write(offset, data) } else { Ok(()) }
    }

    fn write_fresh(&self, offset: u64, data: &[u8]) -> Result<()> {
        if self.record(offset, data) { self.disk.write_fresh(offset, data) } else { Ok(()) }
    }

    fn write_many(&self, writes: &mut [Write<'_>]) {
        let mut state = self.state.lock();
        let in_list =
            |write: &Write<'_>| self.locations.of_list(&(write.offset..write.offset + write.data.len() as u64)) > 0;
        state.begin(writes.iter().any(in_list));
        writes.iter().for_each(|write| state.written(&self.locations, write.offset, write.data));
        let land: Vec<bool> = writes.iter().map(|_| state.lands()).collect();
        drop(state);
        if land.iter().all(|lands| *lands) {
            return self.disk.write_many(writes);
        }
        for (write, _) in writes.iter_mut().zip(land).filter(|(_, lands)| *lands) {
            write.result = self.disk.write(write.offset, write.data);
        }
    }

    fn flush(&self) -> Result<()> {
        self.state.lock().flushed();
        self.disk.flush()
    }

    fn virtual_clock(&self) -> Option<Duration> {
        self.disk.virtual_clock()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.disk.discard(offset, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use simdev::Parameters;

    #[test]
    fn writes_are_lost_after_the_slot_and_its_flush() {
        const LEN: u64 = 1 << 20;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        std::fs::File::create(&path).and_then(|file| file.set_len(LEN)).unwrap();
        let write = blockdev::OpenOptions { write: true, ..Default::default() };
        let file = Unflushed(FileDevice::open(&path, write).unwrap());
        let disk = Arc::new(Model::new(file, &Parameters::named("hdd").unwrap()).unwrap());
        let areas = Areas::of(128 << 10, 4096).unwrap();
        let device = Watched::new(disk, Locations { list: Some((4096, areas)), journal: Vec::new() });
        let landed = |at: u64| {
            let mut byte = [0];
            device.read(at, &mut byte).unwrap();
            byte[0] == 1
        };
        let slot = Slot::empty([7; 16], 2, 4096, 256).encode();
        let write_at = |at: u64| device.write(at, &[1; 512]).unwrap();
        device.cut();
        write_at(500 << 10);
        device.flush().unwrap();
        // a slot behind other blocks, in one request
        device.write(0, &[&[1; 4096][..], &slot[..]].concat()).unwrap();
        write_at(501 << 10);
        device.flush().unwrap();
        (502..506).for_each(|n| write_at(n << 10));
        device.flush().unwrap();
        (506..508).for_each(|n| write_at(n << 10));
        let after: Vec<bool> = (500..508).map(|n| landed(n << 10)).collect();
        assert_eq!(after, [true, true, false, true, false, true, false, false]);
        let counts = device.counts();
        assert_eq!((counts.slots, counts.incomplete, counts.copies, counts.flushes), (1, 0, 0, 3));
        assert_eq!((counts.records, counts.list, counts.journal), (128, slot.len() as u64, 0));
    }
}
