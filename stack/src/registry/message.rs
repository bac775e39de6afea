//! The messages that a process sends to another one's name, and the answers: one message each, in the byte order of the machine.
//!
//! Both begin with magic, kind and the version of the layout, in every version, so that processes of different versions can report the
//! mismatch. Requests of unknown kinds are refused, so that later versions can add kinds.

use super::run::Run;
use super::table::VERSION;
use crate::config::RUNS_PER_PROCESS;

/// `ROCEJOIN`.
const MAGIC: u64 = u64::from_ne_bytes(*b"ROCEJOIN");
/// Bytes of a request.
pub const REQUEST: usize = 16;
/// Bytes of an answer.
pub const REPLY: usize = 32;

/// Request: to get the memory.
const JOIN: u32 = 1;
/// Request: to make a link. The called process then sends first.
const LINK: u32 = 2;
/// Request: to get statistics, which follow a [`Reply::Counted`].
const STATS: u32 = 3;

const WELCOME: u32 = 1;
const UNLIKE: u32 = 2;
const UNKNOWN: u32 = 3;
const COUNTED: u32 = 4;

/// Encodes the absence of a run.
const NONE: u16 = u16::MAX;
const _: () = assert!(REQUEST + 2 * RUNS_PER_PROCESS == REPLY && Run::COUNT < NONE as usize);

/// The runs of a member: the first ones, in the order in which they were leased.
pub type Runs = [Option<Run>; RUNS_PER_PROCESS];

/// A request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request {
    /// To join, from a process with this version of the layout.
    Join(u32),
    /// To make a link, from a process with this version of the layout.
    Link(u32),
    /// To get statistics, from a process with this version of the layout.
    Stats(u32),
    /// Of an unknown kind.
    Unknown,
}

/// An answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reply {
    /// The memory, whose descriptor is sent with this message; and the number of the registry's birth.
    Welcome(u128),
    /// The sender's layout has this version.
    Unlike(u32),
    /// The runs of the member. If it was asked at the name of the first run, its statistics follow until the end of the connection.
    Counted(Runs),
    /// The request is unknown, or the process does not answer such requests.
    Unknown,
}

fn head(kind: u32) -> [u8; REQUEST] {
    let mut bytes = [0; REQUEST];
    bytes[..8].copy_from_slice(&MAGIC.to_ne_bytes());
    bytes[8..12].copy_from_slice(&kind.to_ne_bytes());
    bytes[12..].copy_from_slice(&VERSION.to_ne_bytes());
    bytes
}

/// The kind and the version of a message.
fn parse_head(bytes: &[u8]) -> Option<(u32, u32)> {
    let (magic, rest) = bytes.split_first_chunk()?;
    let (kind, rest) = rest.split_first_chunk()?;
    let (version, _) = rest.split_first_chunk()?;
    let known = u64::from_ne_bytes(*magic) == MAGIC;
    known.then_some((u32::from_ne_bytes(*kind), u32::from_ne_bytes(*version)))
}

impl Request {
    /// A request to join.
    pub fn join() -> [u8; REQUEST] {
        head(JOIN)
    }

    /// A request for a link.
    pub fn link() -> [u8; REQUEST] {
        head(LINK)
    }

    /// A request for statistics.
    pub fn stats() -> [u8; REQUEST] {
        head(STATS)
    }

    /// Parses a request; `None` if the bytes are not one.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (kind, version) = parse_head(bytes)?;
        Some(match kind {
            JOIN if bytes.len() == REQUEST => Self::Join(version),
            LINK if bytes.len() == REQUEST => Self::Link(version),
            STATS if bytes.len() == REQUEST => Self::Stats(version),
            _ => Self::Unknown,
        })
    }
}

impl Reply {
    /// Encodes the answer.
    pub fn encode(self) -> [u8; REPLY] {
        let (kind, rest) = match self {
            Self::Welcome(birth) => (WELCOME, birth.to_ne_bytes()),
            Self::Counted(runs) => (COUNTED, encode_runs(runs)),
            Self::Unlike(_) => (UNLIKE, [0; _]),
            Self::Unknown => (UNKNOWN, [0; _]),
        };
        let mut bytes = [0; REPLY];
        bytes[..REQUEST].copy_from_slice(&head(kind));
        bytes[REQUEST..].copy_from_slice(&rest);
        bytes
    }

    /// Parses an answer; `None` if the bytes are not one.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (kind, version) = parse_head(bytes)?;
        match (kind, bytes.get(REQUEST..)?.try_into()) {
            // The rest of a message of another version is ignored.
            _ if version != VERSION => Some(Self::Unlike(version)),
            (WELCOME, Ok(birth)) => Some(Self::Welcome(u128::from_ne_bytes(birth))),
            (COUNTED, Ok(runs)) => parse_runs(runs).map(Self::Counted),
            (UNKNOWN, Ok(_)) => Some(Self::Unknown),
            _ => None,
        }
    }
}

fn encode_runs(runs: Runs) -> [u8; REPLY - REQUEST] {
    let mut bytes = [0; REPLY - REQUEST];
    for (to, run) in bytes.chunks_exact_mut(2).zip(runs) {
        to.copy_from_slice(&run.map_or(NONE, |run| run.index() as u16).to_ne_bytes());
    }
    bytes
}

/// Decodes runs; `None` if a number is not that of a run.
fn parse_runs(bytes: [u8; REPLY - REQUEST]) -> Option<Runs> {
    let mut runs = [None; RUNS_PER_PROCESS];
    for (run, from) in runs.iter_mut().zip(bytes.chunks_exact(2)) {
        let index = u16::from_ne_bytes([from[0], from[1]]);
        *run = if index == NONE { None } else { Some(Run::at(index.into())?) };
    }
    Some(runs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood() {
        assert_eq!(Request::parse(&Request::join()), Some(Request::Join(VERSION)));
        assert_eq!(Request::parse(&Request::link()), Some(Request::Link(VERSION)));
        assert_eq!(Request::parse(&Request::stats()), Some(Request::Stats(VERSION)));
        let mut runs = [None; RUNS_PER_PROCESS];
        runs[..2].copy_from_slice(&[Run::at(511), Run::at(0)]);
        for reply in [Reply::Welcome(u128::MAX / 3), Reply::Unknown, Reply::Counted(runs)] {
            assert_eq!(Reply::parse(&reply.encode()), Some(reply));
        }
    }

    #[test]
    fn another_version_is_told_whatever_else_it_says() {
        let mut bytes = Reply::Welcome(5).encode().to_vec();
        bytes[12] = 9;
        for len in REQUEST..REPLY {
            assert_eq!(Reply::parse(&bytes[..len]), Some(Reply::Unlike(9)));
        }
        bytes[8..12].fill(0xff);
        assert_eq!(Reply::parse(&bytes), Some(Reply::Unlike(9)));
        let mut request = Request::join();
        request[12] = 9;
        assert_eq!(Request::parse(&request), Some(Request::Join(9)));
        request[8] = 77;
        assert_eq!(Request::parse(&request), Some(Request::Unknown));
    }

    #[test]
    fn what_is_no_run_is_no_answer() {
        let bytes = Reply::Counted([Run::at(3); RUNS_PER_PROCESS]).encode();
        for index in [Run::COUNT as u16, 0x8000, NONE - 1] {
            let mut other = bytes;
            other[REPLY - 2..].copy_from_slice(&index.to_ne_bytes());
            assert_eq!(Reply::parse(&other), None, "{index}");
        }
    }

    #[test]
    fn what_is_no_message_is_none() {
        for len in 0..REPLY + 8 {
            assert_eq!((Request::parse(&vec![0x5a; len]), Reply::parse(&vec![0x5a; len])), (None, None));
            let welcome = Reply::Welcome(1).encode();
            assert_eq!(
                welcome.get(..len).and_then(Reply::parse),
                None.or((len == REPLY).then_some(Reply::Welcome(1)))
            );
            let join = Request::join();
            assert!(join.get(..len).is_none_or(|part| (Request::parse(part).is_some()) == (len == REQUEST)));
        }
    }
}
