//! How a link is made with one process: what is said, and the memory that comes of it. Whom to meet is the keeper's to decide.

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
    /// Its number, which no other one has.
    pub number: u64,
    /// The process at the other end; 0: it is not visible from here.
    pub pid: u32,
    /// The connection; `None` while it is heard.
    pub talk: Option<Talk>,
    /// What it says next.
    pub step: Step,
    /// Until when it has to say it.
    pub until: Instant,
    /// The runs that wait for this.
    pub runs: Vec<Run>,
    /// Whether something lies in the connection, and the share of its process is in use.
    pub is_held: bool,
}

/// What is waited for.
pub enum Step {
    /// It calls: for its offer.
    Offer,
    /// It was called: for its greeting.
    Hello,
    /// It was offered this memory, for a link with this number: for its consent.
    Up(About, LinkId, Box<Made>),
}

/// What a link consists of.
pub struct Made {
    /// What holds for it.
    pub terms: Terms,
    /// Its rings.
    pub connection: Connection,
    /// The news of the other process.
    pub news: News,
}

/// This process, as others see it.
pub struct Us {
    /// What it says of itself.
    pub about: About,
    /// Its page of news, for others.
    pub news: Arc<OwnedFd>,
}

impl Meeting {
    /// With a process that calls: it is greeted.
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

    /// With a process that was called, for this run.
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

/// Offers memory to a process that has greeted.
///
/// # Errors
/// There is none.
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
    // The descriptor of the memory is closed when it is sent.
    talk.say(now, &offer, vec![Arc::new(memory), Arc::clone(&us.news)]);
    Ok(Made { terms, connection, news })
}

/// Takes the memory that a process offers.
///
/// # Errors
/// Why not.
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
