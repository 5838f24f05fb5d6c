//! Tests of plans as data: no device is written.

use super::*;
use crate::FreshExtent;
use crate::{BlockWrite, Closing, CommitHooks, Tag};
use blockdev::MemoryDevice;
use format::InodeNo;
use format::jbd2::{Header, LogFormat, MAGIC};
use std::collections::BTreeMap;
use testkit::{Rng, cases};

const SIZE: u32 = 1024;
/// The journal's blocks on the device: two runs.
const RUNS: [(u64, u64); 2] = [(100, 24), (300, 1010)];

fn superblock(change: impl FnOnce(&mut DiskSuperblock)) -> recovery::JournalLocation {
    let mut sb = DiskSuperblock::empty(SIZE, 1024, 0, [9; 16]);
    change(&mut sb);
    sb.set_checksum();
    let mut bytes = vec![0; 2000 * SIZE as usize];
    bytes[100 * 1024..101 * 1024].copy_from_slice(sb.as_bytes());
    let runs = RUNS.map(|(first, count)| BlockExtent { first: FsBlock(first), count });
    recovery::JournalLocation::internal(Arc::new(MemoryDevice::from_vec(bytes)), SIZE, runs)
}

fn options() -> JournalOptions {
    JournalOptions {
        journal_data: false,
        checksums: true,
        wide: true,
        dirty_blocks: 10_000,
        clock: Arc::new(|| Duration::from_secs(1000)),
    }
}

fn engine() -> Journal {
    Journal::new(superblock(|_| ()), options()).unwrap()
}

struct NoHooks;

impl CommitHooks for NoHooks {
    fn finish(&self, _: &Closing<'_>) -> Result<()> {
        Ok(())
    }
    fn set_checksum(&self, _: FsBlock, _: &Tag, _: &mut [u8]) {}
    fn durable(&self, _: u64) {}
}

impl StateSource for NoHooks {
    fn with_state(&self, state: VolumeState) -> (u64, Arc<[u8]>) {
        (1024, Arc::from([state as u8; 1024]))
    }
}

fn closed(blocks: &[u64], byte: u8, forgotten: &[(u64, u64)]) -> ClosedGeneration {
    let tag = Tag::new(Kind::Directory, InodeNo(2));
    let data: Arc<[u8]> = Arc::from([byte; SIZE as usize]);
    let mut blocks: Vec<_> = blocks
        .iter()
        .map(|&n| BlockWrite { block: FsBlock(n), tag, data: Arc::clone(&data), fresh: false, before: None })
        .collect();
    blocks.sort_by_key(|write| write.block);
    let forgotten = forgotten.iter().map(|&(first, count)| BlockExtent { first: FsBlock(first), count }).collect();
    let (fresh_extents, change_records) = (Vec::new(), Vec::new());
    ClosedGeneration {
        number: 0,
        reason: CommitReason::Sync,
        blocks,
        fresh_extents,
        forgotten,
        unflushed: false,
        change_records,
    }
}

/// The block that contains the byte: whether it is the journal's, and its number in the journal or in the volume.
fn place(at: u64) -> (bool, u64) {
    let block = at / u64::from(SIZE);
    let mut before = 0;
    for (first, count) in RUNS {
        if (first..first + count).contains(&block) {
            return (true, before + block - first);
        }
        before += count;
    }
    (false, block)
}

/// A plan as text: for each stage its writes, and `|` for its flush.
fn plan_text(plan: &Plan) -> String {
    let mut out = String::new();
    for stage in &plan.stages {
        let mut words: Vec<String> = Vec::new();
        let mut writes: Vec<_> = stage.writes.iter().collect();
        writes.sort_by_key(|w| w.at);
        for write in writes {
            let word = match (place(write.at), Header::parse(&write.data)) {
                ((true, 0), _) => {
                    let word = |at: usize| u32::from_be_bytes(write.data[at..at + 4].try_into().unwrap());
                    format!("tail {}@{}", word(0x18), word(0x1C))
                }
                ((true, n), Some(header)) => format!("{:?} {n}", header.block_type.unwrap()).to_lowercase(),
                ((true, _), None) => "copy".to_owned(),
                ((false, n), _) => format!("home {n}"),
            };
            match words.last_mut() {
                Some(last) if word == "copy" && last.starts_with("copies") => {
                    let count: u32 = last[7..].parse().unwrap();
                    *last = format!("copies {}", count + 1);
                }
                _ if word == "copy" => words.push("copies 1".to_owned()),
                _ => words.push(word),
            }
        }
        out += &words.join(", ");
        out += if stage.flush { " | " } else { " ; " };
    }
    out.trim_end().to_owned()
}

#[test]
fn a_life() {
    let mut engine = engine();
    assert_eq!(plan_text(&engine.open(&NoHooks).unwrap()), "home 1, tail 1@0 |");
    let mut plan = |closed| plan_text(&engine.plan(closed, &NoHooks).unwrap());
    assert_eq!(plan(closed(&[], 0, &[])), "", "nothing happened");
    assert_eq!(plan(closed(&[7, 50], 1, &[])), "tail 1@1, descriptor 1, copies 2 | commit 4 |");
    assert_eq!(plan(closed(&[7], 2, &[(50, 1)])), "revoke 5, descriptor 6, copies 1 | commit 8 |");
    assert_eq!(plan(closed(&[], 0, &[(50, 1), (90, 9)])), "", "revoked already, or never logged");
    assert_eq!(plan(closed(&[50], 3, &[])), "descriptor 9, copies 1 | commit 11 |");
    assert_eq!(plan(closed(&[50], 4, &[(50, 1)])), "descriptor 12, copies 1 | commit 14 |", "freed and used again");
    assert_eq!(plan(closed(&[], 0, &[(7, 1)])), "revoke 15 | commit 16 |");
    assert_eq!(plan_text(&engine.close(&NoHooks).unwrap()), "home 50 | tail 6@0 | home 1 |");
    assert!(engine.live.is_empty() && engine.log.used() == 0);
}

/// Fresh extents are in the first stage, which is flushed before the commit block, and never in the log.
#[test]
fn fresh_extents_are_home_before_the_commit() {
    let mut engine = engine();
    engine.open(&NoHooks).unwrap();
    let run = FreshExtent { first: FsBlock(60), kind: Kind::SpaceMap, data: vec![9; 3 * 1024].into() };
    let closed = ClosedGeneration { fresh_extents: vec![run], ..closed(&[7], 1, &[]) };
    let plan = engine.plan(closed, &NoHooks).unwrap();
    assert_eq!(plan_text(&plan), "home 60, tail 1@1, descriptor 1, copies 1 | commit 3 |");
    let write = plan.stages[0].writes.iter().find(|write| write.kind == Kind::SpaceMap).unwrap();
    assert_eq!((write.at, write.data.len()), (60 * 1024, 3 * 1024));
    assert_eq!(plan_text(&engine.close(&NoHooks).unwrap()), "home 7 | tail 2@0 | home 1 |");
}

#[test]
fn only_a_sync_flushes_file_data() {
    let mut engine = engine();
    for (reason, unflushed, expected) in
        [(CommitReason::Sync, true, "|"), (CommitReason::Timeout, true, ""), (CommitReason::Sync, false, "")]
    {
        let closed = ClosedGeneration { reason, unflushed, ..closed(&[], 0, &[]) };
        assert_eq!(plan_text(&engine.plan(closed, &NoHooks).unwrap()).trim(), expected);
    }
}

#[test]
fn hot_blocks_stay_in_the_log() {
    let mut engine = engine();
    engine.open(&NoHooks).unwrap();
    let mut homes: BTreeMap<u64, u32> = BTreeMap::new();
    for n in 0..60u64 {
        let cold: Vec<u64> = (0..20).map(|k| 1400 + (n * 20 + k) % 500).collect();
        let plan = engine.plan(closed(&[&[40, 41][..], &cold].concat(), n as u8, &[]), &NoHooks).unwrap();
        for write in plan.stages.iter().flat_map(|s| &s.writes) {
            if let (false, block) = place(write.at) {
                *homes.entry(block).or_default() += 1;
            }
        }
        assert!(engine.log.used() <= engine.most_used, "more than half of the log is in use");
    }
    assert!(homes.len() > 400 && !homes.contains_key(&40) && !homes.contains_key(&41), "{homes:?}");
}

#[test]
fn a_checkpoint_costs_no_flush_of_its_own() {
    let mut engine = engine();
    let block = |n: u64| 1400 + n * 60 % 540;
    for n in 0..20 {
        let blocks: Vec<u64> = (0..60).map(|k| block(n) + k).collect();
        let plan = engine.plan(closed(&blocks, 1, &[]), &NoHooks).unwrap();
        assert_eq!(plan.stages.iter().filter(|s| s.flush).count(), 2, "{}", plan_text(&plan));
    }
}

#[test]
fn a_generation_that_finds_no_space_waits_for_a_checkpoint() {
    let mut engine = engine();
    let many: Vec<u64> = (1400..1900).collect();
    engine.plan(closed(&many, 1, &[]), &NoHooks).unwrap();
    let more: Vec<u64> = (2..99).chain(130..280).chain(1400..1800).collect();
    let plan = engine.plan(closed(&more, 2, &[]), &NoHooks).unwrap();
    let text = plan_text(&plan);
    let (first, rest) = text.split_once(" | tail 2@0 | tail 2@").unwrap();
    assert!(first.starts_with("home 1400, ") && first.matches("home").count() == 500, "{first}");
    assert!(rest.contains("descriptor") && !rest.contains("home"));
    // a generation that never fits is refused without a change of state
    let used = engine.log.used();
    let all: Vec<u64> = (2..90).chain(130..290).chain(1301..2300).collect();
    let refused = engine.plan(closed(&all, 3, &[]), &NoHooks);
    assert!(matches!(refused, Err(Error::Journal(what)) if what.contains("does not fit")));
    assert_eq!(engine.log.used(), used);
}

/// Random generations: each block is unpinned in the cache exactly once for each generation that changed it, log blocks
/// are reused only after a flush of the tail that passed them, and copies are written to the whole log.
#[test]
fn random_lives() {
    for case in cases("random lives", 20) {
        let mut rng = case.rng();
        let mut engine = engine();
        let mut pins: BTreeMap<u64, i64> = BTreeMap::new();
        let mut tail = Tail::default();
        let mut highest = 0;
        let mut plans = vec![engine.open(&NoHooks).unwrap()];
        for _ in 0..80 {
            let most = *rng.pick(&[5, 60, 400]);
            let mut blocks: Vec<u64> = (0..rng.below(most)).map(|_| some_block(&mut rng)).collect();
            blocks.sort_unstable();
            blocks.dedup();
            let forgotten: Vec<_> = (0..rng.below(6)).map(|_| (some_block(&mut rng), rng.between(1, 9))).collect();
            blocks.iter().for_each(|b| *pins.entry(*b).or_default() += 1);
            plans.push(engine.plan(closed(&blocks, rng.below(9) as u8, &forgotten), &NoHooks).unwrap());
            if rng.chance(10)
                && let Idle::Run(plan) = engine.idle(QUIET, false, &NoHooks)
            {
                plans.push(plan);
            }
            for plan in plans.drain(..) {
                highest = highest.max(tail.follow(&plan));
                plan.home.iter().for_each(|b| *pins.entry(b.get()).or_default() -= 1);
                assert!(pins.values().all(|count| *count >= 0), "unpinned more often than pinned");
            }
            assert!(pins.iter().all(|(b, n)| *n == i64::from(engine.live.contains_key(&FsBlock(*b)))));
        }
        let last = engine.close(&NoHooks).unwrap();
        tail.follow(&last);
        last.home.iter().for_each(|b| *pins.entry(b.get()).or_default() -= 1);
        assert!(pins.values().all(|count| *count == 0), "a block stays in the cache for ever");
        assert_eq!(highest, 1023, "the log's last block was not used");
    }
}

fn some_block(rng: &mut Rng) -> u64 {
    1400 + if rng.chance(30) { rng.below(6) } else { rng.below(500) }
}

/// The blocks of the log that the device may still need for a replay.
#[derive(Default)]
struct Tail {
    /// The block of the tail on the device, and the one written since the last flush.
    durable: u32,
    pending: Option<u32>,
    /// Log blocks in the order of their writes, since the journal was created.
    written: Vec<u64>,
}

impl Tail {
    fn follow(&mut self, plan: &Plan) -> u64 {
        let mut highest = 0;
        for stage in &plan.stages {
            let mut writes: Vec<u64> = stage.writes.iter().map(|w| place(w.at)).filter(|p| p.0).map(|p| p.1).collect();
            writes.retain(|n| *n != 0);
            highest = highest.max(writes.iter().copied().max().unwrap_or(0));
            // all blocks from the tail to the newest one may be needed
            if self.durable != 0 {
                let from = self.written.iter().rposition(|n| *n == u64::from(self.durable)).unwrap();
                let needed = &self.written[from..];
                assert!(writes.iter().all(|n| !needed.contains(n)), "overwrites what a replay needs");
            }
            self.written.extend(&writes);
            for write in stage.writes.iter().filter(|w| place(w.at) == (true, 0)) {
                self.pending = Some(u32::from_be_bytes(write.data[0x1C..0x20].try_into().unwrap()));
            }
            if stage.flush {
                self.durable = self.pending.take().unwrap_or(self.durable);
            }
        }
        highest
    }
}

#[test]
fn what_cannot_be_written_on_is_refused() {
    let refusal = |change: fn(&mut DiskSuperblock)| match Journal::new(superblock(change), options()) {
        Ok(_) => panic!("accepted"),
        Err(e) => e.to_string(),
    };
    assert!(refusal(|sb| sb.s_start = 5.into()).contains("replayed first"));
    assert!(refusal(|sb| sb.s_errno = (-5i32).cast_unsigned().into()).contains("aborted the journal"));
    assert!(refusal(|sb| sb.s_first = 2.into()).contains("too short"));
    assert!(refusal(|sb| sb.s_maxlen = 1035.into()).contains("longer"));
    assert!(refusal(|sb| sb.s_feature_incompat = 0x1000.into()).contains("0x1000"));
}

#[test]
fn features_are_those_that_the_kernel_sets() {
    let features = |change: fn(&mut DiskSuperblock), options| {
        let engine = Journal::new(superblock(change), options).unwrap();
        (engine.superblock.compat(), engine.superblock.incompat())
    };
    let plain = JournalOptions { checksums: false, wide: false, ..options() };
    assert_eq!(features(|_| (), plain.clone()), (Compat::empty(), Incompat::REVOKE));
    let all = Incompat::REVOKE | Incompat::CSUM_V3 | Incompat::BIT64;
    assert_eq!(features(|_| (), options()), (Compat::empty(), all));
    let v1 = |sb: &mut DiskSuperblock| sb.set_features(Compat::CHECKSUM, Incompat::ASYNC_COMMIT);
    assert_eq!(features(v1, plain.clone()), (Compat::CHECKSUM, Incompat::REVOKE), "commits are not asynchronous");
    assert_eq!(features(v1, options()), (Compat::empty(), all), "one scheme of checksums");
    let v2 = |sb: &mut DiskSuperblock| sb.set_features(Compat::empty(), Incompat::CSUM_V2);
    assert_eq!(features(v2, options()).1, Incompat::REVOKE | Incompat::CSUM_V2 | Incompat::BIT64);
    let old = |sb: &mut DiskSuperblock| {
        sb.s_header.h_blocktype = 3.into();
        sb.as_mut_bytes()[0x24..].fill(0xAB);
    };
    assert_eq!(features(old, plain), (Compat::empty(), Incompat::REVOKE));
}

#[test]
fn the_fast_commit_area_is_left_alone() {
    let area = |sb: &mut DiskSuperblock| {
        sb.s_maxlen = 1028.into();
        sb.s_num_fc_blks = 4.into();
        sb.set_features(Compat::empty(), Incompat::FAST_COMMIT);
    };
    let mut engine = Journal::new(superblock(area), options()).unwrap();
    assert!(engine.superblock.incompat().contains(Incompat::FAST_COMMIT));
    let mut highest = 0;
    for n in 0..30 {
        let plan = engine.plan(closed(&(1400..1480).collect::<Vec<_>>(), n, &[]), &NoHooks).unwrap();
        highest = highest.max(Tail::default().follow(&plan));
    }
    assert_eq!(highest, 1023);
}

#[test]
fn limits_fit_the_log() {
    let engine = engine();
    let most = engine.limits().dirty_blocks;
    assert!(most > 4 * 60, "operations must fit into the smallest log");
    assert!(engine.log.blocks_for(most, most) <= 512, "half of it");
    let few = Journal::new(superblock(|_| ()), JournalOptions { dirty_blocks: 100, ..options() }).unwrap();
    assert_eq!(few.limits().dirty_blocks, 100);
}

#[test]
fn escaped_copies() {
    let mut engine = engine();
    let mut generation = closed(&[7, 8], 5, &[]);
    let bytes = Arc::make_mut(&mut generation.blocks[0].data);
    bytes[..4].copy_from_slice(&MAGIC.to_be_bytes());
    let plain = Arc::clone(&generation.blocks[1].data);
    let plan = engine.plan(generation, &NoHooks).unwrap();
    let writes = &plan.stages[0].writes;
    let format: &LogFormat = engine.log.format();
    let tags: Vec<_> = format.tags(&writes[0].data).collect();
    let escapes: Vec<bool> = tags.iter().map(|t| t.flags.contains(format::jbd2::TagFlags::ESCAPE)).collect();
    assert_eq!(escapes, [true, false]);
    assert_eq!(writes[1].data[..6], [0, 0, 0, 0, 5, 5]);
    assert!(tags.iter().zip(&writes[1..]).all(|(tag, write)| format.data_matches(tag, 1, &write.data)));
    assert_eq!(engine.live[&FsBlock(7)].data[..4], MAGIC.to_be_bytes(), "the block itself is written home");
    assert!(Arc::ptr_eq(&writes[2].data, &plain), "copied without need");
}
