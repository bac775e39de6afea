//! Short requests of one kind, one after the other: see [`Run`]. Whatever else is to be sent goes by way of
//! [`tx`](super::tx).

use super::copy::{Gather, Memory};
use super::qp::Qp;
use crate::config::LONG_PACKET;
use crate::port::Frame;
use crate::proto::requester::{Form, Next, Ran, Run, Unbuilt};
use crate::proto::wqe::SendWqe;
use crate::time::Instant;
use crate::wire::{Reth, Stencil, Transport};

/// Packets of a run, to be stamped.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Built {
    pub frames: usize,
    pub bytes: u64,
    /// The work request with this sequence number has a key that is not good, and no packet. It has started.
    pub bad: Option<u32>,
}

/// Builds the packets of the [`Run`] that is next, if one is, in empty frames.
#[inline(always)]
pub(super) fn build(
    qp: &mut Qp,
    memory: Memory<'_>,
    now: Instant,
    ip_id: &mut u16,
    empty: &mut [Frame],
) -> Option<Built> {
    if empty.len() < 2 || qp.class != Transport::Rc || !qp.template.is_plain() {
        return None;
    }
    build_run(qp, memory, now, ip_id, empty)
}

#[inline(never)]
fn build_run(
    qp: &mut Qp,
    memory: Memory<'_>,
    now: Instant,
    ip_id: &mut u16,
    empty: &mut [Frame],
) -> Option<Built> {
    let room = empty.len() as u32;
    let first = qp.requester.started();
    let run = qp.requester.begin_run(now, qp.gates, qp.epoch, &qp.sq, room, LONG_PACKET as u32)?;
    let stencil = qp.template.stencil(run.opcode(), run.solicited())?;
    let mut out = Out { stencil: &stencil, memory, ip_id: *ip_id, bytes: 0 };
    let reth = |wqe: &SendWqe| Reth { va: wqe.remote_addr, rkey: wqe.rkey, len: wqe.length };
    let (ran, result) = match run.form() {
        Form::Bare => out.messages::<0>(run, empty, |_, _| ()),
        Form::Imm => out.messages(run, empty, |wqe, ext| *ext = wqe.imm()),
        Form::Inv => out.messages(run, empty, |wqe, ext| *ext = wqe.rkey_to_invalidate().to_be_bytes()),
        Form::Write => out.messages(run, empty, |wqe, ext| reth(wqe).write(ext)),
        Form::WriteImm => out.messages(run, empty, |wqe, ext: &mut [u8; Reth::LEN + 4]| {
            let (head, imm) = ext.split_first_chunk_mut().expect("it is longer");
            reth(wqe).write(head);
            imm.copy_from_slice(&wqe.imm());
        }),
        Form::Read => (
            run.reads(empty, |next, frame| out.request(next, frame, |wqe, ext| reth(wqe).write(ext))),
            Ok(()),
        ),
        Form::Atomic => (
            run.atomics(empty, |next, frame| out.request(next, frame, |w, ext| w.atomic().write(ext))),
            Ok(()),
        ),
    };
    let bytes = out.bytes;
    let started = ran.started();
    qp.requester.end_run(ran);
    *ip_id = ip_id.wrapping_add(started as u16);
    Some(match result {
        Ok(()) => Built { frames: started as usize, bytes, bad: None },
        Err(Unbuilt) => {
            Built { frames: started as usize - 1, bytes, bad: Some(first.wrapping_add(started - 1)) }
        }
    })
}

/// What the packets of a run are built with.
struct Out<'a> {
    stencil: &'a Stencil,
    memory: Memory<'a>,
    /// IPv4 identification of the packet before the first.
    ip_id: u16,
    /// Bytes built.
    bytes: u64,
}

impl Out<'_> {
    /// Builds SENDs or WRITEs. A function of its own: its loop has the registers for itself.
    #[inline(never)]
    fn messages<const EXT: usize>(
        &mut self,
        run: Run<'_>,
        empty: &mut [Frame],
        put: impl Fn(&SendWqe, &mut [u8; EXT]),
    ) -> (Ran, Result<(), Unbuilt>) {
        let (sole, mut bytes) = (run.sole(), 0);
        let mut gather = Gather::new(self.memory);
        let result = run.messages(empty, |Next { index, slot, psn, ack_req }, frame| {
            let wqe = SendWqe::of(slot);
            let len = wqe.length as usize;
            let total = Stencil::frame_len::<EXT>(len);
            frame.set_len(total);
            let id = self.ip_id.wrapping_add(index as u16 + 1);
            let laid = self.stencil.lay(frame.data_mut(), id, psn, ack_req, len);
            put(wqe, laid.ext);
            if len > 0 {
                match SendWqe::first_sge(slot) {
                    Some(sge) if sole => gather.sole(sge, laid.payload),
                    _ => self.memory.fill(slot, 0, laid.payload),
                }
                .map_err(|_| Unbuilt)?;
            }
            bytes += total as u64;
            Ok(())
        });
        self.bytes = bytes;
        result
    }

    /// Builds a READ or an atomic, which carries no payload.
    #[inline(always)]
    fn request<const EXT: usize>(
        &mut self,
        Next { index, slot, psn, ack_req }: Next<'_>,
        frame: &mut Frame,
        put: impl Fn(&SendWqe, &mut [u8; EXT]),
    ) {
        let total = Stencil::frame_len::<EXT>(0);
        frame.set_len(total);
        let id = self.ip_id.wrapping_add(index as u16 + 1);
        let laid = self.stencil.lay(frame.data_mut(), id, psn, ack_req, 0);
        put(SendWqe::of(slot), laid.ext);
        self.bytes += total as u64;
    }
}
