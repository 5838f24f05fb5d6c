//! A device as seen by NBD clients, and the execution of their commands.

use std::io;
use std::sync::Arc;

use blockdev::{BlockDevice, Error, Op};

use crate::command::{self, Command, Refusal};
use crate::handshake::{Agreed, Description};
use crate::served::Served;
use crate::wire::{self, Errno, Request, chunk};

/// The maximum number of extents in one reply: a client requests the rest.
const EXTENTS: usize = 1024;

/// A device with its name.
pub struct Export {
    device: Served,
    description: Description,
}

/// A reply, with a message for the operator.
#[derive(Debug)]
pub struct Answer {
    /// The bytes for the client.
    pub reply: Vec<u8>,
    /// The error of the device as a sentence, if it failed.
    pub problem: Option<String>,
}

impl Export {
    /// The export of `device` under `name`; every change is refused if `read_only` is set or the device is read-only.
    pub fn new(device: Arc<dyn BlockDevice>, name: &str, read_only: bool) -> Self {
        let device = Served::new(device, read_only);
        let description = Description {
            name: name.to_owned(),
            len: device.len(),
            read_only: device.read_only(),
            preferred: device.preferred(),
        };
        Self { device, description }
    }

    /// The description for clients.
    #[must_use]
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// Executes a request and creates its reply. `payload` contains the bytes of a write; it is empty where there were
    /// more than the maximum, and such a request is refused.
    #[must_use]
    pub fn answer(&self, request: &Request, agreed: Agreed, payload: &[u8]) -> Answer {
        let outcome = command::admit(request, &self.description, agreed)
            .map_err(Failure::Refused)
            .and_then(|command| self.carry_out(command, request.cookie, agreed, payload));
        let (refusal, problem) = match outcome {
            Ok(reply) => return Answer { reply, problem: None },
            Err(Failure::Refused(refusal)) => (refusal, None),
            Err(Failure::Device(e)) => {
                let sentence = e.to_string();
                (Refusal::new(number(&e), sentence.clone()), Some(sentence))
            }
        };
        let mut reply = Vec::new();
        if agreed.structured {
            wire::put_error_chunk(&mut reply, request.cookie, refusal.error, &refusal.sentence);
        } else {
            wire::put_simple_reply(&mut reply, request.cookie, Some(refusal.error));
        }
        Answer { reply, problem }
    }

    /// Makes all writes durable that were acknowledged to any client.
    ///
    /// # Errors
    /// Errors of the device; after a failed flush every later one fails.
    pub fn flush(&self) -> Result<(), Error> {
        self.device.flush()
    }

    fn carry_out(&self, command: Command, cookie: u64, agreed: Agreed, payload: &[u8]) -> Result<Vec<u8>, Failure> {
        match command {
            Command::Read { offset, len } => return self.read(offset, len, cookie, agreed.structured),
            Command::BlockStatus { offset, len, one } => return self.block_status(offset, len, one, cookie),
            Command::Flush => self.flush()?,
            Command::Write { offset, durable } => self.device.write(offset, payload, durable)?,
            Command::Trim { offset, len, durable } => self.device.discard(offset, len, durable)?,
            Command::WriteZeroes { offset, len, may_be_hole: true, durable } => {
                self.device.write_zeroes(offset, len, durable)?;
            }
            Command::WriteZeroes { offset, len, may_be_hole: false, durable } => {
                self.device.allocate_zeroes(offset, len, durable)?;
            }
        }
        let mut reply = Vec::new();
        if agreed.structured {
            wire::put_chunk(&mut reply, cookie, chunk::NONE, 0);
        } else {
            wire::put_simple_reply(&mut reply, cookie, None);
        }
        Ok(reply)
    }

    fn read(&self, offset: u64, len: u32, cookie: u64, structured: bool) -> Result<Vec<u8>, Failure> {
        let mut head = Vec::new();
        if structured {
            wire::put_chunk(&mut head, cookie, chunk::OFFSET_DATA, 8 + len);
            head.extend(offset.to_be_bytes());
        } else {
            wire::put_simple_reply(&mut head, cookie, None);
        }
        // one buffer, which the device fills after the header
        let mut reply = vec![0; head.len() + len as usize];
        if let Some((front, data)) = reply.split_at_mut_checked(head.len()) {
            front.copy_from_slice(&head);
            self.device.read(offset, data)?;
        }
        Ok(reply)
    }

    fn block_status(&self, offset: u64, len: u64, one: bool, cookie: u64) -> Result<Vec<u8>, Failure> {
        let end = offset + len; // inside the export
        let most = if one { 1 } else { EXTENTS };
        let mut extents: Vec<(u32, u32)> = Vec::new();
        let mut at = offset;
        while at < end {
            let extent = self.device.extent(at, end - at)?;
            let known = extent.len.clamp(1, end - at);
            // the flags for a hole and for zeroes
            let flags = if extent.hole { 3 } else { 0 };
            let full = extents.len() == most;
            match extents.last_mut().filter(|last| last.1 == flags) {
                Some(last) => last.0 += known as u32, // the sum is at most the request's 32 bits
                None if full => break,
                None => extents.push((known as u32, flags)),
            }
            at += known;
        }
        let mut reply = Vec::new();
        wire::put_chunk(&mut reply, cookie, chunk::BLOCK_STATUS, 4 + 8 * extents.len() as u32);
        reply.extend(wire::ALLOCATION_ID.to_be_bytes());
        for (len, flags) in extents {
            reply.extend(len.to_be_bytes());
            reply.extend(flags.to_be_bytes());
        }
        Ok(reply)
    }
}

/// The reason why a request failed.
enum Failure {
    Refused(Refusal),
    Device(Error),
}

impl From<Error> for Failure {
    fn from(e: Error) -> Self {
        Self::Device(e)
    }
}

/// The protocol's error number for an error of the device.
fn number(e: &Error) -> Errno {
    match e {
        Error::ReadOnly(_) => Errno::Perm,
        Error::OutOfRange { op: Op::Write, .. } => Errno::NoSpc,
        Error::OutOfRange { .. } => Errno::Inval,
        Error::Io { source, .. } => match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => Errno::NoSpc,
            io::ErrorKind::OutOfMemory => Errno::NoMem,
            _ => Errno::Io,
        },
        _ => Errno::Io,
    }
}
