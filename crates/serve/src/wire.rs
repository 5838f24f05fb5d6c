//! The encoding of the protocol: constants, parsing of client messages, encoding of server messages.
//!
//! Everything here is a pure function of bytes. Messages that are too short, too long or have a wrong magic number are
//! `None`; a length sent by a client is never trusted beyond the bytes that came with it.

/// `NBDMAGIC`, the first bytes that a server sends.
pub const MAGIC: u64 = 0x4e42_444d_4147_4943;
/// `IHAVEOPT`, before the server's flags and before each option.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// The magic number before each answer to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// The magic number before each request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// The magic number before each simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// The magic number before each chunk of a structured reply.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// The length of a request without its payload, in bytes.
pub const REQUEST_LEN: usize = 28;
/// The length of an option without its data, in bytes.
pub const OPTION_HEADER_LEN: usize = 16;
/// The maximum length of an option's data that is read; the protocol's strings have at most 4 096 bytes.
pub const OPTION_DATA_MAX: u32 = 64 << 10;
/// The maximum length of an export's name, and of a message, in bytes.
pub const STRING_MAX: usize = 4096;
/// The maximum number of bytes that one request reads or writes: the value that clients may assume of every server.
pub const PAYLOAD_MAX: u32 = 32 << 20;

/// Flags of the handshake: FIXED_NEWSTYLE and NO_ZEROES, for both sides.
pub mod handshake_flag {
    /// Options are answered.
    pub const FIXED_NEWSTYLE: u16 = 1;
    /// The answer to EXPORT_NAME ends without 124 zero bytes.
    pub const NO_ZEROES: u16 = 2;
}

/// Transmission flags: the features of an export.
pub mod export_flag {
    /// The field is valid.
    pub const HAS_FLAGS: u16 = 1;
    /// Changes are refused.
    pub const READ_ONLY: u16 = 1 << 1;
    /// FLUSH.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// Force unit access.
    pub const SEND_FUA: u16 = 1 << 3;
    /// TRIM.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// WRITE_ZEROES.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// The DF flag of a read is supported.
    pub const SEND_DF: u16 = 1 << 7;
    /// A flush covers the writes of other connections.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
}

/// Options of the handshake.
pub mod option {
    /// Selects an export; closes the connection if it does not exist.
    pub const EXPORT_NAME: u32 = 1;
    /// Ends the handshake.
    pub const ABORT: u32 = 2;
    /// Requests the names of exports.
    pub const LIST: u32 = 3;
    /// Requests encryption.
    pub const STARTTLS: u32 = 5;
    /// Requests properties of an export.
    pub const INFO: u32 = 6;
    /// Requests the same, and selects the export.
    pub const GO: u32 = 7;
    /// Requests structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// Requests the available contexts of block status.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Selects contexts of block status.
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Answers to options.
pub mod reply {
    /// Success.
    pub const ACK: u32 = 1;
    /// The name of an export.
    pub const SERVER: u32 = 2;
    /// A property of an export.
    pub const INFO: u32 = 3;
    /// A context of block status.
    pub const META_CONTEXT: u32 = 4;
    /// Unknown option.
    pub const ERR_UNSUP: u32 = (1 << 31) + 1;
    /// The option is malformed, or sent too early.
    pub const ERR_INVALID: u32 = (1 << 31) + 3;
    /// No such export.
    pub const ERR_UNKNOWN: u32 = (1 << 31) + 6;
    /// The server is stopping.
    pub const ERR_SHUTDOWN: u32 = (1 << 31) + 7;
    /// The option is too long.
    pub const ERR_TOO_BIG: u32 = (1 << 31) + 9;
}

/// Properties of an export.
pub mod info {
    /// Size and flags.
    pub const EXPORT: u16 = 0;
    /// The name.
    pub const NAME: u16 = 1;
    /// Minimum, preferred and maximum size of a request.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Requests.
pub mod command {
    /// Reads.
    pub const READ: u16 = 0;
    /// Writes.
    pub const WRITE: u16 = 1;
    /// Ends the connection.
    pub const DISC: u16 = 2;
    /// Makes all acknowledged writes durable.
    pub const FLUSH: u16 = 3;
    /// Discards bytes.
    pub const TRIM: u16 = 4;
    /// Writes zeroes.
    pub const WRITE_ZEROES: u16 = 6;
    /// Requests the holes.
    pub const BLOCK_STATUS: u16 = 7;
}

/// Flags of requests.
pub mod command_flag {
    /// Durable before the reply.
    pub const FUA: u16 = 1;
    /// Zeroes must be allocated.
    pub const NO_HOLE: u16 = 1 << 1;
    /// One chunk only.
    pub const DF: u16 = 1 << 2;
    /// One extent only.
    pub const REQ_ONE: u16 = 1 << 3;
}

/// Chunks of a structured reply.
pub mod chunk {
    /// Set in the last chunk of a reply.
    pub const DONE: u16 = 1;
    /// No content: success.
    pub const NONE: u16 = 0;
    /// The bytes read.
    pub const OFFSET_DATA: u16 = 1;
    /// Extents.
    pub const BLOCK_STATUS: u16 = 5;
    /// An error and a message.
    pub const ERROR: u16 = (1 << 15) + 1;
}

/// The context of block status that this server supports.
pub const ALLOCATION: &[u8] = b"base:allocation";
/// Its ID in replies.
pub const ALLOCATION_ID: u32 = 1;

/// The protocol's error numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Errno {
    /// Not permitted: a change to a read-only export.
    Perm = 1,
    /// Input or output error.
    Io = 5,
    /// Out of memory.
    NoMem = 12,
    /// The request is not valid.
    Inval = 22,
    /// No space, or a write beyond the end.
    NoSpc = 28,
}

/// The header of an option, which precedes its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OptionHeader {
    /// The number of the option.
    pub option: u32,
    /// The length of its data in bytes.
    pub len: u32,
}

/// Parses the header of an option; `None` for a wrong magic number.
#[must_use]
pub fn parse_option_header(bytes: &[u8; OPTION_HEADER_LEN]) -> Option<OptionHeader> {
    let mut fields = Fields(bytes);
    (fields.u64()? == OPTION_MAGIC).then_some(())?;
    Some(OptionHeader { option: fields.u32()?, len: fields.u32()? })
}

/// A request as sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Flags.
    pub flags: u16,
    /// The command.
    pub command: u16,
    /// The client's ID of the request, repeated in the reply.
    pub cookie: u64,
    /// Offset of the first byte.
    pub offset: u64,
    /// Length in bytes.
    pub len: u32,
}

/// Parses a request; `None` for a wrong magic number.
#[must_use]
pub fn parse_request(bytes: &[u8; REQUEST_LEN]) -> Option<Request> {
    let mut fields = Fields(bytes);
    (fields.u32()? == REQUEST_MAGIC).then_some(())?;
    let (flags, command) = (fields.u16()?, fields.u16()?);
    Some(Request { flags, command, cookie: fields.u64()?, offset: fields.u64()?, len: fields.u32()? })
}

/// The data of INFO and GO: a name, and the requested properties.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InfoRequest<'a> {
    /// The name of the export.
    pub name: &'a [u8],
    /// The numbers of the properties.
    pub wanted: Vec<u16>,
}

/// Parses the data of INFO or GO.
#[must_use]
pub fn parse_info(data: &[u8]) -> Option<InfoRequest<'_>> {
    let mut fields = Fields(data);
    let name = fields.string()?;
    let count = fields.u16()?;
    let wanted: Vec<u16> =
        fields.0.chunks_exact(2).filter_map(|pair| Some(u16::from_be_bytes(*pair.first_chunk()?))).collect();
    (fields.0.len() == 2 * usize::from(count)).then_some(InfoRequest { name, wanted })
}

/// The data of LIST_META_CONTEXT and SET_META_CONTEXT: a name, and queries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContextRequest<'a> {
    /// The name of the export.
    pub name: &'a [u8],
    /// The queries for contexts.
    pub queries: Vec<&'a [u8]>,
}

/// Parses the data of LIST_META_CONTEXT or SET_META_CONTEXT.
#[must_use]
pub fn parse_contexts(data: &[u8]) -> Option<ContextRequest<'_>> {
    let mut fields = Fields(data);
    let name = fields.string()?;
    let count = fields.u32()?;
    let mut queries = Vec::new(); // limited by the bytes present: at least four each
    for _ in 0..count {
        queries.push(fields.string()?);
    }
    fields.0.is_empty().then_some(ContextRequest { name, queries })
}

/// The unread bytes of a message.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// A string after its length.
    fn string(&mut self) -> Option<&'a [u8]> {
        let len = usize::try_from(self.u32()?).ok().filter(|len| *len <= STRING_MAX)?;
        let (string, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(string)
    }
}

/// The greeting of a server.
#[must_use]
pub fn greeting() -> Vec<u8> {
    let flags = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;
    [&MAGIC.to_be_bytes()[..], &OPTION_MAGIC.to_be_bytes(), &flags.to_be_bytes()].concat()
}

/// Appends an answer to `option`.
pub fn put_option_reply(out: &mut Vec<u8>, option: u32, kind: u32, data: &[u8]) {
    out.extend(OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend(option.to_be_bytes());
    out.extend(kind.to_be_bytes());
    out.extend((data.len() as u32).to_be_bytes()); // our own data, which is short
    out.extend(data);
}

/// Appends a simple reply, to be followed by the data of a read; an `error` of `None` is success.
pub fn put_simple_reply(out: &mut Vec<u8>, cookie: u64, error: Option<Errno>) {
    out.extend(SIMPLE_REPLY_MAGIC.to_be_bytes());
    out.extend(error.map_or(0, |error| error as u32).to_be_bytes());
    out.extend(cookie.to_be_bytes());
}

/// Appends the only chunk of a structured reply, to be followed by `len` bytes.
pub fn put_chunk(out: &mut Vec<u8>, cookie: u64, kind: u16, len: u32) {
    out.extend(STRUCTURED_REPLY_MAGIC.to_be_bytes());
    out.extend(chunk::DONE.to_be_bytes());
    out.extend(kind.to_be_bytes());
    out.extend(cookie.to_be_bytes());
    out.extend(len.to_be_bytes());
}

/// Appends a chunk with an error and a message, which is truncated to the maximum length.
pub fn put_error_chunk(out: &mut Vec<u8>, cookie: u64, error: Errno, sentence: &str) {
    let sentence = sentence.get(..sentence.floor_char_boundary(STRING_MAX)).unwrap_or_default();
    put_chunk(out, cookie, chunk::ERROR, 6 + sentence.len() as u32);
    out.extend((error as u32).to_be_bytes());
    out.extend((sentence.len() as u16).to_be_bytes());
    out.extend(sentence.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn requests_are_read_back() {
        let mut bytes = REQUEST_MAGIC.to_be_bytes().to_vec();
        bytes.extend([0, 1, 0, 6]);
        bytes.extend(7_u64.to_be_bytes());
        bytes.extend(8_u64.to_be_bytes());
        bytes.extend(9_u32.to_be_bytes());
        let mut bytes: [u8; REQUEST_LEN] = bytes.try_into().unwrap();
        let request = Request { flags: 1, command: 6, cookie: 7, offset: 8, len: 9 };
        assert_eq!(parse_request(&bytes), Some(request));
        bytes[3] ^= 1;
        assert_eq!(parse_request(&bytes), None);
    }

    #[test]
    fn info_has_as_many_properties_as_it_says() {
        let data = [0, 0, 0, 2, b'a', b'b', 0, 2, 0, 3, 0, 1];
        assert_eq!(parse_info(&data), Some(InfoRequest { name: b"ab", wanted: vec![3, 1] }));
        for len in 0..data.len() {
            assert_eq!(parse_info(&data[..len]), None, "{len}");
        }
        assert_eq!(parse_info(&[&data[..], &[0]].concat()), None);
    }

    #[test]
    fn contexts_have_as_many_queries_as_they_say() {
        let data = [0, 0, 0, 1, b'a', 0, 0, 0, 2, 0, 0, 0, 1, b'q', 0, 0, 0, 0];
        assert_eq!(parse_contexts(&data), Some(ContextRequest { name: b"a", queries: vec![b"q", b""] }));
        for len in 0..data.len() {
            assert_eq!(parse_contexts(&data[..len]), None, "{len}");
        }
        assert_eq!(parse_contexts(&[&data[..], &[0]].concat()), None);
        // four billion queries that are not present
        assert_eq!(parse_contexts(&[0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]), None);
    }

    #[test]
    fn long_sentences_are_cut_between_characters() {
        let mut out = Vec::new();
        put_error_chunk(&mut out, 1, Errno::Io, &"é".repeat(STRING_MAX));
        assert_eq!(out.len(), 20 + 6 + STRING_MAX);
        put_error_chunk(&mut out, 1, Errno::Io, &format!("a{}", "é".repeat(STRING_MAX)));
        assert_eq!(out.len(), 2 * (20 + 6 + STRING_MAX) - 1);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(data in prop::collection::vec(any::<u8>(), 0..200), small in prop::collection::vec(0..5_u8, 0..60)) {
            for data in [&data, &small] {
                if let Some(info) = parse_info(data) {
                    prop_assert_eq!(6 + info.name.len() + 2 * info.wanted.len(), data.len());
                }
                if let Some(contexts) = parse_contexts(data) {
                    let queries: usize = contexts.queries.iter().map(|query| 4 + query.len()).sum();
                    prop_assert_eq!(8 + contexts.name.len() + queries, data.len());
                }
                if let Some(header) = data.first_chunk() {
                    let _ = parse_option_header(header);
                }
                if let Some(request) = data.first_chunk() {
                    let _ = parse_request(request);
                }
            }
        }
    }
}
