//! Where the data of a command are. The SGL descriptor is checked against the length that the command needs and the length of its capsule.

use crate::status::Status;
use crate::wire::Sqe;
use crate::wire::sgl::{Described, Sgl};

/// Memory of the host. `address + len` does not overflow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Remote {
    /// Virtual address of the first byte.
    pub address: u64,
    /// The R_Key.
    pub key: u32,
    /// Length in bytes, at least 1.
    pub len: u32,
}

/// Where the data that a host sends are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// In the command capsule. Keep the buffer of the capsule until the command is done.
    Capsule {
        /// Offset from the first byte of the capsule.
        offset: u32,
        /// Length in bytes; `offset + len` is within the capsule.
        len: u32,
    },
    /// In memory of the host, to be fetched by RDMA READ.
    Remote(Remote),
}

impl Source {
    /// Length in bytes, at least 1.
    pub const fn len(&self) -> u32 {
        match self {
            Self::Capsule { len, .. } | Self::Remote(Remote { len, .. }) => *len,
        }
    }
    /// Always false.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Which length a descriptor must have.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Need {
    Exactly(u32),
    /// The host may describe more bytes than are read.
    AtLeast(u32),
}

impl Need {
    /// How many bytes to transfer, for a descriptor of length `described`.
    fn of(self, described: u32) -> Result<u32, Status> {
        let (len, fits) = match self {
            Self::Exactly(len) => (len, described == len),
            Self::AtLeast(len) => (len, described >= len),
        };
        if fits && len > 0 { Ok(len) } else { Err(Status::SglLengthInvalid) }
    }
}

/// The host memory that `len` bytes are to be written to.
pub(crate) fn to_host(sgl: &Sgl, len: u32) -> Result<Remote, Status> {
    match sgl.described() {
        Described::Keyed { address, len: described, key, .. } => {
            remote(address, key, Need::Exactly(len).of(described)?)
        }
        Described::InCapsule { .. } => Err(Status::InvalidField),
        Described::Unknown(_) => Err(Status::SglTypeInvalid),
    }
}

/// Where data from the host are. `capsule` is the length of the whole capsule in bytes, and `in_capsule` the most data bytes that it may
/// have: 0 if in-capsule data are not allowed.
pub(crate) fn from_host(sgl: &Sgl, need: Need, capsule: usize, in_capsule: u32) -> Result<Source, Status> {
    match sgl.described() {
        Described::Keyed { address, len, key, .. } => {
            Ok(Source::Remote(remote(address, key, need.of(len)?)?))
        }
        Described::InCapsule { offset, len } if in_capsule > 0 => {
            let needed = need.of(len)?;
            let arrived = capsule.saturating_sub(Sqe::LEN).min(in_capsule as usize) as u64;
            // Checked addition, because the offset has 64 bits.
            if offset.checked_add(len as u64).is_none_or(|end| end > arrived) {
                return Err(Status::SglOffsetInvalid);
            }
            Ok(Source::Capsule { offset: Sqe::LEN as u32 + offset as u32, len: needed })
        }
        Described::InCapsule { .. } | Described::Unknown(_) => Err(Status::SglTypeInvalid),
    }
}

fn remote(address: u64, key: u32, len: u32) -> Result<Remote, Status> {
    address.checked_add(len as u64).ok_or(Status::SglLengthInvalid)?;
    Ok(Remote { address, key, len })
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: whatever a descriptor says, the result is within the capsule that arrived.
    #[test]
    fn in_capsule_data_lie_in_the_capsule_that_arrived() {
        let edges =
            [0, 1, 63, 64, 65, 511, 512, 513, 4095, 4096, 4097, 0xFF_FFFF, 0x7FFF_FFFF, 0xFFFF_FFFF_u64];
        let offsets = edges.iter().copied().chain((0..600).map(|i| u64::MAX - i));
        for offset in offsets {
            for len in edges {
                for capsule in [0, 63, 64, 65, 576, 4160, 8192, usize::MAX] {
                    let sgl = Sgl::in_capsule(offset, len as u32);
                    match from_host(&sgl, Need::Exactly(len as u32), capsule, 4096) {
                        Ok(Source::Capsule { offset: at, len: n }) => {
                            assert_eq!(n as u64, len);
                            let end = at as u64 + n as u64;
                            assert!(at >= 64 && end <= 64 + 4096 && end <= capsule as u64);
                        }
                        Ok(other) => panic!("{other:?}"),
                        Err(_) => {
                            let room = (capsule as u128).saturating_sub(64).min(4096);
                            assert!(
                                len == 0 || offset as u128 + len as u128 > room,
                                "{offset} {len} {capsule}"
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn descriptors_that_do_not_fit_the_command_are_refused() {
        let keyed = Sgl::keyed(0x1000, 512, 7, true);
        let unknown: Sgl = zerocopy::transmute!([0u8; 16]);
        assert_eq!(to_host(&keyed, 512), Ok(Remote { address: 0x1000, key: 7, len: 512 }));
        assert_eq!(to_host(&keyed, 511), Err(Status::SglLengthInvalid));
        assert_eq!(to_host(&Sgl::keyed(0, 0, 0, false), 0), Err(Status::SglLengthInvalid));
        assert_eq!(to_host(&Sgl::in_capsule(0, 512), 512), Err(Status::InvalidField));
        assert_eq!(to_host(&unknown, 512), Err(Status::SglTypeInvalid));
        let end = Sgl::keyed(u64::MAX - 511, 512, 7, true);
        assert_eq!(to_host(&end, 512), Err(Status::SglLengthInvalid));
        assert_eq!(from_host(&unknown, Need::AtLeast(16), 64, 4096), Err(Status::SglTypeInvalid));
        assert_eq!(from_host(&keyed, Need::AtLeast(16), 64, 0).map(|s| s.len()), Ok(16));
        assert_eq!(from_host(&keyed, Need::AtLeast(513), 64, 0), Err(Status::SglLengthInvalid));
        let in_capsule = Sgl::in_capsule(0, 512);
        assert_eq!(from_host(&in_capsule, Need::Exactly(512), 576, 0), Err(Status::SglTypeInvalid));
        assert_eq!(from_host(&in_capsule, Need::Exactly(512), 575, 4096), Err(Status::SglOffsetInvalid));
    }
}
