//! The mechanism of a flash disk: dies on channels, a write buffer, and one interface that all commands share.
//!
//! 1. A read waits for its die: for the earlier reads there and for the page being programmed, but not for queued
//!    programs; those wait for the read.
//! 2. A write is complete when it is in the buffer. Full pages are programmed immediately, to one die after the other;
//!    a flush programs the incomplete page, and waits for all.
//! 3. Requests of a batch are in flight together, up to the queue depth, and are completed in their order.

use std::collections::{BTreeMap, VecDeque};

use super::parameters::FlashParameters;
use super::request::{Extent, Report, nanoseconds, over};

/// The times until which a die is busy.
#[derive(Debug, Clone, Copy, Default)]
struct Die {
    reading: u64,
    programming: u64,
}

#[derive(Debug)]
pub(super) struct Flash {
    p: FlashParameters,
    /// The number of pages of the device.
    pages: u64,
    dies: Vec<Die>,
    channels: Vec<u64>,
    interface_free: u64,
    /// The die that is programmed next.
    next_die: usize,
    /// The end of the program operation of each page being programmed.
    buffered: VecDeque<u64>,
    /// Bytes in the buffer that do not fill a page yet.
    open: u64,
    /// Whether something was written since the last flush.
    dirty: bool,
    /// Pages read ahead, and the time at which each is in the buffer.
    ahead: BTreeMap<u64, u64>,
    /// The end of the last read, in bytes.
    read_end: Option<u64>,
    report: Report,
}

impl Flash {
    /// Creates a disk for a device of `len` bytes.
    pub(super) fn new(p: &FlashParameters, len: u64) -> Self {
        let channels = p.channels as usize;
        Self {
            p: p.clone(),
            pages: len.div_ceil(p.page),
            dies: vec![Die::default(); channels * p.dies as usize],
            channels: vec![0; channels],
            interface_free: 0,
            next_die: 0,
            buffered: VecDeque::new(),
            open: 0,
            dirty: false,
            ahead: BTreeMap::new(),
            read_end: None,
            report: Report::default(),
        }
    }

    pub(super) fn report(&self) -> Report {
        self.report
    }

    /// Makes all reads, submitted at `now`; returns the end of the last one.
    pub(super) fn reads(&mut self, now: u64, extents: &[Extent]) -> u64 {
        self.queued(now, extents, Self::read)
    }

    pub(super) fn writes(&mut self, now: u64, extents: &[Extent]) -> u64 {
        self.queued(now, extents, Self::write)
    }

    pub(super) fn flush(&mut self, now: u64) -> u64 {
        let mut done = now + nanoseconds(self.p.command);
        if !self.dirty {
            return done;
        }
        if self.open > 0 {
            self.open = 0;
            self.program(done);
        }
        done = self.buffered.drain(..).fold(done, u64::max);
        self.dirty = false;
        done + nanoseconds(self.p.flush)
    }

    pub(super) fn discard(&mut self, now: u64) -> u64 {
        now + nanoseconds(self.p.command) + nanoseconds(self.p.interface_command)
    }

    fn queued(&mut self, now: u64, extents: &[Extent], serve: fn(&mut Self, u64, Extent) -> u64) -> u64 {
        let mut flying = VecDeque::new();
        let mut handed = now;
        let mut done = now;
        for &extent in extents {
            if flying.len() >= self.p.queue_depth as usize {
                handed = handed.max(flying.pop_front().unwrap_or(now));
            }
            let answered = serve(self, handed + nanoseconds(self.p.command), extent);
            flying.push_back(answered);
            done = done.max(answered);
        }
        done
    }

    /// Transfers `len` bytes of a command over the interface when they are available at `ready`; returns the end of
    /// that.
    fn interface_transfer(&mut self, ready: u64, len: u64) -> u64 {
        self.interface_free = self.interface_free.max(ready) + over(self.p.interface_rate, len);
        self.interface_free
    }

    fn read(&mut self, now: u64, extent: Extent) -> u64 {
        let Extent { offset, len } = extent;
        let end = offset + len;
        let page = self.p.page;
        let sequential = self.read_end == Some(offset);
        self.read_end = Some(end);
        self.interface_free = self.interface_free.max(now) + nanoseconds(self.p.interface_command);
        if sequential {
            self.ahead = self.ahead.split_off(&(offset / page));
        } else {
            self.ahead.clear();
        }
        let pages = offset / page..end.div_ceil(page);
        // all pages are requested at the same time, and transferred in their order
        let (mut buffered, mut last, mut done) = (len > 0, None, self.interface_free);
        for number in pages.clone() {
            let bytes = end.min((number + 1) * page) - offset.max(number * page);
            let ahead = self.ahead.get(&number).copied();
            buffered &= ahead.is_some();
            let there = ahead.unwrap_or_else(|| self.fetch(now, number, bytes));
            last = Some((number, there));
            done = self.interface_transfer(there, bytes);
        }
        self.report.buffered_reads += u64::from(buffered);
        if sequential {
            self.ahead.extend(last);
            for number in pages.end..(end + self.p.read_ahead).div_ceil(page).min(self.pages) {
                if !self.ahead.contains_key(&number) {
                    let there = self.fetch(now, number, page);
                    self.ahead.insert(number, there);
                }
            }
        }
        done
    }

    /// Reads a page from its die and transfers `bytes` of it over its channel; returns the time at which they are in
    /// the buffer.
    fn fetch(&mut self, now: u64, page: u64, bytes: u64) -> u64 {
        let index = (page % self.dies.len() as u64) as usize;
        let (read, program) = (nanoseconds(self.p.read_page), nanoseconds(self.p.program_page));
        let die = &mut self.dies[index];
        let mut start = die.reading.max(now);
        if die.programming > start {
            start += (die.programming - start) % program.max(1);
            die.programming += read;
        }
        let channel = index % self.channels.len();
        let sent = self.channels[channel].max(start + read) + over(self.p.channel_rate, bytes);
        self.channels[channel] = sent;
        self.dies[index].reading = sent;
        sent
    }

    fn write(&mut self, now: u64, extent: Extent) -> u64 {
        let mut done = self.interface_transfer(now, 0) + nanoseconds(self.p.interface_command);
        self.interface_free = done;
        let mut rest = extent.len;
        while rest > 0 {
            let part = rest.min(self.p.page - self.open);
            done = self.interface_transfer(done, part);
            rest -= part;
            self.open += part;
            self.dirty = true;
            if self.open == self.p.page {
                self.open = 0;
                self.program(done);
                let capacity = (self.p.write_buffer / self.p.page) as usize;
                while self.buffered.len() > capacity {
                    let programmed = self.buffered.pop_front().unwrap_or(done);
                    done = done.max(programmed);
                    self.interface_free = self.interface_free.max(done);
                }
            }
        }
        done
    }

    /// Begins at `now` to program a page that is in the buffer.
    fn program(&mut self, now: u64) {
        let index = self.next_die;
        self.next_die = (index + 1) % self.dies.len();
        let channel = index % self.channels.len();
        let sent = self.channels[channel].max(now) + over(self.p.channel_rate, self.p.page);
        self.channels[channel] = sent;
        let die = &mut self.dies[index];
        let done = die.programming.max(die.reading).max(sent) + nanoseconds(self.p.program_page);
        die.programming = done;
        self.buffered.push_back(done);
    }
}
