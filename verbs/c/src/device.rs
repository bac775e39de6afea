//! The list of devices, which contains one: `roce0`.

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char, c_int};
use core::ptr;

use crate::abi::{IBV_NODE_CA, IBV_TRANSPORT_IB, ibv_device, zeroed};
use crate::engine;
use crate::errno::{EINVAL, Errno};
use crate::guard::{returning_minus_one, returning_pointer, uncancelled};

/// The device, followed by zeroed memory in which libraries of other devices look for their own operations.
#[repr(C)]
struct Device {
    device: UnsafeCell<ibv_device>,
    behind: [u64; 16],
}

// SAFETY: written once, before C gets the pointer. C only reads it.
unsafe impl Sync for Device {}

/// Copies a name into a field of C and terminates it with NUL.
const fn put(name: &CStr, field: &mut [c_char]) {
    let bytes = name.to_bytes();
    let mut at = 0;
    while at < bytes.len() {
        field[at] = bytes[at] as c_char;
        at += 1;
    }
}

static DEVICE: Device = {
    // SAFETY: it consists of numbers, texts, and functions that may be NULL.
    let mut device: ibv_device = unsafe { zeroed() };
    device.node_type = IBV_NODE_CA;
    device.transport_type = IBV_TRANSPORT_IB;
    put(c"roce0", &mut device.name);
    put(c"uverbs0", &mut device.dev_name);
    put(c"/sys/class/infiniband_verbs/uverbs0", &mut device.dev_path);
    put(c"/sys/class/infiniband/roce0", &mut device.ibdev_path);
    Device { device: UnsafeCell::new(device), behind: [0; 16] }
};

/// The device, as a pointer for C.
pub(crate) fn the_device() -> *mut ibv_device {
    DEVICE.device.get()
}

/// Fails if `device` is not the device.
fn check(device: *mut ibv_device) -> Result<(), Errno> {
    if device == the_device() { Ok(()) } else { Err(EINVAL) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device {
    returning_pointer(|| {
        // SAFETY: NULL, or a number that the caller must be able to write.
        if let Some(num) = unsafe { num_devices.as_mut() } {
            *num = 1;
        }
        Ok(Box::into_raw(Box::new([the_device(), ptr::null_mut()])).cast())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    if !list.is_null() {
        // SAFETY: the caller must pass a list of `ibv_get_device_list`, which has this type.
        drop(unsafe { Box::from_raw(list.cast::<[*mut ibv_device; 2]>()) });
    }
}

#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    returning_pointer(|| {
        check(device)?;
        // SAFETY: the device is ours and is only read.
        Ok(unsafe { (&raw mut (*device).name).cast() })
    })
}

/// The GUID in network byte order; 0 if the device cannot be opened.
#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
    let guid = uncancelled(|| {
        check(device)?;
        engine::briefly(|device| Ok(device.device_guid()))
    });
    u64::from_ne_bytes(guid.unwrap_or_default())
}

#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_index(device: *mut ibv_device) -> c_int {
    returning_minus_one(|| check(device).map(|()| 0))
}
