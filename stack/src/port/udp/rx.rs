//! Receives datagrams from the sockets into frames, with the headers that the stack checks.
//!
//! One call receives several messages from a socket. A message is one datagram, or several of one sender that the kernel coalesced
//! (UDP_GRO). It is split here, and each datagram becomes a frame.

use core::ops::Range;
use std::io::ErrorKind;

use super::group::Group;
use super::memberships::Membership;
use super::packet::{DF, HEADERS_MAX, IDENTIFICATION, IpFields, headers_len, write_headers};
use super::passing::Passed;
use super::shared::Shared;
use super::socket::Socket;
use super::sorting::{Arrived, Sorted, sort};
use super::sys::{BUFFER, FRONT, RECEIVES, Received, receive};
use super::translation::Senders;
use crate::config::{LONG_PACKET, RX_BURST_BYTES};
use crate::crc::{self, Sum};
use crate::port::for_guests::AT_ONCE;
use crate::port::frame::{Frame, RxBurst};
use crate::registry::Run;
use crate::wire::{icrc, locate_plain};
use std::sync::Arc;

const _: () = assert!(HEADERS_MAX <= FRONT);

/// A message that is being split into datagrams.
struct Open {
    ip: IpFields,
    /// The UDP port that it came from.
    port: u16,
    /// What is left of it: bytes `from .. to` of the buffers.
    from: usize,
    to: usize,
    /// Bytes of each datagram except the last, which may be shorter.
    segment: usize,
}

/// The most datagrams of a burst that are passed on to other processes.
const PASSES: usize = 64;

/// The receiving half of a queue.
pub(super) struct Receiver {
    /// Index of the queue.
    index: usize,
    buffers: Box<[u8]>,
    /// What the last call received: the first `count` entries are messages.
    received: Box<[Received; RECEIVES]>,
    count: usize,
    /// How many of these messages were opened, to be split.
    opened: usize,
    open: Option<Open>,
    /// The buffer of the next frame, kept while calls find nothing.
    spare: Option<Frame>,
    /// The socket that is asked next.
    socket: usize,
    /// The group whose socket the messages came from; `None`: it was one of the queue's own.
    of_group: Option<Arc<Membership>>,
    /// How many datagrams of this burst may still be passed on.
    passes: usize,
    /// How many datagrams of this burst were for guests.
    handed: usize,
    senders: Senders,
}

impl Receiver {
    pub fn new(index: usize) -> Self {
        Self {
            index,
            buffers: vec![0; RECEIVES * BUFFER].into(),
            received: Box::new([Received::nothing(); RECEIVES]),
            count: 0,
            opened: 0,
            open: None,
            spare: None,
            socket: 0,
            of_group: None,
            passes: 0,
            handed: 0,
            senders: Senders::default(),
        }
    }

    /// The sockets of the queue.
    pub fn sockets<'a>(&self, shared: &'a Shared) -> &'a [Socket] {
        &shared.sockets[self.index]
    }

    /// Index of the socket that was asked last.
    fn asked(&self, shared: &Shared) -> usize {
        let count = self.sockets(shared).len();
        (self.socket + count - 1) % count
    }

    /// Whether messages to multicast groups arrive on this queue.
    pub fn receives_groups(&self) -> bool {
        self.index == 0
    }

    /// Whether received messages wait to be split.
    pub fn pending(&self) -> bool {
        self.open.is_some() || self.opened < self.count
    }

    /// See [`PortQueue::rx_burst`](crate::port::PortQueue::rx_burst). Asks the sockets once.
    pub fn burst(&mut self, shared: &Shared, out: &mut RxBurst) -> usize {
        let (before, mut bytes, mut asked) = (out.len(), 0, false);
        self.passes = PASSES;
        self.handed = 0;
        while !out.is_full() && bytes < RX_BURST_BYTES as usize && self.handed < AT_ONCE {
            if self.open.is_some() {
                let Some(frame) = self.spare.take().or_else(|| shared.pool.alloc()) else { break };
                match self.next(shared, frame) {
                    Ok(Some(frame)) => {
                        bytes += frame.len();
                        out.push(frame);
                    }
                    Ok(None) => {}
                    Err(frame) => self.spare = Some(frame),
                }
            } else if self.opened < self.count {
                self.open_next(shared);
            } else if core::mem::replace(&mut asked, true) || !self.receive(shared) {
                break;
            }
        }
        if out.len() > before {
            shared.counters[self.index].rx(out.len() - before, bytes);
        }
        out.len() - before
    }

    /// Receives messages from the next socket that has some. Returns whether any had.
    fn receive(&mut self, shared: &Shared) -> bool {
        (self.count, self.opened, self.of_group) = (0, 0, None);
        let sockets = self.sockets(shared);
        for _ in 0..sockets.len() {
            let socket = &sockets[self.socket];
            self.socket = (self.socket + 1) % sockets.len();
            if self.receive_from(shared, socket) {
                return true;
            }
        }
        if self.receives_groups()
            && let Some(membership) = shared.groups.waiting()
            && self.receive_from(shared, &membership.socket)
        {
            self.of_group = Some(membership);
            return true;
        }
        false
    }

    /// Receives messages from a socket. Returns whether it had some.
    fn receive_from(&mut self, shared: &Shared, socket: &Socket) -> bool {
        match receive(socket.fd(), &mut self.buffers, &mut self.received) {
            Ok(count) => {
                self.count = count;
                return true;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            // The error is of an earlier send; the socket's error queue has the details.
            Err(_) => _ = shared.note_errors(socket),
        }
        false
    }

    /// Opens the next received message. Drops it if it is empty or cut off, or if its source or destination is not known.
    fn open_next(&mut self, shared: &Shared) {
        let (at, received) = (self.opened, &self.received[self.opened]);
        self.opened += 1;
        let arrival = received.control.arrival();
        if let Some(overflows) = arrival.overflows {
            let own = &self.sockets(shared)[self.asked(shared)];
            let asked = self.of_group.as_ref().map_or(own, |membership| &membership.socket);
            shared.note_overflows(self.index, asked, overflows);
        }
        let ((Some((src, port)), Some(dst)), true) = ((received.from.get(), arrival.to), received.whole)
        else {
            shared.counters[self.index].rx_dropped.add(1);
            return;
        };
        if received.len == 0 || src.is_ipv6() != dst.is_ipv6() {
            shared.counters[self.index].rx_dropped.add(1);
            return;
        }
        self.open = Some(Open {
            ip: IpFields { src, dst, traffic_class: arrival.traffic_class, hop_limit: arrival.hop_limit },
            port,
            from: at * BUFFER + FRONT,
            to: at * BUFFER + FRONT + received.len,
            segment: arrival.segment.unwrap_or(received.len),
        });
    }

    /// Puts the next datagram of the open message into `frame`. Returns the frame as an error if the datagram is too long or not for this
    /// process; nothing if it is for a guest, who gets the frame.
    fn next(&mut self, shared: &Shared, mut frame: Frame) -> Result<Option<Frame>, Frame> {
        let Some(open) = &mut self.open else { return Err(frame) };
        let (mut from, end) = (open.from, (open.from + open.segment).min(open.to));
        let (mut fields, mut port) = (open.ip, open.port);
        open.from = end;
        if end == open.to {
            self.open = None;
        }
        let mut guest = None;
        if let Some(group) = &shared.group {
            let arrived = Arrived::new(fields, port);
            let Some((taken, run)) = self.sort(shared, group, arrived, from..end) else { return Err(frame) };
            (fields, port, from) = (taken.ip, taken.port, from + taken.front);
            guest = run.map(|run| (run, group));
        }
        // The headers overwrite what precedes the datagram: unused bytes, or the datagram before it, which is in a frame by now.
        let start = from - headers_len(fields.dst.is_ipv6());
        write_headers(&mut self.buffers[start..from], shared.macs, &fields, port, end - from);
        let packet = &self.buffers[start..end];
        let room = frame.buffer_mut().get_mut(..packet.len()).filter(|room| room.len() <= shared.max_frame);
        let Some(room) = room else {
            shared.counters[self.index].rx_dropped.add(1);
            return Err(frame);
        };
        // The CRC of a long packet is computed while it is copied, so that the check does not read the packet again.
        let sum = match packet.len() >= LONG_PACKET {
            true => crc::copy(room, packet),
            false => {
                room.copy_from_slice(packet);
                None
            }
        };
        frame.set_len(end - start);
        frame.set_sum(sum);
        if fields.dst.is_ipv4() {
            self.fit_identification(shared, &mut frame, &fields);
        }
        match guest {
            None => Ok(Some(frame)),
            Some((run, group)) => self.hand_to_guest(shared, group, run, frame),
        }
    }

    /// Leaves a frame to the links, which pass it on to a guest.
    #[cold]
    fn hand_to_guest(
        &mut self,
        shared: &Shared,
        group: &Group,
        run: Run,
        frame: Frame,
    ) -> Result<Option<Frame>, Frame> {
        self.handed += 1;
        group.guests.push(self.index, run, frame).map(|()| None).inspect_err(|_| {
            shared.counters[self.index].rx_strayed.add(1);
        })
    }

    /// Returns how the datagram at this place in the buffers arrived at the host, if it may be for a queue pair of this process, or if it is for
    /// the guest that has a run. Otherwise passes it on or drops it, or takes note of it as a probe.
    fn sort(
        &mut self,
        shared: &Shared,
        group: &Group,
        arrived: Arrived,
        at: Range<usize>,
    ) -> Option<(Arrived, Option<Run>)> {
        let counters = &shared.counters[self.index];
        let (arrived, sorted) = sort(arrived, &self.buffers[at.clone()], group);
        let at = at.start + arrived.front..at.end;
        match sorted {
            Sorted::Ours => return Some((arrived, None)),
            Sorted::Guest(run) => return Some((arrived, Some(run))),
            Sorted::PassOn(passed) => self.pass_on(shared, &passed, at),
            Sorted::Stray => counters.rx_strayed.add(1),
            Sorted::Nothing => counters.rx_dropped.add(1),
            Sorted::Probe => {
                group.note(self.index, self.asked(shared), arrived.ip.src, &self.buffers[at]);
            }
        }
        None
    }

    /// Passes the datagram at this place in the buffers on.
    #[cold]
    fn pass_on(&mut self, shared: &Shared, passed: &Passed, at: Range<usize>) {
        let (counters, socket) = (&shared.counters[self.index], &self.sockets(shared)[0]);
        let may = self.passes > 0 && at.len() <= shared.max_frame;
        if may && passed.send(socket, shared.port, &self.buffers[at]).is_ok() {
            self.passes -= 1;
            counters.passed_on.add(1);
        } else {
            counters.rx_strayed.add(1);
        }
    }

    /// Fills in the identification that makes the ICRC right, as a socket does not show it. If no permitted value does, the ICRC stays
    /// wrong, and the stack drops the packet.
    fn fit_identification(&mut self, shared: &Shared, frame: &mut Frame, fields: &IpFields) {
        // Headers were written in their plain form, so this fails only if the datagram is no RoCE packet.
        let Some(layout) = locate_plain(frame.data()) else { return };
        let sum = frame.sum();
        let fitting = icrc::fitting(frame.data_mut(), &layout, IDENTIFICATION, sum);
        let Some((word, change)) = fitting else { return };
        // Flags that are never set show that the ICRC is wrong.
        let may_be_right = word[2..] == DF || word[2..] == [0, 0];
        if self.senders.note(fields.src, may_be_right) {
            shared.note_translation(fields);
        }
        if !may_be_right {
            return;
        }
        frame.data_mut()[IDENTIFICATION..IDENTIFICATION + 4].copy_from_slice(&word);
        frame.set_sum(sum.and_then(|sum| Sum::new(sum.register() ^ change)));
    }
}
