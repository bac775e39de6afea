//! A port with a hook that runs before its operations, for tests that stop, lose or break frames, or call back inside a turn.

#![allow(dead_code, reason = "each test file uses a part")]

use std::sync::{Arc, Mutex};

use verbs::port::{Build, Frame, Port, PortLayer, PortQueue, PortSpec, QueueLayer, Route, RxBurst, TxBurst};

/// An operation of a queue of the port.
pub enum Burst<'b> {
    /// Receive frames.
    Rx,
    /// Send these frames; frames that the hook takes out count as sent.
    Tx(&'b mut TxBurst),
    /// Allocate an empty frame.
    Alloc,
}

/// Called before each operation; returns whether the port should perform it.
type Hook = dyn Fn(Burst<'_>) -> bool + Send + Sync;

/// A port with a hook.
pub struct Hooked(Box<dyn Port>, Arc<Hook>);

impl Hooked {
    pub fn around(
        port: Box<dyn Port>,
        hook: impl Fn(Burst<'_>) -> bool + Send + Sync + 'static,
    ) -> Box<dyn Port> {
        Box::new(Self(port, Arc::new(hook)))
    }
}

impl PortLayer for Hooked {
    fn inner(&self) -> &dyn Port {
        &*self.0
    }
    fn take_queue(&self, index: usize) -> Option<Box<dyn PortQueue>> {
        Some(Box::new(Queue(self.0.take_queue(index)?, self.1.clone())))
    }
}

struct Queue(Box<dyn PortQueue>, Arc<Hook>);

impl QueueLayer for Queue {
    fn inner(&mut self) -> &mut dyn PortQueue {
        &mut *self.0
    }
    fn rx_burst(&mut self, out: &mut RxBurst) -> usize {
        if (self.1)(Burst::Rx) { self.0.rx_burst(out) } else { 0 }
    }
    fn tx_burst(&mut self, route: Route, frames: &mut TxBurst) -> usize {
        let given = frames.len();
        let goes_on = (self.1)(Burst::Tx(frames));
        let taken = given - frames.len();
        if goes_on { taken + self.0.tx_burst(route, frames) } else { taken }
    }
    fn alloc(&mut self) -> Option<Frame> {
        if (self.1)(Burst::Alloc) { self.0.alloc() } else { None }
    }
    fn alloc_burst(&mut self, out: &mut TxBurst, n: usize) {
        let n = n.min(out.remaining_capacity());
        out.extend(std::iter::from_fn(|| QueueLayer::alloc(self)).take(n));
    }
    /// Refuses to build in place: so everything is sent in frames, which the hook sees.
    fn build_burst(&mut self, _: Route, _: usize, _: &mut dyn Build) -> Option<usize> {
        None
    }
}

type Call = Box<dyn FnOnce() + Send>;

/// Makes a call inside a turn of the device on its loopback port.
#[derive(Clone, Default)]
pub struct Inside(Arc<Mutex<Option<Call>>>);

impl Inside {
    pub fn port(&self) -> Box<dyn Port> {
        let port = PortSpec::Loopback.open(&Default::default()).unwrap();
        let waiting = self.0.clone();
        Hooked::around(port, move |_| {
            let call = waiting.lock().unwrap().take();
            if let Some(call) = call {
                call();
            }
            true
        })
    }
    /// Makes the call in the next turn.
    pub fn next(&self, call: impl FnOnce() + Send + 'static) {
        *self.0.lock().unwrap() = Some(Box::new(call));
    }
}
