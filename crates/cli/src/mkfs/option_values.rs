//! Values of options as mke2fs takes them: lists for -E and -J, sizes, UUIDs.

use fs::mkfs::{Encoding, FeatureEdits, MkfsOptions, OnError, QuotaKinds, Usage};
use std::str::FromStr;

type Result<T, E = String> = std::result::Result<T, E>;

/// Appends a list of features to the previous ones.
pub(super) fn features(edits: &mut FeatureEdits, list: &str) -> Result<()> {
    edits.add(list).map_err(|e| e.to_string())
}

/// The extended options of -E, separated by commas.
pub(super) fn extended(options: &mut MkfsOptions, list: &str) -> Result<()> {
    for word in split(list) {
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word, None),
        };
        one(options, name, value)?;
    }
    Ok(())
}

fn one(options: &mut MkfsOptions, name: &str, value: Option<&str>) -> Result<()> {
    let needed = || value.ok_or_else(|| format!("-E {name} needs a value: {name}=…"));
    let switch = || match value {
        None | Some("1") => Ok(true),
        Some("0") => Ok(false),
        Some(other) => Err(format!("-E {name}={other}: use 0 or 1")),
    };
    match name {
        "stride" => options.stride = number(name, needed()?)?,
        "stripe_width" | "stripe-width" => options.stripe_width = number(name, needed()?)?,
        "resize" => options.resize_blocks = Some(number(name, needed()?)?),
        "lazy_itable_init" => options.lazy_inode_tables = switch()?,
        "lazy_journal_init" => options.lazy_journal = switch()?,
        "packed_meta_blocks" => options.packed_meta_blocks = switch()?,
        "discard" => options.discard = true,
        "nodiscard" => options.discard = false,
        "test_fs" => options.test_volume = true,
        "num_backup_sb" => match number(name, needed()?)? {
            count @ 0..=2 => options.backup_superblocks = count,
            count => return Err(format!("-E num_backup_sb={count}: use 0, 1 or 2")),
        },
        "root_owner" => options.root_owner = owner(value)?,
        "hash_seed" => options.hash_seed = uuid(needed()?)?,
        "quotatype" => options.quota = Some(quota(needed()?)?),
        "mmp_update_interval" => match number(name, needed()?)? {
            seconds @ 0..=300 => options.mmp_interval = seconds,
            seconds => return Err(format!("-E mmp_update_interval={seconds}: the maximum is 300 seconds")),
        },
        "orphan_file_size" => options.orphan_file_len = Some(size(name, needed()?)?),
        "metablockgroup" => options.metablockgroup_bytes = Some(size(name, needed()?)?),
        "space_map_log" => options.space_map_log = Some(number(name, needed()?)?),
        "linked" => options.linked_len = Some(value.map_or(Ok(0), |value| size(name, value))?),
        "region" => options.region_bytes = Some(size(name, needed()?)?),
        "encoding" => match value {
            None | Some("utf8" | "utf8-12.1") => {
                let strict = options.encoding.is_some_and(|encoding| encoding.strict);
                options.encoding = Some(Encoding { strict });
            }
            Some(other) => return Err(format!("-E encoding={other}: only utf8 is supported")),
        },
        "encoding_flags" => match needed()? {
            "strict" => options.encoding = Some(Encoding { strict: true }),
            "nostrict" => options.encoding = Some(Encoding { strict: false }),
            other => return Err(format!("-E encoding_flags={other}: use strict or nostrict")),
        },
        _ => return Err(format!("unknown extended option '{name}'; see `extant mkfs --help`")),
    }
    Ok(())
}

/// The journal options of -J, separated by commas.
pub(super) fn journal(options: &mut MkfsOptions, list: &str) -> Result<()> {
    for word in split(list) {
        match word.split_once('=') {
            Some(("size", value)) => options.journal_mib = Some(number("size", value.trim_end_matches(['m', 'M']))?),
            Some(("fast_commit_size", value)) => options.fast_commit_kib = Some(number("fast_commit_size", value)?),
            Some(("device", _)) => return Err("-J device: an external journal is not supported by this version".into()),
            _ => return Err(format!("-J {word}: unknown option; use size=MIB or fast_commit_size=KIB")),
        }
    }
    Ok(())
}

/// The usage types of -T, separated by commas.
pub(super) fn usages(list: &str) -> Result<Vec<Usage>> {
    let known = || Usage::NAMES.map(|row| row.0).join(", ");
    split(list).map(|name| Usage::named(name).ok_or_else(|| format!("-T {name}: use one of {}", known()))).collect()
}

/// The value of -e.
pub(super) fn on_error(word: &str) -> Result<OnError> {
    match word {
        "continue" => Ok(OnError::Continue),
        "remount-ro" => Ok(OnError::RemountReadOnly),
        "panic" => Ok(OnError::Panic),
        other => Err(format!("-e {other}: use continue, remount-ro or panic")),
    }
}

/// SIZE in bytes: in KiB without a unit, or in blocks if a block size is specified; with a unit `k m g t` in that unit,
/// with `s` in sectors of 512 bytes.
pub(super) fn volume_size(word: &str, block_size: Option<u32>) -> Result<u64> {
    let too_large = || format!("size '{word}' is too large");
    let counts = if block_size.is_some() { "blocks (of the size set with -b)" } else { "KiB" };
    let no_size =
        || format!("invalid size '{word}': use a whole number of {counts}, or one followed by k, m, g, t or s");
    let counted = |digits: &str, unit: u64| {
        let count: u64 = digits.parse().map_err(|_| no_size())?;
        count.checked_mul(unit).ok_or_else(too_large)
    };
    if let Some(sectors) = word.strip_suffix(['s', 'S']) {
        return counted(sectors, 512);
    }
    if !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit()) {
        return counted(word, u64::from(block_size.unwrap_or(1024)));
    }
    blockdev::parse_size(word).map_err(|_| no_size())
}

/// A size in bytes: a number, optionally with a unit.
pub(super) fn bytes(word: &str) -> Result<u32, String> {
    let bytes = blockdev::parse_size(word).map_err(|e| e.to_string())?;
    u32::try_from(bytes).map_err(|_| format!("{word} is too large"))
}

/// Parses a UUID in the usual form or `clear`; `random` and `time` generate a random one.
pub(super) fn volume_uuid(word: &str) -> Result<[u8; 16]> {
    match word {
        "clear" => Ok([0; 16]),
        "random" | "time" => random_uuid(),
        _ => uuid(word),
    }
}

/// Refuses values that no volume can have.
pub(super) fn check_ranges(block_size: Option<u32>, inode_size: Option<u32>, reserved: f64) -> Result<()> {
    let is_size = |size: u32, least| size.is_power_of_two() && (least..=65536).contains(&size);
    if let Some(size) = block_size.filter(|size| !is_size(*size, 1024)) {
        return Err(format!("blocks of {size} bytes: a power of two from 1024 to 65536 is needed"));
    }
    if let Some(size) = inode_size.filter(|size| !is_size(*size, 128)) {
        return Err(format!("inodes of {size} bytes: a power of two from 128 to the block size is needed"));
    }
    if !(0.0..=50.0).contains(&reserved) {
        return Err(format!("{reserved} percent cannot be reserved for the superuser: use 0 to 50"));
    }
    Ok(())
}

/// Refuses a text that is longer than the field of the superblock.
pub(super) fn check_text(option: &str, text: Option<&str>, most: usize) -> Result<()> {
    match text {
        Some(text) if text.len() > most => Err(format!("{option}: the maximum is {most} bytes, not {}", text.len())),
        _ => Ok(()),
    }
}

/// Sixteen random bytes, as a UUID of version 4.
pub(super) fn random_uuid() -> Result<[u8; 16]> {
    let mut bytes = [0; 16];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut random| std::io::Read::read_exact(&mut random, &mut bytes))
        .map_err(|e| format!("cannot get random numbers for a UUID: {e}"))?;
    Ok(*uuid::Builder::from_random_bytes(bytes).as_uuid().as_bytes())
}

fn uuid(word: &str) -> Result<[u8; 16]> {
    uuid::Uuid::parse_str(word).map(uuid::Uuid::into_bytes).map_err(|_| format!("invalid UUID '{word}'"))
}

fn split(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').filter(|word| !word.is_empty())
}

fn number<T: FromStr>(name: &str, word: &str) -> Result<T> {
    word.parse().map_err(|_| format!("{name}={word}: not a number, or too large"))
}

fn size(name: &str, word: &str) -> Result<u64> {
    blockdev::parse_size(word).map_err(|e| format!("{name}: {e}"))
}

/// The user and group of this process.
pub(super) fn runner() -> (u32, u32) {
    (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
}

/// Parses `UID:GID`; without a value, the user and group of this process.
fn owner(value: Option<&str>) -> Result<(u32, u32)> {
    let Some(value) = value else {
        return Ok(runner());
    };
    let parsed = value.split_once(':').and_then(|(user, group)| Some((user.parse().ok()?, group.parse().ok()?)));
    parsed.ok_or_else(|| format!("-E root_owner={value}: use UID:GID, both numbers"))
}

fn quota(list: &str) -> Result<QuotaKinds> {
    let mut kinds = QuotaKinds { user: false, group: false, project: false };
    for word in list.split(':') {
        match word {
            "usrquota" => kinds.user = true,
            "grpquota" => kinds.group = true,
            "prjquota" => kinds.project = true,
            other => {
                return Err(format!("-E quotatype={other}: use usrquota, grpquota and prjquota, separated by colons"));
            }
        }
    }
    Ok(kinds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fs::mkfs::Kind;

    #[test]
    fn sizes_of_volumes() {
        for (word, block_size, bytes) in [
            ("1024", None, 1 << 20),
            ("1024", Some(4096), 4 << 20),
            ("2048s", None, 1 << 20),
            ("3m", Some(4096), 3 << 20),
            ("1T", None, 1 << 40),
        ] {
            assert_eq!(volume_size(word, block_size), Ok(bytes), "{word}");
        }
        for word in ["", "x", "1.5G", "99999999999999999999", "20000000000000000"] {
            assert!(volume_size(word, Some(65536)).is_err(), "{word}");
        }
        for word in ["1Q", "1.5G", "", "-1"] {
            let [kib, blocks] = [None, Some(4096)].map(|block_size| volume_size(word, block_size).unwrap_err());
            assert!(kib.starts_with(&format!("invalid size '{word}': use a whole number of KiB, or ")), "{kib}");
            assert!(blocks.contains("a whole number of blocks (of the size set with -b), or"), "{blocks}");
        }
    }

    #[test]
    fn extended_options() {
        let mut options = MkfsOptions::new(Kind::Ext4);
        extended(&mut options, "stride=16,stripe_width=64,nodiscard,lazy_itable_init,root_owner=5:6").unwrap();
        assert_eq!((options.stride, options.stripe_width, options.discard), (16, 64, false));
        assert_eq!((options.lazy_inode_tables, options.root_owner), (true, (5, 6)));
        extended(&mut options, "lazy_itable_init=0,encoding_flags=strict,encoding=utf8,quotatype=usrquota").unwrap();
        assert_eq!((options.lazy_inode_tables, options.encoding), (false, Some(Encoding { strict: true })));
        assert_eq!(options.quota, Some(QuotaKinds { user: true, group: false, project: false }));
        for wrong in ["stride", "stride=x", "stride=70000", "foo", "num_backup_sb=3", "root_owner=a:b", "hash_seed=1"] {
            assert!(extended(&mut options, wrong).is_err(), "{wrong}");
        }
        journal(&mut options, "size=64,fast_commit_size=128").unwrap();
        assert_eq!((options.journal_mib, options.fast_commit_kib), (Some(64), Some(128)));
        assert!(journal(&mut options, "device=/dev/x").is_err());
    }

    #[test]
    fn values_that_no_volume_can_have() {
        assert_eq!(check_ranges(None, None, 5.0), Ok(()));
        assert_eq!(check_ranges(Some(65536), Some(128), 50.0), Ok(()));
        for (block_size, inode_size, reserved) in
            [(Some(3000), None, 5.0), (Some(512), None, 5.0), (None, Some(100), 5.0), (None, None, 60.0)]
        {
            assert!(check_ranges(block_size, inode_size, reserved).is_err());
        }
        assert!(check_text("-L", Some("sixteen bytes it"), 16).is_ok());
        assert!(check_text("-L", Some("seventeen bytes i"), 16).is_err());
    }

    #[test]
    fn uuids() {
        assert_eq!(volume_uuid("clear"), Ok([0; 16]));
        assert_eq!(volume_uuid("00000000-0000-0000-0000-0000000000ff").unwrap()[15], 255);
        assert_ne!(volume_uuid("random"), volume_uuid("random"));
        assert!(volume_uuid("never").is_err());
    }
}
