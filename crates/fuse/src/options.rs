//! The options of `-o`.

mod others;

use crate::{Error, Result};
use fs::{Consistency, DataMode, FsBlock, Log, Placement, UnknownName, Volume, WriteOptions};
use fuse_wire::{Access, Atime, AttachOptions, Transport};
use others::{Meaning, meaning};
use std::str::FromStr;
use std::time::Duration;

/// The users who may access the folder of snapshots, `.extant`. Files in snapshots have the modes of the time when the
/// snapshot was taken: a file that only its owner may read now may be readable by all users there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SnapshotFolder {
    /// The user who mounted the volume, and root.
    #[default]
    Owner,
    /// All users who may use the mount, as far as the modes in the snapshots permit.
    All,
}

/// The behaviour when damage is found in a writable volume, in addition to the error for the calling process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnDamage {
    /// The volume is marked as having errors, so that it is checked before it is writable again.
    Continue,
    /// It is marked, and becomes read-only.
    ReadOnly,
}

/// Options for mounting a volume: those in the option lists of mount(8).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MountOptions {
    /// The options for attaching the volume to the directory.
    pub mount: AttachOptions,
    /// `rw` was specified: a volume that is only readable is not mounted.
    pub insist: bool,
    /// The consistency mode; by default the best of the volume.
    pub consistency: Option<Consistency>,
    /// The mode of writing file data; by default that of the consistency mode.
    pub data: Option<DataMode>,
    /// The behaviour when damage is found, in addition to the error for the calling process. By default that of the
    /// superblock: read-only, or no action.
    pub errors: Option<OnDamage>,
    /// Whether the journal must have checksums.
    pub journal_checksum: bool,
    /// The placement of new blocks, where the format does not determine it.
    pub placement: Placement,
    /// The maximum time in seconds for which a change is in memory only; by default 5.
    pub commit: Option<u32>,
    /// For a mounted volume: changes only the options of the mount.
    pub remount: bool,
    /// The kernel caches data written to files, with their sizes and times, and writes it back later: at the last
    /// close(2), at fsync(2), sync(2) and unmounting, or after its writeback interval.
    pub writeback_cache: bool,
    /// The offset of the backup superblock that is used instead of the primary, in bytes from the start of the volume.
    pub superblock: Option<u64>,
    /// The volume is mounted without replaying its journal.
    pub ignore_journal: bool,
    /// The name of the snapshot of a native volume that is mounted, read-only.
    pub snapshot: Option<String>,
    /// The users who may access the folder of snapshots of a native volume.
    pub snapshots: SnapshotFolder,
}

impl MountOptions {
    /// Parses option lists: `["ro,nodev", "fsname=x"]`. Of two contradictory options the last applies.
    ///
    /// # Errors
    /// [`Error::Option`] for an unknown option, which it names, and for an invalid value.
    pub fn parse<S: AsRef<str>>(lists: &[S]) -> Result<Self> {
        let mut options = Self::default();
        for option in split_options(lists) {
            options.set(&option)?;
        }
        if options.insist && options.snapshot.is_some() {
            return Err(Error::Option("`rw` and `snapshot` contradict each other: a snapshot is read-only".to_owned()));
        }
        options.complete()
    }

    /// Parses lists that mount(8) passes to its helpers: it adds `rw` to every list without `ro`, so there `rw` does
    /// not express the user's wish.
    ///
    /// # Errors
    /// As [`MountOptions::parse`].
    pub fn parse_of_mount<S: AsRef<str>>(lists: &[S]) -> Result<Self> {
        let mut options = Self::default();
        for option in split_options(lists) {
            options.set(&option)?;
        }
        options.insist = false;
        options.complete()
    }

    /// Adds the options that the others imply, and checks combinations.
    fn complete(mut self) -> Result<Self> {
        let options = &mut self;
        // snapshots are read-only
        options.mount.read_only |= options.snapshot.is_some();
        if !options.mount.read_only && !options.remount {
            for (set, name) in [(options.ignore_journal, "norecovery"), (options.superblock.is_some(), "sb=N")] {
                if set {
                    return Err(Error::Option(format!("`{name}` needs a read-only mount: add `ro`")));
                }
            }
        }
        Ok(self)
    }

    fn set(&mut self, option: &str) -> Result<()> {
        let (name, value) = option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
        match (name, value) {
            ("ro" | "rw", None) => {
                self.mount.read_only = name == "ro";
                self.insist = name == "rw";
            }
            ("consistency", Some(mode)) => self.consistency = Some(named(name, mode)?),
            ("data", Some(mode)) => self.data = Some(named(name, mode)?),
            ("placement", Some(word)) => self.placement = named(name, word)?,
            ("commit", Some(seconds)) => self.commit = Some(commit(seconds)?),
            ("noatime", None) => self.mount.atime = Atime::Never,
            ("relatime" | "atime", None) => self.mount.atime = Atime::Relative,
            ("norelatime", None) if self.mount.atime == Atime::Relative => self.mount.atime = Atime::Never,
            ("nostrictatime", None) if self.mount.atime == Atime::Strict => self.mount.atime = Atime::Never,
            ("norelatime" | "nostrictatime", None) => {}
            ("sync" | "async", None) => self.mount.sync = name == "sync",
            ("dirsync", None) => self.mount.dirsync = true,
            ("errors", Some("continue")) => self.errors = Some(OnDamage::Continue),
            ("errors", Some("remount-ro")) => self.errors = Some(OnDamage::ReadOnly),
            // the answer to `panic` is that of the other options
            ("errors", Some(other)) if other != "panic" => {
                return Err(invalid(name, other, "use continue or remount-ro"));
            }
            ("journal_checksum", None) => self.journal_checksum = true,
            ("nosymfollow", None) => self.mount.nosymfollow = true,
            ("nofuseblk", None) => self.mount.nofuseblk = true,
            ("noallow_other", None) => self.mount.access = Access::Owner,
            ("strictatime", None) => self.mount.atime = Atime::Strict,
            ("remount", None) => self.remount = true,
            ("dev", None) => self.mount.nodev = false,
            ("nodev", None) => self.mount.nodev = true,
            ("suid", None) => self.mount.nosuid = false,
            ("nosuid", None) => self.mount.nosuid = true,
            ("exec", None) => self.mount.noexec = false,
            ("noexec", None) => self.mount.noexec = true,
            ("allow_other", None) => self.mount.access = Access::All,
            ("allow_root", None) => self.mount.access = Access::OwnerAndRoot,
            ("auto_unmount", None) => self.mount.auto_unmount = true,
            ("default_permissions", None) => self.mount.default_permissions = true,
            ("writeback_cache", None) => self.writeback_cache = true,
            ("transport", Some("best")) => self.mount.transport = Transport::Best,
            ("transport", Some("device")) => self.mount.transport = Transport::Device,
            ("transport", Some(other)) => return Err(invalid(name, other, "use best or device")),
            ("norecovery" | "noload", None) => self.ignore_journal = true,
            ("snapshot", Some(name)) => self.snapshot = Some(name.to_owned()),
            ("snapdir", Some(who)) => self.snapshots = snapshot_folder(who)?,
            ("fsname", Some(source)) => self.mount.source = Some(source.to_owned()),
            ("sb", Some(number)) => self.superblock = Some(superblock(number)?),
            _ => match meaning(option) {
                Some(Meaning::Same | Meaning::NoEffect) => {}
                Some(Meaning::Refused(why)) => return Err(Error::Option(format!("mount option `{option}`: {why}"))),
                None => return Err(Error::Option(format!("unknown mount option `{option}`"))),
            },
        }
        Ok(())
    }

    /// Checks that a volume opened for writing has the features that the options require.
    ///
    /// # Errors
    /// [`Error::Option`].
    pub fn fit(&self, volume: &Volume) -> Result<()> {
        let checksums = volume.superblock().geometry.metadata_csum;
        let journals = volume.consistency().is_some_and(|mode| mode.log() == Log::Journal);
        if self.journal_checksum && journals && !checksums {
            let why =
                "mount option `journal_checksum`: the volume has no checksums; `tune2fs -O metadata_csum` adds them";
            return Err(Error::Option(why.to_owned()));
        }
        Ok(())
    }

    /// The behaviour when damage is found: as specified, else that of the superblock (`tune2fs -e`). A kernel panic is
    /// not possible from user space.
    pub(crate) fn on_damage(&self, volume: &Volume) -> Option<OnDamage> {
        const REMOUNT_RO: u16 = 2;
        const PANIC: u16 = 3;
        let asked = matches!(volume.superblock().disk.s_errors.get(), REMOUNT_RO | PANIC);
        self.errors.or(asked.then_some(OnDamage::ReadOnly))
    }

    /// The possible ways to open the volume with these options, one for each block size to which a backup superblock
    /// could belong; the first that succeeds is the right one.
    #[must_use]
    pub fn volume_options(&self) -> Vec<fs::OpenOptions> {
        let write = (!self.mount.read_only).then(|| {
            let plain = WriteOptions::default();
            WriteOptions {
                consistency: self.consistency,
                data: self.data.unwrap_or_default(),
                data_insisted: self.data.is_some(),
                placement: self.placement,
                commit: self.commit.map_or(plain.commit, |seconds| Duration::from_secs(seconds.into())),
                ..plain
            }
        });
        let snapshot = self.snapshot.as_ref().map(|name| name.clone().into_bytes());
        let ignore_journal = self.ignore_journal;
        let plain = fs::OpenOptions { ignore_journal, snapshot, write, ..fs::OpenOptions::default() };
        let Some(at) = self.superblock else { return vec![plain] };
        (10..=16)
            .map(|bits| 1u32 << bits)
            .filter(|&size| at.is_multiple_of(u64::from(size)))
            .map(|size| fs::OpenOptions {
                superblock: Some(FsBlock(at / u64::from(size))),
                block_size: Some(size),
                ..plain.clone()
            })
            .collect()
    }
}

/// Splits option lists. As in FUSE's own programs, a comma after a backslash is part of an option, and so is a second
/// backslash.
pub(crate) fn split_options<S: AsRef<str>>(lists: &[S]) -> Vec<String> {
    let mut options = Vec::new();
    for list in lists {
        let mut option = String::new();
        let mut chars = list.as_ref().chars().peekable();
        while let Some(c) = chars.next() {
            match c {
                ',' => options.push(std::mem::take(&mut option)),
                '\\' => option.push(chars.next_if(|next| matches!(next, ',' | '\\')).unwrap_or(c)),
                _ => option.push(c),
            }
        }
        options.push(option);
    }
    options.retain(|option| !option.is_empty());
    options
}

/// Whether an option is accepted and has no effect.
pub(crate) fn is_ignored(option: &str) -> bool {
    matches!(meaning(option), Some(Meaning::Same | Meaning::NoEffect))
}

/// Parses the value of an option from its name.
fn named<T: FromStr<Err = UnknownName>>(option: &str, name: &str) -> Result<T> {
    name.parse().map_err(|why: UnknownName| invalid(option, name, &why.to_string()))
}

fn invalid(option: &str, value: &str, instead: &str) -> Error {
    Error::Option(format!("invalid {option}={value}: {instead}"))
}

fn snapshot_folder(who: &str) -> Result<SnapshotFolder> {
    match who {
        "owner" => Ok(SnapshotFolder::Owner),
        "all" => Ok(SnapshotFolder::All),
        _ => Err(invalid("snapdir", who, "use owner or all")),
    }
}

fn commit(seconds: &str) -> Result<u32> {
    match seconds.parse() {
        // as in ext4: 0 selects the default
        Ok(0) => Ok(5),
        Ok(seconds @ 1..=3600) => Ok(seconds),
        _ => Err(invalid("commit", seconds, "use a number of seconds up to 3600")),
    }
}

/// Parses the value of `sb=` as ext4 does: in units of 1024 bytes, whatever the block size.
fn superblock(number: &str) -> Result<u64> {
    let at = number.parse::<u64>().ok().and_then(|n| n.checked_mul(1024));
    at.ok_or_else(|| invalid("sb", number, "use the number of a block, in units of 1024 bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read() {
        let options =
            MountOptions::parse(&["ro,noatime,nodev", "allow_other,,fsname=my disk", "noload,writeback_cache"])
                .expect("parse");
        let expected = MountOptions {
            mount: AttachOptions {
                read_only: true,
                access: Access::All,
                nodev: true,
                source: Some("my disk".to_owned()),
                ..AttachOptions::default()
            },
            ignore_journal: true,
            writeback_cache: true,
            ..MountOptions::default()
        };
        assert_eq!(options, expected);
        assert!(!MountOptions::parse(&["nosuid,ro,suid"]).expect("parse").mount.nosuid);
        assert!(MountOptions::parse(&["ro,x-systemd.automount,defaults"]).expect("parse").mount.read_only);
        let options =
            MountOptions::parse(&["rw,consistency=dirty-bit,data=journal,commit=0,relatime", "placement=hint"])
                .expect("parse");
        let expected = MountOptions {
            insist: true,
            consistency: Some(Consistency::DirtyBit),
            data: Some(DataMode::Journal),
            placement: Placement::Hint,
            commit: Some(5),
            mount: AttachOptions { atime: Atime::Relative, ..AttachOptions::default() },
            ..MountOptions::default()
        };
        assert_eq!(options, expected);
        let opened = options.volume_options().pop().expect("one way").write.expect("for writing");
        assert_eq!((opened.consistency, opened.commit.as_secs()), (Some(Consistency::DirtyBit), 5));
        assert!(MountOptions::parse(&["ro"]).expect("parse").volume_options().pop().expect("one way").write.is_none());
    }

    #[test]
    fn what_cannot_be_done_is_named() {
        for (list, said) in [
            ("data=fast", "invalid data=fast: use ordered, writeback, journal or cow"),
            ("consistency=some", "invalid consistency=some: use none, dirty-bit, linked, journal or snapshot"),
            ("snapdir=hidden", "invalid snapdir=hidden: use owner or all"),
            ("placement=front", "invalid placement=front: use usual or hint"),
            ("commit=soon", "invalid commit=soon: use a number of seconds up to 3600"),
            ("commit=3601", "invalid commit=3601: use a number of seconds up to 3600"),
            ("ro,remount-me", "unknown mount option `remount-me`"),
            ("ro=1", "unknown mount option `ro=1`"),
            ("ro,sb=x", "invalid sb=x: use the number of a block, in units of 1024 bytes"),
            (
                "ro,sb=18446744073709551615",
                "invalid sb=18446744073709551615: use the number of a block, in units of 1024 bytes",
            ),
        ] {
            assert_eq!(MountOptions::parse(&[list]).expect_err(list).to_string(), said);
        }
    }

    #[test]
    fn lines_of_fstab_are_taken_over_where_they_promise_nothing_more() {
        let line = "defaults,noatime,errors=remount-ro,barrier=1,nobarrier,nodiscard,delalloc,user_xattr,acl,lazytime,\
                    nodiratime,noquota,bsddf,block_validity,data_err=abort,init_itable=10,x-systemd.automount,nofail,loop";
        let options = MountOptions::parse(&[line]).expect("Debian's");
        let expected = MountOptions { errors: Some(OnDamage::ReadOnly), ..MountOptions::default() };
        assert_eq!((&options, options.mount.atime), (&expected, Atime::Never));
        for (list, said) in [
            ("usrquota", "quotas are not enforced"),
            ("errors=panic", "use `errors=remount-ro`"),
            ("discard", "run fstrim(8)"),
            ("nodelalloc", "`commit`"),
            ("diratime", "access times of directories are not updated"),
            ("iversion", "not maintained"),
            ("resuid=7", "the superblock"),
            ("norecovery", "`norecovery` needs a read-only mount: add `ro`"),
            ("rw,sb=32768", "`sb=N` needs a read-only mount: add `ro`"),
            ("errors=often", "invalid errors=often: use continue or remount-ro"),
            ("transport=pigeon", "invalid transport=pigeon: use best or device"),
            ("mand", "no mandatory locks"),
        ] {
            let error = MountOptions::parse(&[list]).expect_err(list).to_string();
            assert!(error.contains(said), "{list}: {error}");
        }
    }

    #[test]
    fn a_comma_behind_a_backslash_is_part_of_an_option() {
        let of = |list: &str| MountOptions::parse(&[list]).expect(list);
        assert_eq!(of(r"ro,snapshot=a\,b,nodev").snapshot.as_deref(), Some("a,b"));
        assert!(of(r"ro,snapshot=a\,b,nodev").mount.nodev);
        assert_eq!(of(r"snapshot=a\\,nodev").snapshot.as_deref(), Some(r"a\"));
        assert_eq!(of(r"snapshot=a\b\").snapshot.as_deref(), Some(r"a\b\"));
    }

    #[test]
    fn words_of_mount_mean_what_it_says() {
        let of = |list: &str| MountOptions::parse(&[list]).expect(list);
        assert_eq!(of("atime").mount.atime, Atime::Relative);
        assert_eq!(of("strictatime,nostrictatime").mount.atime, Atime::Never);
        assert_eq!(of("strictatime,norelatime").mount.atime, Atime::Strict);
        assert!(of("sync,dirsync").mount.sync && of("dirsync").mount.dirsync && !of("sync,async").mount.sync);
        assert_eq!(of("allow_other,noallow_other").mount.access, Access::Owner);
        assert!(of("nofuseblk").mount.nofuseblk && of("nosymfollow").mount.nosymfollow);
    }

    #[test]
    fn a_copy_of_the_superblock_is_counted_as_ext4_counts() {
        let options = MountOptions::parse(&["ro,sb=131072"]).expect("parse");
        let of_4k = options.volume_options().into_iter().find(|o| o.block_size == Some(4096)).expect("4096");
        assert_eq!(of_4k.superblock, Some(FsBlock(32768)));
        let options = MountOptions::parse(&["ro,sb=8193"]).expect("parse").volume_options();
        assert_eq!(options.iter().map(|o| o.superblock).collect::<Vec<_>>(), [Some(FsBlock(8193))]);
    }
}
