//! A started DPDK port: its life, its restarts, its end.

use super::eal::{Eal, forked};
use super::iface::{Iface, Look};
use super::queue::DpdkQueue;
use crate::port::counters::{Counters, sum};
use crate::port::{L2_OVERHEAD, Port, PortInfo, PortQueue, PortStats};
use core::ffi::c_void;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use dpdk_sys as sys;
use std::ffi::CString;
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::time::{Duration, Instant};

/// Time until the next attempt where nobody listened.
const RETRY: Duration = Duration::from_millis(50);
/// Time until a connection that is not up is given up: for the handshake of a peer that has other things to do. Each time that
/// was not enough doubles it, up to 2^5 times: a machine may be so busy that mapping the memory takes longer.
const HANDSHAKE: Duration = Duration::from_millis(250);
const DOUBLINGS: u32 = 5;

/// A mempool; whoever holds this may free it.
#[derive(Clone, Copy)]
struct Mempool(NonNull<c_void>);

// SAFETY: a mempool may be used from any thread.
unsafe impl Send for Mempool {}
// SAFETY: as above.
unsafe impl Sync for Mempool {}

/// Pools whose port is gone while frames of theirs are still around.
static GRAVEYARD: Mutex<Vec<Mempool>> = Mutex::new(Vec::new());

fn graveyard() -> MutexGuard<'static, Vec<Mempool>> {
    GRAVEYARD.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The mbufs of a port. Once dropped, it is freed as soon as all its frames are back.
pub(super) struct Pool(Mempool);

impl Pool {
    /// # Safety
    /// `pool` is a mempool of mbufs that nobody else frees.
    pub(super) unsafe fn new(pool: NonNull<c_void>) -> Self {
        Self(Mempool(pool))
    }

    pub(super) fn as_ptr(&self) -> *mut c_void {
        self.0.0.as_ptr()
    }

    /// Frees the pools that have all their buffers back. On DPDK's thread.
    pub(super) fn reap() {
        // SAFETY: the pools in the graveyard belong to no port, so once every buffer is back nothing refers to
        // them; a pool that was freed leaves the list.
        graveyard().retain(|pool| unsafe { sys::dpdk_sys_pool_free(pool.0.as_ptr()) == 0 });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // In a forked child there is no environment and nothing to free, and the list may be locked for ever.
        if forked() {
            return;
        }
        graveyard().push(self.0);
        if let Ok(eal) = Eal::get(None) {
            eal.spawn(Self::reap);
        }
    }
}

/// A device that was added to DPDK; dropping it removes the device.
pub(super) struct Device {
    pub(super) eal: &'static Eal,
    pub(super) bus: &'static str,
    pub(super) name: String,
    /// The driver's handlers on the interrupt thread must not run beside a removal.
    pub(super) on_interrupt_thread: bool,
}

impl Device {
    /// Runs a control step where it is safe for this device, and waits for it.
    ///
    /// DPDK's thread waits as well: it adds and removes devices one after the other, as DPDK's lists of them have
    /// no lock.
    pub(super) fn step<R: Send + 'static>(&self, step: impl FnOnce() -> R + Send + 'static) -> Option<R> {
        let (eal, on_interrupt_thread) = (self.eal, self.on_interrupt_thread);
        eal.call(move || {
            if !on_interrupt_thread {
                return Some(step());
            }
            let (reply, result) = mpsc::sync_channel(1);
            let arranged = eal.on_interrupt_thread(move || {
                let _ = reply.send(step());
            });
            if arranged { result.recv().ok() } else { None }
        })
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if forked() {
            return;
        }
        let Ok(name) = CString::new(self.name.as_str()) else { return };
        let bus = CString::new(self.bus).unwrap_or_default();
        self.step(move || {
            // SAFETY: the strings are terminated; the port was stopped by its owner, or never started.
            unsafe {
                if let Ok(port) = u16::try_from(sys::dpdk_sys_port_by_name(name.as_ptr())) {
                    sys::dpdk_sys_gates_close(port);
                    sys::dpdk_sys_port_stop(port);
                }
                sys::dpdk_sys_hotplug_remove(bus.as_ptr(), name.as_ptr());
            }
        });
    }
}

/// What a port and its queues share. The last of them to go closes the device.
pub(super) struct Shared {
    pub(super) port: u16,
    /// MTU that it was opened with.
    pub(super) mtu: usize,
    /// Bytes of the longest frame that may be sent now; 0 while none may.
    pub(super) longest: AtomicU32,
    /// The Linux interface below, if there is one.
    pub(super) iface: Option<Iface>,
    pub(super) lcores: Vec<u32>,
    pub(super) counters: Vec<Counters>,
    pub(super) state: State,
    /// Before the pool: fields are dropped in this order.
    pub(super) device: Device,
    pub(super) pool: Pool,
}

/// Whether the device runs, and whether someone is at work on it.
pub(super) struct State {
    /// The device is started and its gates are open.
    pub(super) started: AtomicBool,
    /// This end has to reconnect by itself when its peer went away.
    pub(super) reconnects: bool,
    busy: AtomicBool,
    /// What `down_since` counts from.
    made: Instant,
    /// Since when the link has been down, or the last attempt to mend that, in nanoseconds; 0: it was up when last seen.
    down_since: AtomicU64,
    /// Connections in a row that were given up.
    given_up: AtomicU32,
    restarts: AtomicU64,
}

impl State {
    pub(super) fn new(reconnects: bool) -> Self {
        Self {
            started: AtomicBool::new(false),
            reconnects,
            busy: AtomicBool::new(false),
            made: Instant::now(),
            down_since: AtomicU64::new(0),
            given_up: AtomicU32::new(0),
            restarts: AtomicU64::new(0),
        }
    }

    /// The link is up.
    fn is_up(&self) {
        self.down_since.store(0, Ordering::Relaxed);
        self.given_up.store(0, Ordering::Relaxed);
    }

    /// Whether a link that is down at `now` has been so for long enough to try again. By time, because nobody knows how
    /// often `maintain` is called: a peer that is given up before it has answered never answers.
    fn is_overdue(&self, now: Instant) -> bool {
        let now = (now.saturating_duration_since(self.made).as_nanos() as u64).max(1);
        let started = self.started.load(Ordering::Acquire);
        let given_up = self.given_up.load(Ordering::Relaxed);
        let patience = if started { HANDSHAKE * (1 << given_up.min(DOUBLINGS)) } else { RETRY };
        let since = match self.down_since.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return false,
            Err(since) => since,
        };
        if now.saturating_sub(since) < patience.as_nanos() as u64 {
            return false;
        }
        // Of several threads one tries.
        let ours = self.down_since.compare_exchange(since, now, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if ours && started {
            self.given_up.store(given_up.saturating_add(1), Ordering::Relaxed);
        }
        ours
    }
}

impl Shared {
    /// Starts the device and opens the gates; on the thread where the device's control steps run.
    pub(super) fn start(&self) -> i32 {
        // SAFETY: the port is configured and stopped, and its gates are closed.
        let ret = unsafe { sys::dpdk_sys_port_start(self.port) };
        if ret == 0 {
            // SAFETY: the port is started, with this many queues.
            unsafe { sys::dpdk_sys_gates_open(self.port, self.lcores.len() as u16) };
            self.state.started.store(true, Ordering::Release);
        }
        ret
    }

    /// Closes the gates and stops the device; same thread as [`start`](Self::start).
    fn stop(&self) {
        self.state.started.store(false, Ordering::Release);
        // SAFETY: the port exists as long as `self`; with the gates closed nobody is inside its queues.
        unsafe {
            sys::dpdk_sys_gates_close(self.port);
            sys::dpdk_sys_port_stop(self.port);
        }
    }

    pub(super) fn link_up(&self) -> bool {
        let started = self.state.started.load(Ordering::Acquire);
        match self.follow() {
            Some((look, _)) => started && look == Look::Up,
            // SAFETY: the port exists as long as `self`.
            None => started && unsafe { sys::dpdk_sys_port_link(self.port) != 0 },
        }
    }

    /// Looks at the interface below, if there is one: what passes now, and the MTU of the port. What is sent is held to it
    /// from now on.
    fn follow(&self) -> Option<(Look, usize)> {
        let (look, mtu) = self.iface.as_ref().filter(|_| !forked())?.look();
        let mtu = mtu.min(self.mtu);
        let longest = if look == Look::Up { mtu + L2_OVERHEAD } else { 0 };
        self.longest.store(longest as u32, Ordering::Relaxed);
        Some((look, mtu))
    }

    /// Arranges a restart on the interrupt thread, unless one is under way.
    ///
    /// Stopping and starting are two rounds of that thread: it finds handlers by file number, and an event of the
    /// old connection must not reach the new one.
    fn restart(self: &Arc<Self>) {
        if self.state.busy.swap(true, Ordering::AcqRel) {
            return;
        }
        self.restart_step(|shared| {
            // The peer may have come back since.
            if shared.link_up() {
                return shared.restart_done();
            }
            if shared.state.started.load(Ordering::Acquire) {
                shared.stop();
            }
            shared.restart_step(|shared| {
                if shared.start() == 0 {
                    shared.state.restarts.fetch_add(1, Ordering::Relaxed);
                }
                shared.restart_done();
            });
        });
    }

    fn restart_step(self: &Arc<Self>, step: fn(&Arc<Self>)) {
        let shared = Arc::clone(self);
        let eal = self.device.eal;
        let arranged = eal.on_interrupt_thread(move || {
            step(&shared);
            // This may be the last reference, and closing waits for the interrupt thread: not here.
            eal.spawn(move || drop(shared));
        });
        if !arranged {
            self.restart_done();
        }
    }

    fn restart_done(&self) {
        self.state.busy.store(false, Ordering::Release);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if forked() {
            return;
        }
        // SAFETY: the port still exists; no queue is left, so nobody goes through the gates any more.
        unsafe { sys::dpdk_sys_gates_close(self.port) };
        let lcores = core::mem::take(&mut self.lcores);
        self.device.eal.call(move || {
            for lcore in lcores {
                // SAFETY: reserved for this port's queues, which are gone.
                unsafe { sys::dpdk_sys_lcore_release(lcore) };
            }
        });
        // Then the fields: the device is stopped and removed, the pool waits for its last frame.
    }
}

/// A port on a DPDK device.
pub(super) struct DpdkPort {
    pub(super) info: PortInfo,
    pub(super) taken: Vec<AtomicBool>,
    pub(super) shared: Arc<Shared>,
}

impl Port for DpdkPort {
    fn info(&self) -> &PortInfo {
        &self.info
    }

    fn take_queue(&self, index: usize) -> Option<Box<dyn PortQueue>> {
        if self.taken.get(index)?.swap(true, Ordering::AcqRel) {
            return None;
        }
        Some(Box::new(DpdkQueue::new(Arc::clone(&self.shared), index)))
    }

    fn mtu(&self) -> usize {
        self.shared.follow().map_or(self.info.mtu, |(_, mtu)| mtu)
    }

    fn link_up(&self) -> bool {
        self.shared.link_up()
    }

    fn maintain(&self) {
        self.shared.follow();
        let state = &self.shared.state;
        if !state.reconnects || forked() {
            return;
        }
        if self.shared.link_up() {
            state.is_up();
        } else if state.is_overdue(Instant::now()) {
            self.shared.restart();
        }
    }

    fn stats(&self) -> PortStats {
        let restarts = self.shared.state.restarts.load(Ordering::Relaxed);
        let mut stats = PortStats { restarts, ..sum(&self.shared.counters) };
        if !self.shared.state.busy.load(Ordering::Acquire) {
            let (mut rx, mut tx) = (0, 0);
            // SAFETY: the port exists as long as `shared`.
            if unsafe { sys::dpdk_sys_port_missed(self.shared.port, &raw mut rx, &raw mut tx) } == 0 {
                stats.rx_dropped += rx;
                stats.tx_dropped += tx;
            }
        }
        stats
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_given_time_however_often_one_looks() {
        let state = State::new(true);
        let overdue = |us: u64| state.is_overdue(state.made + Duration::from_micros(us));
        // Nobody listened: the next attempt is after 50 ms, and one attempt it is.
        let attempts = |from: u64, to: u64| (from..to).filter(|us| overdue(*us)).count();
        assert_eq!(attempts(1, 50_000), 0);
        assert_eq!(attempts(50_000, 100_000), 1);
        // Someone did: a handshake has 250 ms.
        state.started.store(true, Ordering::Release);
        assert_eq!(attempts(100_000, 299_000), 0);
        assert_eq!(attempts(299_000, 549_000), 1);
        // A machine on which that is not enough is given twice as much each time.
        assert_eq!(attempts(550_000, 799_000), 0);
        assert_eq!(attempts(799_000, 4_000_000), 3);
        state.is_up();
        assert_eq!(attempts(4_000_000, 4_249_000), 0);
        assert_eq!(attempts(4_249_000, 4_300_000), 1);
    }
}
