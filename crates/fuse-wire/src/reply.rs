//! Answers to the kernel, written where the transport will take them from.

use crate::handle::{new_direct, new_handle};
use crate::protocol::{self as wire, Attr, AttrOut, DirentOut, EntryOut, StatFs};
use rustix::io::Errno;
use zerocopy::{Immutable, IntoBytes};

/// The answer to a request, or the number that says why there is none.
pub type Answer<T> = Result<T, Errno>;

/// A file found or made, as the kernel gets it.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// The number by which the kernel will ask for it; 0 says that there is no such name.
    pub node: u64,
    /// Distinguishes this use of the number from earlier ones.
    pub generation: u64,
    /// For so many seconds the kernel may cache the name.
    pub name_timeout: u64,
    /// For so many seconds the kernel may cache the attributes.
    pub attr_timeout: u64,
    /// Its attributes.
    pub attr: Attr,
}

impl Entry {
    fn wire(&self) -> EntryOut {
        EntryOut {
            node: self.node,
            generation: self.generation,
            entry_valid: self.name_timeout,
            attr_valid: self.attr_timeout,
            entry_valid_nanos: 0,
            attr_valid_nanos: 0,
            attr: self.attr,
        }
    }
}

/// An answer in the making. It is empty until something is put in.
#[derive(Debug)]
pub struct Reply<'a> {
    space: &'a mut [u8],
    len: usize,
    /// The node whose attributes the kernel has to ask for again.
    changed: Option<u64>,
    /// The node whose content the kernel has to ask for again, and from where on.
    moved: Option<(u64, u64)>,
    /// The absence of a name may end at any moment.
    fleeting: bool,
    /// The change that is refused belongs to a transaction that is rolled back.
    rolled_back: bool,
}

impl<'a> Reply<'a> {
    /// An empty answer; what is put in goes to `space`.
    pub fn new(space: &'a mut [u8]) -> Self {
        Self { space, len: 0, changed: None, moved: None, fleeting: false, rolled_back: false }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Says that the request changed attributes of a node in a way that the kernel does not expect of such a request:
    /// it forgets those it has before it gets the answer.
    pub fn attributes_changed(&mut self, node: u64) {
        self.changed = Some(node);
    }

    pub(crate) fn changed(&self) -> Option<u64> {
        self.changed
    }

    /// Says that content of a node, from byte `from` on, is not what the kernel takes it for: it forgets what it has of
    /// it.
    pub fn content_changed(&mut self, node: u64, from: u64) {
        self.moved = Some((node, from));
    }

    pub(crate) fn moved(&self) -> Option<(u64, u64)> {
        self.moved
    }

    /// Says that what the request brings is refused because it belongs to a transaction that is rolled back: that it is
    /// nowhere then is as it should be.
    pub fn belongs_to_rolled_back(&mut self) {
        self.rolled_back = true;
    }

    pub(crate) fn is_rolled_back(&self) -> bool {
        self.rolled_back
    }

    /// Bytes that still have space.
    fn left(&self) -> usize {
        self.space.len() - self.len
    }

    fn put(&mut self, value: &(impl IntoBytes + Immutable)) -> Answer<()> {
        self.bytes(value.as_bytes())
    }

    /// Adds bytes: a link's target, a value.
    ///
    /// # Errors
    /// E2BIG where there is no space for them.
    pub fn bytes(&mut self, bytes: &[u8]) -> Answer<()> {
        let space =
            self.space.get_mut(self.len..).and_then(|space| space.get_mut(..bytes.len())).ok_or(Errno::TOOBIG)?;
        space.copy_from_slice(bytes);
        self.len += bytes.len();
        Ok(())
    }

    /// Answers a read of `size` bytes with what `read` puts into the buffer it gets.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn fill(&mut self, size: u32, read: impl FnOnce(&mut [u8]) -> Answer<usize>) -> Answer<()> {
        let size = self.left().min(size as usize);
        let space = self.space.get_mut(self.len..).and_then(|space| space.get_mut(..size)).unwrap_or_default();
        self.len += read(space)?.min(size);
        Ok(())
    }

    /// Answers with a file.
    ///
    /// # Errors
    /// E2BIG where there is no space.
    pub fn entry(&mut self, entry: &Entry) -> Answer<()> {
        let name_timeout = if self.fleeting && entry.node == 0 { 0 } else { entry.name_timeout };
        self.put(&EntryOut { entry_valid: name_timeout, ..entry.wire() })
    }

    /// Of a name that is not there the kernel caches nothing, whatever the answer allows.
    pub fn cache_no_absence(&mut self) {
        self.fleeting = true;
    }

    /// Answers with a file that was made and is open now.
    ///
    /// # Errors
    /// E2BIG where there is no space.
    pub fn created(&mut self, entry: &Entry) -> Answer<()> {
        self.put(&entry.wire())?;
        self.opened(true)
    }

    /// Says that a file is open, and whether the kernel may use the pages that it has of it.
    ///
    /// # Errors
    /// E2BIG where there is no space.
    pub fn opened(&mut self, cache_pages: bool) -> Answer<()> {
        let cache = if cache_pages { wire::OPEN_KEEP_CACHE } else { 0 };
        self.put(&wire::OpenOut { handle: new_handle(), flags: cache | wire::OPEN_NOFLUSH, backing: 0 })
    }

    /// Says that a file is open, and that what is read and written through this opening goes past the kernel's pages,
    /// which stay; it cannot be mapped to be shared. Its writes say that they are [`direct`](crate::Operation::Write).
    ///
    /// # Errors
    /// E2BIG where there is no space.
    pub fn opened_direct(&mut self) -> Answer<()> {
        let flags = wire::OPEN_DIRECT_IO | wire::OPEN_KEEP_CACHE | wire::OPEN_NOFLUSH;
        self.put(&wire::OpenOut { handle: new_direct(), flags, backing: 0 })
    }

    /// As [`Reply::opened_direct`], where writes of one file may be sent while others of it are on their way, as with a
    /// device.
    ///
    /// # Errors
    /// E2BIG where there is no space.
    pub fn opened_device(&mut self) -> Answer<()> {
        let flags = wire::OPEN_DIRECT_IO | wire::OPEN_PARALLEL_DIRECT_WRITES | wire::OPEN_NOFLUSH;
        self.put(&wire::OpenOut { handle: new_direct(), flags, backing: 0 })
    }

    /// Says that a directory is open, and that the listing the kernel has is good.
    ///
    /// # Errors
    /// E2BIG where there is no space.
    pub fn opened_dir(&mut self) -> Answer<()> {
        self.put(&wire::OpenOut { handle: 0, flags: wire::OPEN_KEEP_CACHE | wire::OPEN_CACHE_DIR, backing: 0 })
    }

    /// Answers with attributes, which the kernel may cache for so many seconds.
    ///
    /// # Errors
    /// E2BIG where there is no space.
    pub fn attr(&mut self, attr: &Attr, seconds: u64) -> Answer<()> {
        self.put(&AttrOut { valid: seconds, valid_nanos: 0, padding: 0, attr: *attr })
    }

    /// Answers with what statx(2) shows.
    ///
    /// # Errors
    /// E2BIG where there is no space.
    pub fn statx(&mut self, statx: &wire::StatxOut) -> Answer<()> {
        self.put(statx)
    }

    /// Answers with what is known of the whole file system.
    ///
    /// # Errors
    /// E2BIG where there is no space.
    pub fn statfs(&mut self, statfs: &StatFs) -> Answer<()> {
        self.put(statfs)
    }

    /// Says how many bytes were written or copied.
    ///
    /// # Errors
    /// E2BIG where there is no space.
    pub fn written(&mut self, bytes: u32) -> Answer<()> {
        self.put(&wire::WriteOut { size: bytes, padding: 0 })
    }

    /// Answers with a number of 64 bits: a place in a file, a length.
    ///
    /// # Errors
    /// E2BIG where there is no space.
    pub fn number(&mut self, number: u64) -> Answer<()> {
        self.put(&number)
    }

    /// Answers a question for bytes with their number where `size` is 0, else with the bytes.
    ///
    /// # Errors
    /// ERANGE where they are more than `size`.
    pub fn value(&mut self, size: u32, value: &[u8]) -> Answer<()> {
        match size {
            0 => self.put(&wire::XattrSize { size: u32::try_from(value.len()).unwrap_or(u32::MAX), padding: 0 }),
            size if value.len() > size as usize => Err(Errno::RANGE),
            _ => self.bytes(value),
        }
    }

    /// Answers an ioctl(2) that succeeded.
    ///
    /// # Errors
    /// E2BIG where there is no space.
    pub fn ioctl(&mut self, output: &[u8]) -> Answer<()> {
        self.put(&wire::IoctlOut::default())?;
        self.bytes(output)
    }

    /// Lets the entries of a listing take `size` bytes at most.
    pub fn limit(&mut self, size: u32) {
        let len = self.space.len().min(self.len.saturating_add(size as usize));
        self.space = std::mem::take(&mut self.space).get_mut(..len).unwrap_or_default();
    }

    /// Adds an entry to a listing; false if there is no space for it. `kind` is that of the mode, shifted by 12 bits.
    pub fn dirent(&mut self, ino: u64, next: u64, kind: u32, name: &[u8]) -> bool {
        self.listed(None, ino, next, kind, name)
    }

    /// Adds an entry with its attributes; false if there is no space for it.
    pub fn dirent_plus(&mut self, entry: &Entry, next: u64, name: &[u8]) -> bool {
        self.listed(Some(entry), entry.attr.ino, next, entry.attr.mode >> 12, name)
    }

    fn listed(&mut self, entry: Option<&Entry>, ino: u64, next: u64, kind: u32, name: &[u8]) -> bool {
        let head = entry.map_or(0, |_| size_of::<EntryOut>());
        let len = (head + size_of::<DirentOut>() + name.len()).next_multiple_of(8);
        let Ok(name_len) = u32::try_from(name.len()) else { return false };
        if len > self.left() {
            return false;
        }
        let end = self.len + len;
        let before = self.len;
        let put = entry.map_or(Ok(()), |entry| self.entry(entry));
        let put = put.and_then(|()| self.put(&DirentOut { ino, next, name_len, kind }));
        if put.and_then(|()| self.bytes(name)).is_err() {
            self.len = before;
            return false;
        }
        if let Some(padding) = self.space.get_mut(self.len..end) {
            padding.fill(0);
        }
        self.len = end;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_space_is_not_put_in() {
        let mut space = [0xAA; 64];
        let mut reply = Reply::new(&mut space);
        reply.limit(60);
        assert!(reply.dirent(3, 1, 8, b"abc"));
        assert_eq!(reply.len(), 32);
        assert!(!reply.dirent(3, 1, 8, b"abcde"), "32 bytes, where 28 are left");
        assert!(!reply.dirent_plus(
            &Entry { node: 1, generation: 0, name_timeout: 0, attr_timeout: 0, attr: Attr::default() },
            1,
            b""
        ));
        assert_eq!(reply.attr(&Attr::default(), 0), Err(Errno::TOOBIG));
        assert_eq!(reply.len(), 32);
        assert_eq!(space[24..32], *b"abc\0\0\0\0\0");
    }

    #[test]
    fn values_are_counted_or_returned() {
        let mut space = [0; 64];
        let mut reply = Reply::new(&mut space);
        reply.value(0, b"green").expect("space");
        assert_eq!(reply.len(), 8);
        assert_eq!(Reply::new(&mut space).value(4, b"green"), Err(Errno::RANGE));
        let mut reply = Reply::new(&mut space);
        reply.fill(1000, |buf| Ok(buf.len() + 7)).expect("space");
        assert_eq!(reply.len(), 64);
    }
}
