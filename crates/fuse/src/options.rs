//! What `-o` may say.

use crate::{Error, Result, Transport};
use fs::FsBlock;

/// Who may use a mounted volume. The kernel then checks permissions as on any file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Access {
    /// The user who mounted it.
    #[default]
    Owner,
    /// That user and root. So that each request is seen and judged, the kernel is asked to remember little.
    OwnerAndRoot,
    /// All users.
    All,
}

/// How to mount a volume: what the option lists of mount(8) say.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MountOptions {
    /// Nothing is written. The only way this version mounts.
    pub read_only: bool,
    /// Who may use it.
    pub access: Access,
    /// Device nodes are not devices. Forced for all users but root.
    pub nodev: bool,
    /// Set-user-id and set-group-id bits mean nothing. Forced for all users but root.
    pub nosuid: bool,
    /// Programs cannot be run from it.
    pub noexec: bool,
    /// fusermount3 unmounts it when the serving process ends, in whatever way.
    pub auto_unmount: bool,
    /// The kernel checks permissions also where only root gets in.
    pub default_permissions: bool,
    /// Which way requests take.
    pub transport: Transport,
    /// What the list of mounts names as its source. The device unless set.
    pub source: Option<String>,
    /// Where the copy of the superblock lies that is used in place of the primary: in bytes from the volume's start.
    pub superblock: Option<u64>,
    /// The volume is shown without what its journal holds.
    pub ignore_journal: bool,
}

/// Options that change nothing here. Times of access are not recorded by a read-only mount, attributes and access control
/// lists are always on, and the rest is for mount(8) and systemd, which may hand it on.
const WITHOUT_EFFECT: [&str; 29] = [
    "defaults",
    "async",
    "sync",
    "dirsync",
    "atime",
    "noatime",
    "diratime",
    "nodiratime",
    "relatime",
    "norelatime",
    "strictatime",
    "nostrictatime",
    "lazytime",
    "nolazytime",
    "auto",
    "noauto",
    "nofail",
    "_netdev",
    "user",
    "users",
    "nouser",
    "owner",
    "group",
    "acl",
    "user_xattr",
    "silent",
    "loud",
    "iversion",
    "noiversion",
];

impl MountOptions {
    /// Reads option lists: `["ro,nodev", "fsname=x"]`. The last of two that contradict each other holds.
    ///
    /// # Errors
    /// [`Error::Option`] for an option that is not known, by name, for a value that is none, and where `ro` is missing.
    pub fn parse<S: AsRef<str>>(lists: &[S]) -> Result<Self> {
        let mut options = Self::default();
        for option in lists.iter().flat_map(|list| list.as_ref().split(',')).filter(|option| !option.is_empty()) {
            options.set(option)?;
        }
        if !options.read_only {
            return Err(Error::Option("this version mounts read-only; add -o ro".to_owned()));
        }
        Ok(options)
    }

    fn set(&mut self, option: &str) -> Result<()> {
        let (name, value) = option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
        match (name, value) {
            ("ro", None) => self.read_only = true,
            ("rw", None) => self.read_only = false,
            ("dev", None) => self.nodev = false,
            ("nodev", None) => self.nodev = true,
            ("suid", None) => self.nosuid = false,
            ("nosuid", None) => self.nosuid = true,
            ("exec", None) => self.noexec = false,
            ("noexec", None) => self.noexec = true,
            ("allow_other", None) => self.access = Access::All,
            ("allow_root", None) => self.access = Access::OwnerAndRoot,
            ("auto_unmount", None) => self.auto_unmount = true,
            ("default_permissions", None) => self.default_permissions = true,
            ("transport", Some("best")) => self.transport = Transport::Best,
            ("transport", Some("device")) => self.transport = Transport::Device,
            ("norecovery" | "noload", None) => self.ignore_journal = true,
            ("fsname", Some(source)) => self.source = Some(source.to_owned()),
            ("sb", Some(number)) => self.superblock = Some(superblock(number)?),
            (name, None) if WITHOUT_EFFECT.contains(&name) => {}
            (name, _) if name.starts_with("x-") || name.starts_with("X-") || name == "comment" => {}
            _ => return Err(Error::Option(format!("unknown mount option `{option}`"))),
        }
        Ok(())
    }

    /// Whether the kernel checks permissions before it asks. Where only root gets in (root mounts it for itself alone)
    /// there is nothing to check: mode bits and access control lists do not bind root, and each creation and removal
    /// is saved a question for the directory's attributes. A process of root's without its capabilities is not told from
    /// one with them.
    #[must_use]
    pub fn kernel_checks(&self) -> bool {
        self.default_permissions || self.access != Access::Owner || !rustix::process::geteuid().is_root()
    }

    /// The ways to open the volume that these options may mean, one for each block size that a copy of the superblock
    /// could belong to; the first that succeeds is the one meant.
    #[must_use]
    pub fn volume_options(&self) -> Vec<fs::OpenOptions> {
        let plain = fs::OpenOptions { ignore_journal: self.ignore_journal, ..fs::OpenOptions::default() };
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

/// As ext4 takes `sb=`: in units of 1024 bytes, whatever the block size.
fn superblock(number: &str) -> Result<u64> {
    let at = number.parse::<u64>().ok().and_then(|n| n.checked_mul(1024));
    at.ok_or_else(|| Error::Option(format!("`sb={number}` names no block: give a number, in units of 1024 bytes")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read() {
        let options =
            MountOptions::parse(&["ro,noatime,nodev", "allow_other,,fsname=my disk", "noload"]).expect("parse");
        let expected = MountOptions {
            read_only: true,
            access: Access::All,
            nodev: true,
            source: Some("my disk".to_owned()),
            ignore_journal: true,
            ..MountOptions::default()
        };
        assert_eq!(options, expected);
        assert!(!MountOptions::parse(&["nosuid,ro,suid"]).expect("parse").nosuid);
        assert!(MountOptions::parse(&["ro,x-systemd.automount,defaults"]).expect("parse").read_only);
    }

    #[test]
    fn what_cannot_be_done_is_named() {
        for (list, said) in [
            ("", "this version mounts read-only; add -o ro"),
            ("rw", "this version mounts read-only; add -o ro"),
            ("ro,remount-me", "unknown mount option `remount-me`"),
            ("ro,data=journal", "unknown mount option `data=journal`"),
            ("ro=1", "unknown mount option `ro=1`"),
            ("ro,sb=x", "`sb=x` names no block: give a number, in units of 1024 bytes"),
            (
                "ro,sb=18446744073709551615",
                "`sb=18446744073709551615` names no block: give a number, in units of 1024 bytes",
            ),
        ] {
            assert_eq!(MountOptions::parse(&[list]).expect_err(list).to_string(), said);
        }
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
