//! Options of mount(8) and of the kernel's ext2, ext3 and ext4 that have no effect in Extant, so that a line of fstab
//! need not be changed.
//!
//! An option that asks for something unsupported is refused with the reason.

/// The meaning of such an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning {
    /// The requested behaviour is the default.
    Same,
    /// No effect: it is for other programs or for parts of the kernel, or permits weaker guarantees than Extant's.
    NoEffect,
    /// The requested behaviour is unsupported: the reason for refusing the option.
    Refused(&'static str),
}
use Meaning::{NoEffect, Refused, Same};

const QUOTA: &str = "quotas are not enforced";
const DEVICE_OF_JOURNAL: &str =
    "a volume with an external journal can only be mounted read-only: `extant mount -j DEVICE -o ro`";
const BSD_GROUPS: &str =
    "new files get the group of the process that creates them, or of the directory if that has the set-group-ID bit";
const RESERVED: &str =
    "the user and group of reserved blocks are those in the superblock: set them with `tune2fs -u` and `-g`";

/// The names; one that ends in `=` matches any value.
const TABLE: &[(&str, Meaning)] = &[
    // mount(8), systemd and libmount
    ("defaults", NoEffect),
    ("auto", NoEffect),
    ("noauto", NoEffect),
    ("nofail", NoEffect),
    ("_netdev", NoEffect),
    ("user", NoEffect),
    ("user=", NoEffect),
    ("users", NoEffect),
    ("nouser", NoEffect),
    ("owner", NoEffect),
    ("group", NoEffect),
    ("loop", Same),
    ("uhelper=", NoEffect),
    ("helper=", NoEffect),
    ("comment", NoEffect),
    ("comment=", NoEffect),
    ("silent", NoEffect),
    ("loud", NoEffect),
    ("nomand", Same),
    ("mand", Refused("Linux has no mandatory locks any more")),
    ("symfollow", Same),
    // times are always written with other changes
    ("lazytime", NoEffect),
    ("nolazytime", Same),
    ("nodiratime", Same),
    ("diratime", Refused("access times of directories are not updated")),
    ("noiversion", Same),
    ("iversion", Refused("inode versions are not maintained")),
    ("i_version", Refused("inode versions are not maintained")),
    // options that the kernel lists for a FUSE mount, and mount(8) repeats with `remount`
    ("user_id=", NoEffect),
    ("group_id=", NoEffect),
    ("rootmode=", NoEffect),
    ("blksize=", NoEffect),
    ("max_read=", NoEffect),
    // ext4(5)
    ("acl", Same),
    ("noacl", Refused("access control lists are always enforced")),
    ("user_xattr", Same),
    ("nouser_xattr", Refused("extended attributes are always enabled")),
    ("barrier", Same),
    ("barrier=1", Same),
    ("barrier=0", NoEffect),
    ("nobarrier", NoEffect),
    ("nodiscard", Same),
    ("discard", Refused("freed blocks are not discarded at once: run fstrim(8) periodically")),
    ("delalloc", Same),
    ("nodelalloc", Refused("blocks are allocated when data is synced, or after the `commit` interval")),
    ("noauto_da_alloc", NoEffect),
    ("auto_da_alloc", Same),
    ("nojournal_checksum", NoEffect),
    ("journal_async_commit", NoEffect),
    ("journal_ioprio=", NoEffect),
    ("journal_dev=", Refused(DEVICE_OF_JOURNAL)),
    ("journal_path=", Refused(DEVICE_OF_JOURNAL)),
    ("min_batch_time=", NoEffect),
    ("max_batch_time=", NoEffect),
    ("data_err=ignore", NoEffect),
    // the first failed write ends writing, whatever it was for
    ("data_err=abort", Same),
    ("errors=panic", Refused("a process cannot stop the system: use `errors=remount-ro`")),
    ("block_validity", Same),
    ("noblock_validity", NoEffect),
    ("init_itable", NoEffect),
    ("init_itable=", NoEffect),
    ("noinit_itable", Same),
    ("inode_readahead_blks=", NoEffect),
    ("stripe=", NoEffect),
    ("dioread_lock", NoEffect),
    ("dioread_nolock", NoEffect),
    ("mblk_io_submit", NoEffect),
    ("nomblk_io_submit", NoEffect),
    ("prefetch_block_bitmaps", NoEffect),
    ("no_prefetch_block_bitmaps", NoEffect),
    ("orlov", NoEffect),
    ("oldalloc", NoEffect),
    ("debug", NoEffect),
    ("nocheck", Same),
    ("check=none", Same),
    ("bsddf", Same),
    ("minixdf", Refused("statfs(2) never counts metadata as space")),
    ("nogrpid", Same),
    ("sysvgroups", Same),
    ("grpid", Refused(BSD_GROUPS)),
    ("bsdgroups", Refused(BSD_GROUPS)),
    ("resuid=", Refused(RESERVED)),
    ("resgid=", Refused(RESERVED)),
    ("nouid32", Refused("user and group IDs always have 32 bits")),
    ("max_dir_size_kb=", Refused("directory sizes are not limited separately")),
    ("dax=never", Same),
    ("noquota", Same),
    ("quota", Refused(QUOTA)),
    ("usrquota", Refused(QUOTA)),
    ("grpquota", Refused(QUOTA)),
    ("prjquota", Refused(QUOTA)),
    ("usrjquota=", Refused(QUOTA)),
    ("grpjquota=", Refused(QUOTA)),
    ("jqfmt=", Refused(QUOTA)),
];

/// The meaning of an option; `None` for an unknown one.
pub(super) fn meaning(option: &str) -> Option<Meaning> {
    // for other programs, by their prefix
    if option.starts_with("x-") || option.starts_with("X-") {
        return Some(NoEffect);
    }
    // the form that turns quota off by name
    if matches!(option, "usrjquota=" | "grpjquota=") {
        return Some(Same);
    }
    let any_value = option.split_once('=').map(|(name, _)| &option[..=name.len()]);
    let row = |wanted: &str| TABLE.iter().find(|(name, _)| *name == wanted).map(|row| row.1);
    row(option).or_else(|| row(any_value?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_count_where_they_matter() {
        for (option, expected) in [
            ("barrier=1", Some(Same)),
            ("barrier=0", Some(NoEffect)),
            ("barrier=2", None),
            ("stripe=16", Some(NoEffect)),
            ("stripe", None),
            ("usrjquota=", Some(Same)),
            ("usrjquota=aquota.user", Some(Refused(QUOTA))),
            ("x-systemd.device-timeout=1", Some(NoEffect)),
            ("comment=a b", Some(NoEffect)),
            ("uid=1000", None),
        ] {
            assert_eq!(meaning(option), expected, "{option}");
        }
    }

    #[test]
    fn each_is_there_once() {
        for (at, (name, _)) in TABLE.iter().enumerate() {
            assert!(TABLE.iter().skip(at + 1).all(|row| row.0 != *name), "{name}");
        }
    }
}
