//! The list of linked writes: a slot or a redo area of any bytes.

use format::linked::{DiskListInode, DiskListRun, DiskListSlot, NEW, Redo, SECTOR, Slot, WHOLE};

/// Areas of a list: one slot of each kind, and a redo area.
pub fn lists() -> Vec<Vec<u8>> {
    let empty = Slot::empty([1; 16], 2, 1024, 128);
    let mut full = empty.clone();
    let inode = |flags: u16| DiskListInode {
        li_number: 12.into(),
        li_before: 1.into(),
        li_after: 2.into(),
        li_dtime: 0.into(),
        li_links: 1.into(),
        li_flags: flags.into(),
    };
    full.inodes = vec![inode(NEW), inode(WHOLE)];
    full.whole = vec![vec![0; 128].into()];
    full.runs =
        vec![DiskListRun { lr_owner: 12.into(), lr_first: 9.into(), lr_count: 1.into(), lr_allocated: 1.into() }];
    let redo = Redo { uuid: [1; 16], counter: 2, sectors: vec![(7, Box::new([3; SECTOR]))] };
    vec![empty.encode(), full.encode(), redo.encode()]
}

/// An area of the list. Guarantee: an accepted area is written back unchanged, and takes no more memory than the area
/// has. The checksum is corrected first, so that the bytes it covers are read.
pub fn linked_list(data: &[u8]) {
    let mut area = data.to_vec();
    set_checksum(&mut area);
    if let Ok(slot) = Slot::parse(&area) {
        assert!(slot.len() <= area.len());
        assert_eq!(Slot::parse(&slot.encode()).as_ref(), Ok(&slot));
    }
    if let Ok(redo) = Redo::parse(&area) {
        assert!(redo.sectors.len() * SECTOR <= area.len());
        assert_eq!(Redo::parse(&redo.encode()).as_ref(), Ok(&redo));
    }
}

/// Sets the checksum of a slot, where it has one.
fn set_checksum(area: &mut [u8]) {
    let Some(length) = area.get(0x20..0x24).and_then(|bytes| bytes.try_into().ok()).map(u32::from_le_bytes) else {
        return;
    };
    let length = length as usize;
    if !(DiskListSlot::SIZE..=area.len()).contains(&length) {
        return;
    }
    area[4..8].fill(0);
    let checksum = format::linked::sum(&area[..length]);
    area[4..8].copy_from_slice(&checksum.to_le_bytes());
}
