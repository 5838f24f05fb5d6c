//! Extended attributes: in the inode, in a block that inodes may share, and values in inodes of their own.

use super::value_inodes::{Mismatch, ValueInode, ValueRef};
use crate::context::Context;
use crate::inode_records::Marks;
use crate::problem::Problem;
use crate::scan::found::XattrRef;
use crate::table::Code;
use format::dir::ChecksumState;
use format::feature::Incompat;
use format::inode::{FileKind, InodeFlags, RawInode};
use format::native::map::BlockKind;
use format::superblock::Geometry;
use format::xattr::{self, MAGIC, XattrEntry, XattrHeader, XattrIbodyHeader, entry_hash, index};
use format::{FsBlock, InodeNo};
use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use zerocopy::FromBytes;

/// Results of the attributes in an inode for the rest of the self-check.
#[derive(Debug, Default)]
pub(crate) struct InInode<'a> {
    /// The value of `system.data`: the part of inline data that does not fit into `i_block`.
    pub(crate) system_data: Option<&'a [u8]>,
    /// Whether the encryption context is in the inode.
    pub(crate) encryption: bool,
    /// Clusters of values in other inodes, which count as the owner's.
    pub(crate) value_clusters: u64,
}

/// Records an inode that contains a value.
pub(crate) fn found_value_inode(ctx: &Context<'_>, inode: InodeNo, raw: &RawInode<'_>) {
    let d = raw.disk;
    let value = ValueInode {
        mode: d.i_mode.get(),
        regular: raw.kind() == Some(FileKind::Regular),
        size: raw.size(),
        hash: d.i_atime.get(),
        refs: u64::from(d.i_ctime.get()) << 32 | u64::from(d.i_version_lo.get()),
        links: d.i_links_count.get(),
        parent: d.i_mtime.get(),
    };
    ctx.values.inodes.lock().insert(inode, value);
}

/// Checks the attributes after an inode's extra fields.
pub(crate) fn check_in_inode<'a>(ctx: &Context<'_>, inode: InodeNo, raw: &RawInode<'a>) -> InInode<'a> {
    let mut seen = InInode::default();
    let Ok((header, bytes)) = XattrIbodyHeader::ref_from_prefix(raw.attribute_area()) else {
        check_context(ctx, inode, raw, false);
        return seen;
    };
    if header.h_magic.get() == MAGIC {
        let values = Cell::new(0);
        let strict = raw.flags().contains(InodeFlags::INLINE_DATA);
        let area = Area { ctx, owner: inode, block: None, shares: 1, bytes, strict, values: &values };
        seen.value_clusters = area.check(0, |entry, name, value| match (entry.e_name_index, name) {
            // readers take the first one
            (index::SYSTEM, b"data") => seen.system_data = seen.system_data.or(Some(value)),
            (index::ENCRYPTION, b"c") => {
                seen.encryption = true;
                if area.check_encryption(value, raw.flags().contains(InodeFlags::ENCRYPT)) {
                    ctx.policies.put(inode, value);
                }
            }
            _ => {}
        });
        if values.get() > 0 {
            ctx.values.charges.lock().push((inode, values.get()));
        }
    }
    check_context(ctx, inode, raw, seen.encryption);
    seen
}

/// Checks that an encrypted inode has a context in the inode, or may have it in its attribute block, which is checked
/// when it is read.
pub(crate) fn check_context(ctx: &Context<'_>, inode: InodeNo, raw: &RawInode<'_>, in_inode: bool) {
    let encrypted = raw.flags().contains(InodeFlags::ENCRYPT);
    if encrypted && !in_inode && raw.file_acl(true).get() == 0 {
        ctx.report(Problem::new(Code::EncryptionXattrMissing).inode(inode));
    }
}

/// Checks an attribute block and its reference count. Returns the clusters of its values in other inodes, which count
/// as each owner's.
pub(crate) fn check_block(
    ctx: &Context<'_>,
    block: FsBlock,
    inodes: &[XattrRef],
    bytes: Result<&[u8], &blockdev::Error>,
) -> u64 {
    let Some(first) = inodes.first() else { return 0 };
    let at = |code| Problem::new(code).inode(first.inode).block(block);
    let Ok(bytes) = bytes else {
        ctx.report(at(Code::XattrBlockUnreadable));
        return 0;
    };
    let owners: Vec<InodeNo> = inodes.iter().map(|user| user.inode).collect();
    ctx.identify(block, BlockKind::Attributes, &owners);
    let Ok((header, _)) = XattrHeader::ref_from_prefix(bytes) else { return 0 };
    if header.h_magic.get() != MAGIC {
        ctx.report(at(Code::XattrBlockBad).found(u64::from(header.h_magic.get())));
        return 0;
    }
    let geometry: &Geometry = &ctx.volume.geometry;
    if geometry.metadata_csum && xattr::block_checksum(bytes, block, geometry.checksum_seed) != ChecksumState::Good {
        ctx.report(at(Code::XattrBlockChecksumWrong));
    }
    if header.h_blocks.get() != 1 {
        ctx.report(at(Code::XattrBlockCountWrong).found(u64::from(header.h_blocks.get())));
        return 0;
    }
    let count = inodes.len() as u64;
    if u64::from(header.h_refcount.get()) != count {
        ctx.report(at(Code::XattrRefcountWrong).found(u64::from(header.h_refcount.get())).expected(count));
    }
    let shares = u32::try_from(count).unwrap_or(u32::MAX);
    let values = Cell::new(0);
    let area = Area { ctx, owner: first.inode, block: Some(block), shares, bytes, strict: true, values: &values };
    let mut encryption = false;
    let value_clusters = area.check(XattrHeader::SIZE, |entry, name, value| {
        if (entry.e_name_index, name) == (index::ENCRYPTION, b"c".as_slice()) {
            encryption = true;
            let is_encrypted =
                |user: &XattrRef| ctx.inodes.get(user.inode).is_some_and(|r| r.marks.contains(Marks::ENCRYPTED));
            if area.check_encryption(value, inodes.iter().any(is_encrypted)) {
                inodes.iter().for_each(|user| ctx.policies.put(user.inode, value));
            }
        }
    });
    if values.get() > 0 {
        ctx.values.charges.lock().extend(inodes.iter().map(|user| (user.inode, values.get())));
    }
    if !encryption {
        // an inode with a context in its own body needs none here; those without any were recorded
        for user in inodes {
            let record = ctx.inodes.get(user.inode);
            if record.is_some_and(|r| r.marks.contains(Marks::ENCRYPTED) && !r.marks.contains(Marks::CONTEXT)) {
                ctx.report(Problem::new(Code::EncryptionXattrMissing).inode(user.inode).block(block));
            }
        }
    }
    value_clusters
}

/// An area with attributes: the end of an inode, or a block.
struct Area<'a, 'c> {
    ctx: &'c Context<'c>,
    owner: InodeNo,
    block: Option<FsBlock>,
    shares: u32,
    /// The bytes that value offsets are relative to.
    bytes: &'a [u8],
    /// Whether even an empty value must have an offset in the area: a search for inline data fails on any invalid
    /// entry.
    strict: bool,
    /// The number of values in inodes of their own.
    values: &'c Cell<u64>,
}

impl<'a> Area<'a, '_> {
    /// Checks the entries from `at` on and calls `each` with those whose value is in the area and valid. Returns the
    /// clusters of the values in other inodes.
    fn check(&self, mut at: usize, mut each: impl FnMut(&XattrEntry, &'a [u8], &'a [u8])) -> u64 {
        let geometry = &self.ctx.volume.geometry;
        let cluster = u64::from(geometry.block_size) * u64::from(geometry.cluster_blocks);
        let mut elsewhere = 0;
        let mut values: Vec<(usize, usize)> = Vec::new();
        loop {
            match self.bytes.get(at..).and_then(|rest| rest.first_chunk::<4>()) {
                None => {
                    self.collide();
                    return elsewhere;
                }
                Some([0, 0, 0, 0]) => break,
                Some(_) => {}
            }
            let rest = self.bytes.get(at..).unwrap_or_default();
            let Ok((entry, rest)) = XattrEntry::ref_from_prefix(rest) else {
                self.collide();
                return elsewhere;
            };
            // a name with a zero byte ends before its length, and the kernel rejects an inode with one
            let Some(name) = rest.get(..usize::from(entry.e_name_len)).filter(|name| !name.contains(&0)) else {
                let code = self.either(Code::InodeXattrNameLengthWrong, Code::XattrNameBad);
                self.report_with(code, |problem| problem.found(u64::from(entry.e_name_len)));
                return elsewhere;
            };
            if self.block.is_some() && entry.e_name_index == 0 {
                self.report(Code::XattrNameBad);
                return elsewhere;
            }
            at += xattr::entry_len(entry.e_name_len);
            let size = entry.e_value_size.get() as usize;
            if entry.e_value_inum.get() != 0 {
                self.found_value(entry, name);
                elsewhere += (size as u64).div_ceil(cluster);
                continue;
            }
            let start = usize::from(entry.e_value_offs.get());
            if size == 0 {
                self.check_hash(entry, name, &[]);
                if self.strict && start > self.bytes.len() {
                    let code = self.either(Code::InodeXattrValueSizeWrong, Code::XattrValueBad);
                    self.report_with(code, |problem| problem.name(title(entry.e_name_index, name)).found(0));
                    if self.block.is_some() {
                        return elsewhere;
                    }
                }
                // the kernel does not find an empty value with an offset beyond the end
                if start <= self.bytes.len() {
                    each(entry, name, &[]);
                }
                continue;
            }
            let end = start.saturating_add(size.saturating_add(3) & !3);
            let Some(value) = self.bytes.get(start..).and_then(|b| b.get(..size)).filter(|_| end <= self.bytes.len())
            else {
                let code = self.either(Code::InodeXattrValueSizeWrong, Code::XattrValueBad);
                self.report_with(code, |problem| problem.name(title(entry.e_name_index, name)).found(size as u64));
                return elsewhere;
            };
            values.push((start, end));
            // the hash covers whole words, including bytes after the value's end
            self.check_hash(entry, name, self.bytes.get(start..end).unwrap_or(value));
            each(entry, name, value);
        }
        // the terminator belongs to the names
        values.push((0, at + 4));
        values.sort_unstable();
        if values.iter().zip(values.iter().skip(1)).any(|(a, b)| a.1 > b.0) {
            self.collide();
        }
        elsewhere
    }

    fn check_hash(&self, entry: &XattrEntry, name: &[u8], value: &[u8]) {
        let stored = entry.e_hash.get();
        // in an inode the hash may be 0
        if stored == 0 && self.block.is_none() {
            return;
        }
        let computed = entry_hash(name, value, false);
        if computed != stored && entry_hash(name, value, true) != stored {
            self.report_with(Code::InodeXattrHashWrong, |problem| {
                problem.name(title(entry.e_name_index, name)).found(stored.into()).expected(computed.into())
            });
        }
    }

    /// Whether a context has the length of its version, which is reported for a user of it: without the flag it has no
    /// meaning.
    fn check_encryption(&self, value: &[u8], has_user: bool) -> bool {
        let valid = match value.first() {
            Some(1) => value.len() == 28,
            Some(2) => value.len() == 40,
            None | Some(0) => false,
            // a future version: any length
            Some(3..) => true,
        };
        if !valid && has_user {
            self.report(Code::EncryptionXattrCorrupt);
        }
        valid
    }

    /// Checks and records an entry with its value in another inode.
    fn found_value(&self, entry: &XattrEntry, name: &[u8]) {
        // an empty value has no inode
        if entry.e_value_size.get() == 0 {
            let code = self.either(Code::InodeXattrValueSizeWrong, Code::XattrValueBad);
            self.report_with(code, |problem| problem.name(title(entry.e_name_index, name)).found(0));
        }
        // the kernel ignores it, but with it e2fsck does not find inline data and truncates the file
        if self.strict && self.block.is_none() && entry.e_value_offs.get() != 0 {
            self.report_with(Code::InodeXattrOffsetUnused, |problem| {
                problem.name(title(entry.e_name_index, name)).found(entry.e_value_offs.get().into())
            });
        }
        let value = ValueRef {
            target: InodeNo(entry.e_value_inum.get()),
            owner: self.owner,
            size: entry.e_value_size.get(),
            hash: entry.e_hash.get(),
            name: [false, true].map(|signed| entry_hash(name, &[], signed)),
            shares: self.shares,
            title: title(entry.e_name_index, name).into(),
        };
        self.values.set(self.values.get() + 1);
        self.ctx.values.refs.lock().push(value);
    }

    fn either(&self, in_inode: Code, in_block: Code) -> Code {
        if self.block.is_some() { in_block } else { in_inode }
    }

    fn collide(&self) {
        self.report(self.either(Code::InodeXattrEntriesCollide, Code::XattrEntriesCollide));
    }

    fn report(&self, code: Code) {
        self.report_with(code, |problem| problem);
    }

    fn report_with(&self, code: Code, with: impl FnOnce(Problem) -> Problem) {
        let problem = with(Problem::new(code).inode(self.owner));
        self.ctx.report(match self.block {
            Some(block) => problem.block(block),
            None => problem,
        });
    }
}

/// Checks values in inodes of their own, and those inodes' reference counts. Called when all references and inodes were
/// read.
pub(crate) fn check_values(ctx: &Context<'_>) {
    let refs = std::mem::take(&mut *ctx.values.refs.lock());
    let inodes = std::mem::take(&mut *ctx.values.inodes.lock());
    let mut mapped = std::mem::take(&mut *ctx.values.mapped.lock());
    let mut counted: HashMap<InodeNo, u64> = HashMap::new();
    let mut proven: HashSet<InodeNo> = HashSet::new();
    for value in &refs {
        let at = |code| Problem::new(code).inode(value.owner).found(u64::from(value.target.get())).name(&*value.title);
        let exists = (ctx.volume.geometry.first_inode..=ctx.volume.geometry.inodes).contains(&value.target.get());
        if !exists || !ctx.inodes.is_used(value.target) {
            ctx.report(at(Code::XattrValueInodeWrong));
            continue;
        }
        let has_feature = ctx.volume.features.incompat.contains(Incompat::EA_INODE);
        let Some(inode) = inodes.get(&value.target) else {
            // without flag and feature it is an ordinary file, which must not become a value
            ctx.report(at(if has_feature { Code::XattrValueInodeFlagMissing } else { Code::XattrValueInodeWrong }));
            continue;
        };
        if !has_feature {
            ctx.report(at(Code::XattrValueInodeFeatureMissing));
        }
        *counted.entry(value.target).or_insert(0) += 1;
        if check_value(ctx, value, inode, mapped.get(&value.target)) {
            proven.insert(value.target);
        }
    }
    mapped.retain(|inode, _| !proven.contains(inode));
    for (inode, Mismatch { size, by_blocks }) in mapped {
        ctx.report(Problem::new(Code::InodeSizeWrong).inode(inode).found(size).expected(by_blocks));
    }
    let mut inodes: Vec<_> = inodes.into_iter().collect();
    inodes.sort_unstable_by_key(|(inode, _)| *inode);
    for (inode, value) in inodes {
        if !value.regular {
            let code =
                if proven.contains(&inode) { Code::XattrValueInodeModeWrong } else { Code::XattrValueInodeNotRegular };
            ctx.report(Problem::new(code).inode(inode).found(value.mode.into()));
        }
        let names = counted.get(&inode).copied().unwrap_or(0);
        if names == 0 {
            // an ordinary file if it has names, which phase 4 checks
            continue;
        }
        ctx.inodes.mark(inode, Marks::VALUE);
        if value.refs != names && value.links == 1 {
            let problem = Problem::new(Code::XattrValueInodeRefcountWrong).inode(inode);
            ctx.report(problem.found(value.refs).expected(names));
        }
    }
}

/// Checks a reference against the inode of its value, whose blocks may imply another size. Returns whether it is proven
/// that the value is in that inode, whatever its size.
fn check_value(ctx: &Context<'_>, value: &ValueRef, inode: &ValueInode, mapped: Option<&Mismatch>) -> bool {
    let at = |code| Problem::new(code).inode(value.owner).name(&*value.title);
    let same_size = inode.size == u64::from(value.size);
    // Lustre's older format has no hash, but the inode has the number of its only parent
    let lustre = inode.parent == value.owner.get() && inode.refs >> 32 != 0 && value.shares == 1;
    let proven = lustre || inode.hashes(value);
    if proven && (!same_size || mapped.is_some()) {
        let size = mapped.filter(|_| same_size).map_or(inode.size, |mismatch| mismatch.by_blocks);
        let problem = at(Code::XattrValueSizeWrong).found(value.size.into()).expected(size);
        ctx.report(problem.count(value.target.get().into()));
    } else if !proven {
        let computed = value.name.first().map_or(0, |name| inode.entry_hash(*name));
        ctx.report(at(Code::InodeXattrHashWrong).found(value.hash.into()).expected(computed.into()));
    }
    proven
}

/// An attribute's name as programs see it; with the number of its prefix for one that they do not see.
pub(crate) fn title(index: u8, name: &[u8]) -> Vec<u8> {
    let known = xattr::full_name(index, name);
    known.unwrap_or_else(|| [format!("{index}:").as_bytes(), name].concat())
}
