//! The handshake of a link with one process: the messages, and the shared memory that results. The keeper decides with which processes to
//! make links.

use super::greeting::{Message, Refusal};
use super::id::LinkId;
use super::news::News;
use super::talk::Talk;
use super::terms::{About, Offer, Terms};
use crate::port::memif::connection::Connection;
use crate::port::memif::region;
use crate::port::memif::shm::Fill;
use crate::registry::Run;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

/// A process with which a link is being made.
pub struct Meeting {
    /// Its number, unique in this process.
    pub number: u64,
    /// The peer process; 0 if it is not visible from this PID namespace.
    pub pid: u32,
    /// The connection; `None` while another thread receives from it.
    pub talk: Option<Talk>,
    /// The message that is expected next.
    pub step: Step,
    /// Deadline of that message.
    pub until: Instant,
    /// The runs for which shards wait for this handshake.
    pub runs: Vec<Run>,
    /// Whether received bytes wait in the connection because the peer's share is in use.
    pub is_held: bool,
}

/// The message that a handshake expects next.
pub enum Step {
    /// The peer has called: its OFFER.
    Offer,
    /// The peer was called: its HELLO.
    Hello,
    /// The peer was offered this memory, for a link with this number: its UP.
    Up(About, LinkId, Box<Made>),
}

/// The parts of a link.
pub struct Made {
    /// Its parameters, which both processes have agreed on.
    pub terms: Terms,
    /// Its rings.
    pub connection: Connection,
    /// The peer's notification page.
    pub news: News,
}

/// This process, as it presents itself to peers.
pub struct Us {
    /// The parameters that it announces.
    pub about: About,
    /// The descriptor of its notification page, to send to peers.
    pub news: Arc<OwnedFd>,
}

impl Meeting {
    /// The handshake with a process that has called: sends HELLO.
    pub fn called(number: u64, mut talk: Talk, us: &Us, now: Instant, until: Instant) -> Self {
        talk.say(now, &Message::Hello(us.about.clone()), vec![Arc::clone(&us.news)]);
        Self {
            number,
            pid: talk.pid(),
            talk: Some(talk),
            step: Step::Offer,
            until,
            runs: Vec::new(),
            is_held: false,
        }
    }

    /// The handshake with a process that was called for this run.
    pub fn calling(number: u64, talk: Talk, run: Run, until: Instant) -> Self {
        Self {
            number,
            pid: talk.pid(),
            talk: Some(talk),
            step: Step::Hello,
            until,
            runs: vec![run],
            is_held: false,
        }
    }
}

/// Creates memory for a link, and offers it to a process that has sent HELLO.
///
/// # Errors
/// The memory cannot be created.
pub fn offer(
    us: &Us,
    them: &About,
    news: News,
    link: LinkId,
    talk: &mut Talk,
    now: Instant,
) -> Result<Made, (Refusal, String)> {
    let terms = Terms::of(&us.about, them);
    let (memory, region) = terms.layout.make_empty("roce-link", Fill::AsUsed).map_err(exhausted)?;
    let connection = Connection::of_equal(terms.layout, region, true);
    let offer = Message::Offer(us.about.clone(), terms.offer(), link);
    // The last reference to the memory's descriptor is in the message, so the descriptor is closed when the message was sent.
    talk.say(now, &offer, vec![Arc::new(memory), Arc::clone(&us.news)]);
    Ok(Made { terms, connection, news })
}

/// Maps the memory that a process offers.
///
/// # Errors
/// Why the offer is refused: it does not match the agreed parameters, or the memory cannot be mapped.
pub fn accept(
    us: &Us,
    them: &About,
    offer: Offer,
    memory: &OwnedFd,
    news: News,
) -> Result<Made, (Refusal, String)> {
    let wrong = |why: String| (Refusal::Wrong, why);
    let terms = Terms::of(&us.about, them);
    if offer != terms.offer() {
        return Err(wrong(format!("it offers {offer:?}, where {:?} was due", terms.offer())));
    }
    let region = region::take(memory.as_fd(), offer.size, Fill::AsUsed).map_err(wrong)?;
    let connection = Connection::of_equal(terms.layout, region, false);
    Ok(Made { terms, connection, news })
}

fn exhausted(error: std::io::Error) -> (Refusal, String) {
    (Refusal::Exhausted, format!("this process has no memory for it: {error} (ulimit -n, ulimit -v)"))
}
