//! Serves the counters to processes of the host that request them through the registry.
//!
//! A client gets a snapshot without the list of queue pairs, as JSON, and the end of the stream. One thread serves clients, one after
//! the other; it exists only while clients exist and for a moment longer. It never takes a shard's claim, and never reads what clients
//! send. Clients are of the same user: the registry has checked that.

use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::data::Snapshot;
use crate::device::claim::Core;
use crate::registry::{Call, Connection, Registry, TakeCalls};
use crate::sync::apart;
use crate::sync::lock::lock;
use crate::sync::process::Process;

/// Most clients that wait. Further ones are rejected, and have to try again.
const WAITING_MAX: usize = 16;
/// How long a client may take to read its snapshot.
const CLIENT_PATIENCE: Duration = Duration::from_millis(250);
/// Pause after each client: nine times as long as serving it took, within these bounds. So frequent requests cost little of a core.
const REST: Duration = Duration::from_millis(1);
const REST_MAX: Duration = Duration::from_millis(100);

/// Serves a device's counters to clients, until it is dropped.
#[derive(Debug)]
pub(in crate::device) struct RegistryStats {
    registry: Arc<Registry>,
    shared: Arc<Shared>,
    made_by: Process,
}

#[derive(Debug)]
struct Shared {
    core: Weak<Core>,
    clients: Mutex<Clients>,
    stop: AtomicBool,
}

#[derive(Debug, Default)]
struct Clients {
    waiting: VecDeque<Call>,
    /// The last thread started, and whether it still serves.
    thread: Option<JoinHandle<()>>,
    is_served: bool,
}

struct Taker(Arc<Shared>);

impl RegistryStats {
    /// Starts to serve clients of this registry.
    pub(in crate::device) fn serve(registry: &Arc<Registry>, core: &Arc<Core>) -> Self {
        let (core, stop) = (Arc::downgrade(core), AtomicBool::new(false));
        let shared = Arc::new(Shared { core, clients: Mutex::default(), stop });
        registry.take_questions(Some(Arc::new(Taker(Arc::clone(&shared)))));
        Self { registry: Arc::clone(registry), shared, made_by: Process::this() }
    }
}

impl Drop for RegistryStats {
    fn drop(&mut self) {
        if !self.made_by.is_this() {
            // A forked child lacks the thread, and another thread of the parent may have held the locks.
            core::mem::forget(Arc::clone(&self.shared));
            return;
        }
        self.registry.take_questions(None);
        self.shared.stop.store(true, Ordering::Release);
        let thread = {
            let mut clients = lock(&self.shared.clients);
            clients.waiting.clear();
            clients.thread.take()
        };
        if let Some(thread) = thread {
            thread.thread().unpark();
            // Except on that thread itself, which may hold the last reference to the core for a moment.
            if thread.thread().id() != thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

impl TakeCalls for Taker {
    fn take(&self, call: Call) -> Option<Call> {
        let mut clients = lock(&self.0.clients);
        if self.0.stop.load(Ordering::Acquire) || clients.waiting.len() >= WAITING_MAX {
            return Some(call);
        }
        clients.waiting.push_back(call);
        if !clients.is_served {
            let shared = Arc::clone(&self.0);
            match apart::spawn("roce-stats", move || serve(&shared)) {
                Ok(thread) => (clients.thread, clients.is_served) = (Some(thread), true),
                Err(_) => return clients.waiting.pop_back(),
            }
        }
        None
    }
}

fn serve(shared: &Shared) {
    loop {
        let call = {
            let mut clients = lock(&shared.clients);
            let next = clients.waiting.pop_front();
            clients.is_served = next.is_some();
            next
        };
        let Some(call) = call else { return };
        let start = Instant::now();
        // The port is the program's: if it panics, this client gets nothing, and later clients are served.
        let text = catch_unwind(AssertUnwindSafe(|| {
            shared.core.upgrade().map(|core| Snapshot::summary(&core).to_json())
        }));
        if let Ok(Some(text)) = text {
            show(&call.connection, &text, &shared.stop);
        }
        // Closing does not block: if the connection holds unread data, another thread closes it.
        drop(call);
        thread::park_timeout((start.elapsed() * 9).clamp(REST, REST_MAX));
        if shared.stop.load(Ordering::Acquire) {
            return;
        }
    }
}

/// Sends the snapshot. A client that disconnects or is too slow has to try again.
fn show(client: &Connection, mut text: &[u8], stop: &AtomicBool) {
    let start = Instant::now();
    while !text.is_empty() && !stop.load(Ordering::Acquire) {
        let left = CLIENT_PATIENCE.saturating_sub(start.elapsed());
        match client.send_some(text) {
            Ok(0) if left.is_zero() => return,
            Ok(0) => client.wait_for_room(left),
            Ok(sent) => text = &text[sent..],
            Err(_) => return,
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::device::config::{DeviceConfig, Drive};
    use crate::device::handle::Device;
    use crate::registry::{Admitted, Look, Reader, RegistryConfig, Said, VERSION};
    use std::io::Write;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixStream};

    /// A device that serves clients of a registry of its own.
    struct Served {
        device: Arc<Device>,
        registry: Arc<Registry>,
        config: RegistryConfig,
        registry_stats: Option<RegistryStats>,
    }

    fn reader(config: &RegistryConfig) -> Reader {
        Reader::new(&config.space, config.runs, Admitted::new(None, &[]).unwrap())
    }

    impl Served {
        fn new(name: &str) -> Self {
            let space = format!("roce-asked-{}-{name}", std::process::id());
            let config = RegistryConfig { space, runs: 4, ..RegistryConfig::default() };
            let registry = Arc::new(Registry::join(&config).unwrap());
            let device = Device::open(DeviceConfig::loopback().drive(Drive::Embedded)).unwrap();
            let registry_stats = Some(RegistryStats::serve(&registry, device.core()));
            Self { device, registry, config, registry_stats }
        }

        fn look(&self) -> Said {
            let Look { mut seen, .. } = reader(&self.config).look(Duration::from_secs(60)).unwrap();
            assert_eq!((seen.len(), &seen[0].runs), (1, &self.registry.runs()));
            seen.remove(0).said
        }

        fn snapshot(&self) -> Snapshot {
            let Said::Text(text) = self.look() else { panic!("it serves snapshots") };
            Snapshot::parse(&text).unwrap()
        }

        /// A client that has connected, and reads nothing.
        fn client(&self) -> UnixStream {
            let uid = rustix::process::geteuid().as_raw();
            let name = format!("{}/{uid}/run/{}", self.config.space, self.registry.runs()[0]);
            let mut client =
                UnixStream::connect_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap();
            let request = [&b"ROCEJOIN"[..], &3u32.to_ne_bytes(), &VERSION.to_ne_bytes()].concat();
            client.write_all(&request).unwrap();
            client
        }
    }

    #[test]
    fn whoever_asks_gets_a_summary_until_the_device_is_closed() {
        let mut served = Served::new("summary");
        let expected = Snapshot { qps: Vec::new(), tables: Vec::new(), ..served.device.stats() };
        for _ in 0..3 {
            let snapshot = served.snapshot();
            assert!(snapshot.at_ns >= expected.at_ns);
            assert_eq!(Snapshot { at_ns: expected.at_ns, ..snapshot }, expected);
        }
        drop(served.registry_stats.take());
        assert_eq!(served.look(), Said::Unknown);
        let shared = RegistryStats::serve(&served.registry, served.device.core());
        assert_eq!(served.snapshot().pid, std::process::id());
        drop(shared);
    }

    // Goal: hanging clients, and more of them than may wait, delay the next one only for a moment, and leave no thread behind.
    #[test]
    fn clients_that_read_nothing_do_no_harm() {
        let mut served = Served::new("silent");
        let silent: Vec<UnixStream> = (0..10 * WAITING_MAX).map(|_| served.client()).collect();
        let start = Instant::now();
        while !matches!(served.look(), Said::Text(_)) {
            assert!(start.elapsed() < Duration::from_secs(60), "nobody is served any more");
        }
        drop(silent);
        // Some disconnect without reading.
        (0..10 * WAITING_MAX).for_each(|_| drop(served.client()));
        let shared = Arc::downgrade(&served.registry_stats.as_ref().unwrap().shared);
        drop(served.registry_stats.take());
        // The registry's thread may be about to call it one more time.
        while shared.upgrade().is_some() {
            assert!(start.elapsed() < Duration::from_secs(120), "the thread has not ended");
        }
    }
}
