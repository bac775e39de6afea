//! A port whose description is known at once, and whose device is opened when the port is started.
//!
//! Before the start it is a link that is down: it receives nothing, accepts nothing and has no buffers. After the start it forwards to the
//! port that was opened, and each queue forwards to that port's queue of the same number.

use super::error::PortError;
use super::frame::{Frame, RxBurst, TxBurst};
use super::info::{PortInfo, PortOptions, PortStats};
use super::layer::{PortLayer, QueueLayer};
use super::spec::PortSpec;
use super::taken::Taken;
use super::traits::{Armed, Build, FlowKind, Host, Numbers, Port, PortQueue, Route, Routes, Stalled};
use crate::sync::lock::lock;
use crate::time::Instant;
use core::time::Duration;
use std::sync::{Arc, Mutex, OnceLock};

type Open = dyn Fn() -> Result<Box<dyn Port>, PortError> + Send + Sync;

/// Makes a port that `info` describes. [`Port::start`] calls `open`, until it succeeds.
fn lazy(
    info: PortInfo,
    open: impl Fn() -> Result<Box<dyn Port>, PortError> + Send + Sync + 'static,
) -> Box<dyn Port> {
    let taken = Taken::none_of(info.queues);
    let down = Down { info };
    Box::new(LazyPort { down, taken, real: Arc::default(), open: Mutex::new(Box::new(open)) })
}

/// Makes a port that `info` describes. [`Port::start`] opens the port of `spec`, with the address in `info`.
pub(super) fn later(info: PortInfo, spec: &PortSpec, options: &PortOptions) -> Box<dyn Port> {
    let (spec, options) = (spec.clone(), PortOptions { mac: Some(info.mac), ..options.clone() });
    lazy(info, move || spec.open(&options))
}

/// The real port, once it is open.
type Real = OnceLock<Box<dyn Port>>;

struct LazyPort {
    /// The port before it is started, and its description before and after.
    down: Down,
    taken: Taken,
    /// Shared with the queues.
    real: Arc<Real>,
    /// Locked while the port opens, so that it opens once.
    open: Mutex<Box<Open>>,
}

impl LazyPort {
    /// Checks that the real port is as announced: the same address and number of queues, at least the MTU, and neither a host nor a window,
    /// which users must know of before the start.
    fn check(&self, real: &dyn Port) -> Result<(), PortError> {
        let PortInfo { mac, mtu, queues, .. } = self.down.info;
        let info = real.info();
        let reason = if info.mtu < mtu {
            format!("it carries an MTU of {}, not {mtu}: open it with that MTU", info.mtu)
        } else if info.mac != mac {
            format!("its address is {}, not {mac}: open it with that address", info.mac)
        } else if info.queues != queues {
            format!("it has {} queues, not {queues}: use that many shards", info.queues)
        } else if real.host().is_some() || real.window().is_some() {
            "its IP addresses are the host's, or it bounds what is in flight: open it at once".into()
        } else {
            return Ok(());
        };
        Err(PortError::Open { port: self.down.info.name.clone(), reason })
    }
}

impl PortLayer for LazyPort {
    fn inner(&self) -> &dyn Port {
        self.real.get().map_or(&self.down, |port| &**port)
    }

    fn info(&self) -> &PortInfo {
        &self.down.info
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
        self.check(&*port)?;
        // No other thread sets it: the lock is held.
        let _ = self.real.set(port);
        Ok(())
    }

    fn take_queue(&self, index: usize) -> Option<Box<dyn PortQueue>> {
        self.taken.take(index)?;
        let port = Arc::clone(&self.real);
        Some(Box::new(LazyQueue { queue: Box::new(DownQueue), is_real: false, index, port }))
    }
}

struct LazyQueue {
    /// The real queue, from the first call after the start of the port.
    queue: Box<dyn PortQueue>,
    is_real: bool,
    index: usize,
    port: Arc<Real>,
}

impl LazyQueue {
    /// Takes the real queue if the port is open by now.
    #[cold]
    fn take_real(&mut self) {
        if let Some(queue) = self.port.get().and_then(|port| port.take_queue(self.index)) {
            (self.queue, self.is_real) = (queue, true);
        }
    }
}

impl QueueLayer for LazyQueue {
    #[inline]
    fn inner(&mut self) -> &mut dyn PortQueue {
        if !self.is_real {
            self.take_real();
        }
        &mut *self.queue
    }
}

/// A port that was not started: its link is down.
struct Down {
    info: PortInfo,
}

impl Port for Down {
    fn info(&self) -> &PortInfo {
        &self.info
    }
    fn take_queue(&self, _: usize) -> Option<Box<dyn PortQueue>> {
        None
    }
    fn start(&self) -> Result<(), PortError> {
        Ok(())
    }
    fn mtu(&self) -> usize {
        self.info.mtu
    }
    fn link_up(&self) -> bool {
        false
    }
    fn host(&self) -> Option<&dyn Host> {
        None
    }
    fn window(&self) -> Option<usize> {
        None
    }
    fn steer(&self, _: &[(core::ops::RangeInclusive<crate::id::Qpn>, usize)]) {}
    fn numbers(&self) -> Option<&dyn Numbers> {
        None
    }
    fn maintain(&self) {}
    fn stats(&self) -> PortStats {
        PortStats::default()
    }
}

/// A queue of a port that was not started.
struct DownQueue;

impl PortQueue for DownQueue {
    fn rx_burst(&mut self, _: &mut RxBurst) -> usize {
        0
    }
    fn routes(&mut self) -> Option<&mut dyn Routes> {
        None
    }
    fn take_source_port(&mut self, hint: u16, _: FlowKind) -> u16 {
        hint
    }
    fn release_source_port(&mut self, _: u16) {}

    fn tx_burst(&mut self, _: Route, _: &mut TxBurst) -> usize {
        0
    }
    fn alloc(&mut self) -> Option<Frame> {
        None
    }
    fn alloc_burst(&mut self, _: &mut TxBurst, _: usize) {}
    fn build_burst(&mut self, _: Route, _: usize, _: &mut dyn Build) -> Option<usize> {
        None
    }
    fn stalled(&mut self, _: Route, _: Instant) -> Stalled {
        Stalled::No
    }

    fn arm(&mut self) -> Armed {
        // The start of the port wakes the sleeping thread.
        Armed::Down(Duration::MAX, None)
    }
    fn recycle(&mut self, frames: &mut RxBurst) {
        frames.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Farewell, HeapPool};
    use super::*;
    use crate::id::Mac;
    use core::net::IpAddr;
    use core::sync::atomic::{AtomicUsize, Ordering};

    fn options() -> PortOptions {
        let mac = Some(Mac([2, 0, 0, 0, 0, 7]));
        PortOptions { queues: 2, frames: 256, mac, ..PortOptions::default() }
    }

    fn info() -> PortInfo {
        let PortOptions { queues, mtu, mac, .. } = options();
        PortInfo { name: "later".into(), mac: mac.unwrap(), mtu, queues, message: 0 }
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
            assert_eq!(queue.tx_burst(Route::default(), &mut burst), 0);
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
        assert_eq!(queues[1].tx_burst(Route::default(), &mut burst), 1);
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

    // Goal: what a device asks a port before the start does not change by the start.
    #[test]
    fn a_port_with_a_host_or_a_window_is_not_put_off() {
        /// A port that has a window, or a host.
        struct Known(Box<dyn Port>, Option<usize>);
        impl PortLayer for Known {
            fn inner(&self) -> &dyn Port {
                &*self.0
            }
            fn window(&self) -> Option<usize> {
                self.1
            }
            fn host(&self) -> Option<&dyn Host> {
                self.1.is_none().then_some(self)
            }
        }
        impl Host for Known {
            fn addresses(&self) -> Vec<IpAddr> {
                Vec::new()
            }
            fn generation(&self) -> u64 {
                0
            }
            fn source_to(&self, _: IpAddr, _: u32) -> Option<IpAddr> {
                None
            }
            fn mtu_to(&self, _: IpAddr) -> Option<usize> {
                None
            }
            fn join(&self, _: IpAddr) -> Result<(), PortError> {
                Ok(())
            }
            fn farewell(&self, _: Frame) -> Option<Box<dyn Farewell>> {
                None
            }
            fn leave(&self, _: IpAddr) {}
        }
        for window in [None, Some(1 << 20)] {
            let port = lazy(info(), move || {
                Ok(Box::new(Known(PortSpec::Loopback.open(&options())?, window)) as Box<dyn Port>)
            });
            let error = port.start().unwrap_err().to_string();
            assert!(error.contains("open it at once"), "{error}");
            assert!(!port.link_up() && port.host().is_none() && port.window().is_none());
        }
    }
}
