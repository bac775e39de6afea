//! Reading and writing the fields of a message. A field has a position and a width in bits, and a type.

use crate::id::{Gid, Psn, Qpn};

use super::reason::{Reason, SidrStatus};
use super::service::ServiceId;

/// Reads `width` bits, from bit `bit` of byte `byte` on. Bit 0 is the most significant one.
fn get(b: &[u8], byte: usize, bit: usize, width: usize) -> u128 {
    let first = byte * 8 + bit;
    (first..first + width).fold(0, |v, i| v << 1 | u128::from(b[i / 8] >> (7 - i % 8) & 1))
}

/// Writes the low `width` bits of `v` where [`get`] reads them.
fn set(b: &mut [u8], byte: usize, bit: usize, width: usize, v: u128) {
    let first = byte * 8 + bit;
    for i in first..first + width {
        let on = (v >> (first + width - 1 - i) & 1) as u8;
        b[i / 8] = b[i / 8] & !(0x80 >> (i % 8)) | on << (7 - i % 8);
    }
}

/// The type of a field.
pub(super) trait Field: Sized {
    /// Reads the field.
    fn read(b: &[u8], byte: usize, bit: usize, width: usize) -> Self;
    /// Writes the field.
    fn write(&self, b: &mut [u8], byte: usize, bit: usize, width: usize);
}

macro_rules! fields {
    ($($ty:ty: |$v:ident| $from:expr, |$s:ident| $to:expr;)*) => {$(
        impl Field for $ty {
            fn read(b: &[u8], byte: usize, bit: usize, width: usize) -> Self {
                let $v = get(b, byte, bit, width);
                $from
            }
            fn write(&self, b: &mut [u8], byte: usize, bit: usize, width: usize) {
                let $s = self;
                set(b, byte, bit, width, $to)
            }
        }
    )*};
}

fields! {
    u8: |v| v as u8, |s| u128::from(*s);
    u16: |v| v as u16, |s| u128::from(*s);
    u32: |v| v as u32, |s| u128::from(*s);
    u64: |v| v as u64, |s| u128::from(*s);
    bool: |v| v != 0, |s| u128::from(*s);
    Psn: |v| Psn::new(v as u32), |s| u128::from(s.get());
    Qpn: |v| Qpn::new(v as u32), |s| u128::from(s.get());
    Gid: |v| Gid(v.to_be_bytes()), |s| u128::from_be_bytes(s.0);
    ServiceId: |v| ServiceId(v as u64), |s| u128::from(s.0);
    Reason: |v| Reason(v as u16), |s| u128::from(s.0);
    SidrStatus: |v| SidrStatus(v as u8), |s| u128::from(s.0);
}

impl<const N: usize> Field for [u8; N] {
    fn read(b: &[u8], byte: usize, _: usize, _: usize) -> Self {
        b[byte..byte + N].try_into().expect("N bytes")
    }
    fn write(&self, b: &mut [u8], byte: usize, _: usize, _: usize) {
        b[byte..byte + N].copy_from_slice(self);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_touches_its_bits_alone() {
        for (byte, bit, width) in [(0, 0, 32), (3, 5, 2), (4, 0, 24), (7, 7, 1), (5, 2, 6), (1, 0, 128)] {
            let max = if width == 128 { u128::MAX } else { (1 << width) - 1 };
            let mut b = [0; 20];
            set(&mut b, byte, bit, width, max);
            assert_eq!(b.iter().map(|b| b.count_ones()).sum::<u32>() as usize, width);
            assert_eq!(get(&b, byte, bit, width), max);
            let mut b = [0xff; 20];
            set(&mut b, byte, bit, width, max & 0x5555);
            assert_eq!(get(&b, byte, bit, width), max & 0x5555);
            let zeros = b.iter().map(|b| b.count_zeros()).sum::<u32>();
            assert_eq!(zeros, width as u32 - (max & 0x5555).count_ones());
        }
    }
}
