use super::*;
use testkit::Rng;

fn full() -> Slot {
    let mut slot = Slot::empty([7; 16], 8, 1024, 128);
    slot.header.ll_flags = PREVIOUS_DURABLE.into();
    let inode = |number: u32, flags: u16| DiskListInode {
        li_number: number.into(),
        li_before: 1.into(),
        li_after: 2.into(),
        li_dtime: 0.into(),
        li_links: 1.into(),
        li_flags: flags.into(),
    };
    slot.inodes = vec![inode(12, NEW), inode(2, DIRECTORY | WHOLE)];
    slot.whole = vec![vec![3; 128].into()];
    slot.pointers = vec![DiskListPointers {
        lp_block: 90.into(),
        lp_owner: 12.into(),
        lp_index: 250.into(),
        lp_count: 6.into(),
        lp_before: 0.into(),
        lp_after: 700.into(),
    }];
    slot.runs =
        vec![DiskListRun { lr_owner: 12.into(), lr_first: 700.into(), lr_count: 6.into(), lr_allocated: 1.into() }];
    slot.groups = vec![DiskListGroup {
        lg_number: 0.into(),
        lg_free_blocks: 9.into(),
        lg_free_inodes: 8.into(),
        lg_directories: 1.into(),
    }];
    slot.fresh = vec![DiskListFresh { lf_block: 77.into(), lf_checksum: 5.into(), lf_kind: 1.into() }];
    let after = Box::new([9; SECTOR]);
    let head = DiskListCopy {
        lc_block: 80.into(),
        lc_sector: 1.into(),
        lc_kind: KIND_DIRECTORY.into(),
        lc_before: 1.into(),
        lc_after: sum(&*after).into(),
    };
    slot.copies = vec![Copied { head, after }];
    slot
}

/// The slot without the fields that [`Slot::encode`] sets.
fn described(mut slot: Slot) -> Slot {
    slot.header = DiskListSlot { ll_flags: slot.header.ll_flags, ..Slot::empty([7; 16], 8, 1024, 128).header };
    slot
}

#[test]
fn a_slot_reads_back_and_counts_only_whole() {
    for slot in [full(), Slot::empty([7; 16], 8, 1024, 128)] {
        let mut bytes = slot.encode();
        assert_eq!(bytes.len(), slot.len().next_multiple_of(SECTOR));
        assert_eq!(described(Slot::parse(&bytes).expect("whole")), slot);
        for at in 0..slot.len() {
            bytes[at] ^= 0x10;
            assert!(Slot::parse(&bytes).is_err(), "byte {at}");
            bytes[at] ^= 0x10;
            assert!(Slot::parse(&bytes[..at]).is_err(), "cut at {at}");
        }
        // a torn slot: one of its sectors is the old one
        for sector in 0..bytes.len() / SECTOR {
            let mut torn = bytes.clone();
            torn[sector * SECTOR..][..SECTOR].fill(0xEE);
            assert!(Slot::parse(&torn).is_err());
        }
        assert!(is_ours(&bytes, &[7; 16]) && !is_ours(&bytes, &[8; 16]) && !is_ours(&[0; SECTOR], &[0; 16]));
    }
}

/// The slot with a right checksum, as an attacker would write it.
fn with_checksum(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes[4..8].fill(0);
    let len = u32::from_le_bytes(bytes[0x20..0x24].try_into().unwrap()) as usize;
    let checksum = sum(bytes.get(..len).unwrap_or_default());
    bytes[4..8].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

#[test]
fn nonsense_with_a_right_checksum_is_refused() {
    let good = full().encode();
    assert!(Slot::parse(&with_checksum(good.clone())).is_ok());
    let changed = |at: usize, value: u32| {
        let mut bytes = good.clone();
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        Slot::parse(&with_checksum(bytes))
    };
    for at in [0x4C, 0x50, 0x54, 0x58, 0x5C, 0x60, 0x64] {
        for value in [0, 2, 3, u32::MAX] {
            let is_same = value == u32::from_le_bytes(good[at..at + 4].try_into().unwrap());
            assert_eq!(changed(at, value).is_ok(), is_same, "{value} at {at:#x}");
        }
    }
    assert!(changed(0x28, 1000).is_err() && changed(0x28, 512).is_err(), "block size");
    assert!(changed(0x2C, 0).is_err() && changed(0x2C, 1024).is_err(), "inode size");
    assert!(changed(0x20, 0).is_err() && changed(0x20, u32::MAX).is_err(), "length");
    let pointers = DiskListSlot::SIZE + 2 * DiskListInode::SIZE;
    assert!(changed(pointers + 8, 251 | 6 << 16).is_err(), "pointers beyond their block");
    let copy = full().records_len();
    assert!(changed(copy + 4, 2 | 1 << 16).is_err(), "a sector beyond its block");
    assert!(changed(copy + 12, 1).is_err(), "another checksum than the content's");
}

#[test]
fn any_bytes_end_without_a_panic() {
    let mut rng = Rng::new(18);
    for _ in 0..20_000 {
        let mut bytes = full().encode();
        for _ in 0..=rng.below(4) {
            let at = rng.below(bytes.len() as u64) as usize;
            bytes[at] = rng.below(256) as u8;
        }
        if let Ok(slot) = Slot::parse(&with_checksum(bytes)) {
            assert_eq!(Slot::parse(&slot.encode()).expect("what was accepted is accepted again"), slot);
        }
    }
}

#[test]
fn an_incomplete_slot_says_so_and_nothing_else() {
    let mut slot = full();
    slot.make_incomplete();
    let read = Slot::parse(&slot.encode()).expect("whole");
    assert!(read.is_empty());
    assert_eq!(read.header.ll_flags.get(), INCOMPLETE | PREVIOUS_DURABLE);
    assert_eq!(read.header.ll_counter.get(), 8);
}

#[test]
fn the_redo_area_reads_back_and_counts_only_whole() {
    for count in [0usize, 1, 100] {
        let sectors = (0..count as u64).map(|n| (n * 3, Box::new([n as u8; SECTOR]))).collect();
        let redo = Redo { uuid: [7; 16], counter: 9, sectors };
        let mut bytes = redo.encode();
        assert_eq!(bytes.len(), Redo::len_of(count));
        assert_eq!(Redo::parse(&bytes).expect("whole"), redo);
        for sector in 0..bytes.len() / SECTOR {
            let mut torn = bytes.clone();
            torn[sector * SECTOR..][..SECTOR].fill(0xEE);
            assert!(Redo::parse(&torn).is_err());
        }
        assert!(Redo::parse(&bytes[..bytes.len() - SECTOR]).is_err() || count == 0);
        bytes[0x20..0x24].fill(0xFF);
        assert!(Redo::parse(&bytes).is_err());
    }
}

#[test]
fn areas_cover_the_list() {
    for block_size in [1024u32, 4096, 65536] {
        for len in [LEAST, LEAST + u64::from(block_size), MOST] {
            let Some(areas) = Areas::of(len, block_size) else {
                assert!(block_size == 65536 && len < 4 * 65536);
                continue;
            };
            assert_eq!(areas.slot * 2 + areas.redo, len);
            assert!(areas.redo >= 2 * areas.slot, "the redo area fits the changes of two slots in most cases");
            assert_eq!((areas.slot_at(4), areas.slot_at(7), areas.redo_at()), (0, areas.slot, 2 * areas.slot));
        }
    }
    assert_eq!(Areas::of(LEAST - 1024, 1024), None);
    assert_eq!(Areas::of(LEAST + 1, 1024), None);
    assert_eq!(Areas::of(MOST + 4096, 4096), None);
    assert_eq!(Areas::of(LEAST, 0), None);
}
