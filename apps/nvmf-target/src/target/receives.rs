//! Receives for command capsules: a shared receive queue, and the buffers that are posted to it.
//!
//! A receive is posted for each command that the connected hosts may send, up to a limit for all of them. If hosts may send more, a capsule
//! may find no receive: the host's queue pair gets an RNR NAK and sends the capsule again a little later, so nothing is lost.

use std::sync::Arc;

use verbs::{Access, Mr, Pd, RecvWr, Sge, Srq, SrqInitAttr, VerbsError};

use nvmf::wire::Sqe;

use super::ids::ReceiveId;
use super::tag::Tag;

/// The receives of a core.
#[derive(Debug)]
pub struct Receives {
    srq: Srq,
    mr: Arc<Mr>,
    /// Bytes from one buffer to the next.
    stride: usize,
    elements: Vec<[Sge; 1]>,
    /// Buffers that are neither posted nor in use. The last one used is posted first.
    free: Vec<ReceiveId>,
    posted: usize,
    /// How many commands all connected hosts may have outstanding.
    wanted: usize,
}

impl Receives {
    /// Makes `count` receive buffers for capsules with up to `in_capsule` bytes of data.
    ///
    /// # Errors
    /// If the buffers cannot be allocated or registered.
    pub fn new(pd: &Pd, count: u32, in_capsule: u32) -> Result<Self, VerbsError> {
        let len = Sqe::LEN + in_capsule as usize;
        let stride = len.next_multiple_of(Sqe::LEN);
        let srq = pd.create_srq(&SrqInitAttr::new(count, 1))?;
        let mr = Arc::new(pd.reg_mr(stride * count as usize, Access::LOCAL_WRITE)?);
        let element = |n: u32| {
            let at = n as usize * stride;
            Ok([mr.sge(at..at + len)?])
        };
        let elements = (0..count).map(element).collect::<Result<_, VerbsError>>()?;
        Ok(Self {
            srq,
            mr,
            stride,
            elements,
            free: (0..count).rev().map(ReceiveId).collect(),
            posted: 0,
            wanted: 0,
        })
    }

    /// The shared receive queue.
    pub fn srq(&self) -> &Srq {
        &self.srq
    }
    /// The memory region of the buffers.
    pub fn mr(&self) -> &Arc<Mr> {
        &self.mr
    }
    /// Offset of a buffer in the memory region.
    pub fn offset(&self, capsule: ReceiveId) -> usize {
        capsule.index() * self.stride
    }
    /// How many buffers are in use, because a command still needs its capsule.
    pub fn in_use(&self) -> usize {
        self.elements.len() - self.free.len() - self.posted
    }
    /// How many buffers are not in use.
    pub fn left(&self) -> usize {
        self.free.len() + self.posted
    }
    /// How many buffers are posted.
    pub fn posted(&self) -> usize {
        self.posted
    }

    /// Adds a connection whose host may have `commands` outstanding.
    pub fn add(&mut self, commands: u16) {
        self.wanted += commands as usize;
    }
    /// Removes such a connection. Surplus posted receives are used up by the next capsules.
    pub fn remove(&mut self, commands: u16) {
        self.wanted -= commands as usize;
    }
    /// Notes that a posted receive has completed: its buffer is in use.
    pub fn take(&mut self) {
        self.posted -= 1;
    }
    /// Frees a buffer that was in use.
    pub fn give(&mut self, capsule: ReceiveId) {
        self.free.push(capsule);
    }
    /// Posts as many receives as are missing, as far as there are free buffers.
    ///
    /// # Errors
    /// If the device fails.
    #[inline]
    pub fn refill(&mut self) -> Result<(), VerbsError> {
        let missing = self.wanted.saturating_sub(self.posted).min(self.free.len());
        if missing == 0 {
            return Ok(());
        }
        let elements = &self.elements;
        let from = self.free.len() - missing;
        let capsules = self.free.drain(from..).rev();
        let recv =
            |capsule: ReceiveId| RecvWr::new(Tag::Received(capsule).to_raw(), &elements[capsule.index()]);
        self.srq.post_recv(capsules.map(recv))?;
        self.posted += missing;
        Ok(())
    }
}
