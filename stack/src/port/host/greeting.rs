//! The handshake messages of a link: four kinds of one length, in the byte order of the machine.
//!
//! The called process sends HELLO, with its notification page. The caller replies with OFFER: memory for both directions, and its own
//! notification page. The called process maps the memory and sends UP; from then on frames cross the memory, and the connection carries
//! only wake-ups, one byte each. Either process may send REFUSED with a reason instead. In OFFER and UP each process sends its own number
//! of the link, which is the place that its peer signals in its notification page.
//!
//! Each message begins with magic and version, in every version, so that processes of different versions can report the mismatch. A
//! received message is checked here: each value of a parsed [`Message`] is in bounds.

use super::id::{LINKS_MAX, LinkId};
use super::terms::{About, Offer};
use crate::config::{RUNS_PER_PROCESS, SHARDS_MAX};
use crate::registry::Run;
use arrayvec::ArrayVec;

/// Version of the messages and of the memory layout.
pub const VERSION: u32 = 3;
/// `ROCELINK`.
const MAGIC: u64 = u64::from_ne_bytes(*b"ROCELINK");
/// Bytes of a message.
pub const MESSAGE: usize = 128;
/// Bounds of the longest frame of a process, in bytes, for the smallest and the largest MTU of a port.
const FRAME_MIN: u32 = 512;
const FRAME_MAX: u32 = 16 << 10;

const HELLO: u32 = 1;
const OFFER: u32 = 2;
const UP: u32 = 3;
const REFUSED: u32 = 4;

/// A message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message {
    /// From the called process, with the descriptor of its notification page.
    Hello(About),
    /// From the caller, with the descriptors of the memory that it offers and of its notification page.
    Offer(About, Offer, LinkId),
    /// The called process has mapped the memory.
    Up(LinkId),
    /// No link is made.
    Refused(Refusal),
}

/// Why a process refuses a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// The two processes have a link, or make one: both have called.
    #[error("there is a link already")]
    Linked,
    /// The process has as many links as it may have.
    #[error("it has as many links as a process may have")]
    Full,
    /// The other process sent an invalid message.
    #[error("what this process says is wrong")]
    Wrong,
    /// The process has no memory or no descriptors left for a link.
    #[error("it has no memory or no descriptors left for one")]
    Exhausted,
}

const REFUSALS: [Refusal; 4] = [Refusal::Linked, Refusal::Full, Refusal::Wrong, Refusal::Exhausted];

/// What is wrong with a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Fault {
    /// It does not begin with the magic, or has the wrong length.
    #[error("it says what is no greeting")]
    NoMessage,
    /// Its version differs.
    #[error(
        "it runs a release whose links have version {0}, and this one has version {VERSION}: end the programs of the other release, \
         or use one release for all"
    )]
    Unlike(u32),
    /// Its kind is unknown.
    #[error("it sends a message of the unknown kind {0}")]
    Kind(u32),
    /// The number of descriptors is wrong.
    #[error("it sends {0} descriptors along, where {1} belong")]
    Descriptors(usize, usize),
    /// It has more descriptors than this process or the protocol has room for.
    #[error("it sends more descriptors than this process has room for (ulimit -n)")]
    NoRoom,
    /// The number of queues is out of bounds.
    #[error("it has {0} queues, where a process has 1 to {SHARDS_MAX}")]
    Queues(u32),
    /// The length of the longest frame is out of bounds.
    #[error("its frames have up to {0} bytes, where {FRAME_MIN} to {FRAME_MAX} are possible")]
    Frames(u32),
    /// The number of runs is out of bounds, or a run does not exist.
    #[error("it says that it has {0} runs, or a run that does not exist")]
    Runs(u32),
    /// The number of the link is out of bounds.
    #[error("it has link {0}, where there are {LINKS_MAX}")]
    Link(u32),
    /// The reason of the refusal is unknown.
    #[error("it refuses for the unknown reason {0}")]
    Reason(u32),
    /// It is not the message that the handshake expects.
    #[error("it sends a message at the wrong time")]
    Order,
}

impl Message {
    /// Descriptors that are sent with it.
    fn descriptors(&self) -> usize {
        match self {
            Self::Hello(_) => 1,
            Self::Offer(..) => 2,
            Self::Up(_) | Self::Refused(_) => 0,
        }
    }

    /// Encodes it.
    pub fn encode(&self) -> [u8; MESSAGE] {
        let mut to = Writer { bytes: [0; MESSAGE], at: 0 };
        to.put(&MAGIC.to_ne_bytes());
        to.number(VERSION);
        match self {
            Self::Hello(about) => {
                to.number(HELLO);
                to.about(about);
            }
            Self::Offer(about, Offer { queues, log2, buffer, size }, link) => {
                to.number(OFFER);
                to.number(link.number().into());
                to.about(about);
                [*queues, *log2, *buffer].into_iter().for_each(|number| to.number(number));
                to.put(&size.to_ne_bytes());
            }
            Self::Up(link) => {
                to.number(UP);
                to.number(link.number().into());
            }
            Self::Refused(why) => {
                to.number(REFUSED);
                to.number(*why as u32);
            }
        }
        to.bytes
    }

    /// Parses a message that arrived with `fds` descriptors. Any bytes are safe input.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(bytes: &[u8; MESSAGE], fds: usize) -> Result<Self, Fault> {
        let mut from = Reader(bytes.as_slice());
        if u64::from_ne_bytes(from.take()) != MAGIC {
            return Err(Fault::NoMessage);
        }
        match from.number() {
            VERSION => {}
            other => return Err(Fault::Unlike(other)),
        }
        let message = match from.number() {
            HELLO => Self::Hello(from.about()?),
            OFFER => {
                let link = from.link()?;
                let about = from.about()?;
                let [queues, log2, buffer] = [(); 3].map(|()| from.number());
                Self::Offer(
                    about,
                    Offer { queues, log2, buffer, size: u64::from_ne_bytes(from.take()) },
                    link,
                )
            }
            UP => Self::Up(from.link()?),
            REFUSED => {
                let reason = from.number();
                let why = REFUSALS.into_iter().find(|why| *why as u32 == reason);
                Self::Refused(why.ok_or(Fault::Reason(reason))?)
            }
            other => return Err(Fault::Kind(other)),
        };
        match message.descriptors() {
            right if right == fds => Ok(message),
            right => Err(Fault::Descriptors(fds, right)),
        }
    }
}

/// Appends fields to a message. All fields of each kind fit.
struct Writer {
    bytes: [u8; MESSAGE],
    at: usize,
}

impl Writer {
    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.at..][..bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }

    fn number(&mut self, number: u32) {
        self.put(&number.to_ne_bytes());
    }

    fn about(&mut self, about: &About) {
        self.number(about.queues as u32);
        self.number(about.max_frame as u32);
        self.number(about.runs.len() as u32);
        for at in 0..RUNS_PER_PROCESS {
            self.number(about.runs.get(at).map_or(0, |run| run.index() as u32));
        }
    }
}

/// Takes fields off the front of a message, which is long enough for the fields of each kind.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (field, rest) = self.0.split_first_chunk().expect("all kinds are shorter than a message");
        self.0 = rest;
        *field
    }

    fn number(&mut self) -> u32 {
        u32::from_ne_bytes(self.take())
    }

    fn link(&mut self) -> Result<LinkId, Fault> {
        let number = self.number();
        let link = u8::try_from(number).ok().filter(|number| usize::from(*number) < LINKS_MAX);
        link.map(LinkId).ok_or(Fault::Link(number))
    }

    fn about(&mut self) -> Result<About, Fault> {
        let [queues, frame, count] = [(); 3].map(|()| self.number());
        let runs = [(); RUNS_PER_PROCESS].map(|()| self.number());
        if !(1..=SHARDS_MAX as u32).contains(&queues) {
            return Err(Fault::Queues(queues));
        }
        if !(FRAME_MIN..=FRAME_MAX).contains(&frame) {
            return Err(Fault::Frames(frame));
        }
        let runs = runs.get(..count as usize).filter(|runs| !runs.is_empty()).ok_or(Fault::Runs(count))?;
        let runs: Option<ArrayVec<_, _>> = runs.iter().map(|run| Run::at(*run as usize)).collect();
        let runs = runs.ok_or(Fault::Runs(count))?;
        Ok(About { queues: queues as usize, max_frame: frame as usize, runs })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about() -> About {
        About { queues: 3, max_frame: 4218, runs: Run::all().skip(500).take(2).collect() }
    }

    fn all() -> [Message; 8] {
        let offer = Offer { queues: 3, log2: 9, buffer: 4288, size: 1 << 20 };
        let [a, b, c, d] = REFUSALS.map(Message::Refused);
        let [first, last] = [0, LINKS_MAX as u8 - 1].map(LinkId);
        [
            Message::Hello(about()),
            Message::Offer(about(), offer, last),
            Message::Up(first),
            a,
            b,
            c,
            d,
            Message::Up(last),
        ]
    }

    #[test]
    fn what_is_said_is_understood() {
        for message in all() {
            let fds = message.descriptors();
            assert_eq!(Message::parse(&message.encode(), fds), Ok(message.clone()));
            assert_eq!(Message::parse(&message.encode(), 4), Err(Fault::Descriptors(4, fds)));
        }
    }

    #[test]
    fn another_version_is_told_whatever_else_it_says() {
        let mut bytes = Message::Up(LinkId(0)).encode();
        bytes[8] = 9;
        bytes[12..].fill(0xff);
        let fault = Message::parse(&bytes, 4).unwrap_err();
        assert_eq!(fault, Fault::Unlike(9));
        let words = fault.to_string();
        assert!(["version 9", "version 3", "one release"].iter().all(|part| words.contains(part)), "{words}");
    }

    #[test]
    fn numbers_out_of_bounds_are_refused() {
        let with = |at: usize, number: u32| {
            let mut bytes = Message::Hello(about()).encode();
            bytes[at..at + 4].copy_from_slice(&number.to_ne_bytes());
            Message::parse(&bytes, 1).map(|_| ())
        };
        assert_eq!(with(12, 77), Err(Fault::Kind(77)));
        for queues in [0, SHARDS_MAX as u32 + 1, u32::MAX] {
            assert_eq!(with(16, queues), Err(Fault::Queues(queues)));
        }
        for frame in [0, FRAME_MIN - 1, FRAME_MAX + 1, u32::MAX] {
            assert_eq!(with(20, frame), Err(Fault::Frames(frame)));
        }
        for count in [0, RUNS_PER_PROCESS as u32 + 1, u32::MAX] {
            assert_eq!(with(24, count), Err(Fault::Runs(count)));
        }
        assert_eq!(with(32, Run::COUNT as u32), Err(Fault::Runs(2)));
        assert_eq!(with(36, u32::MAX), Ok(()), "that one is not counted");
        let mut up = Message::Up(LinkId(0)).encode();
        for number in [LINKS_MAX as u32, 256, u32::MAX] {
            up[16..20].copy_from_slice(&number.to_ne_bytes());
            assert_eq!(Message::parse(&up, 0), Err(Fault::Link(number)));
        }
        assert_eq!(Message::parse(&[0x5a; MESSAGE], 0), Err(Fault::NoMessage));
    }
}
