//! Names and numbers that belong to no object: texts of enumerations, rates, and files below `/sys`.

use core::ffi::{CStr, c_char, c_int, c_void};
use std::fs::File;
use std::io::Read;
use std::path::Path;

use verbs::{AsyncEvent, WcStatus};

use crate::abi::{
    IBV_FORK_UNNEEDED, ibv_event_type, ibv_fork_status, ibv_node_type, ibv_port_state, ibv_rate,
    ibv_wc_status, ibv_wr_opcode,
};
use crate::errno::EINVAL;
use crate::guard::returning_minus_one;

/// Defines a function that returns NUL-terminated texts, from a table of the stack.
macro_rules! texts {
    ($name:ident: $type:ident) => {
        fn $name(number: u32) -> Option<&'static CStr> {
            use std::sync::OnceLock;
            static TEXTS: OnceLock<Vec<(u32, std::ffi::CString)>> = OnceLock::new();
            let texts = TEXTS.get_or_init(|| {
                let text = |value: &$type| std::ffi::CString::new(value.text()).unwrap_or_default();
                $type::ALL.iter().map(|value| (u32::from(value.number()), text(value))).collect()
            });
            texts.iter().find(|(value, _)| *value == number).map(|(_, text)| text.as_c_str())
        }
    };
}
texts!(status_text: WcStatus);
texts!(event_text: AsyncEvent);

#[unsafe(no_mangle)]
extern "C" fn ibv_wc_status_str(status: ibv_wc_status) -> *const c_char {
    status_text(status).unwrap_or(c"unknown").as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_event_type_str(event: ibv_event_type) -> *const c_char {
    event_text(event).unwrap_or(c"unknown").as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_wr_opcode_str(opcode: ibv_wr_opcode) -> *const c_char {
    let text = match opcode {
        0 => c"RDMA WRITE",
        1 => c"RDMA WRITE with immediate data",
        2 => c"SEND",
        3 => c"SEND with immediate data",
        4 => c"RDMA READ",
        5 => c"COMPARE & SWAP",
        6 => c"FETCH & ADD",
        7 => c"local invalidate",
        8 => c"bind memory window",
        9 => c"SEND with invalidate",
        10 => c"segmentation offload",
        11 => c"the driver's own",
        14 => c"FLUSH",
        15 => c"ATOMIC WRITE",
        _ => c"unknown",
    };
    text.as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_node_type_str(node_type: ibv_node_type) -> *const c_char {
    let text = match node_type {
        1 => c"InfiniBand channel adapter",
        2 => c"InfiniBand switch",
        3 => c"InfiniBand router",
        4 => c"iWARP NIC",
        5 => c"usNIC",
        6 => c"usNIC UDP",
        7 => c"unspecified",
        _ => c"unknown",
    };
    text.as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_port_state_str(state: ibv_port_state) -> *const c_char {
    let text = match state {
        0 => c"no state change (NOP)",
        1 => c"DOWN",
        2 => c"INIT",
        3 => c"ARMED",
        4 => c"ACTIVE",
        5 => c"ACTIVE_DEFER",
        _ => c"invalid state",
    };
    text.as_ptr()
}

/// `enum ibv_rate`; the multiple of 2.5 Gbit/s, or -1 if libibverbs names none; the rate on the wire in Mbit/s.
#[rustfmt::skip]
const RATES: &[(ibv_rate, c_int, c_int)] = &[
    ( 2,   1,    2500), ( 5,   2,    5000), ( 3,   4,   10000), ( 6,   8,   20000),
    ( 4,  12,   30000), ( 7,  16,   40000), ( 8,  24,   60000), ( 9,  32,   80000),
    (10,  48,  120000), (11,  -1,   14062), (12,  -1,   56250), (13,  -1,  112500),
    (14,  -1,  168750), (15,  -1,   25781), (16,  -1,  103125), (17,  -1,  206250),
    (18,  -1,  309375), (19,  11,   28125), (20,  20,   53125), (21, 160,  425000),
    (22, 240,  637500), (23, 320,  850000), (24, 480, 1275000),
];

#[unsafe(no_mangle)]
extern "C" fn ibv_rate_to_mult(rate: ibv_rate) -> c_int {
    RATES.iter().find(|row| row.0 == rate).map_or(-1, |row| row.1)
}

#[unsafe(no_mangle)]
extern "C" fn mult_to_ibv_rate(mult: c_int) -> ibv_rate {
    RATES.iter().find(|row| row.1 == mult && mult > 0).map_or(0, |row| row.0)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_rate_to_mbps(rate: ibv_rate) -> c_int {
    RATES.iter().find(|row| row.0 == rate).map_or(-1, |row| row.2)
}

#[unsafe(no_mangle)]
extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> ibv_rate {
    RATES.iter().find(|row| row.2 == mbps).map_or(0, |row| row.0)
}

/// Does nothing: fork(2) does not affect registered memory, because the CPU accesses it through the page tables.
#[unsafe(no_mangle)]
extern "C" fn ibv_fork_init() -> c_int {
    0
}

/// See `ibv_fork_init`.
#[unsafe(no_mangle)]
extern "C" fn ibv_is_fork_initialized() -> ibv_fork_status {
    IBV_FORK_UNNEEDED
}

/// See `ibv_fork_init`.
#[unsafe(no_mangle)]
extern "C" fn ibv_dontfork_range(_: *mut c_void, _: usize) -> c_int {
    0
}

/// See `ibv_fork_init`.
#[unsafe(no_mangle)]
extern "C" fn ibv_dofork_range(_: *mut c_void, _: usize) -> c_int {
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

/// Reads a file of a directory below `/sys`, without its trailing newline. Returns the length.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_read_sysfs_file(
    dir: *const c_char,
    file: *const c_char,
    buf: *mut c_char,
    size: usize,
) -> c_int {
    returning_minus_one(|| {
        if dir.is_null() || file.is_null() || buf.is_null() || size == 0 {
            return Err(EINVAL);
        }
        // SAFETY: the caller must pass NUL-terminated strings.
        let (dir, file) = unsafe { (CStr::from_ptr(dir), CStr::from_ptr(file)) };
        let path = |text: &CStr| text.to_str().map(|text| Path::new(text).to_path_buf()).map_err(|_| EINVAL);
        let mut bytes = vec![0; size - 1];
        let mut len = File::open(path(dir)?.join(path(file)?))?.read(&mut bytes)?;
        if len > 0 && bytes[len - 1] == b'\n' {
            len -= 1;
        }
        bytes.truncate(len);
        bytes.push(0);
        // SAFETY: the caller must provide `size` bytes, and at most that many are written.
        unsafe { bytes.as_ptr().copy_to_nonoverlapping(buf.cast(), bytes.len()) };
        Ok(len as c_int)
    })
}
