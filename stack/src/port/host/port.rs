//! The `host` port: UDP sockets that all processes of a user share, and a link to each of these processes.
//!
//! Packets for another host leave by the sockets, the default route. Packets for a process of this host leave by the link to that process,
//! once the link is up. To a process that refuses a link, because its version differs for example, the kernel carries packets from socket
//! to socket.

use super::ended::Ended;
use super::id::{LINKS_MAX, LinkId};
use super::links::{Links, LinksConfig};
use super::look::Look;
use super::passing::Passing;
use super::queue::{LinkQueue, Reach};
use crate::id::Mtu;
use crate::port::error::PortError;
use crate::port::for_guests::ForGuests;
use crate::port::frame::{Frame, RxBurst, TxBurst};
use crate::port::info::{PortInfo, PortOptions, PortStats};
use crate::port::layer::{PortLayer, QueueLayer};
use crate::port::spec::PortSpec;
use crate::port::traits::{
    Armed, Build, Destination, NoRoute, Numbers, Port, PortQueue, Route, Routes, Stalled,
};
use crate::port::udp;
use crate::registry::{Addresses, Registry, RegistryConfig, Run};
use crate::time::Instant;
use core::net::IpAddr;
use rustix::event::epoll::{self, EventData, EventFlags};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant as SystemInstant;

/// The route of the sockets. The routes of the links have the numbers above it.
const SOCKETS: Route = Route(0);
const _: () = assert!(LINKS_MAX < Route::COUNT);

fn route_of(link: LinkId) -> Route {
    Route(link.number() + 1)
}

/// The link of a route; `None` for the route of the sockets.
fn link_of(route: Route) -> Option<LinkId> {
    route.0.checked_sub(1).map(LinkId)
}

/// Opens the port on the addresses `addrs` of the host, or, if `addrs` is empty, on all addresses that the processes of the user use.
/// `more` holds the socket options of the port's specification.
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
    let (owner, admit) = (spec.owner(), spec.admits());
    let config = RegistryConfig { addresses, owner, admit, ..RegistryConfig::default() };
    let registry = Registry::join(&config).map_err(|error| fail(error.to_string()))?;
    let registry = Arc::new(registry);
    let config = LinksConfig::of(&PortInfo::of(spec, options), options.frames);
    let links = Links::new(Arc::clone(&registry), &config)
        .map_err(|error| fail(format!("links between the processes of this host: {error}")))?;
    let guests = Arc::new(ForGuests::new(options.queues));
    let sharing = udp::Sharing { registry, pool: links.pool(), guests: Arc::clone(&guests) };
    let sockets = udp::open_shared(spec, more, options, sharing)?;
    Ok(Box::new(HostPort { sockets: Box::new(sockets), links, guests }))
}

/// The `host` port.
struct HostPort {
    sockets: Box<dyn Port>,
    links: Links,
    guests: Arc<ForGuests>,
}

impl PortLayer for HostPort {
    fn inner(&self) -> &dyn Port {
        &*self.sockets
    }

    fn take_queue(&self, index: usize) -> Option<Box<dyn PortQueue>> {
        let (sockets, links) = (self.sockets.take_queue(index)?, self.links.take_queue(index)?);
        let passing = Passing::new(index, Arc::clone(&self.guests));
        Some(Box::new(HostQueue { sockets, links, passing, look: Look::default(), armed: None, ended: None }))
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

/// A queue, which carries the frames of the sockets and of the links.
struct HostQueue {
    sockets: Box<dyn PortQueue>,
    links: LinkQueue,
    passing: Passing,
    look: Look,
    /// The epoll descriptor of the sockets, once the descriptor of the links was added to it.
    armed: Option<Arc<OwnedFd>>,
    /// The link whose route ended last. Its number stays reserved until the next call of `next_ended`.
    ended: Option<Ended>,
}

impl QueueLayer for HostQueue {
    fn inner(&mut self) -> &mut dyn PortQueue {
        &mut *self.sockets
    }

    fn rx_burst(&mut self, out: &mut RxBurst) -> usize {
        let from_links = self.links.rx_burst(out);
        if self.passing.waits() {
            self.passing.pass_on(&mut self.links);
        }
        if !self.look.now(self.links.has_any(), from_links, SystemInstant::now) {
            return from_links;
        }
        let from_sockets = self.sockets.rx_burst(out);
        let has_more = self.passing.has_more();
        if has_more {
            self.passing.pass_on(&mut self.links);
        }
        if from_sockets > 0 || has_more {
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

    /// The descriptor of the sockets is an epoll instance. The descriptor of the links is added to it edge-triggered, so that one
    /// descriptor wakes the shard for both.
    fn arm(&mut self) -> Armed {
        if !self.look.is_up_to_date() {
            return Armed::Pending;
        }
        if self.passing.is_stuck() {
            return Armed::Unable;
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
    fn route_to(&mut self, to: Destination) -> Result<Route, NoRoute> {
        let Destination::Process(number) = to else { return Ok(SOCKETS) };
        // Each process has a queue pair 1: the sockets deliver a MAD to the process that it is for.
        if number.block().is_reserved() {
            return Ok(SOCKETS);
        }
        match self.links.route_to(number) {
            Reach::Link(link) => Ok(route_of(link)),
            Reach::Asked => Err(NoRoute::Pending),
            // Over the sockets, packets to an address of this host reach only members of its registry: the members share the UDP port with
            // no other program, and use another port where another program has 4791. So no process receives packets for a vacant number.
            Reach::Vacant => Err(NoRoute::Nobody),
            Reach::Ourselves | Reach::Unlinked => Ok(SOCKETS),
        }
    }

    fn segment_on(&mut self, route: Route) -> Option<Mtu> {
        self.links.segment_on(link_of(route)?)
    }

    fn longest_segment(&mut self) -> Option<Mtu> {
        self.links.longest_segment()
    }

    fn next_ended(&mut self) -> Option<Route> {
        // Releases the number of the link that ended before.
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
}
