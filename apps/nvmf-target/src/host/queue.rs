//! A queue of a host: one connection, with its commands and responses.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use nvmf::wire::cm::{ReplyData, RequestData};
use nvmf::wire::{Cqe, Sqe};
use verbs::rdma_cm::{CmEventType, CmId, ConnParam, IdState, MAX_RESP_RES, PortSpace};
use verbs::{
    Access, CqPoller, Mr, PostError, PostErrorKind, Qp, QpCap, QpInitAttr, RecvQueue, RecvWr, SendQueue,
    SendWr, Sge, Wc, WcOpcode,
};
use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::device::Host;
use super::error::HostError;

/// Timeout of address and route resolution, as of a Linux host.
const RESOLVING: Duration = Duration::from_secs(3);
/// The most completions that are polled at a time.
const BATCH: usize = 32;
const RESPONSE: usize = size_of::<Cqe>();
/// The `wr_id` of send requests, whose completions are not needed.
const SENT: u64 = u64::MAX;

/// Whether a command has data in its capsule.
#[derive(Clone, Debug)]
pub enum Data<'m> {
    /// It has none: the SGL descriptor of the command describes memory of the host, or nothing.
    Elsewhere,
    /// It has these bytes of a memory region in its capsule.
    InCapsule(&'m Mr, Range<usize>),
}

/// An admin or I/O queue of a host.
pub struct HostQueue {
    // Fields are dropped in this order: the handles, then the queue pair, then the memory.
    sq: SendQueue,
    rq: RecvQueue,
    poller: CqPoller,
    qp: Arc<Qp>,
    id: CmId,
    responses: Mr,
    /// The parts of `responses`, one for each receive request.
    elements: Vec<[Sge; 1]>,
    /// Submission queue entries of commands with in-capsule data, by command identifier.
    capsules: Mr,
    free: Vec<u16>,
    entries: u16,
    done: Vec<Wc>,
    /// Whether to stop posting receives.
    deaf: bool,
}

impl HostQueue {
    /// Connects a queue of `entries` entries to a target.
    ///
    /// # Errors
    /// If the target does not answer, or refuses.
    pub fn connect(host: &mut Host<'_>, to: SocketAddr, qid: u16, entries: u16) -> Result<Self, HostError> {
        let request = RequestData {
            qid: U16::new(qid),
            host_receives: U16::new(entries),
            host_sends: U16::new(entries - 1),
            ..RequestData::new_zeroed()
        };
        Self::connect_as(host, to, entries, request.as_bytes())
    }
    /// As [`connect`](Self::connect), with any private data.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn connect_as(
        host: &mut Host<'_>,
        to: SocketAddr,
        entries: u16,
        private: &[u8],
    ) -> Result<Self, HostError> {
        let depth = entries as usize;
        let id = host.context.create_id(Some(&host.events), PortSpace::Tcp)?;
        id.resolve_addr(host.address, to, RESOLVING)?;
        drop(host.outcome(&id, to, CmEventType::AddrResolved)?);
        id.resolve_route(RESOLVING)?;
        drop(host.outcome(&id, to, CmEventType::RouteResolved)?);
        let cap = QpCap {
            max_send_wr: 2 * entries as u32,
            max_recv_wr: entries as u32,
            max_send_sge: 2,
            max_recv_sge: 1,
            max_inline_data: Sqe::LEN as u32,
        };
        // Room for the completions of all requests: if the queue pair fails, unsignaled requests have completions, too.
        let cq = host.context.create_cq(4 * cap.max_send_wr.next_power_of_two())?;
        let pd = &host.pd;
        let qp = id.create_qp(pd, &QpInitAttr::rc(&cq, &cq).cap(cap))?;
        let responses = pd.reg_mr(depth * RESPONSE, Access::LOCAL_WRITE)?;
        let elements = (0..depth).map(|n| Ok([responses.sge(n * RESPONSE..(n + 1) * RESPONSE)?]));
        let elements = elements.collect::<Result<Vec<_>, HostError>>()?;
        qp.post_recv(elements.iter().zip(0..).map(|(element, n)| RecvWr::new(n, element)))?;
        let param = ConnParam {
            responder_resources: MAX_RESP_RES,
            initiator_depth: 0,
            ..ConnParam::with_data(private)
        };
        let capsules = pd.reg_mr(depth * Sqe::LEN, Access::empty())?;
        id.connect(&param)?;
        let event = host.outcome(&id, to, CmEventType::Established)?;
        let (reply, _) = ReplyData::read_from_prefix(event.private_data())
            .map_err(|_| HostError::ProtocolViolation("it accepted without private data"))?;
        drop(event);
        if reply.format.get() != 0 || reply.receives.get() + 1 < entries {
            return Err(HostError::ProtocolViolation("it posts fewer receives than the queue has entries"));
        }
        let (sq, rq) = qp.split()?;
        Ok(Self {
            sq,
            rq,
            poller: cq.poller()?,
            qp,
            id,
            responses,
            elements,
            capsules,
            // One entry stays empty: a full queue would look like an empty one.
            free: (0..entries - 1).rev().collect(),
            entries,
            done: vec![Wc::default(); BATCH],
            deaf: false,
        })
    }

    /// How many commands can be outstanding: the number of entries minus 1.
    pub fn depth(&self) -> usize {
        self.entries as usize - 1
    }
    /// How many commands are outstanding.
    #[inline]
    pub fn under_way(&self) -> usize {
        self.depth() - self.free.len()
    }
    /// The identifier that the next command will have; `None` if the queue is full.
    #[inline]
    pub fn next_cid(&self) -> Option<u16> {
        self.free.last().copied()
    }
    /// The queue pair.
    pub fn qp(&self) -> &Qp {
        &self.qp
    }

    /// Sends a command. Returns its identifier; `None` if the queue or the send queue is full. A command stays in the send queue until it
    /// is acknowledged, which may be after its response.
    ///
    /// # Errors
    /// If the connection has failed.
    #[inline]
    pub fn submit(&mut self, sqe: &Sqe, data: Data<'_>) -> Result<Option<u16>, HostError> {
        let Some(&cid) = self.free.last() else { return Ok(None) };
        let sqe = Sqe { cid: U16::new(cid), ..*sqe };
        let posted = match data {
            Data::Elsewhere => self.sq.post_send([SendWr::send(SENT, &[]).inline(sqe.as_bytes())]),
            Data::InCapsule(mr, range) => {
                let at = cid as usize * Sqe::LEN;
                self.capsules_write(at, &sqe)?;
                let capsule = [self.capsules.sge(at..at + Sqe::LEN)?, mr.sge(range)?];
                self.sq.post_send([SendWr::send(SENT, &capsule)])
            }
        };
        match posted {
            Ok(()) => {
                self.free.pop();
                Ok(Some(cid))
            }
            Err(PostError { kind: PostErrorKind::Full { .. }, .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
    fn capsules_write(&self, at: usize, sqe: &Sqe) -> Result<(), HostError> {
        Ok(self.capsules.write(at, sqe.as_bytes())?)
    }
    /// Posts any work request, such as a fast registration. Its completion is not reported.
    ///
    /// # Errors
    /// If the connection has failed.
    pub fn post(&mut self, request: SendWr<'_>) -> Result<(), HostError> {
        Ok(self.sq.post_send([request])?)
    }
    /// Sends arbitrary bytes as a capsule.
    ///
    /// # Errors
    /// If the connection has failed.
    pub fn send_raw(&mut self, bytes: &[u8]) -> Result<(), HostError> {
        Ok(self.sq.post_send([SendWr::send(SENT, &[]).inline(bytes)])?)
    }

    /// Stops posting receives, so that responses find no receive once the posted ones are used up.
    pub fn stop_receiving(&mut self) {
        self.deaf = true;
    }

    /// Passes the responses that have arrived to `each`. Returns their number.
    ///
    /// # Errors
    /// If the connection has failed.
    #[inline]
    pub fn poll(&mut self, mut each: impl FnMut(&Cqe)) -> Result<usize, HostError> {
        let n = self.poller.poll(&mut self.done)?;
        let mut responses = 0;
        for wc in &self.done[..n] {
            if !wc.is_ok() {
                return Err(HostError::Connection(wc.status));
            }
            if wc.opcode != WcOpcode::Recv {
                continue;
            }
            let n = wc.wr_id as usize;
            let mut bytes = [0; RESPONSE];
            self.responses.read(n * RESPONSE, &mut bytes)?;
            if !self.deaf {
                self.rq.post_recv([RecvWr::new(wc.wr_id, &self.elements[n])])?;
            }
            let cqe: Cqe = zerocopy::transmute!(bytes);
            if wc.byte_len as usize != RESPONSE || cqe.cid.get() >= self.entries {
                return Err(HostError::ProtocolViolation("a response of a wrong length, or for no command"));
            }
            self.free.push(cqe.cid.get());
            responses += 1;
            each(&cqe);
        }
        Ok(responses)
    }

    /// Whether an event has reported the end of the connection.
    pub fn is_disconnected(&self) -> bool {
        self.id.state() == IdState::Disconnected
    }
}

impl Host<'_> {
    /// Sends a command, and waits for its response.
    ///
    /// # Errors
    /// If the connection fails, no response comes, or the response says that the command failed.
    pub fn call(&mut self, queue: &mut HostQueue, sqe: &Sqe, data: Data<'_>) -> Result<Cqe, HostError> {
        let cid = queue.submit(sqe, data)?.ok_or(HostError::QueueFull)?;
        let cqe = self.until(|_| {
            let mut answer = None;
            queue.poll(|cqe| {
                if cqe.cid.get() == cid {
                    answer = Some(*cqe);
                }
            })?;
            Ok(answer)
        })?;
        match cqe.status.get() >> 1 {
            0 => Ok(cqe),
            status => Err(HostError::Status { status, result: cqe.result.get() }),
        }
    }
}
