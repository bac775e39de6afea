//! A port whose queues can be taken again.
//!
//! A port gives each queue away once. Measuring the bare port first and RDMA on it afterwards needs the same queue twice, so
//! this one takes a queue back when its user drops it.

use std::sync::{Arc, Mutex, PoisonError};
use verbs::port::Frame;
use verbs::port::{Armed, Build, Host, Port, PortError, PortInfo, PortQueue, PortStats, RxBurst, TxBurst};

type Slot = Arc<Mutex<Option<Box<dyn PortQueue>>>>;

/// A port that may be used by one user after the other. Clones are the same port.
#[derive(Clone)]
pub struct LentPort {
    port: Arc<dyn Port>,
    queues: Arc<[Slot]>,
}

impl LentPort {
    /// Takes over a port and all of its queues.
    pub fn new(port: Box<dyn Port>) -> Self {
        let queues = (0..port.info().queues).map(|n| Arc::new(Mutex::new(port.take_queue(n)))).collect();
        Self { port: port.into(), queues }
    }
}

impl Port for LentPort {
    fn info(&self) -> &PortInfo {
        self.port.info()
    }

    fn take_queue(&self, index: usize) -> Option<Box<dyn PortQueue>> {
        let slot = self.queues.get(index)?;
        let queue = slot.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        Some(Box::new(Lent { queue: Some(queue), home: slot.clone() }))
    }

    fn start(&self) -> Result<(), PortError> {
        self.port.start()
    }

    fn mtu(&self) -> usize {
        self.port.mtu()
    }

    fn link_up(&self) -> bool {
        self.port.link_up()
    }

    fn host(&self) -> Option<&dyn Host> {
        self.port.host()
    }

    fn window(&self) -> Option<usize> {
        self.port.window()
    }

    fn maintain(&self) {
        self.port.maintain();
    }

    fn stats(&self) -> PortStats {
        self.port.stats()
    }
}

/// A queue that returns to its port when it is dropped.
struct Lent {
    /// Absent only while it is dropped.
    queue: Option<Box<dyn PortQueue>>,
    home: Slot,
}

impl Lent {
    #[inline]
    fn queue(&mut self) -> &mut dyn PortQueue {
        self.queue.as_mut().expect("a queue is there until it is dropped").as_mut()
    }
}

impl PortQueue for Lent {
    #[inline]
    fn rx_burst(&mut self, out: &mut RxBurst) -> usize {
        self.queue().rx_burst(out)
    }
    #[inline]
    fn tx_burst(&mut self, frames: &mut TxBurst) -> usize {
        self.queue().tx_burst(frames)
    }
    #[inline]
    fn alloc(&mut self) -> Option<Frame> {
        self.queue().alloc()
    }
    #[inline]
    fn alloc_burst(&mut self, out: &mut TxBurst, n: usize) {
        self.queue().alloc_burst(out, n);
    }
    #[inline]
    fn build_burst(&mut self, most: usize, builder: &mut dyn Build) -> Option<usize> {
        self.queue().build_burst(most, builder)
    }
    #[inline]
    fn arm(&mut self) -> Armed {
        self.queue().arm()
    }
    #[inline]
    fn recycle(&mut self, frames: &mut RxBurst) {
        self.queue().recycle(frames);
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        *self.home.lock().unwrap_or_else(PoisonError::into_inner) = self.queue.take();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbs::port::{PortOptions, PortSpec};

    // Goal: a thread that waits for a lent port sleeps as it would for the port itself, and does not poll.
    #[test]
    fn a_lent_port_signals_frames_and_is_lent_again() {
        let dir = std::env::temp_dir().join(format!("roce-lend-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let spec = format!("unix:{0}/a,peer={0}/b", dir.display());
        let spec: PortSpec = spec.parse().unwrap();
        let port = LentPort::new(spec.open(&PortOptions::default()).unwrap());
        for _ in 0..2 {
            let mut queue = port.take_queue(0).unwrap();
            assert!(matches!(queue.arm(), Armed::Event(_)));
            assert!(port.take_queue(0).is_none());
        }
        drop(port);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
