//! Attributes of a target, as processes exchange them.

use super::bytes::{Field, Reader};
use super::refusal::{Reason, Refusal};
use crate::device::{AttrMask, Device, DeviceError, Gid, QpAttr};

/// Attributes, with the local address that they use: its GID index differs between processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Attributes {
    /// The attributes; the index of the local address is meaningless here.
    pub attr: QpAttr,
    /// The local address; zero if the attributes contain none.
    pub source: Gid,
}

impl Attributes {
    /// The attributes that the mask names, for sending from this device.
    ///
    /// # Errors
    /// [`DeviceError::Range`]: the device has no address at the index.
    pub fn of(device: &Device, attr: &QpAttr, mask: AttrMask) -> Result<Self, DeviceError> {
        let route = attr.ah_attr.grh.filter(|_| mask.contains(AttrMask::AV));
        let Some(route) = route else { return Ok(Self { attr: *attr, source: Gid::default() }) };
        let gids = device.gids();
        let source = gids.get(usize::from(route.sgid_index)).copied().filter(|gid| !gid.is_zero());
        let (given, max) = (route.sgid_index.into(), gids.len() as u64 - 1);
        let source = source.ok_or(DeviceError::Range { what: "sgid_index", given, min: 0, max })?;
        Ok(Self { attr: *attr, source })
    }

    /// The attributes, for use in this device.
    ///
    /// # Errors
    /// The device lacks the local address.
    pub fn on(&self, device: &Device) -> Result<QpAttr, Refusal> {
        let mut attr = self.attr;
        if let (Some(route), false) = (&mut attr.ah_attr.grh, self.source.is_zero()) {
            let index = device.gids().iter().position(|gid| *gid == self.source);
            let index = index.and_then(|index| u8::try_from(index).ok());
            route.sgid_index = index.ok_or_else(|| {
                let text = format!(
                    "another process of this host does not have the address {} of this one, as its device was opened with others: \
                     set ROCE_ADDRS alike for all",
                    self.source
                );
                Refusal::new(Reason::Invalid, text)
            })?;
        }
        Ok(attr)
    }
}

impl From<QpAttr> for Attributes {
    /// Attributes without an address.
    fn from(attr: QpAttr) -> Self {
        Self { attr, source: Gid::default() }
    }
}

impl Field for Attributes {
    fn write(&self, to: &mut Vec<u8>) {
        self.attr.write(to);
        self.source.write(to);
    }
    fn read(from: &mut Reader<'_>) -> Option<Self> {
        Some(Self { attr: from.get()?, source: from.get()? })
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::super::bytes::tests::all_attributes;
    use super::*;
    use crate::device::DeviceConfig;

    // Goal: the GID tables of two processes may differ in their order.
    #[test]
    fn an_address_has_its_own_index_in_each_process() {
        let open = |addrs: [[u8; 4]; 2]| {
            let config = addrs.iter().fold(DeviceConfig::default(), |config, addr| config.addr(*addr, 24));
            Device::open(config).unwrap()
        };
        let (one, other) = ([192, 0, 2, 1], [192, 0, 2, 2]);
        let (a, b) = (open([one, other]), open([other, one]));
        let mut attr = all_attributes();
        let index = |attr: QpAttr| attr.ah_attr.grh.unwrap().sgid_index;
        attr.ah_attr.grh.as_mut().unwrap().sgid_index = 1;
        let said = Attributes::of(&a, &attr, AttrMask::AV).unwrap();
        assert_eq!((index(said.on(&b).unwrap()), said.on(&a)), (2, Ok(attr)));
        // Without an address no index needs to be translated.
        assert_eq!(Attributes::of(&a, &attr, AttrMask::STATE).unwrap().on(&b), Ok(attr));
        assert_eq!(Attributes::from(QpAttr::default()).on(&b), Ok(QpAttr::default()));
        let third = open([other, [192, 0, 2, 3]]);
        assert!(said.on(&third).unwrap_err().text.contains("::ffff:192.0.2.1"));
        attr.ah_attr.grh.as_mut().unwrap().sgid_index = 3;
        assert!(matches!(Attributes::of(&a, &attr, AttrMask::AV), Err(DeviceError::Range { given: 3, .. })));
    }
}
