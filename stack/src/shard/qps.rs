//! The queue pairs of a shard, found by slot and by number.

use super::qp::Qp;
use super::qp_table::QpTable;
use super::slab::Slab;
use crate::id::Qpn;
use crate::mark::step;
use crate::sync::huge::{Filling, TLB_REACH};

#[derive(Debug)]
pub(super) struct Qps {
    pub slots: Slab<Qp>,
    pub table: QpTable,
    /// Number and slot of the last queue pair found.
    found: Option<(Qpn, u32)>,
    /// Puts huge pages under the rings and counters of queue pairs, and under allocations between those.
    pub around: Filling,
}

impl Qps {
    /// An empty table with `slots` slots.
    pub fn new(slots: usize) -> Self {
        let (table, around) = (QpTable::default(), Filling::beyond(TLB_REACH));
        Self { slots: Slab::new(slots), table, found: None, around }
    }
    #[inline]
    pub fn get(&mut self, slot: u32) -> Option<&mut Qp> {
        step();
        self.slots.get_mut(slot)
    }
    /// As [`get`](Self::get), read-only and not counted as a step.
    #[inline(always)]
    pub fn peek(&self, slot: u32) -> Option<&Qp> {
        self.slots.get(slot)
    }
    /// The queue pair with this number. Often it is that of the previous packet, which needs no table lookup.
    #[inline]
    pub fn find(&mut self, qpn: Qpn) -> Option<&mut Qp> {
        let slot = match self.found {
            Some((found, slot)) if found == qpn => slot,
            _ => {
                let slot = self.table.get(qpn)?;
                self.found = Some((qpn, slot));
                slot
            }
        };
        self.get(slot)
    }
    /// Removes a queue pair from its slot and from the table.
    pub fn remove(&mut self, slot: u32) -> Option<Qp> {
        let qp = self.slots.remove(slot)?;
        self.table.remove(qp.qpn);
        self.found = None;
        Some(qp)
    }
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Qp> {
        self.slots.iter_mut().inspect(|_| step())
    }
}
