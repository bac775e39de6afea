//! The encoding of messages: fields one after the other, in native byte order. Decoding checks all bytes; encoding trusts the caller.

use crate::device::{AhAttr, AttrMask, Gid, GlobalRoute, PathMigState, QpAttr, QpState, Qpn};

/// A decoder of bytes; each byte is read once.
pub struct Reader<'a>(pub &'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*bytes)
    }

    /// Decodes the next field.
    pub fn get<T: Field>(&mut self) -> Option<T> {
        T::read(self)
    }

    /// Decodes the rest as UTF-8 text.
    pub fn text(&mut self) -> Option<String> {
        String::from_utf8(core::mem::take(&mut self.0).to_vec()).ok()
    }
}

/// A field of a message.
pub trait Field: Sized {
    /// Appends the encoded field.
    fn write(&self, to: &mut Vec<u8>);
    /// Decodes the field; `None` if the bytes are invalid or too few.
    fn read(from: &mut Reader<'_>) -> Option<Self>;
}

macro_rules! numbers {
    ($($number:ty)*) => {$(
        impl Field for $number {
            fn write(&self, to: &mut Vec<u8>) {
                to.extend(self.to_ne_bytes());
            }
            fn read(from: &mut Reader<'_>) -> Option<Self> {
                from.take().map(Self::from_ne_bytes)
            }
        }
    )*};
}
numbers!(u8 u16 u32 u64);

impl Field for bool {
    fn write(&self, to: &mut Vec<u8>) {
        to.push((*self).into());
    }
    fn read(from: &mut Reader<'_>) -> Option<Self> {
        match from.get::<u8>()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }
}

impl Field for Qpn {
    fn write(&self, to: &mut Vec<u8>) {
        self.get().write(to);
    }
    fn read(from: &mut Reader<'_>) -> Option<Self> {
        let number: u32 = from.get()?;
        let qpn = Self::new(number);
        (qpn.get() == number).then_some(qpn)
    }
}

impl Field for Gid {
    fn write(&self, to: &mut Vec<u8>) {
        to.extend(self.0);
    }
    fn read(from: &mut Reader<'_>) -> Option<Self> {
        from.take().map(Self)
    }
}

impl Field for QpState {
    fn write(&self, to: &mut Vec<u8>) {
        to.push(*self as u8);
    }
    fn read(from: &mut Reader<'_>) -> Option<Self> {
        Self::from_enum(from.get()?)
    }
}

impl Field for PathMigState {
    fn write(&self, to: &mut Vec<u8>) {
        to.push(*self as u8);
    }
    fn read(from: &mut Reader<'_>) -> Option<Self> {
        let number: u8 = from.get()?;
        [Self::Migrated, Self::Rearm, Self::Armed].into_iter().find(|state| *state as u8 == number)
    }
}

/// Accepts any bits: the device refuses unknown bits with an error message.
impl Field for AttrMask {
    fn write(&self, to: &mut Vec<u8>) {
        self.bits().write(to);
    }
    fn read(from: &mut Reader<'_>) -> Option<Self> {
        from.get().map(Self::from_bits_retain)
    }
}

impl Field for GlobalRoute {
    fn write(&self, to: &mut Vec<u8>) {
        self.dgid.write(to);
        self.flow_label.write(to);
        to.extend([self.sgid_index, self.hop_limit, self.traffic_class]);
    }
    fn read(from: &mut Reader<'_>) -> Option<Self> {
        Some(Self {
            dgid: from.get()?,
            flow_label: from.get()?,
            sgid_index: from.get()?,
            hop_limit: from.get()?,
            traffic_class: from.get()?,
        })
    }
}

impl Field for AhAttr {
    fn write(&self, to: &mut Vec<u8>) {
        self.grh.is_some().write(to);
        self.grh.unwrap_or_default().write(to);
        self.dlid.write(to);
        to.extend([self.sl, self.src_path_bits, self.static_rate, self.port_num]);
    }
    fn read(from: &mut Reader<'_>) -> Option<Self> {
        let (is_global, route): (bool, GlobalRoute) = (from.get()?, from.get()?);
        Some(Self {
            grh: is_global.then_some(route),
            dlid: from.get()?,
            sl: from.get()?,
            src_path_bits: from.get()?,
            static_rate: from.get()?,
            port_num: from.get()?,
        })
    }
}

/// Omits the attributes that a target cannot have: queue sizes, an alternate path, a rate limit.
impl Field for QpAttr {
    fn write(&self, to: &mut Vec<u8>) {
        self.qp_state.write(to);
        self.cur_qp_state.write(to);
        self.path_mig_state.write(to);
        for number in [self.qkey, self.rq_psn, self.sq_psn, self.dest_qp_num, self.qp_access_flags] {
            number.write(to);
        }
        self.ah_attr.write(to);
        self.pkey_index.write(to);
        self.en_sqd_async_notify.write(to);
        self.sq_draining.write(to);
        to.extend([self.path_mtu, self.max_rd_atomic, self.max_dest_rd_atomic, self.min_rnr_timer]);
        to.extend([self.port_num, self.timeout, self.retry_cnt, self.rnr_retry]);
    }
    fn read(from: &mut Reader<'_>) -> Option<Self> {
        Some(Self {
            qp_state: from.get()?,
            cur_qp_state: from.get()?,
            path_mig_state: from.get()?,
            qkey: from.get()?,
            rq_psn: from.get()?,
            sq_psn: from.get()?,
            dest_qp_num: from.get()?,
            qp_access_flags: from.get()?,
            ah_attr: from.get()?,
            pkey_index: from.get()?,
            en_sqd_async_notify: from.get()?,
            sq_draining: from.get()?,
            path_mtu: from.get()?,
            max_rd_atomic: from.get()?,
            max_dest_rd_atomic: from.get()?,
            min_rnr_timer: from.get()?,
            port_num: from.get()?,
            timeout: from.get()?,
            retry_cnt: from.get()?,
            rnr_retry: from.get()?,
            ..Self::default()
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Attributes in which every encoded field has a distinct value.
    pub(in crate::xrc) fn all_attributes() -> QpAttr {
        QpAttr {
            qp_state: QpState::Rtr,
            cur_qp_state: QpState::Init,
            path_mtu: 3,
            path_mig_state: PathMigState::Armed,
            qkey: 0x0102_0304,
            rq_psn: 0xff_fffe,
            sq_psn: 0x12_3456,
            dest_qp_num: 0xab_cdef,
            qp_access_flags: 0xf,
            ah_attr: AhAttr {
                grh: Some(GlobalRoute {
                    dgid: Gid::v4([10, 1, 2, 3]),
                    flow_label: 0xf_ffff,
                    sgid_index: 4,
                    hop_limit: 64,
                    traffic_class: 0x68,
                }),
                dlid: 0x4321,
                sl: 5,
                src_path_bits: 6,
                static_rate: 7,
                port_num: 1,
            },
            pkey_index: 0x0102,
            en_sqd_async_notify: true,
            sq_draining: true,
            max_rd_atomic: 8,
            max_dest_rd_atomic: 9,
            min_rnr_timer: 10,
            port_num: 1,
            timeout: 11,
            retry_cnt: 12,
            rnr_retry: 13,
            ..QpAttr::default()
        }
    }

    fn bytes(value: &impl Field) -> Vec<u8> {
        let mut bytes = Vec::new();
        value.write(&mut bytes);
        bytes
    }

    #[test]
    fn attributes_are_read_as_they_were_written() {
        let all = all_attributes();
        let none = QpAttr { ah_attr: AhAttr { grh: None, ..all.ah_attr }, ..QpAttr::default() };
        for attr in [all, none, QpAttr::default()] {
            let bytes = bytes(&attr);
            let mut reader = Reader(&bytes);
            assert_eq!(reader.get(), Some(attr));
            assert!(reader.0.is_empty());
            for len in 0..bytes.len() {
                assert_eq!(Reader(&bytes[..len]).get::<QpAttr>(), None, "{len} of {} bytes", bytes.len());
            }
        }
    }

    #[test]
    fn values_that_do_not_exist_are_none() {
        assert_eq!(Reader(&[2]).get::<bool>(), None);
        assert_eq!(Reader(&[7]).get::<QpState>(), None);
        assert_eq!(Reader(&[3]).get::<PathMigState>(), None);
        assert_eq!(Reader(&0x0100_0000_u32.to_ne_bytes()).get::<Qpn>(), None);
        assert_eq!(Reader(&0x00ff_ffff_u32.to_ne_bytes()).get(), Some(Qpn::new(0xff_ffff)));
        assert_eq!(Reader(&[0xff]).text(), None);
    }
}
