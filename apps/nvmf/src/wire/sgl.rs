//! The SGL descriptor of a command (NVMe base 4.3.2, RDMA transport 3.2).

use core::fmt;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// An SGL descriptor, in its encoded form.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Sgl {
    address: U64,
    /// Keyed: three bytes of length, four bytes of key. In-capsule: four bytes of length.
    rest: [u8; 7],
    kind: u8,
}
const _: () = assert!(size_of::<Sgl>() == 16);

/// A decoded SGL descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Described {
    /// Memory of the host.
    Keyed {
        /// Virtual address of the first byte.
        address: u64,
        /// Length in bytes, less than 2^24.
        len: u32,
        /// The R_Key.
        key: u32,
        /// Whether the host asks for a response by SEND with Invalidate of `key`.
        invalidate: bool,
    },
    /// Data in the capsule.
    InCapsule {
        /// Offset from the end of the submission queue entry.
        offset: u64,
        /// Length in bytes.
        len: u32,
    },
    /// A descriptor of any other type; this is its type byte.
    Unknown(u8),
}

impl Sgl {
    const KEYED: u8 = 0x40;
    const KEYED_INVALIDATE: u8 = 0x4F;
    const IN_CAPSULE: u8 = 0x01;

    /// Makes a keyed descriptor. Only the low 24 bits of `len` are used.
    pub fn keyed(address: u64, len: u32, key: u32, invalidate: bool) -> Self {
        let ([l0, l1, l2, _], [k0, k1, k2, k3]) = (len.to_le_bytes(), key.to_le_bytes());
        let kind = if invalidate { Self::KEYED_INVALIDATE } else { Self::KEYED };
        Self { address: U64::new(address), rest: [l0, l1, l2, k0, k1, k2, k3], kind }
    }
    /// Makes a descriptor of in-capsule data.
    pub fn in_capsule(offset: u64, len: u32) -> Self {
        let [l0, l1, l2, l3] = len.to_le_bytes();
        Self { address: U64::new(offset), rest: [l0, l1, l2, l3, 0, 0, 0], kind: Self::IN_CAPSULE }
    }
    /// Decodes the descriptor.
    pub fn described(&self) -> Described {
        let [b0, b1, b2, b3, b4, b5, b6] = self.rest;
        match self.kind {
            Self::KEYED | Self::KEYED_INVALIDATE => Described::Keyed {
                address: self.address.get(),
                len: u32::from_le_bytes([b0, b1, b2, 0]),
                key: u32::from_le_bytes([b3, b4, b5, b6]),
                invalidate: self.kind == Self::KEYED_INVALIDATE,
            },
            Self::IN_CAPSULE => Described::InCapsule {
                offset: self.address.get(),
                len: U32::from_bytes([b0, b1, b2, b3]).get(),
            },
            other => Described::Unknown(other),
        }
    }
    /// The R_Key that the response is to invalidate; `None` if the host does not ask for that.
    pub fn invalidate(&self) -> Option<u32> {
        match self.described() {
            Described::Keyed { key, invalidate: true, .. } => Some(key),
            _ => None,
        }
    }
}

impl fmt::Debug for Sgl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.described().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_says_what_it_was_made_of() {
        for invalidate in [false, true] {
            let (address, len, key) = (0x0123_4567_89ab_cdef, 0xfe_dcba, 0x8765_4321);
            assert_eq!(
                Sgl::keyed(address, len, key, invalidate).described(),
                Described::Keyed { address, len, key, invalidate }
            );
        }
        let (offset, len) = (u64::MAX - 1, u32::MAX - 2);
        assert_eq!(Sgl::in_capsule(offset, len).described(), Described::InCapsule { offset, len });
    }

    // Goal: exactly three of the 256 types are served.
    #[test]
    fn every_other_type_is_unknown() {
        let known = (0..=255u8).filter(|&kind| {
            let sgl = Sgl { address: U64::new(0), rest: [0; 7], kind };
            sgl.described() != Described::Unknown(kind)
        });
        assert_eq!(known.collect::<Vec<_>>(), [0x01, 0x40, 0x4F]);
    }
}
