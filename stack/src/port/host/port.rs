//! The port of a host: its network by sockets that all processes of a user share, and a link to each of these processes.
//!
//! What goes to another host leaves by the sockets, the default route. What goes to a process of this host leaves by the link to it,
//! once there is one; to one that wants none, of another version, the kernel carries it from socket to socket.

use super::ended::Ended;
use super::id::{LINKS_MAX, LinkId};
use super::links::{Links, LinksConfig};
use super::queue::{LinkQueue, Reach};
use crate::id::Mtu;
use crate::port::error::PortError;
use crate::port::frame::{Frame, RxBurst, TxBurst};
use crate::port::info::{PortInfo, PortOptions, PortStats};
use crate::port::layer::{PortLayer, QueueLayer};
use crate::port::spec::PortSpec;
use crate::port::traits::{Armed, Build, Destination, Numbers, Port, PortQueue, Route, Routes, Stalled};
use crate::port::udp;
use crate::registry::{Addresses, Registry, RegistryConfig, Run};
use crate::time::Instant;
use core::net::IpAddr;
use core::ops::RangeInclusive;
use core::time::Duration;
use rustix::event::epoll::{self, EventData, EventFlags};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant as SystemInstant;

/// The route of the sockets; behind it come those of the links.
const SOCKETS: Route = Route(0);
const _: () = assert!(LINKS_MAX < Route::COUNT);

/// While there are links, sockets are asked after this time: asking is a system call for each, and takes as long as many bursts. After they
/// brought or sent something they are asked in each of the next bursts, and for a while longer not quite as seldom.
const SELDOM: Duration = Duration::from_micros(200);
const LIVELY: Duration = Duration::from_micros(20);
const LIVELY_FOR: Duration = Duration::from_millis(10);
/// The clock is looked at when bursts and the frames of links are so many: few where they take long, as between two bursts of a program
/// that yields its core others may run for milliseconds.
const CLOCK_EVERY: RangeInclusive<u32> = 8..=128;
const OFTEN_FOR: u32 = 1024;

fn route_of(link: LinkId) -> Route {
    Route(link.number() + 1)
}

/// The link of a route; `None`: it is that of the sockets.
fn link_of(route: Route) -> Option<LinkId> {
    route.0.checked_sub(1).map(LinkId)
}

/// Opens the port on these addresses of the host, or on all that the processes of the user have; `more` are the options of its
/// specification, those of the sockets.
pub(in crate::port) fn open(
    spec: &PortSpec,
    addrs: &[IpAddr],
    more: &[(String, String)],
    options: &PortOptions,
) -> Result<Box<dyn Port>, PortError> {
    let fail = |reason: String| PortError::Open { port: spec.to_string(), reason };
    let most = Addresses::MAX;
    let addresses = Addresses::new(addrs)
        .ok_or_else(|| fail(format!("{} addresses are named; {most} at most can be", addrs.len())))?;
    if let Some(addr) = addrs.iter().find(|addr| udp::is_link_local(**addr)) {
        return Err(fail(format!("{addr} is an address of one link alone: name others, or none")));
    }
    let config = RegistryConfig { addresses, ..RegistryConfig::default() };
    let registry = Registry::join(&config).map_err(|error| fail(error.to_string()))?;
    let registry = Arc::new(registry);
    let config = LinksConfig::of(&PortInfo::of(spec, options), options.frames);
    let links = Links::new(Arc::clone(&registry), &config)
        .map_err(|error| fail(format!("links between the processes of this host: {error}")))?;
    let sockets = udp::open_shared(spec, more, options, registry, links.pool())?;
    Ok(Box::new(HostPort { sockets: Box::new(sockets), links }))
}

/// The port.
struct HostPort {
    sockets: Box<dyn Port>,
    links: Links,
}

impl PortLayer for HostPort {
    fn inner(&self) -> &dyn Port {
        &*self.sockets
    }

    fn take_queue(&self, index: usize) -> Option<Box<dyn PortQueue>> {
        let (sockets, links) = (self.sockets.take_queue(index)?, self.links.take_queue(index)?);
        Some(Box::new(HostQueue { sockets, links, look: Look::default(), armed: None, ended: None }))
    }

    fn numbers(&self) -> Option<&dyn Numbers> {
        self.sockets.numbers().is_some().then_some(self)
    }

    fn stats(&self) -> PortStats {
        self.sockets.stats() + self.links.stats()
    }
}

impl Numbers for HostPort {
    fn lease(&self, queue: usize) -> Result<Run, PortError> {
        self.sockets.numbers().expect("they have some, or this is not asked").lease(queue)
    }

    fn registry(&self) -> Option<&Arc<Registry>> {
        self.sockets.numbers()?.registry()
    }

    fn announce(&self) {
        if let Some(numbers) = self.sockets.numbers() {
            numbers.announce();
        }
    }

    fn links(&self) -> u64 {
        self.links.counts().up
    }
}

/// When the sockets are asked.
#[derive(Debug, Default)]
struct Look {
    /// Bursts and frames of links since they were asked, how many there are when the clock is looked at next, and from one look to the
    /// next one.
    since: u32,
    clock_at: u32,
    clock_every: u32,
    clock: Option<SystemInstant>,
    /// When they were asked last, as far as is known.
    asked_at: Option<SystemInstant>,
    /// Bursts in which they are asked each time.
    often: u32,
    /// They brought or sent something since the clock was looked at, or lately.
    is_lively: bool,
    lively_until: Option<SystemInstant>,
}

impl Look {
    /// They brought or sent something: an answer may come.
    fn wait_for_more(&mut self) {
        (self.often, self.is_lively) = (OFTEN_FOR, true);
    }

    /// Before a sleep: what waits at them was an edge already, so they are asked once. Whether they were, since the last burst.
    fn is_up_to_date(&mut self) -> bool {
        self.often = self.often.max(u32::from(self.since > 0));
        self.since == 0
    }

    /// Whether a burst asks them, in which links brought so many frames.
    #[inline]
    fn now(&mut self, has_links: bool, frames: usize, clock: impl FnOnce() -> SystemInstant) -> bool {
        self.since += 1 + frames as u32;
        let now = !has_links || self.often > 0 || self.since >= self.clock_at && self.is_time(clock());
        self.often = self.often.saturating_sub(1);
        if now {
            (self.since, self.clock_at) = (0, self.clock_every);
        }
        now
    }

    fn is_time(&mut self, now: SystemInstant) -> bool {
        let since = self.clock.replace(now).map(|at| now.saturating_duration_since(at));
        let (few, many) = (*CLOCK_EVERY.start(), *CLOCK_EVERY.end());
        self.clock_every = match since {
            Some(since) if since < LIVELY / 4 => (2 * self.clock_every).clamp(few, many),
            Some(since) if since < LIVELY => self.clock_every,
            _ => few,
        };
        self.clock_at = self.since + self.clock_every;
        if core::mem::take(&mut self.is_lively) {
            self.lively_until = Some(now + LIVELY_FOR);
        }
        let pause = if self.lively_until.is_some_and(|until| now < until) { LIVELY } else { SELDOM };
        let is_time = self.asked_at.is_none_or(|at| now.saturating_duration_since(at) >= pause);
        if is_time {
            self.asked_at = Some(now);
        }
        is_time
    }
}

/// A queue: frames of the sockets and of the links.
struct HostQueue {
    sockets: Box<dyn PortQueue>,
    links: LinkQueue,
    look: Look,
    /// The descriptor of the sockets, to which that of the links was added.
    armed: Option<Arc<OwnedFd>>,
    /// The link whose route ended last: its number is not used anew before the next call.
    ended: Option<Ended>,
}

impl QueueLayer for HostQueue {
    fn inner(&mut self) -> &mut dyn PortQueue {
        &mut *self.sockets
    }

    fn rx_burst(&mut self, out: &mut RxBurst) -> usize {
        let from_links = self.links.rx_burst(out);
        if !self.look.now(self.links.has_any(), from_links, SystemInstant::now) {
            return from_links;
        }
        let from_sockets = self.sockets.rx_burst(out);
        if from_sockets > 0 {
            self.look.wait_for_more();
        }
        from_links + from_sockets
    }

    fn routes(&mut self) -> Option<&mut dyn Routes> {
        Some(self)
    }

    fn tx_burst(&mut self, route: Route, frames: &mut TxBurst) -> usize {
        if let Some(link) = link_of(route) {
            return self.links.tx_burst(link, frames);
        }
        self.look.wait_for_more();
        self.sockets.tx_burst(route, frames)
    }

    fn alloc(&mut self) -> Option<Frame> {
        self.links.alloc()
    }

    fn alloc_burst(&mut self, out: &mut TxBurst, n: usize) {
        self.links.alloc_burst(out, n);
    }

    fn build_burst(&mut self, route: Route, most: usize, builder: &mut dyn Build) -> Option<usize> {
        self.links.build_burst(link_of(route)?, most, builder)
    }

    fn stalled(&mut self, route: Route, now: Instant) -> Stalled {
        match link_of(route) {
            Some(link) => self.links.stalled(link, now),
            None => self.sockets.stalled(route, now),
        }
    }

    /// The descriptor of the sockets is an epoll instance, which gets that of the links, too: each of both is an edge of it.
    fn arm(&mut self) -> Armed {
        if !self.look.is_up_to_date() {
            return Armed::Pending;
        }
        let event = match self.links.arm() {
            Armed::Event(event) => event,
            other => return other,
        };
        let sockets = match self.sockets.arm() {
            Armed::Event(sockets) => sockets,
            other => return other,
        };
        if self.armed.is_none() {
            let flags = EventFlags::IN | EventFlags::ET;
            if epoll::add(&sockets, &event, EventData::new_u64(1), flags).is_err() {
                return Armed::Unable;
            }
            self.armed = Some(Arc::clone(&sockets));
        }
        Armed::Event(sockets)
    }

    fn recycle(&mut self, frames: &mut RxBurst) {
        self.links.recycle(frames);
    }
}

impl Routes for HostQueue {
    fn route_to(&mut self, to: Destination) -> Option<Route> {
        let Destination::Process(number) = to else { return Some(SOCKETS) };
        // Queue pair 1 is that of each process: the sockets bring a message to the one that it is for.
        if number.block().is_reserved() {
            return Some(SOCKETS);
        }
        match self.links.route_to(number) {
            Reach::Link(link) => Some(route_of(link)),
            Reach::Asked => None,
            Reach::Ourselves | Reach::Nobody => Some(SOCKETS),
        }
    }

    fn segment_on(&mut self, route: Route) -> Option<Mtu> {
        self.links.segment_on(link_of(route)?)
    }

    fn longest_segment(&mut self) -> Option<Mtu> {
        self.links.longest_segment()
    }

    fn next_ended(&mut self) -> Option<Route> {
        // First the number of the one before becomes free.
        self.ended = None;
        self.ended = self.links.next_ended();
        self.ended.as_ref().map(|ended| route_of(ended.link()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_link_has_a_route() {
        assert_eq!(link_of(SOCKETS), None);
        for number in 0..LINKS_MAX as u8 {
            let route = route_of(LinkId(number));
            assert_ne!(route, SOCKETS);
            assert_eq!(link_of(route), Some(LinkId(number)));
        }
    }

    /// How often sockets are asked in so many bursts, each with so many frames of links and this long after the one before.
    fn asked(look: &mut Look, now: &mut SystemInstant, bursts: u32, frames: usize, apart: Duration) -> u32 {
        let burst = |_: &u32| {
            *now += apart;
            look.now(true, frames, || *now)
        };
        (0..bursts).filter(burst).count() as u32
    }

    #[test]
    fn sockets_are_asked_often_while_they_have_something() {
        let (mut look, mut now) = (Look::default(), SystemInstant::now());
        const US: Duration = Duration::from_micros(1);
        asked(&mut look, &mut now, 1, 0, US);
        assert_eq!(asked(&mut look, &mut now, 2000, 0, US), 10);
        look.wait_for_more();
        assert_eq!(asked(&mut look, &mut now, OFTEN_FOR, 0, US), OFTEN_FOR);
        assert_eq!(asked(&mut look, &mut now, 2400, 0, US), 100, "each 24 us");
        now += LIVELY_FOR;
        assert_eq!(asked(&mut look, &mut now, 2000, 0, US), 10);
        assert_eq!((0..100).filter(|_| look.now(false, 9, || now)).count(), 100, "nothing else to ask");
    }

    // A program that yields its core after each poll that finds nothing gets it back when all others had their turns.
    #[test]
    fn sockets_do_not_wait_for_many_bursts_where_each_takes_long() {
        let (mut look, mut now) = (Look::default(), SystemInstant::now());
        const MS: Duration = Duration::from_millis(1);
        let (few, many) = (*CLOCK_EVERY.start(), *CLOCK_EVERY.end());
        assert_eq!(asked(&mut look, &mut now, 10 * few, 0, MS), 10);
        assert_eq!(asked(&mut look, &mut now, 80, few as usize, MS), 80);
        // It has polled quickly before.
        asked(&mut look, &mut now, 100_000, 0, Duration::from_nanos(10));
        assert_eq!(look.clock_every, many);
        assert!(asked(&mut look, &mut now, many + 10 * few, 0, MS) > 10);
    }

    // Asking is a system call for each address, and who polls in vain on busy cores goes to sleep thousands of times a second.
    #[test]
    fn sockets_are_asked_once_before_a_sleep_and_seldom_after_it() {
        let (mut look, now) = (Look::default(), SystemInstant::now());
        assert!(look.is_up_to_date(), "nothing was received yet");
        for _ in 0..100 {
            look.now(true, 0, || now);
            look.now(true, 0, || now);
            assert!(!look.is_up_to_date());
            assert!(look.now(true, 0, || now) && look.is_up_to_date(), "asked in the next burst");
        }
        assert_eq!((0..1000).filter(|_| look.now(true, 0, || now)).count(), 0);
    }
}
