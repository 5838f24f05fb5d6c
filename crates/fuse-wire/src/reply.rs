//! Answers to the kernel, written into the transport's buffer.

use crate::handle::{new_direct, new_handle};
use crate::protocol::{self as wire, Attr, AttrOut, DirentOut, EntryOut, StatFs};
use rustix::io::Errno;
use zerocopy::{Immutable, IntoBytes};

/// The answer to a request, or its error number.
pub type Answer<T> = Result<T, Errno>;

/// A file that was found or created, as sent to the kernel.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// The node number in the kernel's later requests; 0 for a name that does not exist.
    pub node: u64,
    /// The generation: distinguishes this use of the number from earlier ones.
    pub generation: u64,
    /// The time for which the kernel may cache the name, in seconds.
    pub name_timeout: u64,
    /// The time for which the kernel may cache the attributes, in seconds.
    pub attr_timeout: u64,
    /// The attributes.
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

/// An answer under construction; empty at first.
#[derive(Debug)]
pub struct Reply<'a> {
    space: &'a mut [u8],
    len: usize,
    /// The node whose cached attributes are invalid.
    changed: Option<u64>,
    /// The node whose cached content is invalid, and the offset of the first invalid byte.
    moved: Option<(u64, u64)>,
    /// A name that does not exist may be created at any moment without the kernel's knowledge.
    fleeting: bool,
    /// The refused change belongs to a transaction that is rolled back.
    rolled_back: bool,
}

impl<'a> Reply<'a> {
    /// An empty answer, which is written into `space`.
    pub fn new(space: &'a mut [u8]) -> Self {
        Self { space, len: 0, changed: None, moved: None, fleeting: false, rolled_back: false }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Records that the request changed attributes of a node in a way that the kernel does not expect of such a
    /// request: their cached copy is invalidated before the answer is sent.
    pub fn attributes_changed(&mut self, node: u64) {
        self.changed = Some(node);
    }

    pub(crate) fn changed(&self) -> Option<u64> {
        self.changed
    }

    /// Records that the kernel's cached content of a node is wrong from byte `from` on: it is invalidated before the
    /// answer is sent.
    pub fn content_changed(&mut self, node: u64, from: u64) {
        self.moved = Some((node, from));
    }

    pub(crate) fn moved(&self) -> Option<(u64, u64)> {
        self.moved
    }

    /// Records that the request is refused because it belongs to a transaction that is rolled back, so that the loss of
    /// its data is intended.
    pub fn belongs_to_rolled_back(&mut self) {
        self.rolled_back = true;
    }

    pub(crate) fn is_rolled_back(&self) -> bool {
        self.rolled_back
    }

    /// The free space in bytes.
    fn left(&self) -> usize {
        self.space.len() - self.len
    }

    fn put(&mut self, value: &(impl IntoBytes + Immutable)) -> Answer<()> {
        self.bytes(value.as_bytes())
    }

    /// Appends bytes: the target of a link, a value.
    ///
    /// # Errors
    /// E2BIG where they do not fit.
    pub fn bytes(&mut self, bytes: &[u8]) -> Answer<()> {
        let space =
            self.space.get_mut(self.len..).and_then(|space| space.get_mut(..bytes.len())).ok_or(Errno::TOOBIG)?;
        space.copy_from_slice(bytes);
        self.len += bytes.len();
        Ok(())
    }

    /// Answers a read of `size` bytes with the bytes that `read` writes into its buffer.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn fill(&mut self, size: u32, read: impl FnOnce(&mut [u8]) -> Answer<usize>) -> Answer<()> {
        let size = self.left().min(size as usize);
        let space = self.space.get_mut(self.len..).and_then(|space| space.get_mut(..size)).unwrap_or_default();
        self.len += read(space)?.min(size);
        Ok(())
    }

    /// Answers with the entry of a file.
    ///
    /// # Errors
    /// E2BIG where there is no space.
    pub fn entry(&mut self, entry: &Entry) -> Answer<()> {
        let name_timeout = if self.fleeting && entry.node == 0 { 0 } else { entry.name_timeout };
        self.put(&EntryOut { entry_valid: name_timeout, ..entry.wire() })
    }

    /// Prevents the kernel from caching that a name does not exist, whatever the timeout of the answer.
    pub fn cache_no_absence(&mut self) {
        self.fleeting = true;
    }

    /// Answers with the entry of a file that was created and opened.
    ///
    /// # Errors
    /// E2BIG where there is no space.
    pub fn created(&mut self, entry: &Entry) -> Answer<()> {
        self.put(&entry.wire())?;
        self.opened(true)
    }

    /// Answers that a file is open, and whether the kernel may use its cached pages of it.
    ///
    /// # Errors
    /// E2BIG where there is no space.
    pub fn opened(&mut self, cache_pages: bool) -> Answer<()> {
        let cache = if cache_pages { wire::OPEN_KEEP_CACHE } else { 0 };
        self.put(&wire::OpenOut { handle: new_handle(), flags: cache | wire::OPEN_NOFLUSH, backing: 0 })
    }

    /// Answers that a file is open and that reads and writes through this handle bypass the page cache, whose pages
    /// remain; it has no shared mappings. Its writes are [`direct`](crate::Operation::Write).
    ///
    /// # Errors
    /// E2BIG where there is no space.
    pub fn opened_direct(&mut self) -> Answer<()> {
        let flags = wire::OPEN_DIRECT_IO | wire::OPEN_KEEP_CACHE | wire::OPEN_NOFLUSH;
        self.put(&wire::OpenOut { handle: new_direct(), flags, backing: 0 })
    }

    /// As [`Reply::opened_direct`], where writes of one file may be sent concurrently, as to a device.
    ///
    /// # Errors
    /// E2BIG where there is no space.
    pub fn opened_device(&mut self) -> Answer<()> {
        let flags = wire::OPEN_DIRECT_IO | wire::OPEN_PARALLEL_DIRECT_WRITES | wire::OPEN_NOFLUSH;
        self.put(&wire::OpenOut { handle: new_direct(), flags, backing: 0 })
    }

    /// Answers that a directory is open, and that the kernel's cached listing is valid.
    ///
    /// # Errors
    /// E2BIG where there is no space.
    pub fn opened_dir(&mut self) -> Answer<()> {
        self.put(&wire::OpenOut { handle: 0, flags: wire::OPEN_KEEP_CACHE | wire::OPEN_CACHE_DIR, backing: 0 })
    }

    /// Answers with attributes, which the kernel may cache for `seconds` seconds.
    ///
    /// # Errors
    /// E2BIG where there is no space.
    pub fn attr(&mut self, attr: &Attr, seconds: u64) -> Answer<()> {
        self.put(&AttrOut { valid: seconds, valid_nanos: 0, padding: 0, attr: *attr })
    }

    /// Answers with the attributes of statx(2).
    ///
    /// # Errors
    /// E2BIG where there is no space.
    pub fn statx(&mut self, statx: &wire::StatxOut) -> Answer<()> {
        self.put(statx)
    }

    /// Answers with the statistics of the file system.
    ///
    /// # Errors
    /// E2BIG where there is no space.
    pub fn statfs(&mut self, statfs: &StatFs) -> Answer<()> {
        self.put(statfs)
    }

    /// Answers with the number of bytes written or copied.
    ///
    /// # Errors
    /// E2BIG where there is no space.
    pub fn written(&mut self, bytes: u32) -> Answer<()> {
        self.put(&wire::WriteOut { size: bytes, padding: 0 })
    }

    /// Answers with a number of 64 bits: an offset in a file, a length.
    ///
    /// # Errors
    /// E2BIG where there is no space.
    pub fn number(&mut self, number: u64) -> Answer<()> {
        self.put(&number)
    }

    /// Answers with the length of `value` where `size` is 0, else with its bytes.
    ///
    /// # Errors
    /// ERANGE where it is longer than `size` bytes.
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

    /// Limits the entries of a listing to `size` bytes.
    pub fn limit(&mut self, size: u32) {
        let len = self.space.len().min(self.len.saturating_add(size as usize));
        self.space = std::mem::take(&mut self.space).get_mut(..len).unwrap_or_default();
    }

    /// Appends an entry to a listing; `false` where it does not fit. `kind` is the file type of the mode, shifted by 12
    /// bits.
    pub fn dirent(&mut self, ino: u64, next: u64, kind: u32, name: &[u8]) -> bool {
        self.listed(None, ino, next, kind, name)
    }

    /// Appends an entry with its attributes; `false` where it does not fit.
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
