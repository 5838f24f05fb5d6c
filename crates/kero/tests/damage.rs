//! Devices that were damaged, shortened, written without the layer, or that fail: one sentence each, and no completed
//! flush is lost as long as one copy is intact.

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;

use blockdev::{BlockDevice, MemoryDevice, Overlay};
use common::explore::{PendingChange, changes};
use common::{format_options, options};
use extant_kero::bytes::{Placeholder, Record as Header, Superblock};
use extant_kero::{BLOCK, Error, FormatOptions, Gap, Kero, Layout, Mutant, Options, drain, format};
use proptest::prelude::*;
use simdev::{Fault, Faulty, PageCache, Record};
use testkit::{Rng, cases};

const DEVICE: u64 = 3 << 20;
const LOG: u64 = 512 << 10;

fn device() -> Overlay {
    let device = Overlay::new(Arc::new(MemoryDevice::zeroed(DEVICE).unwrap()));
    for block in 0..40 {
        device.write(block * BLOCK, &[block as u8 + 1; BLOCK as usize]).unwrap();
    }
    device
}

fn layout() -> Layout {
    let blocks = (LOG / BLOCK) as u32;
    Layout::new(DEVICE / BLOCK, blocks, Layout::segment_for(blocks)).unwrap()
}

/// Works until some checkpoints are written; block 100 + n contains n at the end.
fn worked() -> Overlay {
    let device = device();
    format(&device, &format_options(LOG, false)).unwrap();
    let kero = Kero::open(&device, options()).unwrap();
    for round in 0..60u8 {
        for block in 0..6 {
            kero.write((100 + block) * BLOCK, &[if round == 59 { block as u8 } else { round }; BLOCK as usize])
                .unwrap();
        }
        kero.flush().unwrap();
    }
    assert!(kero.stats().checkpoints > 3, "{:?}", kero.stats());
    drop(kero);
    device
}

fn intact(kero: &dyn BlockDevice) -> bool {
    let mut bytes = vec![0; 6 * BLOCK as usize];
    kero.read(100 * BLOCK, &mut bytes).unwrap();
    let new = bytes.chunks(BLOCK as usize).zip(0..).all(|(block, number)| block == [number; BLOCK as usize]);
    let mut old = [0; 40];
    let read = (0..40).zip(&mut old).try_for_each(|(block, byte)| kero.read(block * BLOCK, std::slice::from_mut(byte)));
    new && read.is_ok() && old.iter().zip(1..).all(|(byte, number)| *byte == number)
}

fn superblock(device: &Overlay, copy: usize) -> Superblock {
    let mut bytes = vec![0; BLOCK as usize];
    device.read(layout().superblocks()[copy] * BLOCK, &mut bytes).unwrap();
    Superblock::parse(&bytes).unwrap()
}

/// The blocks of the log with a header of at least this sequence number.
fn headers(device: &dyn BlockDevice, from: u64) -> Vec<u32> {
    let mut bytes = vec![0; BLOCK as usize];
    let mut is_header = |slot: u32| {
        device.read(layout().slot(slot), &mut bytes).unwrap();
        Header::numbers(&bytes, &[7; 16]).is_some_and(|(sequence, _)| sequence >= from)
    };
    (0..layout().log).filter(|slot| is_header(*slot)).collect()
}

/// Groups of so many blocks with gaps of two; too few for a checkpoint. Block 100 contains the number of the last one.
fn with_gaps(groups: &[u64]) -> Overlay {
    let device = device();
    format(&device, &format_options(LOG, false)).unwrap();
    let kero = Kero::open(&device, Options { gap: Gap::Fixed(2), ..options() }).unwrap();
    for (number, blocks) in (1..).zip(groups) {
        for block in 0..*blocks {
            kero.write((100 + block) * BLOCK, &[number; BLOCK as usize]).unwrap();
        }
        kero.flush().unwrap();
    }
    assert_eq!(kero.stats().checkpoints, 0);
    drop(kero);
    device
}

fn flip(device: &Overlay, at: u64) {
    let mut byte = [0];
    device.read(at, &mut byte).unwrap();
    device.write(at, &[byte[0] ^ 0x10]).unwrap();
}

#[test]
fn a_gap_may_contain_a_block_that_cannot_be_read() {
    let device = with_gaps(&[1, 1]);
    let headers = headers(&device, 2);
    assert_eq!(headers[1] - headers[0], 4, "a header, a block and a gap of two");
    let bad = layout().slot(headers[0] + 2);
    let faulty = Faulty::new(device, vec![Fault::ReadError { range: bad..bad + BLOCK }]);
    let mut byte = [0];
    Kero::open(&faulty, options()).unwrap().read(100 * BLOCK, &mut byte).unwrap();
    assert_eq!(byte, [2]);
}

/// The gap before the second group leads to the start of a segment. If its header is damaged, the one of the third group
/// shows that more is missing.
#[test]
fn a_group_behind_a_damaged_start_of_a_segment_is_missed() {
    let device = with_gaps(&[3, 1, 1]);
    let segment = layout().segment;
    assert_eq!(headers(&device, 2)[1..], [segment, segment + 4]);
    assert!(headers(&device, 2)[0] + 4 < segment, "the first group ends before the segment does");
    flip(&device, layout().slot(segment) + 8);
    let error = Kero::open(&device, options()).expect_err("an error").to_string();
    assert!(error.contains("incomplete record followed by a later complete group"), "{error}");
}

/// A group extends into a segment in which complete ones follow it: the first header there continues the damaged group,
/// and the later ones show that it is missed.
#[test]
fn groups_behind_a_damaged_one_in_the_same_segment_are_missed() {
    for damaged in 0..=1 {
        let device = with_gaps(&[6, 1]);
        let (headers, segment) = (headers(&device, 2), layout().segment);
        assert!(headers[1] == segment && headers[2] < 2 * segment, "{headers:?}");
        flip(&device, layout().slot(headers[damaged]) + 0x30);
        let error = Kero::open(&device, options()).expect_err("an error").to_string();
        assert!(error.contains("incomplete record followed by a later complete group"), "{error}");
    }
}

/// The log behind the end is searched for what is missed; where it cannot be read, it proves nothing.
#[test]
fn an_unreadable_block_behind_the_end_is_no_reason_to_refuse() {
    let device = with_gaps(&[1, 1]);
    let bad = layout().slot(*headers(&device, 2).last().unwrap() + 4);
    let faulty = Faulty::new(device, vec![Fault::ReadError { range: bad + 30 * BLOCK..bad + 31 * BLOCK }]);
    let mut byte = [0];
    Kero::open(&faulty, options()).unwrap().read(100 * BLOCK, &mut byte).unwrap();
    assert_eq!(byte, [2]);
}

/// The older copy of a superblock does not replace one that a newer program wrote.
#[test]
fn a_superblock_of_an_unknown_version_is_refused() {
    let device = worked();
    let newest = usize::from(superblock(&device, 1).generation > superblock(&device, 0).generation);
    let newer = Superblock { version: extant_kero::bytes::VERSION + 1, ..superblock(&device, newest) };
    device.write(layout().superblocks()[newest] * BLOCK, &newer.encode()).unwrap();
    let error = Kero::open(&device, options()).expect_err("an error").to_string();
    assert!(error.contains("superblock of an unknown version"), "{error}");
}

/// A program that knows no gaps would stop at one, so there is none before both superblocks say that there may be.
#[test]
fn there_are_no_gaps_while_a_superblock_has_the_version_without() {
    let device = device();
    format(&device, &format_options(LOG, false)).unwrap();
    for copy in 0..2 {
        let older = Superblock { version: 1, ..superblock(&device, copy) };
        device.write(layout().superblocks()[copy] * BLOCK, &older.encode()).unwrap();
    }
    let kero = Kero::open(&device, Options { gap: Gap::Fixed(2), ..options() }).unwrap();
    let write = |number: u8| {
        kero.write(100 * BLOCK, &[number; BLOCK as usize]).unwrap();
        kero.flush().unwrap();
    };
    (1..=3).for_each(write);
    assert_eq!(kero.stats().checkpoints, 0);
    assert!(headers(&device, 2).windows(2).all(|pair| pair[1] - pair[0] == 2), "{:?}", headers(&device, 2));
    (4..=80).for_each(write);
    assert!(kero.stats().checkpoints > 2);
    assert!((0..2).all(|copy| superblock(&device, copy).version == 2));
    assert!(headers(&device, 2).windows(2).any(|pair| pair[1] - pair[0] == 4), "{:?}", headers(&device, 2));
}

#[test]
fn one_superblock_is_enough() {
    let device = worked();
    for copy in 0..2 {
        for at in [0, 9, 0x20, 0x48, 0x50, 0x1FC] {
            let flipped = device.clone();
            flip(&flipped, layout().superblocks()[copy] * BLOCK + at);
            let kero = Kero::open(&flipped, options()).unwrap();
            assert!(intact(&kero), "copy {copy}, byte {at}");
            // and writing continues from there
            kero.write(0, &[1; BLOCK as usize]).unwrap();
            kero.flush().unwrap();
            drop(kero);
            assert!(intact(&Kero::open(&flipped, options()).unwrap()));
        }
    }
    let [a, b] = layout().superblocks();
    flip(&device, a * BLOCK + 1);
    flip(&device, b * BLOCK + 1);
    let error = Kero::open(&device, options()).unwrap_err().to_string();
    assert!(error.contains("not a superblock of the layer at byte"), "{error}");
}

#[test]
fn log_from_the_older_checkpoint_on_is_not_reused() {
    let device = device();
    format(&device, &format_options(256 << 10, false)).unwrap();
    let layout = Layout::new(DEVICE / BLOCK, 64, 8).unwrap();
    let kero = Kero::open(&device, options()).unwrap();
    for round in 0..400u64 {
        let at = (100 + round % 7) * BLOCK;
        kero.write(at, &[round as u8; 3 * BLOCK as usize]).unwrap();
        kero.flush().unwrap();
        let generations = layout.superblocks().map(|block| {
            let mut bytes = vec![0; BLOCK as usize];
            device.read(block * BLOCK, &mut bytes).unwrap();
            Superblock::parse(&bytes).unwrap().generation
        });
        let newest = usize::from(generations[1] > generations[0]);
        let flipped = device.clone();
        flip(&flipped, layout.superblocks()[newest] * BLOCK);
        let mut bytes = vec![0; 3 * BLOCK as usize];
        Kero::open(&flipped, options()).unwrap().read(at, &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == round as u8), "flush {round}");
    }
}

#[test]
fn a_damaged_checkpoint_leaves_the_older_one() {
    let device = worked();
    let newest = (0..2).max_by_key(|copy| superblock(&device, *copy).generation).unwrap();
    let checkpoint = superblock(&device, newest).checkpoint;
    let flipped = device.clone();
    flip(&flipped, layout().slot(checkpoint + 1) + 77);
    assert!(intact(&Kero::open(&flipped, options()).unwrap()));
    // its header is part of the chain, too: the following group is durable, so this is damage, and reported
    let flipped = device.clone();
    flip(&flipped, layout().slot(checkpoint) + 77);
    let error = Kero::open(&flipped, options()).unwrap_err().to_string();
    assert!(error.contains("incomplete record") && error.contains("restore"), "{error}");
}

#[test]
fn damage_in_the_middle_of_the_log_is_no_end() {
    let device = worked();
    let checkpoint =
        (0..2).map(|copy| superblock(&device, copy)).max_by_key(|found| found.generation).unwrap().checkpoint;
    let kero = Kero::open(&device, options()).unwrap();
    kero.write(0, &[1; BLOCK as usize]).unwrap();
    kero.flush().unwrap();
    kero.write(0, &[1; BLOCK as usize]).unwrap();
    kero.flush().unwrap();
    drop(kero);
    let mut bytes = vec![0; BLOCK as usize];
    let mut refused = 0;
    for slot in checkpoint + 2..(LOG / BLOCK) as u32 {
        device.read(layout().slot(slot), &mut bytes).unwrap();
        let Ok((header, _)) = Header::parse(&bytes, &[7; 16], &layout()) else { continue };
        if header.group <= superblock(&device, 0).group.max(superblock(&device, 1).group) {
            continue;
        }
        let flipped = device.clone();
        flip(&flipped, layout().slot(slot) + 200);
        match Kero::open(&flipped, options()) {
            Err(error) => refused += u32::from(error.to_string().contains("followed by a later complete group")),
            // the very last group: no different from a torn one
            Ok(kero) => assert!(intact(&kero)),
        }
    }
    assert!(refused > 0);
}

/// Cold content in the log: blocks 200 to 202, in one group, before the checkpoints.
fn with_cold_blocks() -> Overlay {
    let device = device();
    format(&device, &format_options(LOG, false)).unwrap();
    let kero = Kero::open(&device, options()).unwrap();
    for (block, byte) in (200..203).zip(b'a'..) {
        kero.write(block * BLOCK, &[byte; BLOCK as usize]).unwrap();
    }
    while kero.stats().checkpoints < 2 {
        kero.write(100 * BLOCK, &[1; BLOCK as usize]).unwrap();
        kero.flush().unwrap();
    }
    drop(kero);
    device
}

/// Nothing but its checksum reveals the damage, and that does not leave the log with it.
#[test]
fn a_damaged_block_does_not_move_home() {
    let device = with_cold_blocks();
    let slots = (200..203).map(|block| Kero::open(&device, options()).unwrap().location(block * BLOCK).unwrap());
    let slots: Vec<u64> = slots.collect();
    assert!(slots.iter().all(|slot| *slot >= layout().slot(0)), "in the log");
    for (number, slot) in slots.iter().enumerate() {
        let damaged = device.clone();
        flip(&damaged, slot + 77);
        let byte = (200 + number as u64) * BLOCK;
        let named = |error: String| error.contains(&format!("byte {byte} is damaged")) && error.contains("--force");
        let error = drain(&damaged, options()).expect_err("an error");
        assert!(matches!(error, Error::Damaged { .. }) && named(error.to_string()), "{error}");

        // as well when the layer is idle; reads go on
        let kero = Kero::open(&damaged, options()).unwrap();
        let moved = loop {
            match kero.idle(64) {
                Ok(0) => {
                    kero.write(100 * BLOCK, &[1; BLOCK as usize]).unwrap();
                    kero.flush().unwrap();
                }
                Ok(_) => kero.flush().unwrap(),
                Err(error) => break error,
            }
        };
        assert!(named(moved.to_string()), "{moved}");
        assert!(kero.flush().is_err() && kero.read(byte, &mut [0]).is_ok());
        drop(kero);

        drain(&damaged, Options { force: true, ..options() }).unwrap();
        let mut found = vec![0; 3 * BLOCK as usize];
        damaged.read(200 * BLOCK, &mut found).unwrap();
        let changed = found.iter().zip((b'a'..).flat_map(|byte| [byte; BLOCK as usize]));
        assert_eq!(changed.filter(|(found, written)| *found != written).count(), 1);
    }
}

/// A copy of a header in the content of a block claims other checksums for the slots behind it.
#[test]
fn a_header_in_the_content_of_a_block_is_none() {
    let device = device();
    format(&device, &format_options(LOG, false)).unwrap();
    let kero = Kero::open(&device, options()).unwrap();
    let write = |first: u64, count: u64, byte: u8| {
        (first..first + count).for_each(|block| kero.write(block * BLOCK, &[byte; BLOCK as usize]).unwrap());
    };
    write(210, 3, 1);
    kero.flush().unwrap();
    let mut header = vec![0; BLOCK as usize];
    device.read(kero.location(210 * BLOCK).unwrap() - BLOCK, &mut header).unwrap();
    assert!(Header::parse(&header, &[7; 16], &layout()).is_ok());
    // the next record begins with its copy, which is replaced later
    kero.write(209 * BLOCK, &header).unwrap();
    write(210, 3, 2);
    kero.flush().unwrap();
    write(209, 1, 3);
    kero.flush().unwrap();
    drop(kero);
    drain(&device, options()).unwrap();
    let mut found = vec![0; 3 * BLOCK as usize];
    device.read(210 * BLOCK, &mut found).unwrap();
    assert!(found.iter().all(|byte| *byte == 2));
}

/// Without their header nothing is known against blocks.
#[test]
fn blocks_with_a_damaged_header_move_home() {
    let device = with_cold_blocks();
    let header = Kero::open(&device, options()).unwrap().location(200 * BLOCK).unwrap() - BLOCK;
    flip(&device, header + 0x20);
    drain(&device, options()).unwrap();
    let mut found = vec![0; 3 * BLOCK as usize];
    device.read(200 * BLOCK, &mut found).unwrap();
    assert!(found.chunks(BLOCK as usize).zip(b'a'..).all(|(block, byte)| block == [byte; BLOCK as usize]));
}

#[test]
fn every_way_to_be_no_layer_has_its_sentence() {
    let plain = device();
    let sentence = |device: &dyn BlockDevice| Kero::open(device, options()).err().unwrap().to_string();
    assert!(sentence(&plain).contains("no Kero layer"));
    let device = worked();
    assert!(matches!(format(&device, &format_options(LOG, false)), Err(Error::AlreadyFormatted)));
    for (block, name) in [(0, "block 0 "), (16, "block 16 ")] {
        let written = device.clone();
        written.write(block * BLOCK, &[9; BLOCK as usize]).unwrap();
        let said = sentence(&written);
        assert!(said.contains(name) && said.contains("without the layer"), "{said}");
        let forced = Kero::open(&written, Options { force: true, read_only: true, ..options() }).unwrap();
        assert!(intact(&forced));
        assert!(forced.write(0, &[0]).is_err() && forced.flush().is_err());
    }
    let mut bytes = vec![0; DEVICE as usize];
    device.read(0, &mut bytes).unwrap();
    bytes.truncate(bytes.len() - BLOCK as usize);
    let said = sentence(&MemoryDevice::from_vec(bytes.clone()));
    assert!(said.contains("use all of the device"), "{said}");
    bytes.resize(DEVICE as usize + 12_288, 0);
    device.read(0, &mut bytes[..DEVICE as usize]).unwrap();
    assert!(intact(&Kero::open(&MemoryDevice::from_vec(bytes), options()).unwrap()), "a longer device is accepted");
    // superblocks of another layer
    let other = self::device();
    format(&other, &FormatOptions { uuid: Some([8; 16]), ..format_options(LOG, false) }).unwrap();
    for block in layout().superblocks() {
        let mut bytes = vec![0; BLOCK as usize];
        other.read(block * BLOCK, &mut bytes).unwrap();
        device.write(block * BLOCK, &bytes).unwrap();
    }
    assert!(sentence(&device).contains("another layer"));
}

#[test]
fn format_refuses_what_does_not_fit() {
    let said = |len: u64, options: FormatOptions| {
        format(&MemoryDevice::zeroed(len).unwrap(), &options).unwrap_err().to_string()
    };
    assert!(said(4 << 20, FormatOptions::default()).contains("too small"));
    assert!(
        said(64 << 20, FormatOptions { log: Some(1 << 20), ..FormatOptions::default() }).contains("choose 4194304")
    );
    let volume = FormatOptions { volume: Some(63 << 20), ..FormatOptions::default() };
    assert!(said(64 << 20, volume.clone()).contains("shrink the volume"));
    assert!(format(&MemoryDevice::zeroed(68 << 20).unwrap(), &volume).is_ok());
    assert!(said(0, FormatOptions::default()).contains("too small"));
}

/// Calls `see` with all states of a recording: every prefix, and for each epoch every write alone and every write
/// missing.
fn each_state(base: &Overlay, record: &Record<Overlay, Vec<u8>>, mut see: impl FnMut(&Overlay)) {
    let log = record.log().unwrap();
    let before = base.clone();
    let mut epoch: Vec<PendingChange> = Vec::new();
    for index in 0..=log.entries().len() {
        let flush = log.entries().get(index).is_none_or(|entry| entry.what == simdev::Logged::Flush);
        if !flush {
            epoch.extend(changes(&log, index));
            continue;
        }
        let of = epoch.len();
        let choices = (0..=of)
            .map(|end| (0..end).collect())
            .chain((0..of).map(|one| BTreeSet::from([one])))
            .chain((0..of).map(|lost| (0..of).filter(|n| *n != lost).collect::<BTreeSet<_>>()));
        for there in choices {
            for torn in [false, true] {
                let device = before.clone();
                for number in &there {
                    let part = (torn && there.last() == Some(number)).then_some(&[0, 3, 4][..]);
                    epoch[*number].apply(&device, part);
                }
                see(&device);
            }
        }
        epoch.drain(..).for_each(|change| change.apply(&before, None));
    }
}

#[test]
fn format_and_drain_can_be_cut_anywhere() {
    let plain = device();
    let record = Record::in_memory(plain.clone());
    format(&record, &format_options(LOG, false)).unwrap();
    let same = |device: &dyn BlockDevice| {
        let mut byte = [0];
        (0..40).all(|block| {
            [0, 511, 512, 4095]
                .into_iter()
                .all(|within| device.read(block * BLOCK + within, &mut byte).is_ok() && byte[0] == block as u8 + 1)
        })
    };
    let mut states = 0;
    each_state(&plain, &record, |device| {
        states += 1;
        let device = device.clone();
        match Kero::open(&device, options()) {
            Ok(kero) => assert!(same(&kero)),
            Err(Error::NotFormatted) => assert!(same(&device), "no layer, and changed content"),
            Err(Error::Unfinished) => {}
            Err(error) => panic!("{error}"),
        }
        match drain(&device, options()) {
            Ok(()) | Err(Error::NotFormatted) => assert!(same(&device)),
            Err(error) => panic!("{error}"),
        }
    });
    let full = worked();
    let record = Record::in_memory(full.clone());
    drain(&record, options()).unwrap();
    each_state(&full, &record, |device| {
        states += 1;
        let device = device.clone();
        match Kero::open(&device, options()) {
            Ok(kero) => assert!(intact(&kero)),
            Err(Error::NotFormatted) => assert!(intact(&device)),
            Err(Error::Draining) => {}
            Err(error) => panic!("{error}"),
        }
        match drain(&device, options()) {
            Ok(()) | Err(Error::NotFormatted) => assert!(intact(&device)),
            Err(error) => panic!("{error}"),
        }
    });
    println!("{states} states");
}

#[test]
fn a_device_that_fails_ends_writing_and_reads_go_on() {
    for case in cases("failing", 60) {
        let mut rng = case.rng();
        let device = device();
        format(&device, &format_options(LOG, false)).unwrap();
        let slot = layout().slot(rng.below(LOG / BLOCK) as u32);
        let fault = match rng.below(3) {
            0 => Fault::FlushError { flush: rng.between(1, 60) },
            1 => Fault::WriteError { range: slot..slot + 1 },
            // blocks that move home when the log is full
            _ => Fault::WriteError { range: 200 * BLOCK..300 * BLOCK },
        };
        let faulty = Faulty::new(device.clone(), vec![fault]);
        let Ok(kero) = Kero::open(&faulty, options()) else { continue };
        let (mut durable, mut newest, mut failed) = (0u8, 0u8, false);
        for round in 1..=80u8 {
            let cold = kero.write((200 + u64::from(round)) * BLOCK, &[round; BLOCK as usize]);
            let hot = |()| (0..5).try_for_each(|block| kero.write((100 + block) * BLOCK, &[round; BLOCK as usize]));
            let done = cold.and_then(hot);
            if done.is_ok() {
                newest = round;
            }
            match done.and_then(|()| kero.flush()) {
                Ok(()) => {
                    assert!(!failed, "a flush that succeeds after one that failed");
                    durable = round;
                }
                Err(_) => failed = true,
            }
            let mut byte = [0];
            kero.read(104 * BLOCK, &mut byte).unwrap();
            assert!(byte[0] == newest || byte[0] == round, "{} {newest}", byte[0]);
        }
        assert!(failed);
        let why = kero.flush().unwrap_err().to_string();
        assert!(why.contains("writing ended at an earlier error"), "{why}");
        drop(kero);
        let left = faulty.into_inner();
        let mut byte = [0];
        Kero::open(&left, options()).unwrap().read(104 * BLOCK, &mut byte).unwrap();
        assert!(durable == 0 || byte[0] >= durable, "{} {durable}", byte[0]);
    }
}

#[test]
fn random_damage_is_no_panic() {
    let device = worked();
    let kero_own = layout().superblocks()[0] * BLOCK;
    for case in cases("random_damage", 400) {
        let mut rng: Rng = case.rng();
        let damaged = device.clone();
        for _ in 0..rng.magnitude(40) {
            let at = if rng.chance(10) { rng.below(17 * BLOCK) } else { rng.between(kero_own, DEVICE - 1) };
            let len = rng.magnitude(600).min(DEVICE - at) as usize;
            damaged.write(at, &rng.bytes(len)).unwrap();
        }
        if let Ok(kero) = Kero::open(&damaged, options()) {
            let mut bytes = vec![0; 200 * BLOCK as usize];
            kero.read(0, &mut bytes).unwrap();
            drop(kero.write(3 * BLOCK, &bytes[..9000]));
            drop(kero.flush());
        }
        drop(drain(&damaged, Options { force: true, ..options() }));
    }
}

proptest! {
    #[test]
    fn any_bytes_are_parsed_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..5000)) {
        prop_assert!(Superblock::parse(&bytes).is_err());
        prop_assert!(Placeholder::parse(&bytes, 0).is_none());
        prop_assert!(Header::parse(&bytes, &[7; 16], &layout()).is_err());
    }

    #[test]
    fn any_fields_with_a_right_checksum_are_parsed_without_a_panic(
        mut bytes in prop::collection::vec(any::<u8>(), 4096),
        flags in 0u8..4,
        kinds in prop::collection::vec(0u8..7, 255),
        small in any::<bool>(),
    ) {
        use extant_kero::bytes::{PLACEHOLDER_MAGIC, RECORD_MAGIC, SUPERBLOCK_MAGIC};
        let sector = |bytes: &mut [u8], magic: [u8; 8]| {
            bytes[..8].copy_from_slice(&magic);
            bytes[0x18..0x1C].copy_from_slice(&[1, 0, 0, 0]);
            let sum = crc32c::crc32c(&bytes[..508]);
            bytes[508..512].copy_from_slice(&sum.to_le_bytes());
        };
        let mut block = bytes.clone();
        block[0x1C..0x20].copy_from_slice(&[flags, 0, 0, 0]);
        if small {
            block[0x28..0x48].fill(0);
            block[0x29] = 3;
            block[0x40] = 128;
            block[0x44] = 8;
        }
        sector(&mut block, SUPERBLOCK_MAGIC);
        if let Ok(read) = Superblock::parse(&block) {
            prop_assert_eq!(&Superblock::parse(&read.encode()).unwrap(), &read);
        }
        sector(&mut block, PLACEHOLDER_MAGIC);
        let read = Placeholder::parse(&block, u32::from(flags));
        prop_assert!(read.is_none_or(|read| read.block == u32::from(flags)));
        bytes[..8].copy_from_slice(&RECORD_MAGIC);
        bytes[8..24].fill(7);
        bytes[0x35] = 0;
        bytes[0x37] = 0;
        bytes[0x38..0x3C].copy_from_slice(&[flags, 0, 0, 0]);
        if small {
            for (entry, kind) in bytes[64..].chunks_exact_mut(12).zip(kinds) {
                entry[1..4].fill(0);
                entry[5..8].copy_from_slice(&[kind, 1, 0]);
            }
        }
        bytes[0x3C..0x40].fill(0);
        let sum = crc32c::crc32c(&bytes);
        bytes[0x3C..0x40].copy_from_slice(&sum.to_le_bytes());
        if let Ok((read, sum)) = Header::parse(&bytes, &[7; 16], &layout()) {
            let (again, _) = read.encode(&[7; 16]);
            prop_assert_eq!(Header::parse(&again, &[7; 16], &layout()).unwrap().0, read);
            prop_assert!(sum > 0 || !bytes.is_empty());
        }
    }
}

/// A group of which one request fails beneath the page cache of the system; a server that starts again on the same
/// cache and acknowledges another group; then a loss of power. Acknowledged data must be there, unless opening or the
/// change reported an error.
fn after_a_failed_flush(mutant: Mutant, failing: u64) -> Result<(), Error> {
    let base = device();
    format(&base, &format_options(LOG, false)).unwrap();
    let cache = PageCache::new(Faulty::new(base, vec![Fault::RequestError { request: failing }]));
    let write = |kero: &Kero<&PageCache<Faulty<Overlay>>>, byte: u8| {
        kero.write(7 * BLOCK, &[byte; 3 * BLOCK as usize])?;
        kero.write_fresh(50 * BLOCK, &[byte; 2 * BLOCK as usize])?;
        kero.flush()
    };
    let how = || Options { mutant, ..options() };
    let mut acknowledged = 0;
    for byte in 100..102 {
        // each is a process of its own; a third would end in a checkpoint, which would hide the defect
        if Kero::open(&cache, how()).and_then(|kero| Ok(write(&kero, byte)?)).is_ok() {
            acknowledged = byte;
        }
    }
    assert!(acknowledged >= 100, "only one request failed");
    let kero = Kero::open(cache.into_inner().into_inner(), how())?;
    let mut bytes = vec![0; 3 * BLOCK as usize];
    kero.read(7 * BLOCK, &mut bytes)?;
    let seen = bytes[0];
    // a group may survive although its flush failed
    assert!(
        (acknowledged..102).contains(&seen) && bytes.iter().all(|byte| *byte == seen),
        "{seen}, not {acknowledged}"
    );
    kero.read(50 * BLOCK, &mut bytes[..2 * BLOCK as usize])?;
    let fresh = bytes.iter().all(|byte| *byte == seen);
    // and a group that did not survive may leave its fresh blocks
    assert!(fresh || seen < 101, "{} instead of {seen}", bytes[0]);
    Ok(())
}

#[test]
fn a_flush_that_failed_leaves_nothing_to_believe() {
    for failing in 0..80 {
        after_a_failed_flush(Mutant::Identity, failing).unwrap_or_else(|error| panic!("request {failing}: {error}"));
    }
    let caught = |failing: &u64| after_a_failed_flush(Mutant::TrustRead, *failing).is_err();
    assert!((0..80).any(|failing| caught(&failing)), "the mutant loses acknowledged data");
}
