//! Port bindings of identifiers, by port space.

use std::collections::HashMap;
use std::net::IpAddr;

use super::error::CmError;
use super::param::PortSpace;

/// Ports for identifiers that ask for any (RFC 6335 6).
const EPHEMERAL: std::ops::RangeInclusive<u16> = 49152..=65535;

/// One identifier's binding of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Bound {
    id: u64,
    /// `None`: every local address of `family`.
    addr: Option<IpAddr>,
    family: Family,
    reuse: bool,
}

/// The IP versions that an identifier answers to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Family {
    V4,
    V6,
    /// Bound to the IPv6 wildcard, without AFONLY.
    Both,
}

impl Bound {
    /// Whether the two cannot share the port.
    fn clashes(&self, other: &Self) -> bool {
        let other_family =
            matches!((self.family, other.family), (Family::V4, Family::V6) | (Family::V6, Family::V4));
        let other_addr = matches!((self.addr, other.addr), (Some(a), Some(b)) if a != b);
        let shared = self.reuse && other.reuse;
        !(other_family || other_addr || shared)
    }
}

/// Ports in use.
#[derive(Debug, Default)]
pub(super) struct Ports {
    bound: HashMap<(PortSpace, u16), Vec<Bound>>,
}

impl Ports {
    /// Binds `id` to `port`, to any free one if that is 0. `random` sets where the search begins.
    ///
    /// # Errors
    /// [`CmError::AddrInUse`], [`CmError::NoPort`].
    pub(super) fn bind(
        &mut self,
        id: u64,
        space: PortSpace,
        (addr, family): (Option<IpAddr>, Family),
        port: u16,
        reuse: bool,
        random: u32,
    ) -> Result<u16, CmError> {
        let wanted = Bound { id, addr, family, reuse };
        if port != 0 {
            let there = self.bound.entry((space, port)).or_default();
            if there.iter().any(|b| b.clashes(&wanted)) {
                return Err(CmError::AddrInUse { port });
            }
            there.push(wanted);
            return Ok(port);
        }
        let count = EPHEMERAL.len();
        for step in 0..count {
            let port = EPHEMERAL.start() + ((random as usize).wrapping_add(step) % count) as u16;
            let there = self.bound.entry((space, port)).or_default();
            if there.is_empty() {
                there.push(wanted);
                return Ok(port);
            }
        }
        Err(CmError::NoPort(count))
    }

    /// Removes the binding of `id` to a port.
    pub(super) fn release(&mut self, id: u64, space: PortSpace, port: u16) {
        if let Some(there) = self.bound.get_mut(&(space, port)) {
            there.retain(|b| b.id != id);
            if there.is_empty() {
                self.bound.remove(&(space, port));
            }
        }
    }

    /// Other identifiers whose binding clashes with that of `id`, disregarding `REUSEADDR`: while there is one, `id` may not
    /// listen.
    pub(super) fn others(&self, id: u64, space: PortSpace, port: u16) -> impl Iterator<Item = u64> {
        let there = self.bound.get(&(space, port));
        let mine = there.and_then(|t| t.iter().find(|b| b.id == id)).copied();
        there.into_iter().flatten().filter_map(move |b| {
            let apart = mine.is_none_or(|m| !Bound { reuse: false, ..m }.clashes(b));
            (b.id != id && !apart).then_some(b.id)
        })
    }

    /// Ports in use.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.bound.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TCP: PortSpace = PortSpace::Tcp;
    const ANY: (Option<IpAddr>, Family) = (None, Family::V4);

    fn v4(last: u8) -> (Option<IpAddr>, Family) {
        (Some(IpAddr::from([10, 0, 0, last])), Family::V4)
    }

    #[test]
    fn a_port_has_one_owner_for_each_address() {
        let mut ports = Ports::default();
        assert_eq!(ports.bind(1, TCP, v4(1), 7, false, 0), Ok(7));
        assert_eq!(ports.bind(2, TCP, v4(1), 7, false, 0), Err(CmError::AddrInUse { port: 7 }));
        assert_eq!(ports.bind(2, TCP, ANY, 7, false, 0), Err(CmError::AddrInUse { port: 7 }));
        assert_eq!(
            ports.bind(2, TCP, v4(1), 7, true, 0),
            Err(CmError::AddrInUse { port: 7 }),
            "both must allow it"
        );
        assert_eq!(ports.bind(2, TCP, v4(2), 7, false, 0), Ok(7));
        assert_eq!(ports.bind(3, PortSpace::Udp, v4(1), 7, false, 0), Ok(7), "another port space");
        assert_eq!(ports.bind(4, TCP, (None, Family::V6), 7, false, 0), Ok(7), "another IP version");
        assert!(ports.bind(5, TCP, (None, Family::Both), 7, false, 0).is_err());
        for id in 1..=4 {
            ports.release(id, TCP, 7);
        }
        assert_eq!(ports.bind(5, TCP, (None, Family::Both), 7, false, 0), Ok(7));
        ports.release(5, TCP, 7);
        ports.release(3, PortSpace::Udp, 7);
        assert_eq!(ports.len(), 0);
    }

    #[test]
    fn reuse_lets_several_bind_and_names_the_others() {
        let mut ports = Ports::default();
        for id in 1..=3 {
            assert_eq!(ports.bind(id, TCP, v4(1), 7, true, 0), Ok(7));
        }
        assert_eq!(ports.bind(4, TCP, v4(2), 7, true, 0), Ok(7));
        assert_eq!(ports.others(1, TCP, 7).collect::<Vec<_>>(), [2, 3]);
        assert_eq!(ports.others(4, TCP, 7).count(), 0);
    }

    #[test]
    fn every_ephemeral_port_is_given_out_once() {
        let mut ports = Ports::default();
        let count = EPHEMERAL.len();
        let mut seen = std::collections::HashSet::new();
        for id in 0..count as u64 {
            let port = ports.bind(id, TCP, ANY, 0, false, 0xffff_fff0_u32.wrapping_add(id as u32)).unwrap();
            assert!(EPHEMERAL.contains(&port) && seen.insert(port));
        }
        assert_eq!(ports.bind(0, TCP, ANY, 0, false, 5), Err(CmError::NoPort(count)));
        let third = ports.bound.iter().find(|(_, b)| b[0].id == 3).map(|((_, port), _)| *port).unwrap();
        ports.release(3, TCP, third);
        assert_eq!(ports.bind(0, TCP, ANY, 0, false, 5), Ok(third));
    }
}
