//! A port whose queues can be taken more than once.
//!
//! An ordinary port hands out each queue once. Measuring the bare port first and RDMA on it afterwards needs the same queue twice, so
//! this port takes a queue back when the queue's user drops it.

use std::sync::{Arc, Mutex, PoisonError};
use verbs::port::{Port, PortLayer, PortQueue, QueueLayer};

type Slot = Arc<Mutex<Option<Box<dyn PortQueue>>>>;

/// A port that may be used by one user after the other. Clones are the same port.
#[derive(Clone)]
pub struct ReusablePort {
    port: Arc<dyn Port>,
    queues: Arc<[Slot]>,
}

impl ReusablePort {
    /// Takes over a port and all of its queues.
    pub fn new(port: Box<dyn Port>) -> Self {
        let queues = (0..port.info().queues).map(|n| Arc::new(Mutex::new(port.take_queue(n)))).collect();
        Self { port: port.into(), queues }
    }
}

impl PortLayer for ReusablePort {
    fn inner(&self) -> &dyn Port {
        &*self.port
    }

    fn take_queue(&self, index: usize) -> Option<Box<dyn PortQueue>> {
        let slot = self.queues.get(index)?;
        let queue = slot.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        Some(Box::new(ReturnedQueue { queue: Some(queue), home: slot.clone() }))
    }
}

/// A queue that returns to its port when it is dropped.
struct ReturnedQueue {
    /// `None` only during the drop.
    queue: Option<Box<dyn PortQueue>>,
    home: Slot,
}

impl QueueLayer for ReturnedQueue {
    #[inline]
    fn inner(&mut self) -> &mut dyn PortQueue {
        self.queue.as_mut().expect("a queue is there until it is dropped").as_mut()
    }
}

impl Drop for ReturnedQueue {
    fn drop(&mut self) {
        *self.home.lock().unwrap_or_else(PoisonError::into_inner) = self.queue.take();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbs::port::{Armed, PortOptions, PortSpec};

    // Goal: a thread that waits for a lent port sleeps as it would for the port itself, and does not poll.
    #[test]
    fn a_lent_port_signals_frames_and_is_lent_again() {
        let dir = std::env::temp_dir().join(format!("roce-lend-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let spec = format!("unix:{0}/a,peer={0}/b", dir.display());
        let spec: PortSpec = spec.parse().unwrap();
        let port = ReusablePort::new(spec.open(&PortOptions::default()).unwrap());
        for _ in 0..2 {
            let mut queue = Port::take_queue(&port, 0).unwrap();
            assert!(matches!(queue.arm(), Armed::Event(_)));
            assert!(Port::take_queue(&port, 0).is_none());
        }
        drop(port);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
