//! POSIX access control lists: ext4's on-disk format and the format of the extended attribute.
//!
//! Both have a version and then entries of a tag, permissions and an id. On the device (version 1) an entry whose tag
//! needs no id has none; in the attribute (version 2) every entry has one.

use crate::{Error, Result, Structure};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, IntoBytes};

disk_struct! {
    /// The start of an access control list.
    pub struct AclHeader [4] {
        /// 1 on the device, 2 in the extended attribute.
        0x00 a_version: U32,
    }
}

disk_struct! {
    /// An entry without an id: on the device the owner, the owning group, the mask and the others.
    pub struct AclEntryShort [4] {
        /// The kind of user or group, see [`Tag`].
        0x00 e_tag: U16,
        /// Permissions: 4 read, 2 write, 1 execute.
        0x02 e_perm: U16,
    }
}

disk_struct! {
    /// An entry with an id: on the device a named user or group, in the extended attribute every entry.
    pub struct AclEntryFull [8] {
        /// The kind of user or group, see [`Tag`].
        0x00 e_tag: U16,
        /// Permissions: 4 read, 2 write, 1 execute.
        0x02 e_perm: U16,
        /// User or group id; all ones where the tag has none.
        0x04 e_id: U32,
    }
}

const DISK_VERSION: u32 = 1;
const XATTR_VERSION: u32 = 2;

/// The `e_id` of an entry that has none; no user or group has this id.
const NO_ID: u32 = u32::MAX;

/// The tag of an entry, with the id of a named user or group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Tag {
    /// The file's owner (0x01).
    UserObj,
    /// A user by id (0x02).
    User(u32),
    /// The file's group (0x04).
    GroupObj,
    /// A group by id (0x08).
    Group(u32),
    /// The maximum permissions of users and groups by id and of the file's group (0x10).
    Mask,
    /// Everyone else (0x20).
    Other,
}

impl Tag {
    fn from_raw(tag: u16, id: u32) -> Result<Self> {
        Ok(match tag {
            0x01 => Tag::UserObj,
            0x02 => Tag::User(id),
            0x04 => Tag::GroupObj,
            0x08 => Tag::Group(id),
            0x10 => Tag::Mask,
            0x20 => Tag::Other,
            _ => return Err(corrupt("an access control list has an unknown tag")),
        })
    }

    fn raw(self) -> u16 {
        match self {
            Tag::UserObj => 0x01,
            Tag::User(_) => 0x02,
            Tag::GroupObj => 0x04,
            Tag::Group(_) => 0x08,
            Tag::Mask => 0x10,
            Tag::Other => 0x20,
        }
    }

    fn id(self) -> Option<u32> {
        match self {
            Tag::User(id) | Tag::Group(id) => Some(id),
            _ => None,
        }
    }
}

/// One entry of an access control list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AclEntry {
    /// The tag: the users or groups that the permissions apply to.
    pub tag: Tag,
    /// Permissions: 4 read, 2 write, 1 execute.
    pub perm: u16,
}

/// An access control list, entries in the order in which they were stored.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Acl(pub Vec<AclEntry>);

fn corrupt(what: &'static str) -> Error {
    Error::corrupt(Structure::ExtendedAttribute, what)
}

fn entries_of(bytes: &[u8], version: u32) -> Result<&[u8]> {
    match AclHeader::ref_from_prefix(bytes) {
        Ok((header, rest)) if header.a_version.get() == version => Ok(rest),
        Ok(_) => Err(corrupt("the version of an access control list is wrong")),
        Err(_) => Err(corrupt("an access control list is too short")),
    }
}

impl Acl {
    /// Reads the value of an attribute as ext4 stores it.
    ///
    /// # Errors
    /// Corruption where version or length are wrong or a tag is unknown. The order is not checked, see
    /// [`Acl::is_valid`].
    pub fn from_disk(bytes: &[u8]) -> Result<Self> {
        let cut_off = || corrupt("the last entry of an access control list is cut off");
        let mut rest = entries_of(bytes, DISK_VERSION)?;
        let mut entries = Vec::new();
        while !rest.is_empty() {
            let (short, _) = AclEntryShort::ref_from_prefix(rest).map_err(|_| cut_off())?;
            let perm = short.e_perm.get();
            let tag = Tag::from_raw(short.e_tag.get(), NO_ID)?;
            let (tag, len) = if tag.id().is_some() {
                let (full, _) = AclEntryFull::ref_from_prefix(rest).map_err(|_| cut_off())?;
                (Tag::from_raw(full.e_tag.get(), full.e_id.get())?, AclEntryFull::SIZE)
            } else {
                (tag, AclEntryShort::SIZE)
            };
            entries.push(AclEntry { tag, perm });
            rest = rest.get(len..).unwrap_or_default();
        }
        Ok(Acl(entries))
    }

    /// Reads the format of the extended attribute.
    ///
    /// # Errors
    /// As for [`Acl::from_disk`].
    pub fn from_xattr(bytes: &[u8]) -> Result<Self> {
        let entries = <[AclEntryFull]>::ref_from_bytes(entries_of(bytes, XATTR_VERSION)?)
            .map_err(|_| corrupt("the last entry of an access control list is cut off"))?;
        let read =
            |e: &AclEntryFull| Ok(AclEntry { tag: Tag::from_raw(e.e_tag.get(), e.e_id.get())?, perm: e.e_perm.get() });
        entries.iter().map(read).collect::<Result<_>>().map(Acl)
    }

    /// The on-disk format of this list.
    #[must_use]
    pub fn to_disk(&self) -> Vec<u8> {
        self.to_bytes(DISK_VERSION)
    }

    /// The extended attribute with this list.
    #[must_use]
    pub fn to_xattr(&self) -> Vec<u8> {
        self.to_bytes(XATTR_VERSION)
    }

    fn to_bytes(&self, version: u32) -> Vec<u8> {
        let mut bytes = AclHeader { a_version: version.into() }.as_bytes().to_vec();
        for entry in &self.0 {
            let (e_tag, e_perm) = (entry.tag.raw().into(), entry.perm.into());
            match entry.tag.id() {
                None if version == DISK_VERSION => {
                    bytes.extend_from_slice(AclEntryShort { e_tag, e_perm }.as_bytes());
                }
                id => {
                    let e_id = id.unwrap_or(NO_ID).into();
                    bytes.extend_from_slice(AclEntryFull { e_tag, e_perm, e_id }.as_bytes());
                }
            }
        }
        bytes
    }

    /// Whether the kernel would accept this list from a program: owner, users, group, groups, mask, others, in this
    /// order; users, groups and mask may be missing, but with users or groups there must be a mask; ids are ids, and
    /// permissions have no other bits.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let rank = |entry: &AclEntry| match entry.tag {
            Tag::UserObj => 0,
            Tag::User(_) => 1,
            Tag::GroupObj => 2,
            Tag::Group(_) => 3,
            Tag::Mask => 4,
            Tag::Other => 5,
        };
        let count = |rank_wanted: u8| self.0.iter().filter(|entry| rank(entry) == rank_wanted).count();
        let named = count(1) + count(3);
        let masks = count(4);
        self.0.is_sorted_by_key(rank)
            && [0, 2, 5].iter().all(|&rank| count(rank) == 1)
            && (masks == 1 || masks == 0 && named == 0)
            && self.0.iter().all(|entry| entry.perm & !7 == 0 && entry.tag.id() != Some(NO_ID))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> Acl {
        let entry = |tag, perm| AclEntry { tag, perm };
        Acl(vec![
            entry(Tag::UserObj, 7),
            entry(Tag::User(1000), 6),
            entry(Tag::GroupObj, 5),
            entry(Tag::Mask, 7),
            entry(Tag::Other, 0),
        ])
    }

    #[test]
    fn both_forms() {
        let disk = b"\x01\0\0\0\x01\0\x07\0\x02\0\x06\0\xe8\x03\0\0\x04\0\x05\0\x10\0\x07\0\x20\0\0\0";
        let xattr = b"\x02\0\0\0\x01\0\x07\0\xff\xff\xff\xff\x02\0\x06\0\xe8\x03\0\0\x04\0\x05\0\xff\xff\xff\xff\
            \x10\0\x07\0\xff\xff\xff\xff\x20\0\0\0\xff\xff\xff\xff";
        assert_eq!(sample().to_disk(), disk);
        assert_eq!(sample().to_xattr(), xattr);
        assert_eq!(Acl::from_disk(disk), Ok(sample()));
        assert_eq!(Acl::from_xattr(xattr), Ok(sample()));
        assert!(Acl::from_disk(xattr).is_err());
        assert!(Acl::from_xattr(disk).is_err());
        for cut in [3, 6, 14, 27] {
            assert!(Acl::from_disk(&disk[..cut]).is_err(), "{cut}");
        }
        assert!(Acl::from_xattr(&xattr[..10]).is_err());
        assert!(Acl::from_disk(b"\x01\0\0\0\x03\0\x07\0").is_err());
    }

    #[test]
    fn validity() {
        assert!(sample().is_valid());
        let without = |i: usize| {
            let mut acl = sample();
            acl.0.remove(i);
            acl.is_valid()
        };
        assert_eq!([0, 1, 2, 3, 4].map(without), [false, true, false, false, false]);
        let mut swapped = sample();
        swapped.0.swap(0, 1);
        assert!(!swapped.is_valid());
        let mut odd = sample();
        odd.0[0].perm = 8;
        assert!(!odd.is_valid());
        let mut nameless = sample();
        nameless.0[1].tag = Tag::User(NO_ID);
        assert!(!nameless.is_valid());
        assert!(!Acl::default().is_valid());
    }

    proptest! {
        #[test]
        fn any_bytes(version in 0u8..3, bytes in proptest::collection::vec(0u8..40, 0..100)) {
            let bytes = [&[version, 0, 0, 0], bytes.as_slice()].concat();
            if let Ok(acl) = Acl::from_disk(&bytes) {
                prop_assert_eq!(acl.to_disk(), bytes.clone());
                prop_assert_eq!(Acl::from_xattr(&acl.to_xattr()), Ok(acl));
            }
            if let Ok(acl) = Acl::from_xattr(&bytes) {
                prop_assert_eq!(Acl::from_disk(&acl.to_disk()), Ok(acl));
            }
        }
    }
}
