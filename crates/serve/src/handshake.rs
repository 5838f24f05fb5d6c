//! The negotiation between client and server before the first request: a state machine without sockets.
//!
//! The caller reads an option with its data; [`Handshake::option`] returns the answer and the next step.

use crate::wire::{self, export_flag, handshake_flag, info, option, reply};

/// The description of an export that clients get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// The name. The empty name also selects it.
    pub name: String,
    /// The length in bytes.
    pub len: u64,
    /// Whether changes are refused.
    pub read_only: bool,
    /// The preferred request size of the device: a power of two, at least 512.
    pub preferred: u32,
}

impl Description {
    fn is_named(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.name.as_bytes()
    }

    fn flags(&self, structured: bool) -> u16 {
        let mut flags = export_flag::HAS_FLAGS | export_flag::CAN_MULTI_CONN;
        flags |= if self.read_only {
            export_flag::READ_ONLY
        } else {
            export_flag::SEND_FLUSH | export_flag::SEND_FUA | export_flag::SEND_TRIM | export_flag::SEND_WRITE_ZEROES
        };
        if structured { flags | export_flag::SEND_DF } else { flags }
    }
}

/// The result of a handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Agreed {
    /// Replies are structured.
    pub structured: bool,
    /// BLOCK_STATUS is permitted.
    pub allocation: bool,
}

/// The next step after an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Another option.
    Option,
    /// Requests.
    Requests(Agreed),
    /// The connection ends.
    End,
}

/// The handshake with one client.
#[derive(Debug)]
pub struct Handshake<'a> {
    export: &'a Description,
    no_zeroes: bool,
    structured: bool,
    /// The name of the export for which block status was selected.
    allocation_of: Option<Vec<u8>>,
}

impl<'a> Handshake<'a> {
    /// The handshake of a server with one export; [`wire::greeting`] has been sent. `None` where the client sets flags
    /// that were not offered.
    #[must_use]
    pub fn new(export: &'a Description, client_flags: u32) -> Option<Self> {
        let no_zeroes = u32::from(handshake_flag::NO_ZEROES);
        let known = u32::from(handshake_flag::FIXED_NEWSTYLE) | no_zeroes;
        (client_flags & !known == 0).then_some(Self {
            export,
            no_zeroes: client_flags & no_zeroes != 0,
            structured: false,
            allocation_of: None,
        })
    }

    /// Processes an option with its data, and appends the answer to `out`.
    pub fn option(&mut self, number: u32, data: &[u8], out: &mut Vec<u8>) -> Next {
        let answer = match number {
            option::EXPORT_NAME => return self.export_name(data, out),
            option::ABORT => {
                wire::put_option_reply(out, number, reply::ACK, b"");
                return Next::End;
            }
            option::INFO | option::GO => return self.info(number, data, out),
            option::LIST => self.list(data, out),
            option::STRUCTURED_REPLY if !data.is_empty() => Err((reply::ERR_INVALID, "this option has no data")),
            option::STRUCTURED_REPLY => {
                self.structured = true;
                Ok(())
            }
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => self.contexts(number, data, out),
            option::STARTTLS => Err((reply::ERR_UNSUP, "this server has no TLS")),
            _ => Err((reply::ERR_UNSUP, "unknown option")),
        };
        finish(out, number, answer);
        Next::Option
    }

    /// Refuses an option whose data exceeds the maximum length.
    pub fn too_long(number: u32, out: &mut Vec<u8>) -> Next {
        // this option alone has no error reply
        if number == option::EXPORT_NAME {
            return Next::End;
        }
        finish(out, number, Err((reply::ERR_TOO_BIG, "the option is too long")));
        Next::Option
    }

    /// Refuses an option because the server is stopping.
    pub fn shut_down(number: u32, out: &mut Vec<u8>) -> Next {
        if number != option::EXPORT_NAME {
            finish(out, number, Err((reply::ERR_SHUTDOWN, "the server is stopping")));
        }
        Next::End
    }

    fn export_name(&self, name: &[u8], out: &mut Vec<u8>) -> Next {
        if !self.export.is_named(name) {
            return Next::End;
        }
        out.extend(self.export.len.to_be_bytes());
        out.extend(self.export.flags(self.structured).to_be_bytes());
        if !self.no_zeroes {
            out.extend([0; 124]);
        }
        Next::Requests(self.agreed(name))
    }

    fn info(&self, number: u32, data: &[u8], out: &mut Vec<u8>) -> Next {
        let Some(request) = wire::parse_info(data) else {
            finish(out, number, Err((reply::ERR_INVALID, "malformed")));
            return Next::Option;
        };
        if !self.export.is_named(request.name) {
            finish(out, number, Err((reply::ERR_UNKNOWN, "no such export")));
            return Next::Option;
        }
        let mut put = |property: u16, values: &[&[u8]]| {
            let data = [&[&property.to_be_bytes()[..]], values].concat().concat();
            wire::put_option_reply(out, number, reply::INFO, &data);
        };
        put(info::EXPORT, &[&self.export.len.to_be_bytes(), &self.export.flags(self.structured).to_be_bytes()]);
        if request.wanted.contains(&info::NAME) {
            put(info::NAME, &[self.export.name.as_bytes()]);
        }
        if request.wanted.contains(&info::BLOCK_SIZE) {
            // devices accept requests of any alignment
            let sizes = [1, self.export.preferred, wire::PAYLOAD_MAX].map(u32::to_be_bytes);
            put(info::BLOCK_SIZE, &[sizes.as_flattened()]);
        }
        finish(out, number, Ok(()));
        if number == option::GO { Next::Requests(self.agreed(request.name)) } else { Next::Option }
    }

    fn list(&self, data: &[u8], out: &mut Vec<u8>) -> Answer {
        if !data.is_empty() {
            return Err((reply::ERR_INVALID, "this option has no data"));
        }
        let name = self.export.name.as_bytes();
        let entry = [&(name.len() as u32).to_be_bytes(), name].concat();
        wire::put_option_reply(out, option::LIST, reply::SERVER, &entry);
        Ok(())
    }

    fn contexts(&mut self, number: u32, data: &[u8], out: &mut Vec<u8>) -> Answer {
        let set = number == option::SET_META_CONTEXT;
        if set {
            self.allocation_of = None; // also where the new selection fails
        }
        if !self.structured {
            return Err((reply::ERR_INVALID, "structured replies must be negotiated first"));
        }
        let request = wire::parse_contexts(data).ok_or((reply::ERR_INVALID, "malformed"))?;
        if !self.export.is_named(request.name) {
            return Err((reply::ERR_UNKNOWN, "no such export"));
        }
        let asked = request.queries.contains(&wire::ALLOCATION);
        let listed = !set && (request.queries.is_empty() || request.queries.contains(&&b"base:"[..]));
        if asked || listed {
            // in a list the ID has no meaning
            let id = if set { wire::ALLOCATION_ID } else { 0 };
            let entry = [&id.to_be_bytes(), wire::ALLOCATION].concat();
            wire::put_option_reply(out, number, reply::META_CONTEXT, &entry);
        }
        if set && asked {
            self.allocation_of = Some(request.name.to_vec());
        }
        Ok(())
    }

    /// The negotiated options for requests to the export under the client's `name`: block status only if it was
    /// selected for that name.
    fn agreed(&self, name: &[u8]) -> Agreed {
        let allocation = self.structured && self.allocation_of.as_deref() == Some(name);
        Agreed { structured: self.structured, allocation }
    }
}

/// Success, or the kind of error and a message.
type Answer = Result<(), (u32, &'static str)>;

/// Appends the final answer to an option.
fn finish(out: &mut Vec<u8>, number: u32, answer: Answer) {
    let (kind, sentence) = answer.err().unwrap_or((reply::ACK, ""));
    wire::put_option_reply(out, number, kind, sentence.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn disk() -> Description {
        Description { name: "disk".into(), len: 1 << 20, read_only: false, preferred: 4096 }
    }

    fn info_data(name: &[u8], wanted: &[u16]) -> Vec<u8> {
        let mut data = (name.len() as u32).to_be_bytes().to_vec();
        data.extend(name);
        data.extend((wanted.len() as u16).to_be_bytes());
        wanted.iter().for_each(|wanted| data.extend(wanted.to_be_bytes()));
        data
    }

    fn context_data(name: &[u8], queries: &[&[u8]]) -> Vec<u8> {
        let mut data = (name.len() as u32).to_be_bytes().to_vec();
        data.extend(name);
        data.extend((queries.len() as u32).to_be_bytes());
        for query in queries {
            data.extend((query.len() as u32).to_be_bytes());
            data.extend(*query);
        }
        data
    }

    /// The kinds and data of the answers in `out`.
    fn answers(mut out: &[u8]) -> Vec<(u32, Vec<u8>)> {
        let mut found = Vec::new();
        while !out.is_empty() {
            let word = |at: usize| u32::from_be_bytes(out[at..at + 4].try_into().unwrap());
            assert_eq!(out[..8], wire::OPTION_REPLY_MAGIC.to_be_bytes());
            let end = 20 + word(16) as usize;
            found.push((word(12), out[20..end].to_vec()));
            out = &out[end..];
        }
        found
    }

    fn answer(handshake: &mut Handshake<'_>, number: u32, data: &[u8]) -> (Next, Vec<(u32, Vec<u8>)>) {
        let mut out = Vec::new();
        let next = handshake.option(number, data, &mut out);
        (next, answers(&out))
    }

    #[test]
    fn unknown_flags_of_a_client_end_it() {
        let disk = disk();
        for flags in 0..4 {
            assert!(Handshake::new(&disk, flags).is_some());
        }
        assert!(Handshake::new(&disk, 4).is_none() && Handshake::new(&disk, 1 << 31).is_none());
    }

    #[test]
    fn export_name_answers_in_its_own_way_or_not_at_all() {
        let disk = disk();
        for (flags, len) in [(1, 134), (3, 10)] {
            let mut out = Vec::new();
            let next = Handshake::new(&disk, flags).unwrap().option(option::EXPORT_NAME, b"disk", &mut out);
            assert_eq!((next, out.len()), (Next::Requests(Agreed::default()), len));
            assert_eq!(out[..8], (1_u64 << 20).to_be_bytes());
            assert_eq!(out[8..10], [0x01, 0x6d]);
        }
        assert_eq!(answer(&mut Handshake::new(&disk, 1).unwrap(), option::EXPORT_NAME, b"other"), (Next::End, vec![]));
        let mut out = Vec::new();
        assert_eq!((Handshake::too_long(option::EXPORT_NAME, &mut out), out.len()), (Next::End, 0));
    }

    #[test]
    fn go_says_what_was_asked_for() {
        let disk = disk();
        let mut handshake = Handshake::new(&disk, 3).unwrap();
        let (next, found) = answer(&mut handshake, option::INFO, &info_data(b"", &[info::BLOCK_SIZE, info::NAME, 77]));
        assert_eq!(next, Next::Option);
        let sizes = [0, 3, 0, 0, 0, 1, 0, 0, 0x10, 0, 2, 0, 0, 0];
        let size = [0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0x01, 0x6d];
        let expected = [
            (reply::INFO, size.to_vec()),
            (reply::INFO, b"\0\x01disk".to_vec()),
            (reply::INFO, sizes.to_vec()),
            (reply::ACK, vec![]),
        ];
        assert_eq!(found, expected);
        let (next, found) = answer(&mut handshake, option::GO, &info_data(b"disk", &[]));
        assert_eq!((next, found.len()), (Next::Requests(Agreed::default()), 2));
        for (data, kind) in [(info_data(b"none", &[]), reply::ERR_UNKNOWN), (vec![0; 5], reply::ERR_INVALID)] {
            let (next, found) = answer(&mut handshake, option::GO, &data);
            assert_eq!((next, found[0].0, found.len()), (Next::Option, kind, 1));
        }
    }

    #[test]
    fn a_read_only_export_offers_no_changes() {
        let disk = Description { read_only: true, ..disk() };
        let (_, found) = answer(&mut Handshake::new(&disk, 3).unwrap(), option::GO, &info_data(b"", &[]));
        assert_eq!(found[0].1[10..], [0x01, 0x03]);
    }

    #[test]
    fn block_status_needs_structured_replies_and_the_same_name() {
        let disk = disk();
        let mut handshake = Handshake::new(&disk, 3).unwrap();
        let query = context_data(b"disk", &[b"qemu:dirty-bitmap:x", wire::ALLOCATION]);
        let kinds = |found: Vec<(u32, Vec<u8>)>| found.into_iter().map(|(kind, _)| kind).collect::<Vec<_>>();
        let (_, early) = answer(&mut handshake, option::SET_META_CONTEXT, &query);
        assert_eq!(kinds(early), [reply::ERR_INVALID]);
        assert_eq!(kinds(answer(&mut handshake, option::STRUCTURED_REPLY, b"x").1), [reply::ERR_INVALID]);
        assert_eq!(kinds(answer(&mut handshake, option::STRUCTURED_REPLY, b"").1), [reply::ACK]);
        let (_, found) = answer(&mut handshake, option::SET_META_CONTEXT, &query);
        assert_eq!(found[0], (reply::META_CONTEXT, b"\0\0\0\x01base:allocation".to_vec()));
        let go = |handshake: &mut Handshake<'_>, name| answer(handshake, option::GO, &info_data(name, &[])).0;
        assert_eq!(go(&mut handshake, b"disk"), Next::Requests(Agreed { structured: true, allocation: true }));
        assert_eq!(go(&mut handshake, b""), Next::Requests(Agreed { structured: true, allocation: false }));
        // a failed selection leaves none selected
        let (_, found) = answer(&mut handshake, option::SET_META_CONTEXT, &context_data(b"none", &[wire::ALLOCATION]));
        assert_eq!(kinds(found), [reply::ERR_UNKNOWN]);
        assert_eq!(go(&mut handshake, b"disk"), Next::Requests(Agreed { structured: true, allocation: false }));
        for (queries, listed) in [
            (&[][..], true),
            (&[b"base:".as_slice()][..], true),
            (&[wire::ALLOCATION][..], true),
            (&[b"x:".as_slice()][..], false),
        ] {
            let (_, found) = answer(&mut handshake, option::LIST_META_CONTEXT, &context_data(b"", queries));
            assert_eq!(kinds(found).contains(&reply::META_CONTEXT), listed);
        }
        let (_, found) = answer(&mut handshake, option::SET_META_CONTEXT, &context_data(b"", &[b"base:"]));
        assert_eq!(kinds(found), [reply::ACK]);
    }

    #[test]
    fn the_other_options() {
        let disk = disk();
        let mut handshake = Handshake::new(&disk, 3).unwrap();
        let (next, found) = answer(&mut handshake, option::LIST, b"");
        assert_eq!(next, Next::Option);
        assert_eq!(found, [(reply::SERVER, b"\0\0\0\x04disk".to_vec()), (reply::ACK, vec![])]);
        assert_eq!(answer(&mut handshake, option::LIST, b"x").1[0].0, reply::ERR_INVALID);
        assert_eq!(answer(&mut handshake, option::STARTTLS, b"").1[0].0, reply::ERR_UNSUP);
        assert_eq!(answer(&mut handshake, 4_000_000_000, b"abc").1[0].0, reply::ERR_UNSUP);
        assert_eq!(answer(&mut handshake, option::ABORT, b""), (Next::End, vec![(reply::ACK, vec![])]));
        let mut out = Vec::new();
        assert_eq!(Handshake::too_long(option::GO, &mut out), Next::Option);
        assert_eq!(answers(&out)[0].0, reply::ERR_TOO_BIG);
    }

    proptest! {
        #[test]
        fn any_options_get_short_and_whole_answers(
            flags in 0..4_u32,
            options in prop::collection::vec((0..13_u32, prop::collection::vec(any::<u8>(), 0..64)), 0..30),
        ) {
            let disk = disk();
            let mut handshake = Handshake::new(&disk, flags).unwrap();
            for (number, data) in options {
                let mut out = Vec::new();
                handshake.option(number, &data, &mut out);
                prop_assert!(out.len() < 400);
                if number != option::EXPORT_NAME {
                    let found = answers(&out);
                    let last = found.last().unwrap().0;
                    prop_assert!(last == reply::ACK || last >> 31 == 1);
                }
            }
        }
    }
}
