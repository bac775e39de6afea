//! What a started DPDK port and its queues share, and how the device is closed.

use super::eal::{Eal, forked};
use super::iface::{Iface, IfaceState};
use crate::port::counters::Counters;
use crate::port::info::L2_OVERHEAD;
use core::ffi::c_void;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering};
use dpdk_sys as sys;
use std::ffi::CString;
use std::sync::{Mutex, MutexGuard};

/// A mempool, which the holder of this may free.
#[derive(Clone, Copy)]
struct Mempool(NonNull<c_void>);

// SAFETY: a mempool may be used from any thread.
unsafe impl Send for Mempool {}
// SAFETY: as above.
unsafe impl Sync for Mempool {}

/// Pools whose port is closed while some of their frames are still in use.
static GRAVEYARD: Mutex<Vec<Mempool>> = Mutex::new(Vec::new());

fn graveyard() -> MutexGuard<'static, Vec<Mempool>> {
    GRAVEYARD.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The mbuf pool of a port. Dropping this frees the pool at once if all frames are back. Otherwise it is freed once they are back and the
/// next port opens or the next pool is dropped.
pub(super) struct Pool(Mempool);

impl Pool {
    /// # Safety
    /// `pool` is a mempool of mbufs that nothing else frees.
    pub(super) unsafe fn new(pool: NonNull<c_void>) -> Self {
        Self(Mempool(pool))
    }

    pub(super) fn as_ptr(&self) -> *mut c_void {
        self.0.0.as_ptr()
    }

    /// Frees the pools of closed ports that have all their buffers back. Runs on DPDK's thread.
    pub(super) fn reap() {
        // SAFETY: the pools in the graveyard belong to no port, so once every buffer is back nothing refers to
        // them; a pool that was freed leaves the list.
        graveyard().retain(|pool| unsafe { sys::dpdk_sys_pool_free(pool.0.as_ptr()) == 0 });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // A forked child has no environment and nothing to free, and the list may be locked there for ever.
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
}

impl Drop for Device {
    fn drop(&mut self) {
        if forked() {
            return;
        }
        let Ok(name) = CString::new(self.name.as_str()) else { return };
        let bus = CString::new(self.bus).unwrap_or_default();
        self.eal.call(move || {
            // SAFETY: the strings are terminated; the port was stopped by its owner, or never started.
            unsafe {
                if let Ok(port) = u16::try_from(sys::dpdk_sys_port_by_name(name.as_ptr())) {
                    sys::dpdk_sys_port_stop(port);
                }
                sys::dpdk_sys_hotplug_remove(bus.as_ptr(), name.as_ptr());
            }
        });
    }
}

/// What a port and its queues share. Dropping the last reference closes the device.
pub(super) struct Shared {
    pub(super) port: u16,
    /// The MTU with which it was opened.
    pub(super) mtu: usize,
    /// Bytes of the longest frame that may be sent now; 0 while none may.
    pub(super) longest: AtomicU32,
    /// The Linux interface below, if there is one.
    pub(super) iface: Option<Iface>,
    pub(super) lcores: Vec<u32>,
    pub(super) counters: Vec<Counters>,
    /// Dropped before the pool: fields are dropped in this order.
    pub(super) device: Device,
    pub(super) pool: Pool,
}

impl Shared {
    /// Starts the device, on DPDK's thread. Returns 0, or an error number.
    pub(super) fn start(&self) -> i32 {
        // SAFETY: the port is configured and stopped.
        unsafe { sys::dpdk_sys_port_start(self.port) }
    }

    pub(super) fn link_up(&self) -> bool {
        match self.follow() {
            Some((state, _)) => state == IfaceState::Up,
            // SAFETY: the port exists as long as `self`.
            None => unsafe { sys::dpdk_sys_port_link(self.port) != 0 },
        }
    }

    /// Checks the Linux interface below and limits the length of sent frames accordingly. Returns the interface's state and the MTU of the
    /// port; `None` if there is no interface.
    pub(super) fn follow(&self) -> Option<(IfaceState, usize)> {
        let (state, mtu) = self.iface.as_ref().filter(|_| !forked())?.state();
        let mtu = mtu.min(self.mtu);
        let longest = if state == IfaceState::Up { mtu + L2_OVERHEAD } else { 0 };
        self.longest.store(longest as u32, Ordering::Relaxed);
        Some((state, mtu))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if forked() {
            return;
        }
        let lcores = core::mem::take(&mut self.lcores);
        self.device.eal.call(move || {
            for lcore in lcores {
                // SAFETY: reserved for this port's queues, which are gone.
                unsafe { sys::dpdk_sys_lcore_release(lcore) };
            }
        });
        // No queue is left. Dropping the fields then stops and removes the device; the pool waits for its last frame.
    }
}
