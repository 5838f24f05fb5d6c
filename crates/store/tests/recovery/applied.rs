//! Journals written home, compared with e2fsck's result for the same bytes, and journals that are refused.

use super::written::{Sums, Writer, transactions};
use super::*;
use extant_store::{Error, Result};
use format::feature::Incompat;
use format::jbd2;
use format::superblock::{DiskSuperblock, State};
use testkit::{Rng, need, oracle};
use zerocopy::{FromBytes, IntoBytes};

/// The volume after its journal was written home.
pub(crate) fn applied(bytes: &[u8], runs: &[BlockExtent]) -> Result<Vec<u8>> {
    let size = block_size(bytes);
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::from_vec(bytes.to_vec()));
    let journal = JournalLocation::internal(Arc::clone(&device), size, runs.iter().copied());
    recover(&journal, bytes.len() as u64 / u64::from(size))?.apply(&*device)?;
    let mut whole = vec![0; bytes.len()];
    device.read(0, &mut whole)?;
    Ok(whole)
}

/// The volume after e2fsck has replayed its journal, and nothing else.
pub(crate) fn replayed_by_e2fsck(bytes: &[u8]) -> Vec<u8> {
    let image = Image::from_bytes(bytes);
    let args = ["-y".as_ref(), "-E".as_ref(), "journal_only".as_ref(), image.path().as_os_str()];
    let ran = tools::run("e2fsck", &args);
    assert!(matches!(ran.exit, Some(0 | 1)), "{}", ran.text());
    image.bytes()
}

fn superblock(bytes: &[u8]) -> DiskSuperblock {
    DiskSuperblock::from_slice(&bytes[1024..]).unwrap()
}

fn journal_superblock(bytes: &[u8], runs: &[BlockExtent]) -> jbd2::DiskSuperblock {
    let at = runs[0].first.get() as usize * block_size(bytes) as usize;
    jbd2::DiskSuperblock::read_from_bytes(&bytes[at..at + 1024]).unwrap()
}

fn written(base: &Image, runs: &[BlockExtent], sums: Sums) -> (Writer, Model) {
    let mut writer = Writer::new(base.bytes(), runs, sums, true, 5, 70);
    let mut model = Model::new();
    transactions(&mut writer, &mut Rng::new(3), &mut model, 20);
    (writer, model)
}

#[test]
fn an_applied_journal_is_empty_and_its_volume_marked_so() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let (base, runs) = volume(&["-t", "ext4", "-b", "1024"], 24);
    for sums in [Sums::None, Sums::V1, Sums::V2, Sums::V3] {
        let (writer, model) = written(&base, &runs, sums);
        let before = writer.finish();
        let ours = applied(&before, &runs).unwrap();
        assert_same(&before, &ours, &replayed_by_e2fsck(&before), &runs);
        assert_model(&model, &ours, 1024);
        assert!(superblock(&before).features().incompat.contains(Incompat::NEEDS_RECOVERY));
        assert!(!superblock(&ours).features().incompat.contains(Incompat::NEEDS_RECOVERY));
        assert_eq!(superblock(&ours).s_state.get() & State::ERROR.bits(), 0);
        let journal = journal_superblock(&ours, &runs);
        assert_eq!((journal.s_start.get(), journal.s_sequence.get()), (0, 91), "a number that was never used");
        assert!(applied(&ours, &runs).unwrap() == ours, "a second replay changes something");
        let verdict = oracle::e2fsck(Image::from_bytes(&ours).path());
        assert!(verdict.clean, "{}", verdict.text);
    }
}

#[test]
fn an_error_of_the_kernel_moves_into_the_superblock() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let (base, runs) = volume(&["-t", "ext4", "-b", "1024"], 24);
    let mut before = written(&base, &runs, Sums::V3).0.finish();
    let mut journal = journal_superblock(&before, &runs);
    journal.s_errno = (-5i32).cast_unsigned().into();
    journal.set_checksum();
    let at = runs[0].first.get() as usize * 1024;
    before[at..at + 1024].copy_from_slice(journal.as_bytes());
    let ours = applied(&before, &runs).unwrap();
    let theirs = replayed_by_e2fsck(&before);
    for bytes in [&ours, &theirs] {
        assert!(superblock(bytes).s_state.get() & State::ERROR.bits() != 0);
        assert_eq!(journal_superblock(bytes, &runs).s_errno.get(), 0);
    }
    assert_same(&before, &ours, &theirs, &runs);
}

#[test]
fn a_damaged_journal_is_refused_and_the_damage_named() {
    if !need(&["mke2fs", "debugfs"]) {
        return;
    }
    let (base, runs) = volume(&["-t", "ext4", "-b", "1024"], 24);
    let mut bytes = written(&base, &runs, Sums::V3).0.finish();
    // block 6 of the journal is the first copy in its log
    bytes[(runs[0].first.get() as usize + 6) * 1024 + 99] ^= 1;
    let refused = applied(&bytes, &runs);
    assert!(matches!(&refused, Err(Error::Journal(what)) if what.contains("transaction 70: ")), "{refused:?}");
}

#[test]
fn a_journal_on_its_own_device_is_applied() {
    if !need(&["mke2fs", "debugfs"]) {
        return;
    }
    let external = Image::mke2fs(&["-O", "journal_dev", "-b", "1024"], 8 << 20).build();
    let uuid: [u8; 16] = external.bytes()[1024 + 0x68..1024 + 0x78].try_into().unwrap();
    let args = ["-t", "ext4", "-b", "1024", "-O", "^has_journal"];
    let base = Image::mke2fs(&args, 24 << 20).build().bytes();
    // block 2 of the device is the superblock of its log
    let mut bytes = external.bytes();
    let superblock_at = 2048;
    let mut sb = jbd2::DiskSuperblock::read_from_bytes(&bytes[superblock_at..superblock_at + 1024]).unwrap();
    sb.s_start = 10.into();
    sb.s_sequence = 5.into();
    sb.set_checksum();
    bytes[superblock_at..superblock_at + 1024].copy_from_slice(sb.as_bytes());
    let journal = |device: &Arc<dyn BlockDevice>| JournalLocation::external(Arc::clone(device), 1024, &uuid).unwrap();
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::from_vec(bytes));
    let format = journal(&device).read_superblock().unwrap().log().clone();
    let data = vec![0x77; 1024];
    let tagged = [jbd2::LoggedBlock { home: FsBlock(9000), escaped: false, data: &data }];
    device.write(10 * 1024, &format.descriptor(5, &uuid, &tagged)).unwrap();
    device.write(11 * 1024, &data).unwrap();
    device.write(12 * 1024, &format.commit(5, std::time::Duration::ZERO, !0)).unwrap();
    assert!(journal(&device).is_external());

    let volume = MemoryDevice::from_vec(base);
    let recovered = recover(&journal(&device), 24 << 10).unwrap();
    assert_eq!((recovered.transactions, recovered.damage.len()), (1, 0));
    recovered.apply(&volume).unwrap();
    let mut read = vec![0; 1024];
    volume.read(9000 * 1024, &mut read).unwrap();
    assert!(read == data);
    let now = journal(&device).read_superblock().unwrap();
    assert_eq!((now.start(), now.sequence()), (None, 7));
}
