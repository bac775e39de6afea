//! XRC domains: shared between processes or private to this one, identified by the file of a descriptor.

use core::ffi::c_int;
use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd;

use verbs::{Context, DomainFile, VerbsError, XrcError, Xrcd as Verbs, XrcdInitAttr, XrcdOflags};

use crate::abi::{self, ibv_context, ibv_xrcd, ibv_xrcd_init_attr};
use crate::claims::Claim;
use crate::config;
use crate::context::device_of;
use crate::errno::{EINVAL, EOPNOTSUPP, Errno, Result};
use crate::guard::{returning_errno, returning_pointer};
use crate::log::say;
use crate::object::{Kind, Object};

/// Our part of a `struct ibv_xrcd`.
pub(crate) struct Xrcd {
    verbs: Verbs,
    /// Prevents other processes from opening a domain of the same file, which they would not share.
    claim: Option<Claim>,
}

impl Kind for Xrcd {
    type Public = ibv_xrcd;
    type Private = Self;
    const TAG: u64 = u64::from_be_bytes(*b"xrcd\0\0\0\0");
}

/// The domain behind a program's pointer.
///
/// # Safety
/// As [`Object::of`].
pub(crate) unsafe fn of<'a>(xrcd: *mut ibv_xrcd) -> Result<&'a Verbs> {
    // SAFETY: as the caller promises.
    Ok(unsafe { &Object::<Xrcd>::of(xrcd)?.private().verbs })
}

/// Converts the error of a call on a shared domain. Prints the reason if the error number does not tell it, because a program sees no more
/// than that.
pub(crate) fn explained(error: VerbsError) -> Errno {
    if let VerbsError::Xrc(error) = &error
        && !matches!(**error, XrcError::Refused(_))
    {
        say(error);
    }
    error.into()
}

/// Opens the domain of a file.
fn open_of(device: &Context, file: &File, oflags: XrcdOflags) -> Result<Xrcd> {
    let of_each_process = config::each_process_is_a_host();
    if !of_each_process && device.can_share_xrcds() {
        let verbs = device.open_xrcd_of(file, oflags).map_err(explained)?;
        return Ok(Xrcd { verbs, claim: None });
    }
    let name = format!("xrcd:{}", DomainFile::of(file)?);
    let claim = if of_each_process { None } else { Some(Claim::of(&name).ok_or(EOPNOTSUPP)) };
    let claim = claim.transpose().inspect_err(|_| {
        say(
            "another process has opened the XRC domain of this file, and over this port processes do not share one: take the port host; or, \
             if the two are to be as on two hosts, each with a domain of its own, set ROCE_XRCD=process",
        );
    })?;
    Ok(Xrcd { verbs: open(device, Some(&name), oflags)?, claim })
}

/// Opens a domain that is private to this process.
fn open(device: &Context, name: Option<&str>, oflags: XrcdOflags) -> Result<Verbs> {
    let create = oflags.contains(XrcdOflags::CREAT);
    Ok(device.open_xrcd(&XrcdInitAttr { name, create, exclusive: oflags.contains(XrcdOflags::EXCL) })?)
}

pub(crate) unsafe extern "C" fn open_xrcd(
    context: *mut ibv_context,
    init: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    returning_pointer(|| {
        // SAFETY: the caller keeps the contract of the C function.
        let (device, init) = unsafe { (device_of(context)?, init.as_ref().ok_or(EINVAL)?) };
        let known = abi::IBV_XRCD_INIT_ATTR_FD | abi::IBV_XRCD_INIT_ATTR_OFLAGS;
        if init.comp_mask != known {
            return Err(EINVAL);
        }
        let oflags = XrcdOflags::from_bits(init.oflags as u32).ok_or(EINVAL)?;
        let domain = if init.fd == -1 {
            // No file: an anonymous domain.
            Xrcd { verbs: open(&device, None, oflags)?, claim: None }
        } else {
            // SAFETY: the descriptor is not closed here; fstat(2) fails if it is not a descriptor.
            let file = ManuallyDrop::new(unsafe { File::from_raw_fd(init.fd) });
            open_of(&device, &file, oflags)?
        };
        Ok(Object::<Xrcd>::create(ibv_xrcd { context }, domain))
    })
}

pub(crate) unsafe extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    returning_errno(|| {
        let end = |Xrcd { verbs, claim }| {
            verbs.close().map_err(|(error, verbs)| (Errno::from(error), Xrcd { verbs, claim }))
        };
        // SAFETY: the caller keeps the contract of the C function.
        unsafe { Object::<Xrcd>::destroy(xrcd, end) }
    })
}
