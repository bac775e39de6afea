//! The Linux error numbers (errno(3)) that this crate returns, and the table that maps errors to them.

use std::io::ErrorKind;

use stack::device::{DeviceError, MemError, ModifyError, OpenError, cm};
use stack::xrc::{Reason, XrcError};

use crate::error::{BindError, PostError, PostErrorKind, VerbsError};
use crate::rdma_cm::error::CmError;

/// Operation not permitted.
pub const EPERM: i32 = 1;
/// No such object.
pub const ENOENT: i32 = 2;
/// Input/output error.
pub const EIO: i32 = 5;
/// Out of memory, or no room in a queue.
pub const ENOMEM: i32 = 12;
/// Bad address.
pub const EFAULT: i32 = 14;
/// Object in use.
pub const EBUSY: i32 = 16;
/// Object exists already.
pub const EEXIST: i32 = 17;
/// No such device.
pub const ENODEV: i32 = 19;
/// Invalid argument.
pub const EINVAL: i32 = 22;
/// The call would wait for itself.
pub const EDEADLK: i32 = 35;
/// No such system call.
pub const ENOSYS: i32 = 38;
/// Too many open files.
pub const EMFILE: i32 = 24;
/// Not supported.
pub const EOPNOTSUPP: i32 = 95;
/// Address family not supported.
pub const EAFNOSUPPORT: i32 = 97;
/// Address in use.
pub const EADDRINUSE: i32 = 98;
/// No such address here.
pub const EADDRNOTAVAIL: i32 = 99;
/// No route.
pub const ENETUNREACH: i32 = 101;
/// Not connected.
pub const ENOTCONN: i32 = 107;
/// Timed out.
pub const ETIMEDOUT: i32 = 110;
/// The peer refused.
pub const ECONNREFUSED: i32 = 111;

impl VerbsError {
    /// The error number of the C API, from [`errno`](crate::errno).
    pub fn errno(&self) -> i32 {
        match self {
            Self::Open(e) => open_errno(e),
            Self::Device(e) => device_errno(e),
            Self::OutOfRegion { .. }
            | Self::Misaligned { .. }
            | Self::ReadOnly
            | Self::ZeroBased { .. }
            | Self::WrongState { .. }
            | Self::NoNetworkHeader { .. }
            | Self::NoSuchIndex { .. }
            | Self::NoSuchPkey { .. } => EINVAL,
            Self::BadAddress { .. } => EFAULT,
            Self::File { errno, .. } => *errno,
            Self::NoMemory { .. } => ENOMEM,
            Self::Split { .. } => EBUSY,
            Self::NoSuchField(_) | Self::SendOps { .. } => EOPNOTSUPP,
            Self::Bind(e) => e.errno(),
            Self::Post(e) => e.errno(),
            Self::Cm(e) => e.errno(),
            Self::Xrc(e) => xrc_errno(e),
        }
    }
}

impl PostError {
    /// The error number of the C API, from [`errno`](crate::errno).
    pub fn errno(&self) -> i32 {
        match self.kind {
            PostErrorKind::Full { .. } => ENOMEM,
            PostErrorKind::Split => EBUSY,
            PostErrorKind::InsideCall => EDEADLK,
            PostErrorKind::ShardDied(_) => EIO,
            PostErrorKind::Bind(e) => e.errno(),
            _ => EINVAL,
        }
    }
}

impl BindError {
    /// The error number of the C API, from [`errno`](crate::errno).
    pub const fn errno(&self) -> i32 {
        match self {
            Self::WindowType { .. } | Self::ForeignKey { .. } | Self::NoRegion { .. } => EINVAL,
            Self::OtherPd { .. } => EPERM,
        }
    }
}

impl CmError {
    /// The error number of the C API, from [`errno`](crate::errno).
    pub fn errno(&self) -> i32 {
        match self {
            Self::State { .. }
            | Self::Range { .. }
            | Self::Unsuitable { .. }
            | Self::Option(_)
            | Self::QpType { .. } => EINVAL,
            Self::NoIpoIb => ENODEV,
            Self::AddrInUse { .. } => EADDRINUSE,
            Self::AddrNotAvail { .. } | Self::NotJoined { .. } | Self::NoPort(_) => EADDRNOTAVAIL,
            Self::Family { .. } => EAFNOSUPPORT,
            Self::NoRoute { .. } => ENETUNREACH,
            Self::TimedOut { .. } => ETIMEDOUT,
            Self::Rejected { .. } => ECONNREFUSED,
            Self::NotConnected { .. } => ENOTCONN,
            Self::Busy { .. } => EBUSY,
            Self::Qp { errno, .. } => *errno,
            Self::Machine(e) => machine_errno(e),
        }
    }
}

fn open_errno(error: &OpenError) -> i32 {
    match error {
        OpenError::Port(_) => ENODEV,
        OpenError::Thread { .. } => ENOMEM,
        OpenError::Random => EIO,
        _ => EINVAL,
    }
}

fn device_errno(error: &DeviceError) -> i32 {
    match error {
        DeviceError::Busy { .. } | DeviceError::Unacked { .. } => EBUSY,
        DeviceError::Exhausted { .. } => ENOMEM,
        DeviceError::Port(_) => ENODEV,
        DeviceError::InsideTurn | DeviceError::InsideCall { .. } => EDEADLK,
        DeviceError::Forked => EPERM,
        DeviceError::TimedOut { .. } => ETIMEDOUT,
        DeviceError::NoSuchDomain { .. } => ENOENT,
        DeviceError::DomainExists { .. } => EEXIST,
        DeviceError::Access { .. } => EOPNOTSUPP,
        DeviceError::Random
        | DeviceError::CqOverrun
        | DeviceError::ShardDied { .. }
        | DeviceError::ServiceDied => EIO,
        DeviceError::Descriptor(ErrorKind::PermissionDenied) => EPERM,
        DeviceError::Descriptor(ErrorKind::Unsupported) => ENOSYS,
        DeviceError::Descriptor(_) => EMFILE,
        DeviceError::Modify(e) => modify_errno(e),
        DeviceError::Memory(e) => memory_errno(e),
        _ => EINVAL,
    }
}

fn xrc_errno(error: &XrcError) -> i32 {
    match error {
        XrcError::Device(e) => device_errno(e),
        XrcError::Refused(refusal) => match refusal.reason {
            Reason::Invalid => EINVAL,
            Reason::NoRoom => ENOMEM,
            Reason::Taken => EBUSY,
            Reason::Unsupported => EOPNOTSUPP,
            Reason::NoDevice => ENODEV,
            Reason::Failed => EIO,
        },
        XrcError::Port { .. } | XrcError::VersionMismatch { .. } => EOPNOTSUPP,
        XrcError::NoProgram { .. } => ENOENT,
        XrcError::NotUp { .. } | XrcError::Silent { .. } => ETIMEDOUT,
        XrcError::Foreign { .. } => EPERM,
        XrcError::Start { error, .. } | XrcError::System { error, .. } => error.raw_os_error().unwrap_or(EIO),
        _ => EIO,
    }
}

const fn modify_errno(error: &ModifyError) -> i32 {
    match error {
        ModifyError::UnknownAttributes(_) => EOPNOTSUPP,
        ModifyError::PrivilegedQkey(_) => EPERM,
        _ => EINVAL,
    }
}

const fn memory_errno(error: &MemError) -> i32 {
    match error {
        MemError::Full => ENOMEM,
        MemError::Bound(_) => EBUSY,
        _ => EINVAL,
    }
}

const fn machine_errno(error: &cm::Error) -> i32 {
    match error {
        cm::Error::NoConnection(_) | cm::Error::NoListener(_) | cm::Error::NoSidr(_) => ENOENT,
        cm::Error::InUse(_) => EADDRINUSE,
        cm::Error::QpBusy(_) => EBUSY,
        cm::Error::Limit(_) => ENOMEM,
        cm::Error::Address => EADDRNOTAVAIL,
        _ => EINVAL,
    }
}
