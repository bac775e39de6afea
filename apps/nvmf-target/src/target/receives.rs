//! Receives for command capsules: a shared receive queue, and the buffers that are posted to it.
//!
//! There is a posted receive for each command that the connected hosts may send, up to a bound for all of them. Beyond it, a
//! capsule may find no receive: the host's queue pair gets an RNR NAK and sends it again a little later, so nothing is lost.

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
    /// Bytes of a buffer.
    stride: usize,
    elements: Vec<[Sge; 1]>,
    /// Buffers that are neither posted nor in use. The one that was used last is posted first.
    free: Vec<ReceiveId>,
    posted: usize,
    /// Commands that hosts may send at a time.
    wanted: usize,
}

impl Receives {
    /// `count` buffers for capsules with up to `in_capsule` bytes of data.
    ///
    /// # Errors
    /// If they cannot be allocated or registered.
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

    /// The queue, for queue pairs.
    pub fn srq(&self) -> &Srq {
        &self.srq
    }
    /// The region of the buffers.
    pub fn mr(&self) -> &Arc<Mr> {
        &self.mr
    }
    /// Where a buffer is in it.
    pub fn offset(&self, capsule: ReceiveId) -> usize {
        capsule.index() * self.stride
    }
    /// Buffers in use: commands whose data are in their capsules.
    pub fn in_use(&self) -> usize {
        self.elements.len() - self.free.len() - self.posted
    }
    /// Buffers that are not in use.
    pub fn left(&self) -> usize {
        self.free.len() + self.posted
    }
    /// Buffers that are posted.
    pub fn posted(&self) -> usize {
        self.posted
    }

    /// A host that may send `commands` at a time connects.
    pub fn add(&mut self, commands: u16) {
        self.wanted += commands as usize;
    }
    /// Such a host has gone. Receives that are now too many are used up by the next capsules.
    pub fn remove(&mut self, commands: u16) {
        self.wanted -= commands as usize;
    }
    /// A posted buffer has completed: it is in use.
    pub fn take(&mut self) {
        self.posted -= 1;
    }
    /// A buffer is not in use any more.
    pub fn give(&mut self, capsule: ReceiveId) {
        self.free.push(capsule);
    }
    /// Posts as many as are missing.
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
