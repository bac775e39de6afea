//! The matrix: what one cell does, and which cells a run has.

use std::fmt;
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
}

impl Op {
    /// Every operation.
    pub const ALL: [Self; 7] =
        [Self::Send, Self::SendImm, Self::Write, Self::WriteImm, Self::Read, Self::Cas, Self::Fadd];

    /// Its name, here and in the guest.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::SendImm => "send_imm",
            Self::Write => "write",
            Self::WriteImm => "write_imm",
            Self::Read => "read",
            Self::Cas => "cas",
            Self::Fadd => "fadd",
        }
    }
    /// Whether it takes a receive request of the other side.
    pub const fn receives(self) -> bool {
        matches!(self, Self::Send | Self::SendImm | Self::WriteImm)
    }
    /// Whether it carries immediate data.
    pub const fn imm(self) -> bool {
        matches!(self, Self::SendImm | Self::WriteImm)
    }
    /// Whether it is an atomic.
    pub const fn atomic(self) -> bool {
        matches!(self, Self::Cas | Self::Fadd)
    }
    /// Whether a type of queue pair has it.
    pub const fn on(self, service: Service) -> bool {
        match service {
            Service::Rc => true,
            Service::Uc => !matches!(self, Self::Read | Self::Cas | Self::Fadd),
            Service::Ud => matches!(self, Self::Send | Self::SendImm),
        }
    }
}

/// Who is the requester.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Requester {
    /// This stack.
    Us,
    /// Linux.
    Linux,
}

/// One cell of the matrix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cell {
    /// Service type.
    pub service: Service,
    /// Operation.
    pub op: Op,
    /// Who asks.
    pub by: Requester,
    /// Bytes of a message.
    pub len: u32,
    /// Path MTU.
    pub mtu: Mtu,
    /// Messages.
    pub count: u32,
    /// The responder's receives come from a shared receive queue (Linux' side only).
    pub srq: bool,
    /// First PSN of both sides.
    pub psn: u32,
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by = if self.by == Requester::Us { "us" } else { "linux" };
        let service = format!("{:?}", self.service).to_lowercase();
        write!(f, "{by:5} {service} {:9} {:7} B mtu {:4}", self.op.name(), self.len, self.mtu.bytes())?;
        if self.srq {
            f.write_str(" srq")?;
        }
        if self.psn > 0xff_ff00 {
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
        4098..=65536 => 100,
        _ => 20,
    }
}

/// The whole product, or a selection in which every pair of (operation, requester), size and path MTU appears.
pub fn matrix(services: &[Service], mtu_max: Mtu, full: bool) -> Vec<Cell> {
    let mtus: Vec<Mtu> = Mtu::ALL.into_iter().filter(|m| *m <= mtu_max).collect();
    let mut cells = Vec::new();
    for service in services.iter().copied() {
        for (o, op) in Op::ALL.into_iter().filter(|op| op.on(service)).enumerate() {
            for (b, by) in [Requester::Us, Requester::Linux].into_iter().enumerate() {
                for (m, mtu) in mtus.iter().copied().enumerate() {
                    let lens: Vec<u32> = match (op.atomic(), service) {
                        (true, _) => vec![8],
                        (_, Service::Ud) => {
                            let m = mtu_max.bytes() as u32;
                            vec![0, 1, m - 1, m]
                        }
                        // A long unreliable message fits into the queues on the way.
                        (_, Service::Uc) => {
                            sizes(mtu).into_iter().filter(|len| *len <= 16 << mtu.log2()).collect()
                        }
                        _ => sizes(mtu).to_vec(),
                    };
                    for (s, len) in lens.iter().copied().enumerate() {
                        // A Latin square: each size with each operation and each MTU, once.
                        if !full && (o + b + m + s) % mtus.len() != 0 {
                            continue;
                        }
                        let psn = if (o + s) % 3 == 0 { 0xff_fffd } else { 0x10_0000 + 7919 * s as u32 };
                        let srq = op.receives()
                            && by == Requester::Us
                            && service == Service::Rc
                            && (m + s) % 2 == 0;
                        cells.push(Cell { service, op, by, len, mtu, count: count(len), srq, psn });
                    }
                }
            }
        }
    }
    cells
}
