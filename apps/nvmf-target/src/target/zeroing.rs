//! Zeroing of namespaces in memory: a piece in each turn, so that other commands are served in between.

use std::sync::Arc;

use nvmf::BackendError;
use nvmf::fair::{Turns, Who};

use crate::store::{CommandIndex, Memory, Zeroed};

/// The cost of merging a range and looking at its marks, in bytes that could be zeroed in the same time. So ranges that are zero already
/// are not free, and a host that orders many of them gets no more time than other hosts.
const RANGE: u64 = 4096;

/// The orders of all hosts, which take turns.
#[derive(Debug, Default)]
pub struct Zeroing(Turns<Order>);

/// The ranges that a command orders to be zeroed.
#[derive(Debug)]
pub struct Order {
    pub command: CommandIndex,
    memory: Arc<Memory>,
    /// Offset and length of the ranges that are left, without overlaps. The last one is done first.
    ranges: Vec<(u64, u64)>,
    /// Whether to give memory back to the operating system.
    give_back: bool,
    /// The cost, in bytes, that exceeded the turns so far. It must be worked off before the next piece.
    debt: u64,
}

impl Order {
    /// Makes an order for ranges that do not overlap. The host named `named` ranges, which were merged to these.
    pub fn new(
        command: CommandIndex,
        memory: Arc<Memory>,
        ranges: Vec<(u64, u64)>,
        give_back: bool,
        named: u64,
    ) -> Self {
        Self { command, memory, ranges, give_back, debt: named * RANGE }
    }
    /// Does one turn of the order: zeroes about `most` bytes. Returns the result when nothing is left, else `None`.
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
    /// Whether there are no orders.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    /// Adds an order of a host.
    pub fn push(&mut self, who: Who, order: Order) {
        self.0.push(who, order);
    }
    /// Takes the next order, of the host whose turn it is.
    pub fn pop(&mut self) -> Option<(Who, Order)> {
        self.0.pop()
    }
    /// Puts back an order that had its turn and is not done. It stays the first of its host.
    pub fn put_back(&mut self, who: Who, order: Order) {
        self.0.put_back(who, order);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbs::{Access, Context, DeviceConfig};

    // Goal: hosts take turns: a host that orders a lot of zeroing does not make another host wait until all of it is done.
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
