//! Which process each connection request went to: a hash table in the memory that the processes share.
//!
//! A repeated request must go to the same process as the first one, even if that process has closed its listener since. The table belongs
//! to no process, so it outlives the process that handled the first request. Strangers can only push out entries, one with each request; a
//! repeated request is then routed by its service, as the first one was.
//!
//! An entry is two words: a part of the hash with the run, and the time. They are not written atomically: at worst an entry is a little
//! older than its time says.

use core::net::IpAddr;
use core::sync::atomic::Ordering;
use core::time::Duration;

use super::draw::mix;
use super::layout::{REQUEST, SETS, WAYS};
use super::run::Run;
use super::table::{Table, Words};

/// How long an entry is valid: as long as the setup of a connection may take.
const LASTS: Duration = Duration::from_secs(120);

const RUN: u32 = 9;
const _: () = assert!(Run::COUNT == 1 << RUN);

/// The key of a request: a hash that strangers cannot control.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestKey(u64);

impl RequestKey {
    /// The key of a request of the peer at this address. `id`: its communication ID, or the request ID of SIDR (`is_sidr`).
    pub fn new(birth: u128, peer: IpAddr, is_sidr: bool, id: u32) -> Self {
        let peer = match peer {
            IpAddr::V4(addr) => addr.to_ipv6_mapped().to_bits(),
            IpAddr::V6(addr) => addr.to_bits(),
        };
        let number = u64::from(is_sidr) << 32 | u64::from(id);
        let words = [birth as u64, (birth >> 64) as u64, peer as u64, (peer >> 64) as u64, number];
        Self(words.into_iter().fold(0, |hash, word| mix(hash ^ word)))
    }
}

/// The request table in a registry's memory.
#[derive(Debug)]
pub struct Requests<'a, M>(pub(super) &'a Table<M>);

impl<M: Words> Requests<'_, M> {
    /// The run to which a request went, if known. `now`: nanoseconds since boot.
    pub fn find(&self, key: RequestKey, now: u64) -> Option<Run> {
        let place = self.places(key).find(|place| self.tag(*place) == tag(key))?;
        (self.age(place, now) < LASTS.as_nanos() as u64).then(|| self.run(place)).flatten()
    }

    /// Notes that a request goes to a run. Replaces the entry of the same request, or the oldest entry of the set.
    pub fn note(&self, key: RequestKey, run: Run, now: u64) {
        let same = self.places(key).find(|place| self.tag(*place) == tag(key));
        let place = same.or_else(|| self.places(key).max_by_key(|place| self.age(*place, now)));
        let Some(place) = place else { return };
        self.word(place, 0).store(tag(key) | run.index() as u64, Ordering::Relaxed);
        self.word(place, 1).store(now, Ordering::Relaxed);
    }

    fn places(&self, key: RequestKey) -> impl Iterator<Item = usize> + use<M> {
        let set = key.0 as usize % SETS;
        (0..WAYS).map(move |way| WAYS * set + way)
    }

    fn word(&self, place: usize, which: usize) -> &core::sync::atomic::AtomicU64 {
        self.0.word_of_requests(REQUEST * place + which)
    }

    fn tag(&self, place: usize) -> u64 {
        self.word(place, 0).load(Ordering::Relaxed) >> RUN << RUN
    }

    fn run(&self, place: usize) -> Option<Run> {
        Run::at((self.word(place, 0).load(Ordering::Relaxed) & ((1 << RUN) - 1)) as usize)
    }

    fn age(&self, place: usize, now: u64) -> u64 {
        now.saturating_sub(self.word(place, 1).load(Ordering::Relaxed))
    }
}

/// The part of a key that an entry stores. It does not contain the bits that choose the set.
fn tag(key: RequestKey) -> u64 {
    mix(key.0) >> RUN << RUN
}

#[cfg(test)]
mod tests {
    use super::super::layout::WORDS_OF_REQUESTS;
    use super::super::table::tests::Plain;
    use super::*;

    fn key(peer: u8, id: u32) -> RequestKey {
        RequestKey::new(0x1234 << 70, IpAddr::from([10, 0, 0, peer]), false, id)
    }

    #[test]
    fn a_request_is_found_where_it_went_for_a_while() {
        let table = Table::born(Plain::default(), 7);
        let (requests, [a, b]) = (Requests(&table), [3, 511].map(|run| Run::at(run).unwrap()));
        assert_eq!(requests.find(key(1, 7), 5), None);
        requests.note(key(1, 7), a, 5);
        requests.note(key(2, 7), b, 5);
        assert_eq!([key(1, 7), key(2, 7)].map(|key| requests.find(key, 6)), [Some(a), Some(b)]);
        let sidr = RequestKey::new(0x1234 << 70, IpAddr::from([10, 0, 0, 1]), true, 7);
        assert_eq!((requests.find(key(1, 8), 6), requests.find(sidr, 6)), (None, None));
        let lasts = LASTS.as_nanos() as u64;
        assert_eq!(requests.find(key(1, 7), 5 + lasts), None);
        requests.note(key(1, 7), b, 6);
        assert_eq!(requests.find(key(1, 7), 5 + lasts), Some(b));
        assert!(table.is_sound(7));
    }

    // Goal: a flood replaces the oldest entries, and takes no memory.
    #[test]
    fn new_requests_push_out_the_oldest() {
        let table = Table::born(Plain::default(), 7);
        let (requests, run) = (Requests(&table), Run::at(3).unwrap());
        let many = 3 * (WAYS * SETS) as u32;
        (0..many).for_each(|id| requests.note(key(1, id), run, u64::from(id) + 1));
        let known =
            |from, to| (from..to).filter(|id| requests.find(key(1, *id), many.into()).is_some()).count();
        assert!(known(0, 1000) < 300 && known(many - 1000, many) > 950);
    }

    #[test]
    fn any_words_are_entries() {
        for word in [1, u64::MAX, 0xdead_beef] {
            let table = Table::of(Plain::default());
            (0..WORDS_OF_REQUESTS).for_each(|n| table.word_of_requests(n).store(word, Ordering::Relaxed));
            for now in [0, 1, u64::MAX] {
                Requests(&table).find(key(1, 7), now);
                Requests(&table).note(key(1, 7), Run::at(9).unwrap(), now);
            }
        }
    }
}
