//! A port around another port, and a queue around another queue. A layer implements what it changes and forwards everything else.
//!
//! [`Port`] and [`PortQueue`] have no default methods, so that a wrapper cannot forget to forward one. A layer implements [`PortLayer`] or
//! [`QueueLayer`], and so implements [`Port`] or [`PortQueue`]. A method that is added to [`Port`] does not compile until it is added here,
//! and then every layer forwards it.

use super::error::PortError;
use super::frame::{Frame, RxBurst, TxBurst};
use super::info::{PortInfo, PortStats};
use super::traits::{Armed, Build, FlowKind, Host, Numbers, Port, PortQueue, Route, Routes, Stalled};
use crate::id::Qpn;
use crate::time::Instant;
use core::ops::RangeInclusive;

/// A [`Port`] around another one. Each method calls that of the port below unless the layer overrides it.
///
/// ```
/// use stack::port::{Port, PortLayer, PortSpec};
///
/// /// A port whose cable is not plugged in.
/// struct Unplugged(Box<dyn Port>);
///
/// impl PortLayer for Unplugged {
///     fn inner(&self) -> &dyn Port {
///         &*self.0
///     }
///     fn link_up(&self) -> bool {
///         false
///     }
/// }
///
/// let port: Box<dyn Port> = Box::new(Unplugged(PortSpec::Loopback.open(&Default::default())?));
/// assert!(!port.link_up());
/// assert_eq!(port.mtu(), 4200);
/// # Ok::<(), stack::port::PortError>(())
/// ```
pub trait PortLayer: Send + Sync {
    /// The port below.
    fn inner(&self) -> &dyn Port;

    /// See [`Port::info`].
    fn info(&self) -> &PortInfo {
        self.inner().info()
    }
    /// See [`Port::take_queue`].
    fn take_queue(&self, index: usize) -> Option<Box<dyn PortQueue>> {
        self.inner().take_queue(index)
    }
    /// See [`Port::start`].
    ///
    /// # Errors
    /// Those of the port below.
    fn start(&self) -> Result<(), PortError> {
        self.inner().start()
    }
    /// See [`Port::mtu`].
    fn mtu(&self) -> usize {
        self.inner().mtu()
    }
    /// See [`Port::link_up`].
    fn link_up(&self) -> bool {
        self.inner().link_up()
    }
    /// See [`Port::host`].
    fn host(&self) -> Option<&dyn Host> {
        self.inner().host()
    }
    /// See [`Port::window`].
    fn window(&self) -> Option<usize> {
        self.inner().window()
    }
    /// See [`Port::steer`].
    fn steer(&self, numbers: &[(RangeInclusive<Qpn>, usize)]) {
        self.inner().steer(numbers);
    }
    /// See [`Port::numbers`].
    fn numbers(&self) -> Option<&dyn Numbers> {
        self.inner().numbers()
    }
    /// See [`Port::maintain`].
    fn maintain(&self) {
        self.inner().maintain();
    }
    /// See [`Port::stats`].
    fn stats(&self) -> PortStats {
        self.inner().stats()
    }
}

impl<L: PortLayer> Port for L {
    fn info(&self) -> &PortInfo {
        PortLayer::info(self)
    }
    fn take_queue(&self, index: usize) -> Option<Box<dyn PortQueue>> {
        PortLayer::take_queue(self, index)
    }
    fn start(&self) -> Result<(), PortError> {
        PortLayer::start(self)
    }
    fn mtu(&self) -> usize {
        PortLayer::mtu(self)
    }
    fn link_up(&self) -> bool {
        PortLayer::link_up(self)
    }
    fn host(&self) -> Option<&dyn Host> {
        PortLayer::host(self)
    }
    fn window(&self) -> Option<usize> {
        PortLayer::window(self)
    }
    fn steer(&self, numbers: &[(RangeInclusive<Qpn>, usize)]) {
        PortLayer::steer(self, numbers);
    }
    fn numbers(&self) -> Option<&dyn Numbers> {
        PortLayer::numbers(self)
    }
    fn maintain(&self) {
        PortLayer::maintain(self);
    }
    fn stats(&self) -> PortStats {
        PortLayer::stats(self)
    }
}

/// A [`PortQueue`] around another one. Each method calls that of the queue below unless the layer overrides it.
///
/// Frames leave by [`tx_burst`](Self::tx_burst) and by [`build_burst`](Self::build_burst), and buffers come from [`alloc`](Self::alloc) and
/// [`alloc_burst`](Self::alloc_burst): a layer that overrides one of these pairs' methods overrides the other one, too. [`arm`](Self::arm)
/// announces what [`rx_burst`](Self::rx_burst) receives, and [`recycle`](Self::recycle) takes it back: a layer that receives from elsewhere
/// than the queue below overrides all three.
pub trait QueueLayer: Send {
    /// The queue below.
    fn inner(&mut self) -> &mut dyn PortQueue;

    /// See [`PortQueue::rx_burst`].
    #[inline]
    fn rx_burst(&mut self, out: &mut RxBurst) -> usize {
        self.inner().rx_burst(out)
    }
    /// See [`PortQueue::routes`].
    #[inline]
    fn routes(&mut self) -> Option<&mut dyn Routes> {
        self.inner().routes()
    }
    /// See [`PortQueue::take_source_port`].
    fn take_source_port(&mut self, hint: u16, kind: FlowKind) -> u16 {
        self.inner().take_source_port(hint, kind)
    }
    /// See [`PortQueue::release_source_port`].
    fn release_source_port(&mut self, port: u16) {
        self.inner().release_source_port(port);
    }
    /// See [`PortQueue::tx_burst`].
    #[inline]
    fn tx_burst(&mut self, route: Route, frames: &mut TxBurst) -> usize {
        self.inner().tx_burst(route, frames)
    }
    /// See [`PortQueue::alloc`].
    #[inline]
    fn alloc(&mut self) -> Option<Frame> {
        self.inner().alloc()
    }
    /// See [`PortQueue::alloc_burst`].
    #[inline]
    fn alloc_burst(&mut self, out: &mut TxBurst, n: usize) {
        self.inner().alloc_burst(out, n);
    }
    /// See [`PortQueue::build_burst`].
    #[inline]
    fn build_burst(&mut self, route: Route, most: usize, builder: &mut dyn Build) -> Option<usize> {
        self.inner().build_burst(route, most, builder)
    }
    /// See [`PortQueue::stalled`].
    fn stalled(&mut self, route: Route, now: Instant) -> Stalled {
        self.inner().stalled(route, now)
    }
    /// See [`PortQueue::arm`].
    #[inline]
    fn arm(&mut self) -> Armed {
        self.inner().arm()
    }
    /// See [`PortQueue::recycle`].
    #[inline]
    fn recycle(&mut self, frames: &mut RxBurst) {
        self.inner().recycle(frames);
    }
}

impl<L: QueueLayer> PortQueue for L {
    #[inline]
    fn rx_burst(&mut self, out: &mut RxBurst) -> usize {
        QueueLayer::rx_burst(self, out)
    }
    #[inline]
    fn routes(&mut self) -> Option<&mut dyn Routes> {
        QueueLayer::routes(self)
    }
    fn take_source_port(&mut self, hint: u16, kind: FlowKind) -> u16 {
        QueueLayer::take_source_port(self, hint, kind)
    }
    fn release_source_port(&mut self, port: u16) {
        QueueLayer::release_source_port(self, port);
    }
    #[inline]
    fn tx_burst(&mut self, route: Route, frames: &mut TxBurst) -> usize {
        QueueLayer::tx_burst(self, route, frames)
    }
    #[inline]
    fn alloc(&mut self) -> Option<Frame> {
        QueueLayer::alloc(self)
    }
    #[inline]
    fn alloc_burst(&mut self, out: &mut TxBurst, n: usize) {
        QueueLayer::alloc_burst(self, out, n);
    }
    #[inline]
    fn build_burst(&mut self, route: Route, most: usize, builder: &mut dyn Build) -> Option<usize> {
        QueueLayer::build_burst(self, route, most, builder)
    }
    fn stalled(&mut self, route: Route, now: Instant) -> Stalled {
        QueueLayer::stalled(self, route, now)
    }
    #[inline]
    fn arm(&mut self) -> Armed {
        QueueLayer::arm(self)
    }
    #[inline]
    fn recycle(&mut self, frames: &mut RxBurst) {
        QueueLayer::recycle(self, frames);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{AtOnce, HeapPool, PortError};
    use super::*;
    use crate::id::{Mac, Mtu};
    use crate::port::Farewell;
    use crate::port::traits::{Destination, NoRoute};
    use crate::registry::{Registry, Run};
    use core::net::IpAddr;
    use core::sync::atomic::{AtomicUsize, Ordering};
    use core::time::Duration;
    use std::sync::Arc;

    /// A port and a queue that answer every call with a value of their own, and count the calls.
    struct Peculiar {
        info: PortInfo,
        calls: Arc<AtomicUsize>,
    }

    const ADDRESS: IpAddr = IpAddr::V4(core::net::Ipv4Addr::new(192, 0, 2, 77));

    impl Peculiar {
        fn new() -> Self {
            let info = PortInfo {
                name: "peculiar".into(),
                mac: Mac([2, 0, 0, 0, 7, 7]),
                mtu: 777,
                queues: 7,
                message: 772,
            };
            Self { info, calls: Arc::default() }
        }
        fn called(&self) {
            self.calls.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl Port for Peculiar {
        fn info(&self) -> &PortInfo {
            self.called();
            &self.info
        }
        fn take_queue(&self, index: usize) -> Option<Box<dyn PortQueue>> {
            self.called();
            (index == 6).then(|| Box::new(Self { info: self.info.clone(), calls: self.calls.clone() }) as _)
        }
        fn start(&self) -> Result<(), PortError> {
            self.called();
            Err(PortError::Options("peculiar".into()))
        }
        fn mtu(&self) -> usize {
            self.called();
            776
        }
        fn link_up(&self) -> bool {
            self.called();
            true
        }
        fn host(&self) -> Option<&dyn Host> {
            self.called();
            Some(self)
        }
        fn window(&self) -> Option<usize> {
            self.called();
            Some(775)
        }
        fn steer(&self, _: &[(RangeInclusive<Qpn>, usize)]) {
            self.called();
        }
        fn numbers(&self) -> Option<&dyn Numbers> {
            self.called();
            Some(self)
        }
        fn maintain(&self) {
            self.called();
        }
        fn stats(&self) -> PortStats {
            self.called();
            PortStats { refused: 774, ..PortStats::default() }
        }
    }

    impl Host for Peculiar {
        fn addresses(&self) -> Vec<IpAddr> {
            vec![ADDRESS]
        }
        fn generation(&self) -> u64 {
            773
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
        fn leave(&self, _: IpAddr) {}
        fn farewell(&self, _: Frame) -> Option<Box<dyn Farewell>> {
            None
        }
    }

    impl Numbers for Peculiar {
        fn lease(&self, queue: usize) -> Result<Run, PortError> {
            Ok(Run::all().nth(queue).expect("there are more"))
        }
        fn registry(&self) -> Option<&Arc<Registry>> {
            None
        }
        fn announce(&self) {}
        fn links(&self) -> u64 {
            772
        }
    }

    impl Routes for Peculiar {
        fn route_to(&mut self, to: Destination) -> Result<Route, NoRoute> {
            assert_eq!(to, Destination::Process(Qpn::new(76)));
            Ok(Route(77))
        }
        fn segment_on(&mut self, route: Route) -> Option<Mtu> {
            (route == Route(79)).then_some(Mtu::Mtu512)
        }
        fn longest_segment(&mut self) -> Option<Mtu> {
            Some(Mtu::Mtu4096)
        }
        fn next_ended(&mut self) -> Option<Route> {
            Some(Route(78))
        }
    }

    impl PortQueue for Peculiar {
        fn rx_burst(&mut self, out: &mut RxBurst) -> usize {
            self.called();
            out.push(Frame::from_vec(vec![1]));
            1
        }
        fn routes(&mut self) -> Option<&mut dyn Routes> {
            self.called();
            Some(self)
        }
        fn take_source_port(&mut self, hint: u16, kind: FlowKind) -> u16 {
            self.called();
            hint + u16::from(kind == FlowKind::Labelled)
        }
        fn release_source_port(&mut self, port: u16) {
            self.called();
            assert_eq!(port, 78);
        }
        fn tx_burst(&mut self, route: Route, frames: &mut TxBurst) -> usize {
            self.called();
            assert_eq!(route, Route(77));
            frames.drain(..).count()
        }
        fn alloc(&mut self) -> Option<Frame> {
            self.called();
            HeapPool::new(1, 7).alloc()
        }
        fn alloc_burst(&mut self, out: &mut TxBurst, n: usize) {
            self.called();
            out.extend((0..n).map(|_| Frame::from_vec(vec![0; 7])));
        }
        fn build_burst(&mut self, route: Route, most: usize, _: &mut dyn Build) -> Option<usize> {
            self.called();
            Some(most + usize::from(route.0))
        }
        fn stalled(&mut self, route: Route, now: Instant) -> Stalled {
            self.called();
            Stalled::Yes(Duration::from_nanos(now.nanos_since(Instant::ZERO) + u64::from(route.0)))
        }
        fn arm(&mut self) -> Armed {
            self.called();
            Armed::Down(Duration::from_secs(772), None)
        }
        fn recycle(&mut self, frames: &mut RxBurst) {
            self.called();
            frames.clear();
        }
    }

    struct Layer(Peculiar);

    impl PortLayer for Layer {
        fn inner(&self) -> &dyn Port {
            &self.0
        }
    }

    struct OverQueue(Box<dyn PortQueue>);

    impl QueueLayer for OverQueue {
        fn inner(&mut self) -> &mut dyn PortQueue {
            &mut *self.0
        }
    }

    // Goal: a method that a layer does not override returns the answer of the port below, which is asked once.
    #[test]
    fn a_layer_that_overrides_nothing_is_what_is_below_it() {
        let peculiar = Peculiar::new();
        let calls = peculiar.calls.clone();
        let port: Box<dyn Port> = Box::new(Layer(peculiar));
        assert_eq!((port.info().name.as_str(), port.info().mtu), ("peculiar", 777));
        assert!(port.take_queue(0).is_none());
        assert_eq!(port.start().unwrap_err().to_string(), "port options: peculiar");
        assert_eq!((port.mtu(), port.link_up(), port.window()), (776, true, Some(775)));
        let host = port.host().expect("the port below has one");
        assert_eq!((host.addresses(), host.generation()), (vec![ADDRESS], 773));
        port.steer(&[]);
        let numbers = port.numbers().expect("the port below has some");
        assert_eq!((Some(numbers.lease(5).unwrap()), numbers.links()), (Run::all().nth(5), 772));
        port.maintain();
        assert_eq!(port.stats().refused, 774);
        assert_eq!(calls.swap(0, Ordering::Relaxed), 12);

        let mut queue: Box<dyn PortQueue> = Box::new(OverQueue(port.take_queue(6).expect("it has that one")));
        let (mut got, mut burst) = (RxBurst::new(), TxBurst::new());
        assert_eq!(queue.rx_burst(&mut got), 1);
        queue.recycle(&mut got);
        assert!(got.is_empty());
        assert_eq!(queue.alloc().map(|frame| frame.capacity()), Some(7));
        queue.alloc_burst(&mut burst, 3);
        let routes = queue.routes().expect("the queue below has several");
        assert_eq!(routes.route_to(Destination::Process(Qpn::new(76))), Ok(Route(77)));
        assert_eq!(routes.segment_on(Route(79)), Some(Mtu::Mtu512));
        assert_eq!(routes.next_ended(), Some(Route(78)));
        assert_eq!(queue.take_source_port(77, FlowKind::Labelled), 78);
        queue.release_source_port(78);
        assert_eq!(queue.tx_burst(Route(77), &mut burst), 3);
        assert_eq!(queue.build_burst(Route(1), 5, &mut AtOnce(|_: &mut [u8]| None)), Some(6));
        let stalled = queue.stalled(Route(2), Instant::ZERO.after_nanos(5));
        assert_eq!(stalled, Stalled::Yes(Duration::from_nanos(7)));
        assert!(matches!(queue.arm(), Armed::Down(time, None) if time.as_secs() == 772));
        assert_eq!(calls.load(Ordering::Relaxed), 1 + 11);
    }
}
