//! Two devices on a cable, with the objects that a program needs to connect them by `rdma_cm`.

#![allow(dead_code, reason = "each test file uses a part")]

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::hooked::{Burst, Hooked};
use verbs::port::{Port, pair};
use verbs::rdma_cm::{CmEvent, CmEventType, CmId, CmOption, ConnParam, EventChannel, PortSpace};
use verbs::{
    Access, Context, Cq, DeviceConfig, Drive, Mr, Pd, Qp, QpInitAttr, RecvWr, SendWr, VerbsError, Wc,
};

/// Limit of every wait of a test.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Timeout of resolutions that succeed.
pub const SOON: Duration = Duration::from_secs(30);

/// A device and the objects of one program on it.
pub struct Host {
    pub mr: Mr,
    pub cq: Cq,
    pub pd: Pd,
    pub context: Context,
}

impl Host {
    pub fn new(config: DeviceConfig) -> Self {
        let context = Context::open(config).unwrap();
        let pd = context.alloc_pd().unwrap();
        let mr = pd.reg_mr(1 << 16, Access::LOCAL_WRITE).unwrap();
        Self { mr, cq: context.create_cq(4096).unwrap(), pd, context }
    }
    pub fn pump(&self) {
        for shard in 0..self.context.shards() {
            self.context.reactor(shard).unwrap().poll_once();
        }
    }
    pub fn channel(&self) -> EventChannel {
        EventChannel::new().unwrap()
    }
    pub fn id(&self, channel: &EventChannel) -> CmId {
        self.context.create_id(Some(channel), PortSpace::Tcp).unwrap()
    }
    /// A small RC queue pair for `id`.
    pub fn qp(&self, id: &CmId) -> Arc<Qp> {
        let mut init = QpInitAttr::rc(&self.cq, &self.cq);
        (init.cap.max_send_wr, init.cap.max_recv_wr) = (16, 16);
        id.create_qp(&self.pd, &init).unwrap()
    }
    pub fn post_recv(&self, qp: &Qp, id: u64) {
        qp.post_recv(&[RecvWr::new(id, &[self.mr.sge(0..64).unwrap()])]).unwrap();
    }
    pub fn send(&self, qp: &Qp, id: u64) {
        let sge = [self.mr.sge(64..128).unwrap()];
        qp.post_send(&[SendWr::send(id, &sge).signaled()]).unwrap();
    }
    /// A listener on a port.
    pub fn listen(&self, channel: &EventChannel, port: u16) -> CmId {
        let id = self.id(channel);
        id.bind_addr(any(port)).unwrap();
        id.listen(0).unwrap();
        id
    }
}

pub fn any(port: u16) -> SocketAddr {
    SocketAddr::from(([0, 0, 0, 0], port))
}

/// The IPv6 wildcard, which stands for every address of both IP versions.
pub fn wildcard(port: u16) -> SocketAddr {
    SocketAddr::from(([0u16; 8], port))
}

/// Whether an IPv4 frame goes to queue pair 1: Ethernet, IP and UDP are before the BTH.
fn is_mad(frame: &[u8]) -> bool {
    frame[12..14] == [8, 0] && frame.get(14 + 20 + 8 + 5..14 + 20 + 8 + 8) == Some(&[0, 0, 1])
}

/// A and B on a cable.
pub struct World {
    pub a: Host,
    pub b: Host,
    /// While set, A's frames are lost.
    pub a_sends_nothing: Arc<AtomicBool>,
    /// While set, A's frames to queue pair 1 are lost.
    pub a_sends_no_mads: Arc<AtomicBool>,
    /// The devices' clock, which advances by a millisecond when both are driven; `None` for the system's clock.
    pub clock: Option<Arc<AtomicU64>>,
}

/// Addresses of A and B.
pub fn addrs(v6: bool) -> [IpAddr; 2] {
    [1, 2].map(|n| match v6 {
        false => IpAddr::from([10, 0, 0, n]),
        true => IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, u16::from(n)]),
    })
}

impl World {
    pub fn new() -> Self {
        Self::with(|config| config)
    }
    /// A world with changes to the configuration; by default only the test drives the devices.
    pub fn with(change: impl Fn(DeviceConfig) -> DeviceConfig) -> Self {
        let (a, b) = pair(1);
        let a_sends_nothing = Arc::new(AtomicBool::new(false));
        let host = |port: Box<dyn Port>, side: usize| {
            let config = DeviceConfig::new(port).addr(addrs(false)[side], 24).addr(addrs(true)[side], 64);
            Host::new(change(config.drive(Drive::Embedded)))
        };
        let a_sends_no_mads = Arc::new(AtomicBool::new(false));
        let (mute, no_mads) = (a_sends_nothing.clone(), a_sends_no_mads.clone());
        let a = Hooked::around(a, move |burst| {
            if let Burst::Tx(frames) = burst {
                let (mute, no_mads) = (mute.load(Ordering::Acquire), no_mads.load(Ordering::Acquire));
                frames.retain(|frame| !(mute || no_mads && is_mad(frame.data())));
            }
            true
        });
        Self { a: host(a, 0), b: host(b, 1), a_sends_nothing, a_sends_no_mads, clock: None }
    }
    pub fn pump(&self) {
        if let Some(clock) = &self.clock {
            clock.fetch_add(1_000_000, Ordering::AcqRel);
        }
        self.a.pump();
        self.b.pump();
    }
    /// Drives both devices until `look` returns a value.
    pub fn until<R>(&self, what: &str, mut look: impl FnMut() -> Option<R>) -> R {
        let start = Instant::now();
        loop {
            self.pump();
            if let Some(found) = look() {
                return found;
            }
            assert!(start.elapsed() < PATIENCE, "waited for {what}");
        }
    }
    /// The next event of a channel, which must be of this type.
    pub fn event(&self, channel: &EventChannel, what: CmEventType) -> CmEvent {
        let event = self.until(what.name(), || channel.try_get_event());
        assert_eq!(event.event(), what, "{event:?}");
        event
    }
    /// The next `n` completions.
    pub fn take(&self, cq: &Cq, n: usize) -> Vec<Wc> {
        let mut done = Vec::new();
        self.until("completions", || {
            let mut wc = [Wc::default(); 16];
            let room = (n - done.len()).min(wc.len());
            let got = cq.poll(&mut wc[..room]).unwrap();
            done.extend_from_slice(&wc[..got]);
            (done.len() == n).then_some(())
        });
        done
    }

    /// Resolves address and route, and creates a queue pair.
    pub fn resolved(&self, channel: &EventChannel, dst: SocketAddr) -> CmId {
        let id = self.a.id(channel);
        self.resolve(&id, channel, dst);
        self.a.qp(&id);
        id
    }
    pub fn resolve(&self, id: &CmId, channel: &EventChannel, dst: SocketAddr) {
        id.resolve_addr(None, dst, SOON).unwrap();
        assert!(self.event(channel, CmEventType::AddrResolved).is_of(id));
        id.resolve_route(SOON).unwrap();
        assert!(self.event(channel, CmEventType::RouteResolved).is_of(id));
    }

    /// Sends A's request; returns B's end, on which B has not decided yet.
    pub fn request(&self, client: &CmId, b: &EventChannel, param: &ConnParam) -> CmId {
        client.connect(param).unwrap();
        self.event(b, CmEventType::ConnectRequest).take_id().unwrap()
    }

    /// Connects A to B's listener; returns the two ends.
    pub fn connect(&self, a: &EventChannel, b: &EventChannel, dst: SocketAddr) -> (CmId, CmId) {
        let client = self.resolved(a, dst);
        let server = self.request(&client, b, &ConnParam::default());
        self.b.qp(&server);
        server.accept(&ConnParam::default()).unwrap();
        assert!(self.event(a, CmEventType::Established).is_of(&client));
        assert!(self.event(b, CmEventType::Established).is_of(&server));
        (client, server)
    }

    /// Exchanges a message in each direction.
    pub fn exchange(&self, client: &CmId, server: &CmId) {
        let (a, b) = (client.qp().unwrap(), server.qp().unwrap());
        self.a.post_recv(&a, 1);
        self.b.post_recv(&b, 1);
        self.a.send(&a, 2);
        self.b.send(&b, 2);
        for cq in [&self.a.cq, &self.b.cq] {
            assert!(self.take(cq, 2).iter().all(Wc::is_ok));
        }
    }

    /// Checks that no handle of either device is left.
    pub fn close(self) {
        for host in [self.a, self.b] {
            let Host { mr, cq, pd, context } = host;
            drop((mr, cq, pd));
            context.close().unwrap_or_else(|(e, _)| panic!("{e}"));
        }
    }
}

/// Sets timeouts of connection management that a test can wait for: about 60 ms to the end of all retries.
pub fn short_timeouts(id: &CmId) {
    for option in [CmOption::AckTimeout(8), CmOption::CmResponseTimeout(11), CmOption::MaxCmRetries(3)] {
        id.set_option(option).unwrap();
    }
}

/// The variant of the inner error: `State` for `VerbsError::Cm(CmError::State { .. })`.
pub fn inner(e: &VerbsError) -> String {
    let text = format!("{e:?}");
    let (_, inner) = text.split_once('(').expect("it holds another one");
    inner.chars().take_while(|c| c.is_alphanumeric()).collect()
}
