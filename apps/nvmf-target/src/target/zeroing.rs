//! Namespaces in memory: ranges that become zeros, a piece a turn, so that other commands come between.

use std::sync::Arc;

use nvmf::BackendError;
use nvmf::fair::{Turns, Who};

use crate::store::{CommandIndex, Memory, Zeroed};

/// What it costs to merge a range with others and to look at its marks, as bytes that are made zeros. So ranges that are zeros already are
/// not free, and a host that orders many of them gets no more turns than other hosts.
const RANGE: u64 = 4096;

/// What is ordered, in turn.
#[derive(Debug, Default)]
pub struct Zeroing(Turns<Order>);

/// Ranges that become zeros, for a command.
#[derive(Debug)]
pub struct Order {
    pub command: CommandIndex,
    memory: Arc<Memory>,
    /// Offset and length of the ranges that are left, without overlaps. They are taken from the end of the list.
    ranges: Vec<(u64, u64)>,
    /// Memory goes back to the system.
    give_back: bool,
    /// What the order, or its last piece, cost beyond its turn, in bytes.
    debt: u64,
}

impl Order {
    /// Of ranges that do not overlap, made of `named` ranges that the host named.
    pub fn new(
        command: CommandIndex,
        memory: Arc<Memory>,
        ranges: Vec<(u64, u64)>,
        give_back: bool,
        named: u64,
    ) -> Self {
        Self { command, memory, ranges, give_back, debt: named * RANGE }
    }
    /// Its turn: makes zeros of about `most` bytes. Returns the result when nothing is left.
    pub fn step(&mut self, most: u64) -> Option<Result<(), BackendError>> {
        if self.debt > most {
            self.debt -= most;
            return None;
        }
        if let Some((offset, len)) = self.ranges.pop() {
            match self.memory.zero_some(offset, len, most, self.give_back) {
                Ok(Zeroed { bytes, cost }) => {
                    self.debt = cost.saturating_sub(most);
                    if bytes < len {
                        self.ranges.push((offset + bytes, len - bytes));
                    }
                }
                Err(e) => return Some(Err(e)),
            }
        }
        self.ranges.is_empty().then_some(Ok(()))
    }
}

impl Zeroing {
    /// Whether nothing is ordered.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    /// A host orders something.
    pub fn push(&mut self, who: Who, order: Order) {
        self.0.push(who, order);
    }
    /// Takes an order of the host whose turn it is.
    pub fn pop(&mut self) -> Option<(Who, Order)> {
        self.0.pop()
    }
    /// It had its turn, and is not done.
    pub fn put_back(&mut self, who: Who, order: Order) {
        self.0.put_back(who, order);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbs::{Access, Context, DeviceConfig};

    // Goal: zeros are written in turn, host by host: one that orders many does not make another wait until all of them are done.
    #[test]
    fn a_host_that_orders_many_zeros_leaves_every_second_turn_to_another() {
        const ORDERS: u32 = 60;
        const LEN: usize = 1 << 20;
        const PIECE: u64 = 64 << 10;
        let pd = Context::open(DeviceConfig::loopback()).unwrap().alloc_pd().unwrap();
        let memory = Arc::new(Memory::new(&pd, LEN).unwrap());
        let data = pd.reg_mr(LEN, Access::LOCAL_WRITE).unwrap();
        data.fill(0..LEN, 0xa5).unwrap();
        memory.write(0, &data, 0, LEN as u32).unwrap();
        let order = |n| Order::new(CommandIndex(n), Arc::clone(&memory), vec![(0, LEN as u64)], false, 1);
        let [greedy, modest] = [1, 2].map(|last| Who::at([10, 77, 0, last].into()));
        let mut zeroing = Zeroing::default();
        (0..ORDERS).for_each(|n| zeroing.push(greedy, order(n)));
        zeroing.push(modest, order(ORDERS));
        let (mut turns, mut done) = (0, Vec::new());
        while let Some((who, mut order)) = zeroing.pop() {
            turns += 1;
            match order.step(PIECE) {
                None => zeroing.put_back(who, order),
                Some(result) => done.push((order.command.0, result)),
            }
        }
        assert!(turns > LEN as u64 / PIECE, "it takes more than a turn: {turns}");
        assert!(done[..2].contains(&(ORDERS, Ok(()))), "{:?}", &done[..2]);
        assert_eq!(done.len(), ORDERS as usize + 1);
        assert!(done.iter().all(|(_, result)| result.is_ok()) && zeroing.is_empty());
    }
}
