//! Options of mount(8) and of the kernel's ext2, ext3 and ext4 that are no business of ours: a line of fstab can be
//! taken over as it is where that promises nothing that is not done here.
//!
//! None that asks for more than is done, or for something else, is accepted: it is refused with the reason.

/// The meaning of such an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning {
    /// All that it asks for is done anyway.
    Same,
    /// It is for others, or for a part that is not here, or permits less care than is taken here.
    NoEffect,
    /// It asks for what is not done: why.
    Refused(&'static str),
}
use Meaning::{NoEffect, Refused, Same};

const QUOTA: &str = "quotas are not enforced";
const DEVICE_OF_JOURNAL: &str =
    "volumes with a journal on another device are read only: `extant mount -j DEVICE -o ro`";
const BSD_GROUPS: &str =
    "a new file belongs to its maker's group, or to its directory's where that has the set-group-id bit";
const RESERVED: &str = "reserved blocks are for those whom the superblock names: see `tune2fs -u` and `-g`";

/// Names; one that ends in `=` stands for it with any value.
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
    // times are always written with the rest
    ("lazytime", NoEffect),
    ("nolazytime", Same),
    ("nodiratime", Same),
    ("diratime", Refused("reading a directory is not recorded")),
    ("noiversion", Same),
    ("iversion", Refused("the version of an inode is not counted")),
    ("i_version", Refused("the version of an inode is not counted")),
    // what the kernel shows of a FUSE mount, and mount(8) repeats with `remount`
    ("user_id=", NoEffect),
    ("group_id=", NoEffect),
    ("rootmode=", NoEffect),
    ("blksize=", NoEffect),
    ("max_read=", NoEffect),
    // ext4(5)
    ("acl", Same),
    ("noacl", Refused("access control lists are always in force")),
    ("user_xattr", Same),
    ("nouser_xattr", Refused("attributes are always on")),
    ("barrier", Same),
    ("barrier=1", Same),
    ("barrier=0", NoEffect),
    ("nobarrier", NoEffect),
    ("nodiscard", Same),
    ("discard", Refused("blocks are not discarded when they are freed: use fstrim(8), now and then")),
    ("delalloc", Same),
    ("nodelalloc", Refused("content gets its place when it is synced, or after the seconds of `commit`")),
    ("noauto_da_alloc", NoEffect),
    (
        "auto_da_alloc",
        Refused(
            "only a file that is replaced by rename(2) is written before; one that is cut and written anew needs fsync(2)",
        ),
    ),
    ("nojournal_checksum", NoEffect),
    ("journal_async_commit", NoEffect),
    ("journal_ioprio=", NoEffect),
    ("journal_dev=", Refused(DEVICE_OF_JOURNAL)),
    ("journal_path=", Refused(DEVICE_OF_JOURNAL)),
    ("min_batch_time=", NoEffect),
    ("max_batch_time=", NoEffect),
    ("data_err=ignore", NoEffect),
    // a write that fails is the last one, whatever it was for
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
    ("minixdf", Refused("the volume's own structures do not count as space")),
    ("nogrpid", Same),
    ("sysvgroups", Same),
    ("grpid", Refused(BSD_GROUPS)),
    ("bsdgroups", Refused(BSD_GROUPS)),
    ("resuid=", Refused(RESERVED)),
    ("resgid=", Refused(RESERVED)),
    ("nouid32", Refused("owners have 32 bits")),
    ("max_dir_size_kb=", Refused("the size of directories has no limit of its own")),
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
    // for other programs, by their form
    if option.starts_with("x-") || option.starts_with("X-") {
        return Some(NoEffect);
    }
    // how quota was turned off by name
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
