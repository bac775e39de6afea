//! The discovery log page of a host: the subsystems that the host may use, and their addresses.

use std::fmt::Write;

use arrayvec::ArrayString;
use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromZeros, IntoBytes};

use crate::config::Port;
use crate::limits;
use crate::nqn::Nqn;
use crate::target::{Arrival, State, Target};
use crate::window::Window;
use crate::wire::discovery::{Header, RdmaAddress, Record};
use crate::wire::zero_padded;

/// Length in bytes of the discovery log for `host`.
pub(crate) fn len(target: &Target, host: &Nqn) -> u64 {
    records(&target.lock(), host).count() as u64 * Record::LEN as u64 + size_of::<Header>() as u64
}

/// Writes the discovery log for `host` to `window`. `arrival` is where the host's connection came in.
pub(crate) fn fill(target: &Target, host: &Nqn, arrival: Arrival, window: &mut Window<'_>) {
    let state = target.lock();
    let mut at = size_of::<Header>() as u64;
    let mut count = 0;
    for (port, nqn) in records(&state, host) {
        window.put(at, record(port, nqn, arrival).as_bytes());
        at += Record::LEN as u64;
        count += 1;
    }
    // Read under the same lock as the records, so that the generation matches them.
    let generation = U64::new(target.generation());
    window.put(0, Header { generation, records: U64::new(count), ..FromZeros::new_zeroed() }.as_bytes());
}

/// For each port: the discovery subsystem, then those that `host` may use.
fn records<'a>(state: &'a State, host: &'a Nqn) -> impl Iterator<Item = (&'a Port, Option<&'a Nqn>)> {
    state.ports.iter().flat_map(move |port| {
        let served = state.subsystems.iter().filter(|s| s.ports.has(port.id) && s.hosts.allow(host));
        core::iter::once((port, None)).chain(served.map(move |s| (port, Some(&s.live.nqn))))
    })
}

/// The record of a subsystem, or of the discovery subsystem.
fn record(port: &Port, nqn: Option<&Nqn>, arrival: Arrival) -> Record {
    // For a port that listens on any address, report the address at which the host reached this target.
    let ip = if port.address.ip().is_unspecified() { arrival.local.ip() } else { port.address.ip() };
    Record {
        transport: Record::RDMA,
        family: if ip.is_ipv4() { 1 } else { 2 },
        subtype: if nqn.is_some() { Record::NVM } else { Record::CURRENT },
        requirements: Record::NO_FLOW_CONTROL,
        port: U16::new(port.id),
        cntlid: U16::new(0xFFFF),
        admin_entries: U16::new(limits::ADMIN_ENTRIES),
        service: zero_padded(&text::<32>(&port.address.port())),
        subsystem: zero_padded(nqn.map_or(Nqn::DISCOVERY, Nqn::as_str)),
        address: zero_padded(&text::<64>(&ip)),
        rdma: RdmaAddress { qp_type: 1, provider: 4, cm: 1, ..FromZeros::new_zeroed() },
        ..FromZeros::new_zeroed()
    }
}

fn text<const N: usize>(value: &impl core::fmt::Display) -> ArrayString<N> {
    let mut text = ArrayString::new();
    write!(text, "{value}").expect("addresses and port numbers are short");
    text
}
