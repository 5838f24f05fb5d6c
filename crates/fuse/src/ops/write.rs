//! Requests that change a volume.

use super::ioctl::{SET_FLAGS, SET_FSXATTR};
use super::{Ops, RENAME_EXCHANGE, RENAME_NOREPLACE, RENAME_WHITEOUT};
use fs::{AllocateMode, Attributes, Error, FileKind, Inode, InodeFlags, InodeNo, NewFile, RenameFlags, SetAttributes};
use fs::{Timestamp, WriteHow, Written, XattrMode, without_privileges};
use fuse_wire::{Answer, Caller, Changes, Operation, Reply, Request, SetTime};
use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::Errno;
use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

/// The set-group-id bit.
const S_ISGID: u16 = 0o2000;
/// The attribute with the capabilities that a program gets on execution; it is removed when the program is changed.
pub(super) const CAPABILITY: &[u8] = b"security.capability";
/// The maximum number of bytes copied in one request, so that none runs for long; programs request the rest.
const MOST_COPIED: u64 = 64 << 20;
/// The number of bytes copied at a time.
const PIECE: usize = 1 << 20;

/// Flags that chattr(1) changes: EXT4_FL_USER_MODIFIABLE without the two for the block mapping.
const MODIFIABLE: u32 = 0x6003_C0FF;

/// FS_XFLAG_: the flags of FS_IOC_FSSETXATTR, each with the inode flag that it maps to.
const XFLAGS: [(u32, InodeFlags); 7] = [
    (0x8, InodeFlags::IMMUTABLE),
    (0x10, InodeFlags::APPEND),
    (0x20, InodeFlags::SYNC),
    (0x40, InodeFlags::NOATIME),
    (0x80, InodeFlags::NODUMP),
    (0x200, InodeFlags::PROJINHERIT),
    (0x8000, InodeFlags::DAX),
];

/// `struct fsxattr`.
#[repr(C)]
#[derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)]
struct FsXattr {
    flags: u32,
    extent_size: u32,
    extents: u32,
    project: u32,
    copy_extent_size: u32,
    padding: [u8; 8],
}

/// Whether a process is in a group. The request contains one of its groups; the others are read from /proc, and unknown
/// for a process that is not visible here.
fn is_in_group(caller: &Caller, group: u32) -> bool {
    if caller.gid == group {
        return true;
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", caller.pid)).unwrap_or_default();
    let groups = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap_or_default();
    groups.split_whitespace().any(|word| word.parse() == Ok(group))
}

/// Whether a change of attributes comes from the kernel, which cached written data and now sets its times: those of the
/// write, or only the ctime. No program sets the two to the same value, or to a value that they have.
fn is_of_cached_write(a: &Attributes, changes: &Changes) -> bool {
    let (Some(SetTime::At(seconds, nanos)), Some(ctime)) = (changes.mtime, changes.ctime) else { return false };
    let alike = ctime == SetTime::At(seconds, nanos) || a.mtime == Timestamp { seconds, nanos };
    alike && changes.atime.is_none() && a.kind == FileKind::Regular
}

/// The new attributes for a change by `caller` of a file with attributes `a`.
fn asked(a: &Attributes, changes: &Changes, caller: &Caller, now: Timestamp, writeback: bool) -> SetAttributes {
    let time = |time| match time {
        SetTime::Now => now,
        SetTime::At(seconds, nanos) => Timestamp { seconds, nanos },
    };
    let bits = |mode: u32| (mode & 0o7777) as u16;
    let mut mode = changes.mode.map(bits);
    let owned_anew = changes.uid.is_some() || changes.gid.is_some();
    if (owned_anew && a.kind != FileKind::Directory) || changes.kill_privileges {
        let before = mode.unwrap_or(a.mode & 0o7777);
        // for root, changing the owner does not change the mode
        let after = without_privileges(before, || caller.uid == 0 || is_in_group(caller, a.gid));
        mode = mode.map(|_| after).or_else(|| (after != before).then_some(after));
    }
    let present = |time: Option<SetTime>| matches!(time, None | Some(SetTime::Now));
    let times_alone = mode.is_none() && !owned_anew && changes.size.is_none();
    let touch = changes.atime.is_some() && present(changes.atime) && present(changes.mtime);
    // data written while the file was writable must not fail at fsync(2) and close(2)
    let touch = times_alone && (touch || writeback && is_of_cached_write(a, changes));
    SetAttributes {
        mode,
        uid: changes.uid,
        gid: changes.gid,
        atime: changes.atime.map(time),
        mtime: changes.mtime.map(time),
        ctime: changes.ctime.map(time),
        touch,
        ..SetAttributes::default()
    }
}

/// The current time.
fn now() -> Timestamp {
    // a clock before 1970 counts as 1970
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp { seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX), nanos: since.subsec_nanos() }
}

/// Decodes a device number.
fn unpack(device: u32) -> (u32, u32) {
    ((device >> 8) & 0xfff, (device & 0xff) | ((device >> 12) & 0xf_ff00))
}

/// The parameters of creating a file with mknod(2) or a related call.
pub(super) struct Making<'a> {
    pub(super) dir: u64,
    /// `None`: a file without a name (O_TMPFILE).
    pub(super) name: Option<&'a [u8]>,
    /// The mode with the file type.
    pub(super) mode: u32,
    pub(super) umask: u32,
    pub(super) device: u32,
    /// The flags with which it is opened after creation; `None` for not opened.
    pub(super) open: Option<OFlags>,
}

impl Ops {
    pub(super) fn make(&self, making: &Making<'_>, caller: &Caller, reply: &mut Reply<'_>) -> Answer<()> {
        let kind = match making.mode & 0o170_000 {
            0o100_000 | 0 => FileKind::Regular,
            0o040_000 => FileKind::Directory,
            0o020_000 => FileKind::CharDevice,
            0o060_000 => FileKind::BlockDevice,
            0o010_000 => FileKind::Fifo,
            0o140_000 => FileKind::Socket,
            _ => return Err(Errno::INVAL),
        };
        let file = NewFile {
            kind,
            mode: (making.mode & 0o7777) as u16,
            umask: (making.umask & 0o777) as u16,
            uid: caller.uid,
            gid: caller.gid,
            device: unpack(making.device),
        };
        let dir = self.number(making.dir)?;
        let made = match making.name {
            Some(name) => self.volume.create(dir, name, &file),
            None => self.volume.tmpfile(dir, &file),
        };
        let inode = self.outcome(dir, made)?;
        let entry = self.entry(&self.volume.attributes(&inode));
        // a file without a name already has a lookup count
        if making.name.is_some() {
            self.volume.add_lookup(inode.number);
        }
        let Some(how) = making.open else { return reply.entry(&entry) };
        self.dirty_pages.record_opened(inode.number, how);
        reply.created(&entry)
    }

    pub(super) fn symlink(
        &self,
        dir: u64,
        name: &[u8],
        target: &[u8],
        caller: &Caller,
        reply: &mut Reply<'_>,
    ) -> Answer<()> {
        let dir = self.number(dir)?;
        let inode = self.outcome(dir, self.volume.symlink(dir, name, target, caller.uid, caller.gid))?;
        self.volume.add_lookup(inode.number);
        reply.entry(&self.entry(&self.volume.attributes(&inode)))
    }

    pub(super) fn link(&self, target: u64, dir: u64, name: &[u8], reply: &mut Reply<'_>) -> Answer<()> {
        let (target, dir) = (self.number(target)?, self.number(dir)?);
        let inode = self.outcome(dir, self.volume.link(target, dir, name))?;
        let attributes = self.outcome(target, self.volume.attributes_of(inode.number))?;
        self.volume.add_lookup(inode.number);
        reply.entry(&self.entry(&attributes))
    }

    pub(super) fn remove(&self, dir: u64, name: &[u8], is_dir: bool) -> Answer<()> {
        let dir = self.number(dir)?;
        let volume = &self.volume;
        self.outcome(dir, if is_dir { volume.rmdir(dir, name) } else { volume.unlink(dir, name) })
    }

    pub(super) fn rename(&self, from: (u64, &[u8]), to: (u64, &[u8]), flags: u32) -> Answer<()> {
        if flags & !(RENAME_NOREPLACE | RENAME_EXCHANGE | RENAME_WHITEOUT) != 0 {
            return Err(Errno::INVAL);
        }
        let flags = RenameFlags {
            no_replace: flags & RENAME_NOREPLACE != 0,
            exchange: flags & RENAME_EXCHANGE != 0,
            whiteout: flags & RENAME_WHITEOUT != 0,
        };
        let (old_dir, new_dir) = (self.number(from.0)?, self.number(to.0)?);
        self.outcome(old_dir, self.volume.rename(old_dir, from.1, new_dir, to.1, flags))
    }

    pub(super) fn set_attributes(
        &self,
        node: u64,
        changes: &Changes,
        caller: &Caller,
        reply: &mut Reply<'_>,
    ) -> Answer<()> {
        let number = self.number(node)?;
        if changes.size.is_some() || changes.uid.is_some() || changes.gid.is_some() {
            self.drop_capability(number)?;
        }
        if let Some(size) = changes.size {
            // before the content: otherwise the process that changes it could use them
            if changes.kill_privileges {
                self.drop_privileges(number, caller)?;
            }
            self.record_cut(number, size, u64::MAX)?;
            self.outcome(number, self.volume.truncate(number, size))?;
        }
        let before = self.outcome(number, self.volume.attributes_of(number))?;
        let set = asked(&before, changes, caller, now(), self.writeback);
        let size_alone = changes.size.is_some() && set == SetAttributes::default();
        if !size_alone {
            self.outcome(number, self.volume.set_attributes(number, &set))?;
        }
        reply.attr(&self.attr(&self.getattr(node)?), self.attr_timeout)
    }

    /// Records that the existing part of a range of a file is about to be removed.
    fn record_cut(&self, number: InodeNo, start: u64, end: u64) -> Answer<()> {
        let Some(holes) = &self.holes else { return Ok(()) };
        let a = self.outcome(number, self.volume.attributes_of(number))?;
        if start < a.size {
            holes.cut(number, start, end);
        }
        Ok(())
    }

    pub(super) fn write(
        &self,
        node: u64,
        (offset, data): (u64, &[u8]),
        how: WriteHow<'_>,
        kill_privileges: bool,
        caller: &Caller,
    ) -> Answer<Written> {
        let number = self.number(node)?;
        self.drop_capability(number)?;
        let in_group = |group| is_in_group(caller, group);
        let drop_privileges = if kill_privileges { Some(&in_group as _) } else { None };
        let how = WriteHow { drop_privileges, ..how };
        self.outcome(number, self.volume.write_with(number, offset, data, &how))
    }

    /// Writes back data that the kernel cached; it sets the file's times itself. Returns the number of bytes written.
    pub(super) fn write_page(&self, node: u64, offset: u64, data: &[u8]) -> Answer<u32> {
        let number = self.number(node)?;
        self.drop_capability(number)?;
        let how = WriteHow { preserve_times: true, pages: true, ..WriteHow::default() };
        let written = self.outcome(number, self.volume.write_with(number, offset, data, &how))?;
        // a request has at most 1 MiB
        Ok(u32::try_from(written.bytes).unwrap_or(u32::MAX))
    }

    /// Removes the set-user-id and set-group-id bits of a file that is about to change; returns whether it had any.
    fn drop_privileges(&self, number: InodeNo, caller: &Caller) -> Answer<bool> {
        self.outcome(number, self.volume.drop_privileges(number, &|group| is_in_group(caller, group)))
    }

    /// Removes the capabilities of a file that is about to change. The kernel reads them before its first write to a
    /// file, so the files that have some are known.
    fn drop_capability(&self, number: InodeNo) -> Answer<()> {
        if !self.any_capable.load(Ordering::Acquire) || !self.capable.lock().remove(&number) {
            return Ok(());
        }
        match self.volume.remove_xattr(number, CAPABILITY) {
            Err(Error::NoAttribute) => Ok(()),
            outcome => self.outcome(number, outcome),
        }
    }

    /// Records that a file has capabilities.
    pub(super) fn record_capability(&self, number: InodeNo) {
        self.capable.lock().insert(number);
        self.any_capable.store(true, Ordering::Release);
    }

    pub(super) fn fsync(&self, node: u64, data: bool) -> Answer<()> {
        let number = self.number(node)?;
        self.durable(number, self.volume.fsync(number, data))
    }

    pub(super) fn sync(&self) -> Answer<()> {
        self.durable(InodeNo::ROOT, self.volume.sync())
    }

    /// Makes the changes of a request durable, as mounts with `sync` and `dirsync` guarantee.
    pub(super) fn sync_behind(&self, request: &Request<'_>) -> Answer<()> {
        match request.operation {
            Operation::Symlink { .. }
            | Operation::MkNod { .. }
            | Operation::MkDir { .. }
            | Operation::Create { name: Some(_), .. }
            | Operation::Unlink { .. }
            | Operation::RmDir { .. }
            | Operation::Rename { .. }
            | Operation::Link { .. } => self.sync(),
            Operation::Write { .. } if self.sync => self.fsync(request.node, false),
            ref other if self.sync && other.changes() => self.sync(),
            _ => Ok(()),
        }
    }

    /// Data that was written but did not reach the device is a device error for every process that syncs the file, now
    /// and later.
    fn durable(&self, number: InodeNo, outcome: fs::Result<()>) -> Answer<()> {
        if !self.volume.is_writable() {
            return Ok(());
        }
        self.outcome(number, outcome).map_err(|e| if e == Errno::ROFS { Errno::IO } else { e })
    }

    /// Sets an extended attribute. Returns whether other attributes than ctime changed: an access control list changes
    /// the mode, any attribute may change the number of blocks. The kernel expects the former only where it caches the
    /// lists.
    pub(super) fn set_xattr(
        &self,
        node: u64,
        (name, value): (&[u8], &[u8]),
        flags: u32,
        kill_sgid: bool,
    ) -> Answer<bool> {
        let number = self.number(node)?;
        // XATTR_CREATE and XATTR_REPLACE
        let mode = match flags {
            0 => XattrMode::Any,
            1 => XattrMode::Create,
            2 => XattrMode::Replace,
            _ => return Err(Errno::INVAL),
        };
        let before = self.outcome(number, self.volume.attributes_of(number))?;
        self.outcome(number, self.volume.set_xattr(number, name, value, mode))?;
        if name == CAPABILITY {
            self.record_capability(number);
        }
        let a = self.outcome(number, self.volume.attributes_of(number))?;
        if kill_sgid && a.mode & S_ISGID != 0 {
            let set = SetAttributes { mode: Some(a.mode & 0o7777 & !S_ISGID), ..SetAttributes::default() };
            self.outcome(number, self.volume.set_attributes(number, &set))?;
            return Ok(true);
        }
        Ok((a.mode, a.blocks) != (before.mode, before.blocks))
    }

    /// Removes an extended attribute; returns as [`Ops::set_xattr`].
    pub(super) fn remove_xattr(&self, node: u64, name: &[u8]) -> Answer<bool> {
        let number = self.number(node)?;
        let before = self.outcome(number, self.volume.attributes_of(number))?;
        self.outcome(number, self.volume.remove_xattr(number, name))?;
        let after = self.outcome(number, self.volume.attributes_of(number))?;
        Ok((after.mode, after.blocks) != (before.mode, before.blocks))
    }

    /// Allocates or frees space; returns whether privileges were removed from the file.
    pub(super) fn allocate(&self, node: u64, offset: u64, length: u64, mode: u32, caller: &Caller) -> Answer<bool> {
        let number = self.number(node)?;
        let flags = FallocateFlags::from_bits_retain(mode);
        let same_size = FallocateFlags::KEEP_SIZE;
        let mode = match flags {
            f if f.is_empty() => AllocateMode::Extend,
            f if f == same_size => AllocateMode::KeepSize,
            f if f == FallocateFlags::PUNCH_HOLE | same_size => AllocateMode::PunchHole,
            f if f == FallocateFlags::ZERO_RANGE => AllocateMode::Zero,
            f if f == FallocateFlags::ZERO_RANGE | same_size => AllocateMode::ZeroKeepSize,
            f if f == FallocateFlags::COLLAPSE_RANGE => AllocateMode::Collapse,
            f if f == FallocateFlags::INSERT_RANGE => AllocateMode::Insert,
            _ => return Err(Errno::OPNOTSUPP),
        };
        self.drop_capability(number)?;
        if !matches!(mode, AllocateMode::Extend | AllocateMode::KeepSize) {
            self.record_cut(number, offset, offset.saturating_add(length))?;
        }
        // the request does not contain whether they may remain
        let dropped = caller.uid != 0 && self.drop_privileges(number, caller)?;
        self.outcome(number, self.volume.allocate(number, mode, offset, length))?;
        Ok(dropped)
    }

    /// Copies existing content of `node` to another file; returns the number of bytes, and whether privileges were
    /// removed from that file.
    pub(super) fn copy(
        &self,
        (node, mut offset): (u64, u64),
        (target, mut target_offset): (u64, u64),
        length: u64,
        caller: &Caller,
    ) -> Answer<(u64, bool)> {
        let to = self.number(target)?;
        let mut buffer = vec![0; PIECE];
        let (mut left, mut copied, mut dropped) = (length.min(MOST_COPIED), 0, false);
        self.drop_capability(to)?;
        let in_group = |group| is_in_group(caller, group);
        // the request does not contain whether privileges may remain
        let drop_privileges = if caller.uid == 0 { None } else { Some(&in_group as _) };
        let how = WriteHow { drop_privileges, ..WriteHow::default() };
        while left > 0 {
            let piece = usize::try_from(left).map_or(PIECE, |left| left.min(PIECE));
            let Some(piece) = buffer.get_mut(..piece) else { break };
            let read = self.answer_for(node, |v, inode| v.read_at(inode, offset, piece))?;
            let outcome = self.volume.write_with(to, target_offset, piece.get(..read).unwrap_or_default(), &how);
            let written = match self.outcome(to, outcome) {
                // bytes copied before are reported first
                Err(_) if copied > 0 => break,
                outcome => outcome?,
            };
            dropped |= written.dropped;
            let written = written.bytes as u64;
            if written == 0 {
                break;
            }
            (offset, target_offset) = (offset.saturating_add(written), target_offset.saturating_add(written));
            (left, copied) = (left.saturating_sub(written), copied + written);
        }
        Ok((copied, dropped))
    }

    /// chattr(1): FS_IOC_SETFLAGS.
    pub(super) fn set_flags(&self, node: u64, input: &[u8]) -> Answer<()> {
        let (flags, _) = <u32 as zerocopy::FromBytes>::read_from_prefix(input).map_err(|_| Errno::INVAL)?;
        let number = self.number(node)?;
        let a = self.outcome(number, self.volume.attributes_of(number))?;
        let flags = InodeFlags::from_bits_retain(a.flags.bits() & !MODIFIABLE | flags & MODIFIABLE);
        self.write_back_before_flags(node, &a, flags);
        let set = SetAttributes { flags: Some(flags), ..SetAttributes::default() };
        self.outcome(number, self.volume.set_attributes(number, &set)).map(drop)
    }

    /// Makes the kernel write back changes through mappings of a file that is about to become immutable or append-only,
    /// as ext4 does: with the flag set they would be refused. After this the kernel has no page of the file that a
    /// mapping could change without a request.
    fn write_back_before_flags(&self, node: u64, a: &Attributes, flags: InodeFlags) {
        let locking = InodeFlags::IMMUTABLE | InodeFlags::APPEND;
        if a.kind != FileKind::Regular || !(flags & !a.flags).intersects(locking) {
            return;
        }
        self.dirty_pages.write_back_before_locking(node);
    }

    /// Whether a request makes a file immutable or append-only, as far as the request itself shows that.
    pub(super) fn locks_file(operation: &Operation<'_>) -> bool {
        let Operation::Ioctl { command, input, .. } = operation else { return false };
        let Ok((flags, _)) = <u32 as zerocopy::FromBytes>::read_from_prefix(input) else { return false };
        match *command {
            SET_FLAGS => InodeFlags::from_bits_retain(flags).intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND),
            // the first two of XFLAGS
            SET_FSXATTR => flags & 0x18 != 0,
            _ => false,
        }
    }

    /// FS_IOC_FSGETXATTR.
    pub(super) fn fsxattr(&self, node: u64, reply: &mut Reply<'_>) -> Answer<()> {
        let a = self.getattr(node)?;
        let flags = XFLAGS.iter().filter(|(_, flag)| a.flags.contains(*flag)).fold(0, |bits, (bit, _)| bits | bit);
        let answer =
            FsXattr { flags, extent_size: 0, extents: 0, project: a.project, copy_extent_size: 0, padding: [0; 8] };
        reply.ioctl(zerocopy::IntoBytes::as_bytes(&answer))
    }

    /// FS_IOC_FSSETXATTR.
    pub(super) fn set_fsxattr(&self, node: u64, input: &[u8]) -> Answer<()> {
        let (asked, _) = <FsXattr as zerocopy::FromBytes>::read_from_prefix(input).map_err(|_| Errno::INVAL)?;
        let number = self.number(node)?;
        let a = self.outcome(number, self.volume.attributes_of(number))?;
        let known = XFLAGS.iter().fold(0, |bits, (bit, _)| bits | bit);
        if asked.flags & !known != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let flags = XFLAGS.iter().fold(a.flags, |mut flags, (bit, flag)| {
            flags.set(*flag, asked.flags & bit != 0);
            flags
        });
        self.write_back_before_flags(node, &a, flags);
        let project = (asked.project != a.project).then_some(asked.project);
        let set = SetAttributes { flags: Some(flags), project, ..SetAttributes::default() };
        self.outcome(number, self.volume.set_attributes(number, &set)).map(drop)
    }

    /// FITRIM: a range in bytes, and the minimum length worth trimming; the answer has the number of bytes trimmed as
    /// its length.
    pub(super) fn trim(&self, input: &[u8], caller: &Caller, reply: &mut Reply<'_>) -> Answer<()> {
        if caller.uid != 0 {
            return Err(Errno::PERM);
        }
        let ([start, length, least], _) =
            <[u64; 3] as zerocopy::FromBytes>::read_from_prefix(input).map_err(|_| Errno::INVAL)?;
        let trimmed = self.outcome(InodeNo::ROOT, self.volume.trim(start, length, least))?;
        reply.ioctl(zerocopy::IntoBytes::as_bytes(&[start, trimmed, least]))
    }

    /// Updates the access time of a file that was read, where the mount does that.
    pub(super) fn record_read(&self, node: u64) {
        use fuse_wire::Atime;
        if self.atime == Atime::Never || !self.volume.is_writable() {
            return;
        }
        let Ok(number) = self.number(node) else { return };
        let now = now();
        let is_due = |inode: &Inode| {
            let raw = inode.raw();
            let (atime, changed) = (raw.atime(), raw.mtime().max(raw.ctime()));
            let seconds = |t: Timestamp| (t.seconds, t.nanos);
            // mount(8): the access time is not later than a change, or is a day old
            let stale = seconds(atime) <= seconds(changed) || now.seconds - atime.seconds >= 24 * 3600;
            !raw.flags().contains(InodeFlags::NOATIME) && (self.atime == Atime::Strict || stale)
        };
        if !self.volume.inode(number).is_ok_and(|inode| is_due(&inode)) {
            return;
        }
        let set = SetAttributes { atime: Some(now), preserve_ctime: true, ..SetAttributes::default() };
        // the read succeeded; no process waits for the access time
        let Some(_guard) = self.volume.try_change() else { return };
        // checked again with the file locked: another process may have set its times meanwhile
        let _ = self.volume.set_attributes_if(number, &set, is_due);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_user_id_goes_and_set_group_id_where_the_group_may_execute() {
        for (before, after) in [
            (0o6777, 0o777),
            (0o4755, 0o755),
            (0o2755, 0o755),
            (0o2745, 0o2745),
            (0o6744, 0o2744),
            (0o1777, 0o1777),
            (0o755, 0o755),
        ] {
            assert_eq!(without_privileges(before, || true), after, "{before:o}");
            assert_eq!(without_privileges(before, || false), after & !S_ISGID, "{before:o}");
        }
    }

    #[test]
    fn devices_are_unpacked_as_they_are_packed() {
        for numbers in [(1, 3), (8, 255), (259, 1), (4095, 70_000), (0xfff, 0xf_ffff)] {
            assert_eq!(unpack(super::super::device(Some(numbers))), numbers);
        }
    }
}
