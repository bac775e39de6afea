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
    /// Number and slot of the one that was found last.
    found: Option<(Qpn, u32)>,
    /// Puts huge pages under their rings and counters, and under what is allocated between those.
    pub around: Filling,
}

impl Qps {
    /// No queue pairs, and so many slots for them.
    pub fn new(slots: usize) -> Self {
        let (table, around) = (QpTable::default(), Filling::beyond(TLB_REACH));
        Self { slots: Slab::new(slots), table, found: None, around }
    }
    #[inline]
    pub fn get(&mut self, slot: u32) -> Option<&mut Qp> {
        step();
        self.slots.get_mut(slot)
    }
    /// A look that is not counted as a step.
    #[inline(always)]
    pub fn peek(&self, slot: u32) -> Option<&Qp> {
        self.slots.get(slot)
    }
    /// The queue pair with this number. Often it is that of the packet before: then the table is not looked at.
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
    /// Takes a queue pair out of its slot: its number finds nothing from now on.
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
