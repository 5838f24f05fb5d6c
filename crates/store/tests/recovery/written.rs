//! Logs written by the test, block by block: every form of tags and checksums, logs that wrap around, and all kinds of
//! log ends. The expected result is debugfs's replay.

use super::*;
use extant_store::recovery::Damage;
use format::checksum::crc32c;
use format::feature::Incompat as VolumeIncompat;
use format::jbd2::{Compat, DiskSuperblock, Incompat, MAGIC, crc32_be};
use testkit::{Rng, cases, need};
use zerocopy::{FromBytes, IntoBytes};

/// Checksums of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sums {
    None,
    V1,
    V2,
    V3,
}

/// Writes a log into the journal of a volume.
#[derive(Clone)]
pub(crate) struct Writer {
    pub(crate) bytes: Vec<u8>,
    size: usize,
    /// the first byte of each block of the journal on the volume
    map: Vec<usize>,
    superblock: DiskSuperblock,
    sums: Sums,
    wide: bool,
    at: u32,
    first: u32,
    end: u32,
    sequence: u32,
    time: u64,
    crc: u32,
}

impl Writer {
    pub(crate) fn new(bytes: Vec<u8>, runs: &[BlockExtent], sums: Sums, wide: bool, start: u32, sequence: u32) -> Self {
        let size = block_size(&bytes) as usize;
        let map: Vec<usize> =
            runs.iter().flat_map(|r| r.first.get()..r.first.get() + r.count).map(|b| b as usize * size).collect();
        let mut superblock = DiskSuperblock::read_from_bytes(&bytes[map[0]..map[0] + 1024]).unwrap();
        let (compat, sums_bit) = match sums {
            Sums::None => (Compat::empty(), Incompat::empty()),
            Sums::V1 => (Compat::CHECKSUM, Incompat::empty()),
            Sums::V2 => (Compat::empty(), Incompat::CSUM_V2),
            Sums::V3 => (Compat::empty(), Incompat::CSUM_V3),
        };
        let wide_bit = if wide { Incompat::BIT64 } else { Incompat::empty() };
        superblock.s_feature_compat = compat.bits().into();
        superblock.s_feature_incompat = (Incompat::REVOKE | sums_bit | wide_bit).bits().into();
        superblock.s_checksum_type = if matches!(sums, Sums::V2 | Sums::V3) { 4 } else { 0 };
        superblock.s_start = start.into();
        superblock.s_sequence = sequence.into();
        let (first, end) = (superblock.s_first.get(), superblock.s_maxlen.get());
        Self { bytes, size, map, superblock, sums, wide, at: start, first, end, sequence, time: 1000, crc: !0 }
    }

    pub(crate) fn add_incompat(&mut self, feature: Incompat) {
        self.superblock.s_feature_incompat = (self.superblock.s_feature_incompat.get() | feature.bits()).into();
    }

    fn seed(&self) -> u32 {
        crc32c(!0, &self.superblock.s_uuid)
    }

    /// Appends a block to the log.
    fn put(&mut self, block: &[u8]) {
        let at = self.map[self.at as usize];
        self.bytes[at..at + self.size].copy_from_slice(block);
        self.at = if self.at + 1 == self.end { self.first } else { self.at + 1 };
    }

    fn header(&self, block_type: u32) -> Vec<u8> {
        [MAGIC, block_type, self.sequence].iter().flat_map(|word| word.to_be_bytes()).collect()
    }

    fn put_with_tail(&mut self, mut block: Vec<u8>) {
        block.resize(self.size, 0);
        if matches!(self.sums, Sums::V2 | Sums::V3) {
            let sum = crc32c(self.seed(), &block);
            block[self.size - 4..].copy_from_slice(&sum.to_be_bytes());
        }
        self.crc = crc32_be(self.crc, &block);
        self.put(&block);
    }

    fn tag_size(&self) -> usize {
        match self.sums {
            Sums::V3 => 16,
            sums => 8 + if sums == Sums::V2 { 2 } else { 0 } + if self.wide { 4 } else { 0 },
        }
    }

    /// The maximum number of blocks that one descriptor block can describe.
    pub(crate) fn fit(&self) -> usize {
        (self.size - 12 - 4 - 16) / self.tag_size()
    }

    /// Appends a descriptor block and the blocks it describes: at least one, and no more than [`Self::fit`].
    pub(crate) fn data(&mut self, blocks: &[(u64, Vec<u8>)]) {
        let mut descriptor = self.header(1);
        let mut logged = Vec::new();
        for (number, (home, data)) in blocks.iter().enumerate() {
            let mut data = data.clone();
            let mut flags = 0u32;
            if data[..4] == MAGIC.to_be_bytes() {
                data[..4].fill(0);
                flags |= 1;
            }
            flags |= if number == 0 { 0 } else { 2 };
            flags |= if number + 1 == blocks.len() { 8 } else { 0 };
            let sum = crc32c(crc32c(self.seed(), &self.sequence.to_be_bytes()), &data);
            let (low, high) = (*home as u32, (home >> 32) as u32);
            let mut tag = low.to_be_bytes().to_vec();
            if self.sums == Sums::V3 {
                tag.extend([flags, high, sum].iter().flat_map(|word| word.to_be_bytes()));
            } else {
                tag.extend((if self.sums == Sums::V2 { sum as u16 } else { 0 }).to_be_bytes());
                tag.extend((flags as u16).to_be_bytes());
                tag.extend(high.to_be_bytes());
                tag.resize(self.tag_size(), 0);
            }
            descriptor.extend(tag);
            if number == 0 {
                descriptor.extend(self.superblock.s_uuid);
            }
            logged.push(data);
        }
        self.put_with_tail(descriptor);
        for data in logged {
            self.crc = crc32_be(self.crc, &data);
            self.put(&data);
        }
    }

    pub(crate) fn revoke(&mut self, homes: &[u64]) {
        let crc = self.crc; // the first scheme leaves revoke blocks out
        let mut block = self.header(5);
        let size = if self.wide { 8 } else { 4 };
        block.extend((16 + (homes.len() * size) as u32).to_be_bytes());
        homes.iter().for_each(|home| block.extend(&home.to_be_bytes()[8 - size..]));
        self.put_with_tail(block);
        self.crc = crc;
    }

    pub(crate) fn commit(&mut self) {
        let mut block = self.header(2);
        block.resize(self.size, 0);
        block[0x30..0x38].copy_from_slice(&self.time.to_be_bytes());
        match self.sums {
            Sums::None => {}
            Sums::V1 => {
                block[12..14].copy_from_slice(&[1, 4]);
                block[16..20].copy_from_slice(&self.crc.to_be_bytes());
            }
            Sums::V2 | Sums::V3 => {
                let sum = crc32c(self.seed(), &block);
                block[16..20].copy_from_slice(&sum.to_be_bytes());
            }
        }
        self.put(&block);
        self.sequence = self.sequence.wrapping_add(1);
        self.crc = !0;
        self.time += 1;
    }

    /// Changes a byte of the journal's block `back` blocks before the log's end.
    fn corrupt(&mut self, back: u32, byte: usize) {
        let log = self.end - self.first;
        let block = self.first + (self.at - self.first + log - back) % log;
        self.bytes[self.map[block as usize] + byte] ^= 0x10;
    }

    /// The block of the log `back` blocks before its end.
    fn block_back(&self, back: u32) -> u32 {
        let log = self.end - self.first;
        self.first + (self.at - self.first + log - back) % log
    }

    /// Writes the journal's superblock and marks the volume as needing a replay.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        if matches!(self.sums, Sums::V2 | Sums::V3) {
            self.superblock.s_checksum = self.superblock.checksum().into();
        }
        let at = self.map[0];
        self.bytes[at..at + 1024].copy_from_slice(self.superblock.as_bytes());
        let mut volume = format::superblock::DiskSuperblock::from_slice(&self.bytes[1024..]).unwrap();
        let needs = volume.s_feature_incompat.get() | VolumeIncompat::NEEDS_RECOVERY.bits();
        volume.s_feature_incompat = needs.into();
        volume.s_checksum = volume.checksum().into();
        self.bytes[1024..2048].copy_from_slice(volume.as_bytes());
        self.bytes
    }
}

const FORMS: [(Sums, bool); 7] = [
    (Sums::None, false),
    (Sums::None, true),
    (Sums::V1, false),
    (Sums::V2, false),
    (Sums::V2, true),
    (Sums::V3, false),
    (Sums::V3, true),
];

/// Appends random transactions, and applies them to the model.
pub(crate) fn transactions(writer: &mut Writer, rng: &mut Rng, model: &mut Model, count: u64) {
    let first = writer.bytes.len() as u64 / writer.size as u64 * 3 / 4;
    for _ in 0..count {
        let mut written = Model::new();
        let mut revoked = Vec::new();
        for _ in 0..rng.between(1, 3) {
            if rng.chance(30) {
                let homes: Vec<u64> = (0..rng.between(1, 10)).map(|_| first + rng.below(50)).collect();
                // a block written in the same transaction is not revoked by it
                let homes: Vec<u64> = homes.into_iter().filter(|home| !written.contains_key(home)).collect();
                writer.revoke(&homes);
                revoked.extend(homes);
            } else {
                let count = rng.between(1, writer.fit().min(12) as u64);
                let mut blocks: Vec<_> =
                    (0..count).map(|_| (first + rng.below(50), content(rng, writer.size))).collect();
                blocks.sort_by_key(|&(home, _)| home);
                blocks.dedup_by_key(|&mut (home, _)| home);
                blocks.retain(|(home, _)| !revoked.contains(home));
                if !blocks.is_empty() {
                    writer.data(&blocks);
                    written.extend(blocks);
                }
            }
        }
        writer.commit();
        revoked.iter().for_each(|home| {
            model.remove(home);
        });
        model.extend(written);
    }
}

#[test]
fn logs_of_every_form_and_end() {
    if !need(&["mke2fs", "debugfs"]) {
        return;
    }
    let bases = [volume(&["-t", "ext4", "-b", "1024"], 24), volume(&["-t", "ext4", "-b", "4096"], 24)];
    for case in cases("written logs", 24) {
        let mut rng = case.rng();
        let (base, runs) = rng.pick(&bases);
        let (sums, wide) = *rng.pick(&FORMS);
        let blocks: u64 = runs.iter().map(|run| run.count).sum();
        // half of the logs wrap around, some sequence numbers too
        let start = if rng.chance(50) { blocks - rng.between(1, 30) } else { rng.between(1, blocks - 1) } as u32;
        let sequence = if rng.chance(30) { u32::MAX - rng.below(4) as u32 } else { rng.between(1, 1000) as u32 };
        let mut writer = Writer::new(base.bytes(), runs, sums, wide, start, sequence);
        let mut model = Model::new();
        let count = rng.between(1, 12);
        transactions(&mut writer, &mut rng, &mut model, count);
        let mut damage = Vec::new();
        let home = |n: u64| writer_home(base, n);
        let (a, b) = ((home(0), content(&mut rng, writer.size)), (home(1), content(&mut rng, writer.size)));
        let sums_blocks = matches!(sums, Sums::V2 | Sums::V3);
        let ending = rng.below(7);
        match ending {
            // no commit block
            1 => writer.data(&[a]),
            // a commit block that does not match
            2 if sums != Sums::None => {
                writer.data(&[a, b]);
                writer.commit();
                let (back, byte) = if sums == Sums::V1 { (2, 700) } else { (1, 20) };
                writer.corrupt(back, byte);
                let sequence = writer.sequence.wrapping_sub(1);
                damage.push(Damage::Checksum { sequence, block: writer.block_back(1) });
            }
            // a descriptor block that does not match, left over from an earlier cycle of the log
            3 if sums_blocks => {
                writer.time = 5;
                writer.data(&[a, b]);
                writer.commit();
                writer.corrupt(4, 500);
            }
            // a copy that does not match: only that one is left out
            4 if sums_blocks => {
                writer.data(&[a.clone(), b.clone()]);
                writer.commit();
                writer.corrupt(2, 700);
                model.insert(a.0, a.1);
                damage.push(Damage::Copy { sequence: writer.sequence.wrapping_sub(1), home: FsBlock(b.0) });
            }
            _ => {}
        }
        let before = writer.finish();
        let (recovered, ours) = replay(&before, runs).unwrap();
        let what = format!("{sums:?} wide {wide}, start {start}, sequence {sequence}, ending {ending}");
        assert_eq!(recovered.damage, damage, "{what}");
        assert!(u64::from(recovered.transactions) >= count, "{what}");
        assert_model(&model, &ours, block_size(&before) as usize);
        let theirs = replayed_by_debugfs(&before);
        assert_same(&before, &ours, &theirs, runs);
    }
}

/// The `n`th of the free blocks that the tests of log ends write to.
fn writer_home(base: &Image, n: u64) -> u64 {
    let bytes = base.bytes();
    bytes.len() as u64 / u64::from(block_size(&bytes)) * 3 / 4 + 100 + n
}

#[test]
fn damage_before_the_end_is_reported() {
    if !need(&["mke2fs", "debugfs"]) {
        return;
    }
    let (base, runs) = volume(&["-t", "ext4", "-b", "1024"], 24);
    let home = writer_home(&base, 0);
    let block = |n: u8| (home, vec![n; 1024]);
    let at = home as usize * 1024;

    // a descriptor block that does not match, in a transaction with a commit block of this cycle
    let mut writer = Writer::new(base.bytes(), &runs, Sums::V3, true, 1, 1);
    for n in 1..=3 {
        writer.data(&[block(n)]);
        writer.commit();
    }
    writer.corrupt(6, 500);
    let (recovered, ours) = replay(&writer.finish(), &runs).unwrap();
    assert_eq!(recovered.damage, [Damage::Checksum { sequence: 2, block: 4 }]);
    assert_eq!((recovered.transactions, recovered.next_sequence, ours[at]), (1, 2, 1));

    // asynchronous commits: a commit block that does not match is the end of the log …
    let mut writer = Writer::new(base.bytes(), &runs, Sums::V1, false, 1, 1);
    writer.add_incompat(Incompat::ASYNC_COMMIT);
    for n in 1..=2 {
        writer.data(&[block(n)]);
        writer.commit();
    }
    writer.corrupt(2, 500);
    let (recovered, ours) = replay(&writer.clone().finish(), &runs).unwrap();
    assert_eq!((recovered.damage.as_slice(), recovered.transactions, ours[at]), (&[][..], 1, 1));
    // … unless another one follows
    writer.data(&[block(3)]);
    writer.commit();
    let (recovered, ours) = replay(&writer.finish(), &runs).unwrap();
    assert_eq!(recovered.damage, [Damage::Checksum { sequence: 2, block: 6 }]);
    assert_eq!((recovered.transactions, ours[at]), (1, 1));

    // blocks beyond the volume's end
    let mut writer = Writer::new(base.bytes(), &runs, Sums::V3, true, 1, 1);
    writer.data(&[(1 << 40, vec![1; 1024]), block(2)]);
    writer.commit();
    let (recovered, ours) = replay(&writer.finish(), &runs).unwrap();
    assert_eq!(recovered.damage, [Damage::Beyond { sequence: 1, home: FsBlock(1 << 40) }]);
    assert_eq!(ours[at], 2);
}
