//! Memory of the program that a post copies, named by address instead of a key.

#![allow(unsafe_code, reason = "an address is all that there is of the memory")]

use stack::device::{Sge, racy};

/// Bytes of this process that a request sends inline ([`SendWr::inline_local`](crate::SendWr::inline_local)): the concatenation of the
/// elements. As with `IBV_SEND_INLINE` of `ibv_post_send`, the keys of the elements are ignored.
#[derive(Clone, Copy, Debug)]
pub struct LocalBytes<'a>(&'a [Sge]);

impl<'a> LocalBytes<'a> {
    /// The bytes that the elements name. They may be in registered memory, and may change while they are copied.
    ///
    /// # Safety
    /// Until the call that posts the request returns, the bytes of each element are mapped and readable.
    #[inline]
    pub const unsafe fn new(sges: &'a [Sge]) -> Self {
        Self(sges)
    }
    /// The number of elements.
    #[inline]
    pub(crate) fn elements(self) -> usize {
        self.0.len()
    }
    /// The total number of bytes.
    #[inline]
    pub(crate) fn len(self) -> usize {
        self.0.iter().map(|sge| sge.length as usize).fold(0, usize::saturating_add)
    }
    /// Copies the bytes to the beginning of `body`.
    ///
    /// # Panics
    /// If `body` is too short.
    #[inline]
    pub(crate) fn copy_to(self, body: &mut [u8]) {
        let mut rest = body;
        for sge in self.0 {
            let (here, behind) = rest.split_at_mut(sge.length as usize);
            // SAFETY: the creator of the list guarantees that the bytes are readable. `here` has the same length, and is borrowed for
            // writing, so it is other memory. The source may be written during the copy: `racy` allows that.
            unsafe { racy::read(sge.addr as *const u8, here.as_mut_ptr(), here.len()) };
            rest = behind;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errno::EINVAL;
    use crate::{Context, DeviceConfig, PostErrorKind, QpInitAttr, RcOptions, SendWr, Wc};

    fn sge(bytes: &[u8]) -> Sge {
        Sge { addr: bytes.as_ptr() as u64, length: bytes.len() as u32, lkey: 0xdead_beef }
    }

    // Here because this file may use `unsafe`.
    #[test]
    fn inline_data_is_gathered_from_memory_without_keys() {
        let context = Context::open(DeviceConfig::loopback()).unwrap();
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(8).unwrap());
        let init = QpInitAttr::rc(&cq, &cq);
        let qp =
            pd.create_qp(&QpInitAttr { cap: crate::QpCap { max_send_sge: 3, ..init.cap }, ..init }).unwrap();
        qp.connect_rc(&qp.endpoint(1).unwrap(), &RcOptions::default()).unwrap();
        let mr = pd.reg_mr(64, crate::Access::LOCAL_WRITE | crate::Access::REMOTE_WRITE).unwrap();
        let list = [sge(b"from "), sge(b""), sge(b"memory")];
        // SAFETY: the texts are static.
        let bytes = unsafe { LocalBytes::new(&list) };
        let write = SendWr::write(1, &[], mr.addr(), mr.rkey()).signaled();
        qp.post_send(&[write.inline_local(bytes)]).unwrap();
        let mut done = [Wc::default()];
        while cq.poll(&mut done).unwrap() == 0 {}
        assert!(done[0].is_ok(), "{done:?}");
        assert_eq!(mr.to_vec(0..12).unwrap(), b"from memory\0");

        let (many, long) = ([sge(b"x"); 4], [sge(&[0; 209])]);
        // SAFETY: the bytes are static.
        let (many, long) = unsafe { (LocalBytes::new(&many), LocalBytes::new(&long)) };
        let refused = |bytes| qp.post_send(&[write.inline_local(bytes)]).unwrap_err();
        assert_eq!(refused(many).kind, PostErrorKind::TooManySge { given: 4, max: 3 });
        assert_eq!(refused(long).kind, PostErrorKind::InlineTooLong { given: 209, max: 208 });
        assert_eq!(refused(long).errno(), EINVAL);
    }
}
