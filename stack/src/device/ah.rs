//! Address handles: the path to a peer of datagrams, checked once.

use std::sync::Arc;

use super::error::DeviceError;
use super::pd::PdCore;
use crate::id::Gid;
use crate::proto::address::UdAddress;
use crate::proto::attr::{AhAttr, GlobalRoute};
use crate::proto::state::PORT_NUM;

/// An address handle. It holds its protection domain, and nothing holds it: requests carry a copy.
#[derive(Debug)]
pub struct AhCore {
    pd: Arc<PdCore>,
    attr: AhAttr,
    address: UdAddress,
}

impl AhCore {
    pub(super) fn new(pd: Arc<PdCore>, attr: &AhAttr) -> Result<Self, DeviceError> {
        let gids = &pd.device().core().shared.gids;
        let grh = check(&gids.snapshot(), attr)?;
        // Its address stays as long as the handle, also when it is removed from the port.
        if gids.hold(grh.sgid_index.into()).is_none() {
            return Err(DeviceError::Dgid { dgid: grh.dgid, ours: Gid::default() });
        }
        Ok(Self { pd, attr: *attr, address: UdAddress::new(&grh, attr.sl) })
    }
    /// The protection domain.
    pub fn pd(&self) -> &Arc<PdCore> {
        &self.pd
    }
    /// What it was made of.
    pub fn attr(&self) -> &AhAttr {
        &self.attr
    }
    /// The path, to no queue pair yet.
    #[inline]
    pub fn address(&self) -> &UdAddress {
        &self.address
    }
}

impl Drop for AhCore {
    fn drop(&mut self) {
        if self.pd.device().is_forked() {
            return;
        }
        self.pd.device().core().shared.gids.release(self.address.sgid_index.into());
    }
}

/// Every value of an address vector; its global route.
fn check(gids: &[Gid], attr: &AhAttr) -> Result<GlobalRoute, DeviceError> {
    let range = |what, given: u64, min: u64, max: u64| {
        if (min..=max).contains(&given) { Ok(()) } else { Err(DeviceError::Range { what, given, min, max }) }
    };
    let grh = attr.grh.ok_or(DeviceError::NoGrh)?;
    range("ah_attr.port_num", attr.port_num.into(), PORT_NUM.into(), PORT_NUM.into())?;
    range("ah_attr.sl", attr.sl.into(), 0, 7)?;
    range("ah_attr.grh.flow_label", grh.flow_label.into(), 0, 0xf_ffff)?;
    range("ah_attr.grh.sgid_index", grh.sgid_index.into(), 0, gids.len() as u64 - 1)?;
    let source = gids[usize::from(grh.sgid_index)];
    if grh.dgid.is_zero() || source.is_zero() || source.as_v4().is_some() != grh.dgid.as_v4().is_some() {
        return Err(DeviceError::Dgid { dgid: grh.dgid, ours: source });
    }
    Ok(grh)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_vectors_are_checked() {
        let gids = [Gid::from_ip("fe80::1".parse().unwrap()), Gid::v4([10, 0, 0, 1])];
        let grh = GlobalRoute { dgid: Gid::v4([10, 0, 0, 2]), sgid_index: 1, ..GlobalRoute::default() };
        let good = AhAttr { grh: Some(grh), port_num: 1, ..AhAttr::default() };
        assert_eq!(check(&gids, &good), Ok(grh));
        let with = |change: fn(&mut GlobalRoute)| {
            let mut grh = grh;
            change(&mut grh);
            AhAttr { grh: Some(grh), ..good }
        };
        assert!(check(&gids, &with(|g| g.dgid = Gid::v4([239, 1, 2, 3]))).is_ok(), "groups too");
        assert!(matches!(check(&gids, &AhAttr { grh: None, ..good }), Err(DeviceError::NoGrh)));
        let ranges = [
            (AhAttr { port_num: 0, ..good }, "ah_attr.port_num"),
            (AhAttr { port_num: 2, ..good }, "ah_attr.port_num"),
            (AhAttr { sl: 8, ..good }, "ah_attr.sl"),
            (with(|g| g.flow_label = 1 << 20), "ah_attr.grh.flow_label"),
            (with(|g| g.sgid_index = 2), "ah_attr.grh.sgid_index"),
        ];
        for (attr, name) in ranges {
            let e = check(&gids, &attr).unwrap_err();
            assert!(matches!(e, DeviceError::Range { what, .. } if what == name), "{name}: {e}");
        }
        for attr in [with(|g| g.dgid = Gid::default()), with(|g| g.sgid_index = 0)] {
            assert!(matches!(check(&gids, &attr), Err(DeviceError::Dgid { .. })));
        }
    }
}
