//! The check whether a request is permitted: a pure function of the request and of the negotiated options.

use crate::handshake::{Agreed, Description};
use crate::wire::{Errno, PAYLOAD_MAX, Request, command, command_flag};

/// A valid request: inside the export, with permitted flags only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Read `len` bytes, at most [`PAYLOAD_MAX`].
    Read {
        /// Offset of the first byte.
        offset: u64,
        /// Length in bytes.
        len: u32,
    },
    /// Write the payload of the request.
    Write {
        /// Offset of the first byte.
        offset: u64,
        /// Durable before the reply.
        durable: bool,
    },
    /// Write zeroes.
    WriteZeroes {
        /// Offset of the first byte.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// The zeroes may be stored as a hole.
        may_be_hole: bool,
        /// Durable before the reply.
        durable: bool,
    },
    /// Discard.
    Trim {
        /// Offset of the first byte.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// Durable before the reply.
        durable: bool,
    },
    /// Make all acknowledged writes durable.
    Flush,
    /// Report which bytes are holes.
    BlockStatus {
        /// Offset of the first byte.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// Report one extent only.
        one: bool,
    },
}

/// The reason why a request is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The error number, for programs.
    pub error: Errno,
    /// The message, for users.
    pub sentence: String,
}

impl Refusal {
    pub(crate) fn new(error: Errno, sentence: impl Into<String>) -> Self {
        Self { error, sentence: sentence.into() }
    }
}

/// The length of the payload of a request, including a request that is refused.
#[must_use]
pub fn payload(request: &Request) -> u32 {
    if request.command == command::WRITE { request.len } else { 0 }
}

/// Checks a request and returns its command.
///
/// # Errors
/// EINVAL for an unknown command or flag, a length of 0 or above the maximum, or a range beyond the end; ENOSPC for a
/// change beyond the end; EPERM for a change to a read-only export.
pub fn admit(request: &Request, export: &Description, agreed: Agreed) -> Result<Command, Refusal> {
    let invalid = |sentence: &str| Err(Refusal::new(Errno::Inval, sentence));
    let allowed = match request.command {
        command::READ if agreed.structured => command_flag::DF,
        command::WRITE_ZEROES => command_flag::NO_HOLE,
        command::BLOCK_STATUS => command_flag::REQ_ONE,
        _ => 0,
    };
    let changes = matches!(request.command, command::WRITE | command::WRITE_ZEROES | command::TRIM);
    if changes && export.read_only {
        return Err(Refusal::new(Errno::Perm, "the export is read-only"));
    }
    // clients set FUA also on commands that do not write, and servers must accept it
    if request.flags & !(allowed | command_flag::FUA) != 0 {
        return invalid("a flag that is invalid for this command");
    }
    if request.command == command::FLUSH {
        return Ok(Command::Flush);
    }
    let (offset, len) = (request.offset, u64::from(request.len));
    let durable = request.flags & command_flag::FUA != 0;
    let admitted = match request.command {
        command::READ => Command::Read { offset, len: request.len },
        command::WRITE => Command::Write { offset, durable },
        command::TRIM => Command::Trim { offset, len, durable },
        command::WRITE_ZEROES => {
            let may_be_hole = request.flags & command_flag::NO_HOLE == 0;
            Command::WriteZeroes { offset, len, may_be_hole, durable }
        }
        command::BLOCK_STATUS if agreed.allocation => {
            Command::BlockStatus { offset, len, one: request.flags & command_flag::REQ_ONE != 0 }
        }
        command::BLOCK_STATUS => return invalid("block status was not negotiated"),
        _ => return invalid("unknown command"),
    };
    if len == 0 {
        return invalid("the length of the request is 0");
    }
    if matches!(request.command, command::READ | command::WRITE) && request.len > PAYLOAD_MAX {
        return invalid("the request exceeds the maximum length");
    }
    if offset.checked_add(len).is_none_or(|end| end > export.len) {
        let error =
            if matches!(request.command, command::WRITE | command::WRITE_ZEROES) { Errno::NoSpc } else { Errno::Inval };
        return Err(Refusal::new(error, "beyond the end of the export"));
    }
    Ok(admitted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LEN: u64 = 1 << 26;

    fn disk(read_only: bool) -> Description {
        Description { name: String::new(), len: LEN, read_only, preferred: 4096 }
    }

    fn ask(command: u16, flags: u16, offset: u64, len: u32, read_only: bool) -> Result<Command, Errno> {
        let request = Request { flags, command, cookie: 1, offset, len };
        let agreed = Agreed { structured: true, allocation: true };
        admit(&request, &disk(read_only), agreed).map_err(|refusal| refusal.error)
    }

    #[test]
    fn bounds() {
        for (command, beyond) in [
            (command::READ, Errno::Inval),
            (command::WRITE, Errno::NoSpc),
            (command::TRIM, Errno::Inval),
            (command::WRITE_ZEROES, Errno::NoSpc),
            (command::BLOCK_STATUS, Errno::Inval),
        ] {
            assert!(ask(command, 0, LEN - 1, 1, false).is_ok());
            assert_eq!(ask(command, 0, LEN, 1, false), Err(beyond));
            assert_eq!(ask(command, 0, u64::MAX, 1, false), Err(beyond));
            assert_eq!(ask(command, 0, 1, 0, false), Err(Errno::Inval));
        }
        for command in [command::READ, command::WRITE] {
            assert!(ask(command, 0, 0, PAYLOAD_MAX, false).is_ok());
            assert_eq!(ask(command, 0, 0, PAYLOAD_MAX + 1, false), Err(Errno::Inval));
        }
        for command in [command::TRIM, command::WRITE_ZEROES, command::BLOCK_STATUS] {
            assert!(ask(command, 0, 0, LEN as u32, false).is_ok());
        }
    }

    #[test]
    fn read_only_exports_are_read() {
        for command in [command::WRITE, command::TRIM, command::WRITE_ZEROES] {
            assert_eq!(ask(command, 0, 0, 1, true), Err(Errno::Perm));
        }
        for command in [command::READ, command::FLUSH, command::BLOCK_STATUS] {
            assert!(ask(command, 0, 0, 1, true).is_ok());
        }
    }

    #[test]
    fn flags() {
        for (command, flag) in [
            (command::READ, command_flag::DF),
            (command::WRITE_ZEROES, command_flag::NO_HOLE),
            (command::BLOCK_STATUS, command_flag::REQ_ONE),
        ] {
            assert!(ask(command, flag | command_flag::FUA, 0, 1, false).is_ok());
            assert_eq!(ask(command, 1 << 4, 0, 1, false), Err(Errno::Inval));
        }
        assert_eq!(ask(command::WRITE, command_flag::DF, 0, 1, false), Err(Errno::Inval));
        let simple = Request { flags: command_flag::DF, command: command::READ, cookie: 1, offset: 0, len: 1 };
        assert!(admit(&simple, &disk(false), Agreed::default()).is_err());
        let status = Request { flags: 0, command: command::BLOCK_STATUS, ..simple };
        assert!(admit(&status, &disk(false), Agreed { structured: true, allocation: false }).is_err());
    }

    proptest! {
        #[test]
        fn what_is_admitted_lies_inside(flags: u16, command in 0..12_u16, offset: u64, near in 0..LEN, len: u32) {
            for offset in [offset, near] {
                if ask(command, flags & 0xf, offset, len, false).is_ok_and(|command| command != Command::Flush) {
                    prop_assert!(len > 0 && offset + u64::from(len) <= LEN);
                }
            }
        }
    }
}
