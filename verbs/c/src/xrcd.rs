//! XRC domains: shared within the process, by the inode of a descriptor.

use core::ffi::c_int;
use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd;
use std::os::unix::fs::MetadataExt;

use verbs::{Xrcd as Verbs, XrcdInitAttr};

use crate::abi::{self, ibv_context, ibv_xrcd, ibv_xrcd_init_attr};
use crate::claims::Claim;
use crate::config;
use crate::context::device_of;
use crate::errno::{EINVAL, EOPNOTSUPP, Errno, Result};
use crate::guard::{returning_errno, returning_pointer};
use crate::log::say;
use crate::object::{Kind, Object};

/// `struct ibv_xrcd`.
pub(crate) struct Xrcd {
    verbs: Verbs,
    /// Keeps other processes from believing that they share it.
    claim: Option<Claim>,
}

impl Kind for Xrcd {
    type Public = ibv_xrcd;
    type Private = Self;
    const TAG: u64 = u64::from_be_bytes(*b"xrcd\0\0\0\0");
}

/// The domain that a program names.
///
/// # Safety
/// As [`Object::of`].
pub(crate) unsafe fn of<'a>(xrcd: *mut ibv_xrcd) -> Result<&'a Verbs> {
    // SAFETY: as the caller promises.
    Ok(unsafe { &Object::<Xrcd>::of(xrcd)?.private().verbs })
}

/// The file behind a descriptor, by name.
fn inode(fd: c_int) -> Result<String> {
    // SAFETY: a number, which is not closed here; fstat(2) refuses what is no descriptor.
    let file = ManuallyDrop::new(unsafe { File::from_raw_fd(fd) });
    let meta = file.metadata()?;
    Ok(format!("xrcd:{}:{}", meta.dev(), meta.ino()))
}

pub(crate) unsafe extern "C" fn open_xrcd(
    context: *mut ibv_context,
    init: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    returning_pointer(|| {
        // SAFETY: as C promises.
        let (device, init) = unsafe { (device_of(context)?, init.as_ref().ok_or(EINVAL)?) };
        let known = abi::IBV_XRCD_INIT_ATTR_FD | abi::IBV_XRCD_INIT_ATTR_OFLAGS;
        if init.comp_mask != known || init.oflags & !(libc::O_CREAT | libc::O_EXCL) != 0 {
            return Err(EINVAL);
        }
        // -1 names no file: a domain that nobody shares.
        let name = if init.fd == -1 { None } else { Some(inode(init.fd)?) };
        let claimed = name.as_deref().filter(|_| !config::each_process_is_a_host());
        let claim = claimed.map(|name| Claim::of(name).ok_or(EOPNOTSUPP)).transpose();
        let claim = claim.inspect_err(|_| {
            say(
                "another process has opened the XRC domain of this file, and one process can share it with itself only; if the \
                 two are to be as on two hosts, each with a domain of its own, set ROCE_XRCD=process",
            );
        })?;
        let verbs = device.open_xrcd(&XrcdInitAttr {
            name: name.as_deref(),
            create: init.oflags & libc::O_CREAT != 0,
            exclusive: init.oflags & libc::O_EXCL != 0,
        })?;
        Ok(Object::<Xrcd>::create(ibv_xrcd { context }, Xrcd { verbs, claim }))
    })
}

pub(crate) unsafe extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    returning_errno(|| {
        let end = |Xrcd { verbs, claim }| {
            verbs.close().map_err(|(error, verbs)| (Errno::from(error), Xrcd { verbs, claim }))
        };
        // SAFETY: as C promises.
        unsafe { Object::<Xrcd>::destroy(xrcd, end) }
    })
}
