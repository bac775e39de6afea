//! A port whose description is known at once, and whose device opens when the port is started.
//!
//! Until then it is a link that is down: nothing is received, nothing is accepted, there are no buffers. After the start each
//! queue takes the real port's queue, once, and passes every burst on to it.

use super::taken::Taken;
use super::{
    Armed, Build, Frame, Port, PortError, PortInfo, PortOptions, PortQueue, PortSpec, PortStats, RxBurst,
    TxBurst,
};
use crate::sync::lock::lock;
use core::time::Duration;
use std::sync::{Arc, Mutex, OnceLock};

type Open = dyn Fn() -> Result<Box<dyn Port>, PortError> + Send + Sync;

/// A port that `info` describes; [`Port::start`] calls `open`, until it succeeds.
fn lazy(
    info: PortInfo,
    open: impl Fn() -> Result<Box<dyn Port>, PortError> + Send + Sync + 'static,
) -> Box<dyn Port> {
    let taken = Taken::none_of(info.queues);
    Box::new(LazyPort { info, taken, real: Arc::default(), open: Mutex::new(Box::new(open)) })
}

/// A port that `info` describes; [`Port::start`] opens what `spec` names, with that address.
pub(super) fn later(info: PortInfo, spec: &PortSpec, options: &PortOptions) -> Box<dyn Port> {
    let (spec, options) = (spec.clone(), PortOptions { mac: Some(info.mac), ..options.clone() });
    lazy(info, move || spec.open(&options))
}

/// The real port, once it is open.
type Real = OnceLock<Box<dyn Port>>;

struct LazyPort {
    info: PortInfo,
    taken: Taken,
    /// Shared with the queues.
    real: Arc<Real>,
    /// Locked while the port opens, so that it opens once.
    open: Mutex<Box<Open>>,
}

impl LazyPort {
    /// Checks that the real port has the address and queues that were announced, and at least the MTU.
    fn check(&self, real: &PortInfo) -> Result<(), PortError> {
        let PortInfo { mac, mtu, queues, .. } = self.info;
        let reason = if real.mtu < mtu {
            format!("it carries an MTU of {}, not {mtu}: open it with that MTU", real.mtu)
        } else if real.mac != mac {
            format!("its address is {}, not {mac}: open it with that address", real.mac)
        } else if real.queues != queues {
            format!("it has {} queues, not {queues}: use that many shards", real.queues)
        } else {
            return Ok(());
        };
        Err(PortError::Open { port: self.info.name.clone(), reason })
    }
}

impl Port for LazyPort {
    fn info(&self) -> &PortInfo {
        &self.info
    }

    fn start(&self) -> Result<(), PortError> {
        if self.real.get().is_some() {
            return Ok(());
        }
        let open = lock(&self.open);
        if self.real.get().is_some() {
            return Ok(());
        }
        let port = open()?;
        self.check(port.info())?;
        // No other thread sets it: the lock is held.
        let _ = self.real.set(port);
        Ok(())
    }

    fn take_queue(&self, index: usize) -> Option<Box<dyn PortQueue>> {
        self.taken.take(index)?;
        Some(Box::new(LazyQueue { queue: None, index, port: Arc::clone(&self.real) }))
    }

    fn mtu(&self) -> usize {
        self.real.get().map_or(self.info.mtu, |port| port.mtu())
    }

    fn link_up(&self) -> bool {
        self.real.get().is_some_and(|port| port.link_up())
    }

    fn maintain(&self) {
        if let Some(port) = self.real.get() {
            port.maintain();
        }
    }

    fn stats(&self) -> PortStats {
        self.real.get().map(|port| port.stats()).unwrap_or_default()
    }
}

struct LazyQueue {
    /// The real queue, from the first call after the start on.
    queue: Option<Box<dyn PortQueue>>,
    index: usize,
    port: Arc<Real>,
}

impl LazyQueue {
    #[inline]
    fn queue(&mut self) -> Option<&mut dyn PortQueue> {
        if self.queue.is_none() {
            self.look();
        }
        self.queue.as_deref_mut().map(|queue| queue as _)
    }

    /// Takes the real queue if the port is open by now.
    #[cold]
    fn look(&mut self) {
        self.queue = self.port.get().and_then(|port| port.take_queue(self.index));
    }
}

impl PortQueue for LazyQueue {
    #[inline]
    fn rx_burst(&mut self, out: &mut RxBurst) -> usize {
        self.queue().map_or(0, |queue| queue.rx_burst(out))
    }
    #[inline]
    fn tx_burst(&mut self, frames: &mut TxBurst) -> usize {
        self.queue().map_or(0, |queue| queue.tx_burst(frames))
    }
    #[inline]
    fn alloc(&mut self) -> Option<Frame> {
        self.queue()?.alloc()
    }
    #[inline]
    fn alloc_burst(&mut self, out: &mut TxBurst, n: usize) {
        if let Some(queue) = self.queue() {
            queue.alloc_burst(out, n);
        }
    }
    #[inline]
    fn build_burst(&mut self, most: usize, builder: &mut dyn Build) -> Option<usize> {
        self.queue()?.build_burst(most, builder)
    }
    fn arm(&mut self) -> Armed {
        // The start of the port wakes the sleeping thread.
        self.queue().map_or(Armed::Down(Duration::MAX, None), |queue| queue.arm())
    }
    #[inline]
    fn recycle(&mut self, frames: &mut RxBurst) {
        match self.queue() {
            Some(queue) => queue.recycle(frames),
            None => frames.clear(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::HeapPool;
    use super::*;
    use crate::id::Mac;
    use core::sync::atomic::{AtomicUsize, Ordering};

    fn options() -> PortOptions {
        let mac = Some(Mac([2, 0, 0, 0, 0, 7]));
        PortOptions { queues: 2, frames: 256, mac, ..PortOptions::default() }
    }

    fn info() -> PortInfo {
        let PortOptions { queues, mtu, mac, .. } = options();
        PortInfo { name: "later".into(), mac: mac.unwrap(), mtu, queues }
    }

    /// A frame of our own, as the port has none before it is started.
    fn frame(bytes: &[u8]) -> Frame {
        let mut frame = HeapPool::new(1, 64).alloc().unwrap();
        frame.fill(bytes);
        frame
    }

    #[test]
    fn a_link_that_is_down_until_it_is_started() {
        let opened = Arc::new(AtomicUsize::new(0));
        let port = lazy(info(), {
            let opened = Arc::clone(&opened);
            move || {
                opened.fetch_add(1, Ordering::Relaxed);
                PortSpec::Loopback.open(&options())
            }
        });
        assert_eq!(*port.info(), info());
        let mut queues = [port.take_queue(0).unwrap(), port.take_queue(1).unwrap()];
        assert!(port.take_queue(0).is_none() && port.take_queue(2).is_none());
        let (mut burst, mut got) = (TxBurst::new(), RxBurst::new());
        burst.push(frame(b"early"));
        for queue in &mut queues {
            assert_eq!(queue.rx_burst(&mut got), 0);
            assert_eq!(queue.tx_burst(&mut burst), 0);
            assert!(queue.alloc().is_none());
            queue.recycle(&mut got);
        }
        port.maintain();
        assert_eq!(burst[0].data(), b"early", "what cannot be sent stays");
        assert!(!port.link_up());
        assert_eq!(port.stats(), PortStats::default());
        assert_eq!(opened.load(Ordering::Relaxed), 0);

        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| port.start().unwrap());
            }
        });
        assert_eq!(opened.load(Ordering::Relaxed), 1, "it opens once, whoever starts it");
        assert!(port.link_up());
        assert_eq!(queues[1].tx_burst(&mut burst), 1);
        assert_eq!(queues[0].rx_burst(&mut got), 0);
        assert_eq!(queues[1].rx_burst(&mut got), 1);
        assert_eq!(got[0].data(), b"early");
        queues[1].recycle(&mut got);
        assert_eq!((port.stats().tx_frames, port.stats().rx_frames), (1, 1));
        assert!(port.take_queue(1).is_none());

        drop(port);
        assert!(queues[0].alloc().is_some(), "a queue keeps its port open");
    }

    #[test]
    fn what_goes_wrong_is_said_at_the_start() {
        let failures = AtomicUsize::new(1);
        let port = lazy(info(), move || match failures.swap(0, Ordering::Relaxed) {
            0 => PortSpec::Loopback.open(&options()),
            _ => Err(PortError::Open { port: "later".into(), reason: "not yet".into() }),
        });
        assert_eq!(port.start().unwrap_err().to_string(), "port \"later\": not yet");
        assert!(!port.link_up());
        port.start().expect("it may be tried again");

        let more = lazy(PortInfo { mtu: 1500, ..info() }, || PortSpec::Loopback.open(&options()));
        assert_eq!(more.mtu(), 1500, "what is promised before anybody knows");
        more.start().unwrap();
        assert_eq!((more.info().mtu, more.mtu()), (1500, 4200), "what the device carries");

        for (changed, part) in [
            (PortInfo { mtu: 4201, ..info() }, "an MTU of 4200, not 4201"),
            (PortInfo { mac: Mac([2, 0, 0, 0, 0, 8]), ..info() }, "02:00:00:00:00:07, not 02:00:00:00:00:08"),
            (PortInfo { queues: 1, ..info() }, "2 queues, not 1"),
        ] {
            let port = lazy(changed, || PortSpec::Loopback.open(&options()));
            let error = port.start().unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
            assert!(!port.link_up());
        }
    }
}
