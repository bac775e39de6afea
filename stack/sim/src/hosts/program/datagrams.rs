//! Datagrams from any process to any other one.

use super::{DATAGRAM, RECEIVES, Run, SGID_INDEX, Sent};
use crate::check::{self, Check};
use crate::hosts::world::Process;
use crate::node::{QKEY, SendWr};
use stack::proto::address::UdAddress;
use stack::proto::attr::GlobalRoute;
use stack::proto::responder::GRH_LEN;
use stack::proto::status::{WcStatus, WrOpcode};
use stack::proto::wqe::Cqe;

impl Run {
    pub(super) fn receive_datagram(&mut self, process: Process, slot: usize) {
        let program = &self.programs[process];
        let node = &mut self.world.nodes[process];
        let sge = node.mr(program.buffers).sge(slot * (GRH_LEN + DATAGRAM), GRH_LEN + DATAGRAM);
        node.post_recv(program.ud, slot as u64, &[sge]).expect("a receive for each buffer");
    }

    /// A process sends a datagram to any other one.
    pub(super) fn send_datagram(&mut self, process: Process) {
        let alive = self.world.alive(None);
        let to = self.rng.pick(&alive);
        if to == process {
            return;
        }
        let number = self.datagrams.len() as u64;
        let len = self.rng.range(8, DATAGRAM as u64) as usize;
        let bytes = datagram(number, len);
        let dest = self.world.nodes[to].qp(self.programs[to].ud).qpn;
        let dgid = self.world.nodes[to].gid;
        let node = &mut self.world.nodes[process];
        let program = &self.programs[process];
        let at = RECEIVES * (GRH_LEN + DATAGRAM);
        node.mr(program.buffers).write(at, &bytes);
        let grh = GlobalRoute { dgid, sgid_index: SGID_INDEX, hop_limit: 64, ..GlobalRoute::default() };
        let source = node.shared.gids.source(SGID_INDEX.into()).expect("a host keeps its addresses");
        let sge = node.mr(program.buffers).sge(at, len);
        // One at a time, as there is one buffer.
        if node.sends_in_use(program.ud) > 0 {
            return;
        }
        let mut wr = SendWr::new(number, WrOpcode::Send).sges(&[sge]);
        wr.address = Some(UdAddress::new(&grh, source, 0).to(dest, QKEY));
        if node.post_send(program.ud, &wr).is_ok() {
            let inside = self.world.host_of(to) == self.world.host_of(process);
            self.datagrams.push(Sent { to, inside, arrived: 0 });
            self.report.count("datagrams sent");
        }
    }

    /// A datagram has left, or arrives.
    pub(super) fn datagram(&mut self, process: Process, cqe: &Cqe, is_recv: bool) -> Check {
        let status = check::status(cqe);
        if status != WcStatus::Success {
            return Err(format!("a datagram completes with {status:?}"));
        }
        if !is_recv {
            return Ok(());
        }
        let (slot, len) = (cqe.wr_id as usize, cqe.byte_len as usize);
        let region = self.world.nodes[process].mr(self.programs[process].buffers);
        let got = region.read(slot * (GRH_LEN + DATAGRAM), len);
        let payload = &got[GRH_LEN..];
        let number = payload.first_chunk().map(|number| u64::from_le_bytes(*number));
        let number = number.ok_or("a datagram is cut")?;
        let sent = self.datagrams.get_mut(number as usize).ok_or("a datagram arrives that nobody sent")?;
        sent.arrived += 1;
        if sent.to != process || payload != datagram(number, payload.len()) {
            return Err(format!("datagram {number} for process {} is another one", sent.to));
        }
        if sent.inside && sent.arrived > 1 {
            return Err(format!("datagram {number} arrives {} times", sent.arrived));
        }
        self.report.count("datagrams received");
        self.receive_datagram(process, slot);
        Ok(())
    }
}

/// The bytes of a datagram.
fn datagram(number: u64, len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..len as u64).map(|at| (number * 31 + at) as u8).collect();
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}
