//! The matrix of tests: its cells, and the selection of cells for a run.

use std::cmp::Reverse;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use verbs::Mtu;

/// Service type of a cell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
}

impl Service {
    /// Every service type.
    pub const ALL: [Self; 3] = [Self::Rc, Self::Uc, Self::Ud];

    /// Name of the service type, in this program and in the guest's.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rc => "rc",
            Self::Uc => "uc",
            Self::Ud => "ud",
        }
    }
}

/// Operation of a cell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// SEND.
    Send,
    /// SEND with immediate.
    SendImm,
    /// RDMA WRITE.
    Write,
    /// RDMA WRITE with immediate.
    WriteImm,
    /// RDMA READ.
    Read,
    /// COMPARE & SWAP.
    Cas,
    /// FETCH & ADD.
    Fadd,
    /// ATOMIC WRITE.
    AtomicWrite,
}

impl Op {
    /// Every operation.
    pub const ALL: [Self; 8] = [
        Self::Send,
        Self::SendImm,
        Self::Write,
        Self::WriteImm,
        Self::Read,
        Self::Cas,
        Self::Fadd,
        Self::AtomicWrite,
    ];

    /// Name of the operation, in this program and in the guest's.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::SendImm => "send_imm",
            Self::Write => "write",
            Self::WriteImm => "write_imm",
            Self::Read => "read",
            Self::Cas => "cas",
            Self::Fadd => "fadd",
            Self::AtomicWrite => "atomic_write",
        }
    }
    /// Whether the operation consumes a receive request of the responder.
    pub const fn receives(self) -> bool {
        matches!(self, Self::Send | Self::SendImm | Self::WriteImm)
    }
    /// Whether the operation carries immediate data.
    pub const fn imm(self) -> bool {
        matches!(self, Self::SendImm | Self::WriteImm)
    }
    /// Whether the operation works on one word and returns its previous value.
    pub const fn atomic(self) -> bool {
        matches!(self, Self::Cas | Self::Fadd)
    }
    /// Whether the operation writes to the responder's region.
    pub const fn writes(self) -> bool {
        matches!(self, Self::Write | Self::WriteImm | Self::AtomicWrite)
    }
    /// Whether the operation's length is always 8 bytes.
    pub const fn one_word(self) -> bool {
        matches!(self, Self::Cas | Self::Fadd | Self::AtomicWrite)
    }
    /// Whether a service type supports the operation.
    pub const fn on(self, service: Service) -> bool {
        match service {
            Service::Rc => true,
            Service::Uc => matches!(self, Self::Send | Self::SendImm | Self::Write | Self::WriteImm),
            Service::Ud => matches!(self, Self::Send | Self::SendImm),
        }
    }
}

/// The requester.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Requester {
    /// This stack.
    Us,
    /// Linux.
    Linux,
}

impl Requester {
    /// Both requesters.
    pub const BOTH: [Self; 2] = [Self::Us, Self::Linux];

    /// Name of the requester.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Us => "us",
            Self::Linux => "linux",
        }
    }
}

/// The network between this stack and the guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Network {
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
    /// IPv4 in a VLAN.
    Vlan,
    /// IPv4, with loss, duplication and reordering both ways.
    Faults,
}

impl Network {
    /// The networks without faults, which share the whole matrix.
    pub const SOUND: [Self; 3] = [Self::Ipv4, Self::Ipv6, Self::Vlan];

    /// Name of the network.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ipv4 => "ipv4",
            Self::Ipv6 => "ipv6",
            Self::Vlan => "vlan",
            Self::Faults => "faults",
        }
    }

    /// The address and prefix of this stack, the guest's address, and the VLAN.
    pub const fn addresses(self) -> ((IpAddr, u8), IpAddr, Option<u16>) {
        const fn v4(net: u8, host: u8) -> IpAddr {
            IpAddr::V4(Ipv4Addr::new(10, net, 0, host))
        }
        const fn v6(host: u16) -> IpAddr {
            IpAddr::V6(Ipv6Addr::new(0xfd00, 0x99, 0, 0, 0, 0, 0, host))
        }
        match self {
            Self::Ipv4 | Self::Faults => ((v4(99, 10), 24), v4(99, 2), None),
            Self::Ipv6 => ((v6(0x10), 64), v6(2), None),
            Self::Vlan => ((v4(100, 10), 24), v4(100, 2), Some(100)),
        }
    }
}

/// One cell of the matrix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cell {
    /// Network.
    pub net: Network,
    /// Service type.
    pub service: Service,
    /// Operation.
    pub op: Op,
    /// The requester.
    pub by: Requester,
    /// Index of the message size among the [`sizes`].
    pub size: usize,
    /// Bytes of a message.
    pub len: u32,
    /// Path MTU.
    pub mtu: Mtu,
    /// Messages.
    pub count: u32,
    /// Whether the responder's receives come from a shared receive queue.
    pub srq: bool,
    /// First PSN of both sides.
    pub psn: u32,
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (by, service, op) = (self.by.name(), self.service.name(), self.op.name());
        write!(f, "{by:5} {service} {op:12} {:7} B mtu {:4}", self.len, self.mtu.bytes())?;
        if self.srq {
            f.write_str(" srq")?;
        }
        if self.wraps() {
            f.write_str(" wrap")?;
        }
        Ok(())
    }
}

/// Message sizes that matter at a path MTU.
pub fn sizes(mtu: Mtu) -> [u32; 7] {
    let m = mtu.bytes() as u32;
    [0, 1, m - 1, m, m + 1, 64 << 10, 1 << 20]
}

/// Messages of a cell: at least 1000 small ones, 20 of 1 MiB.
const fn count(len: u32) -> u32 {
    match len {
        0..=4097 => 1000,
        4098..=65536 => 40,
        _ => 20,
    }
}

/// A first PSN that does not wrap around within the cell, and one that does after a few messages.
const PSNS: [u32; 2] = [0x10_0000, 0xff_fffd];

impl Cell {
    /// Whether the PSN wraps around within the cell.
    pub const fn wraps(&self) -> bool {
        self.psn == PSNS[1]
    }

    /// Packets of a message.
    pub const fn packets(&self) -> u32 {
        let packets = self.len.div_ceil(self.mtu.bytes() as u32);
        if packets == 0 { 1 } else { packets }
    }

    /// The cell's values: a small number for each property in which cells differ.
    const fn factors(&self) -> [usize; FACTORS] {
        [
            (self.service as usize * Op::ALL.len() + self.op as usize) * 2 + self.by as usize,
            self.size,
            self.mtu as usize,
            self.net as usize,
            self.srq as usize,
            self.wraps() as usize,
        ]
    }
}

/// Number of these properties, and most values of one property.
const FACTORS: usize = 6;
const VALUES: usize = 3 * 8 * 2;

/// Most packets of unreliable messages outstanding; the queues on the path hold some more. A guest that gets no CPU time for 20 ms
/// loses the packets that no queue has room for, and these are not retransmitted. Longer messages are therefore sent one at a time,
/// and again after a loss.
pub const UNREPEATED_PACKETS: u32 = 48;

/// Sizes of an operation at a path MTU, each with its index among all sizes.
fn sizes_of(service: Service, op: Op, mtu: Mtu) -> Vec<(usize, u32)> {
    let all = sizes(mtu);
    match service {
        _ if op.one_word() => vec![(0, 8)],
        // A datagram is one packet.
        Service::Ud => all.into_iter().enumerate().filter(|(_, len)| *len <= mtu.bytes() as u32).collect(),
        _ => all.into_iter().enumerate().collect(),
    }
}

/// Every combination of values on these networks.
pub fn product(nets: &[Network], mtu_max: Mtu) -> Vec<Cell> {
    let mut cells = Vec::new();
    for service in Service::ALL {
        for op in Op::ALL.into_iter().filter(|op| op.on(service)) {
            for by in Requester::BOTH {
                for mtu in Mtu::ALL.into_iter().filter(|m| *m <= mtu_max) {
                    // Datagrams have the path MTU of the port.
                    if service == Service::Ud && mtu != mtu_max {
                        continue;
                    }
                    for (size, len) in sizes_of(service, op, mtu) {
                        for srq in [false, true] {
                            if srq && !(op.receives() && service == Service::Rc) {
                                continue;
                            }
                            for psn in PSNS {
                                for net in nets.iter().copied() {
                                    let count = count(len);
                                    cells.push(Cell {
                                        net,
                                        service,
                                        op,
                                        by,
                                        size,
                                        len,
                                        mtu,
                                        count,
                                        srq,
                                        psn,
                                    });
                                }
                            }
                        }
                    }
                }
            }
        }
    }
    cells
}

/// A selection of these cells in which each pair of values occurs that occurs in any cell: every operation by every requester at
/// every size, every size at every path MTU, every path MTU on every network, and so on.
pub fn pairwise(cells: &[Cell]) -> Vec<Cell> {
    let mut seen = vec![false; (FACTORS * VALUES) * (FACTORS * VALUES)];
    let at =
        |f: &[usize; FACTORS], i: usize, j: usize| (i * VALUES + f[i]) * FACTORS * VALUES + j * VALUES + f[j];
    let pairs = || (0..FACTORS).flat_map(|i| (i + 1..FACTORS).map(move |j| (i, j)));
    let mut chosen = vec![false; cells.len()];
    loop {
        let news = |cell: &Cell| {
            let f = cell.factors();
            pairs().filter(|(i, j)| !seen[at(&f, *i, *j)]).count()
        };
        // The cell with the most new pairs; among equals the one with the fewest packets; among equals the first.
        let rated = cells.iter().enumerate().map(|(n, c)| (news(c), Reverse(c.packets()), Reverse(n)));
        let Some((1.., _, Reverse(n))) = rated.max() else { break };
        chosen[n] = true;
        let f = cells[n].factors();
        for (i, j) in pairs() {
            seen[at(&f, i, j)] = true;
        }
    }
    cells.iter().zip(chosen).filter(|(_, chosen)| *chosen).map(|(cell, _)| *cell).collect()
}

/// The cells of a run on one network: every combination, or the network's part of the selection.
pub fn matrix(net: Network, mtu_max: Mtu, full: bool) -> Vec<Cell> {
    let all = match net {
        // Lost packets are recovered by retries, so only reliable connections take part, with messages of a few packets.
        Network::Faults => {
            let mut cells = product(&[net], mtu_max);
            cells.retain(|c| c.service == Service::Rc && c.packets() <= 16);
            cells
        }
        _ => product(&Network::SOUND, mtu_max),
    };
    let mut cells = if full { all } else { pairwise(&all) };
    cells.retain(|c| c.net == net);
    cells
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn pairs(cells: &[Cell]) -> BTreeSet<(usize, usize, usize, usize)> {
        let of = |f: [usize; FACTORS]| {
            (0..FACTORS).flat_map(move |i| (i + 1..FACTORS).map(move |j| (i, f[i], j, f[j])))
        };
        cells.iter().flat_map(|c| of(c.factors())).collect()
    }

    #[test]
    fn the_selection_has_every_pair_that_the_product_has_and_is_small() {
        for nets in [&Network::SOUND[..], &[Network::Ipv4]] {
            let all = product(nets, Mtu::Mtu4096);
            let some = pairwise(&all);
            assert_eq!(pairs(&some), pairs(&all));
            assert!(some.len() < 250 && all.len() > 9 * some.len(), "{} of {}", some.len(), all.len());
            assert!(some.iter().all(|c| all.contains(c)));
        }
    }

    #[test]
    fn no_two_values_of_a_factor_are_one() {
        let all = product(&Network::SOUND, Mtu::Mtu4096);
        let different: BTreeSet<_> = all.iter().map(Cell::factors).collect();
        assert_eq!(different.len(), all.len());
        assert!(all.iter().all(|c| c.factors().iter().all(|v| *v < VALUES)));
    }

    #[test]
    fn the_parts_of_the_networks_are_the_whole() {
        let whole = product(&Network::SOUND, Mtu::Mtu1024);
        let parts: usize = Network::SOUND.map(|net| matrix(net, Mtu::Mtu1024, true).len()).iter().sum();
        assert_eq!(parts, whole.len());
        for (net, full) in [(Network::Ipv6, false), (Network::Faults, false), (Network::Faults, true)] {
            let cells = matrix(net, Mtu::Mtu4096, full);
            assert!(!cells.is_empty() && cells.iter().all(|c| c.net == net));
        }
    }

    #[test]
    fn sizes_and_counts_are_those_asked_for() {
        for cell in product(&[Network::Ipv4], Mtu::Mtu4096) {
            let least = if cell.len <= cell.mtu.bytes() as u32 + 1 { 1000 } else { 20 };
            assert!(cell.count >= least, "{cell}");
            assert!(cell.len == 8 || sizes(cell.mtu)[cell.size] == cell.len, "{cell}");
            assert!(cell.service != Service::Ud || cell.len <= 4096, "{cell}");
        }
    }
}
