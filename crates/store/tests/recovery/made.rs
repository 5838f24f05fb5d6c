//! Journals that debugfs wrote.

use super::*;
use testkit::{cases, need, oracle};

#[test]
fn journals_made_by_debugfs() {
    if !need(&["mke2fs", "debugfs"]) {
        return;
    }
    let forms: [(&[&str], &str); 6] = [
        (&["-t", "ext3", "-b", "1024"], "journal_open"),
        (&["-t", "ext3", "-b", "4096", "-J", "size=4"], "journal_open"),
        (&["-t", "ext4", "-b", "1024", "-O", "^64bit"], "journal_open -c -v 2"),
        (&["-t", "ext4", "-b", "2048", "-O", "64bit"], "journal_open -c -v 2"),
        (&["-t", "ext4", "-b", "4096", "-O", "^64bit"], "journal_open -c -v 3"),
        (&["-t", "ext4", "-b", "1024", "-O", "64bit"], "journal_open -c -v 3"),
    ];
    for (args, open) in forms {
        let (base, runs) = volume(args, 24);
        for case in cases(&format!("{args:?}"), 3) {
            made_by_debugfs(&base, &runs, open, &mut case.rng());
        }
    }
}

fn made_by_debugfs(base: &Image, runs: &[BlockExtent], open: &str, rng: &mut testkit::Rng) {
    let size = block_size(&base.bytes()) as usize;
    let image = Image::from_bytes(&base.bytes());
    // the upper half of such a volume is free
    let first = base.bytes().len() as u64 / size as u64 * 3 / 4;
    let mut model = Model::new();
    let mut commands = vec![open.to_owned()];
    let count = rng.between(1, 12);
    for number in 0..count {
        let uncommitted = number + 1 == count && rng.chance(30);
        let mut homes: Vec<u64> = (0..rng.between(1, 20)).map(|_| first + rng.below(40)).collect();
        homes.sort_unstable();
        homes.dedup();
        let revoke = rng.chance(30);
        let list = homes.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
        if revoke {
            commands.push(format!("journal_write -r {list}"));
            homes.iter().for_each(|home| {
                model.remove(home);
            });
            continue;
        }
        let file = image.beside(&format!("data{number}"));
        let data: Vec<Vec<u8>> = homes.iter().map(|_| content(rng, size)).collect();
        std::fs::write(&file, data.concat()).unwrap();
        commands.push(format!("journal_write {}-b {list} {}", if uncommitted { "-c " } else { "" }, file.display()));
        if !uncommitted {
            model.extend(homes.into_iter().zip(data));
        }
    }
    commands.push("journal_close".into());
    let said = image.debugfs(&commands.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(!said.text().contains("while"), "{}", said.text());

    let before = image.bytes();
    let (recovered, ours) = replay(&before, runs).unwrap();
    assert_eq!(recovered.damage, []);
    assert_same(&before, &ours, &replayed_by_debugfs(&before), runs);
    assert_model(&model, &ours, size);
    assert_eq!(recovered.blocks().filter(|b| model.contains_key(&b.get())).count(), model.len());
    let log = oracle::debugfs(image.path(), "logdump -a");
    let commits = log.matches("type 2 (commit block)").count();
    assert_eq!(recovered.transactions as usize, commits, "{log}");
}

#[test]
fn an_empty_journal_changes_nothing() {
    if !need(&["mke2fs", "debugfs"]) {
        return;
    }
    let (image, runs) = volume(&["-t", "ext4"], 24);
    let before = image.bytes();
    let (recovered, ours) = replay(&before, &runs).unwrap();
    assert!(recovered.is_empty() && ours == before);
    assert_eq!((recovered.transactions, recovered.fast_commits), (0, 0));
}

#[test]
fn a_journal_on_its_own_device() {
    if !need(&["mke2fs", "debugfs"]) {
        return;
    }
    for block in ["1024", "4096"] {
        let journal = Image::mke2fs(&["-O", "journal_dev", "-b", block], 8 << 20).build();
        let uuid = "6a7f3b58-0c1d-4e2f-8a9b-abcdefabcdef";
        let volume = Image::mke2fs(&["-t", "ext4", "-b", block, "-O", "^has_journal", "-U", uuid], 24 << 20).build();
        let size: usize = block.parse().unwrap();
        let device = |image: &Image| -> Arc<dyn BlockDevice> { Arc::new(MemoryDevice::from_vec(image.bytes())) };
        let named: [u8; 16] = journal.bytes()[1024 + 0x68..1024 + 0x78].try_into().unwrap();

        let open = |uuid: &[u8; 16], size: usize| JournalLocation::external(device(&journal), size as u32, uuid);
        assert!(open(&[9; 16], size).is_err(), "the journal of another volume");
        assert!(open(&named, size * 2).is_err(), "another block size");
        assert!(JournalLocation::external(device(&volume), size as u32, &named).is_err(), "not a journal");

        // debugfs's replay needs a volume that names the journal; the log's content is known from the writes
        let data = volume.beside("data");
        std::fs::write(&data, vec![0x5A; size * 2]).unwrap();
        let with_journal = [
            "feature has_journal".to_owned(),
            format!("ssv journal_uuid {}", uuid_text(&named)),
            "ssv journal_dev 0x700".to_owned(),
            format!("journal_open -f {}", journal.path().display()),
            format!("journal_write -b 4000,4001 {}", data.display()),
            "journal_close".to_owned(),
        ];
        let said = volume.debugfs(&with_journal.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(!said.text().contains("while"), "{}", said.text());

        let recovered = recover(&open(&named, size).unwrap(), 24 << 10).unwrap();
        assert_eq!(recovered.damage, []);
        assert_eq!(recovered.blocks().collect::<Vec<_>>(), [FsBlock(4000), FsBlock(4001)]);
        let mut read = vec![0; size * 4];
        Replayed::new(device(&volume), &recovered).read(3999 * size as u64, &mut read).unwrap();
        assert!(read[size..size * 3].iter().all(|&b| b == 0x5A));
        assert!(read[..size].iter().chain(&read[size * 3..]).all(|&b| b == 0));
    }
}

fn uuid_text(bytes: &[u8; 16]) -> String {
    let hex = |range: std::ops::Range<usize>| bytes[range].iter().fold(String::new(), |s, b| s + &format!("{b:02x}"));
    [hex(0..4), hex(4..6), hex(6..8), hex(8..10), hex(10..16)].join("-")
}
