//! Port bindings of identifiers, by port space: those of this process, coordinated with other processes that have the same addresses.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use stack::device::cm::ServiceId;
use stack::device::{Beside, Binding, Claim, Clash, Registry};

pub(super) use stack::device::Family;

use super::error::CmError;
use super::param::PortSpace;

/// The ports for identifiers that request any port (RFC 6335 6).
const EPHEMERAL: std::ops::RangeInclusive<u16> = 49152..=65535;

/// One identifier's binding of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Bound {
    id: u64,
    binding: Binding,
    /// The entry that other processes see.
    claim: Option<Claim>,
}

/// The bound ports.
#[derive(Debug, Default)]
pub(super) struct Ports {
    bound: HashMap<(PortSpace, u16), Vec<Bound>>,
    /// The host's registry, if other processes have the same addresses.
    host: Option<Arc<Registry>>,
}

impl Ports {
    /// Creates the table, with the host's registry if other processes have the same addresses.
    pub(super) fn of(host: Option<Arc<Registry>>) -> Self {
        Self { bound: HashMap::new(), host }
    }

    /// Binds `id` to `port`, or to any free port if `port` is 0. `random` determines where the search begins. Returns the port.
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
        let wanted = |port| Binding { service: service(space, port), addr, family, reuse };
        if port != 0 {
            let there = self.bound.get(&(space, port)).map_or(&[][..], |there| there);
            if there.iter().any(|b| b.binding.clashes(&wanted(port))) {
                return Err(CmError::AddrInUse { port });
            }
            self.claim(id, space, wanted(port), Beside::Clashing).map_err(|_| CmError::AddrInUse { port })?;
            return Ok(port);
        }
        let count = EPHEMERAL.len();
        for step in 0..count {
            let port = EPHEMERAL.start() + ((random as usize).wrapping_add(step) % count) as u16;
            let is_free = self.bound.get(&(space, port)).is_none_or(Vec::is_empty);
            if is_free && self.claim(id, space, wanted(port), Beside::Nobody).is_ok() {
                return Ok(port);
            }
        }
        Err(CmError::NoPort(count))
    }

    /// Binds `id` in this process and in the host's registry.
    fn claim(&mut self, id: u64, space: PortSpace, binding: Binding, beside: Beside) -> Result<(), Clash> {
        let claim = self.host.as_ref().map(|host| host.bind(&binding, beside)).transpose()?;
        let port = ServiceId(binding.service.into()).port();
        self.bound.entry((space, port)).or_default().push(Bound { id, binding, claim });
        Ok(())
    }

    /// Makes the binding of `id` to a port listen. Other processes of the host send requests for it here once they know of it.
    ///
    /// # Errors
    /// [`CmError::AddrInUse`] if another identifier's binding conflicts with it, with or without `REUSEADDR`.
    pub(super) fn listen(&mut self, id: u64, space: PortSpace, port: u16) -> Result<(), CmError> {
        let in_use = || CmError::AddrInUse { port };
        if self.others(id, space, port).next().is_some() {
            return Err(in_use());
        }
        let there = self.bound.get_mut(&(space, port));
        let mine = there.and_then(|there| there.iter_mut().find(|b| b.id == id));
        if let (Some(host), Some(Bound { claim: Some(claim), .. })) = (&self.host, mine) {
            *claim = host.listen(*claim).map_err(|_| in_use())?;
        }
        Ok(())
    }

    /// Removes the binding of `id` to a port.
    pub(super) fn release(&mut self, id: u64, space: PortSpace, port: u16) {
        if let Some(there) = self.bound.get_mut(&(space, port)) {
            for Bound { claim, .. } in there.extract_if(.., |b| b.id == id) {
                if let (Some(host), Some(claim)) = (&self.host, claim) {
                    host.release(claim);
                }
            }
            if there.is_empty() {
                self.bound.remove(&(space, port));
            }
        }
    }

    /// Other identifiers of this process whose binding conflicts with that of `id`, disregarding `REUSEADDR`. While there is one, `id` may
    /// not listen.
    fn others(&self, id: u64, space: PortSpace, port: u16) -> impl Iterator<Item = u64> {
        let there = self.bound.get(&(space, port));
        let mine = there.and_then(|t| t.iter().find(|b| b.id == id)).copied();
        there.into_iter().flatten().filter_map(move |b| {
            let apart = mine.is_none_or(|m| !Binding { reuse: false, ..m.binding }.clashes(&b.binding));
            (b.id != id && !apart).then_some(b.id)
        })
    }

    /// The number of bound ports.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.bound.len()
    }
}

impl Drop for Ports {
    /// Releases the bindings of identifiers that are left when connection management ends.
    fn drop(&mut self) {
        if let Some(host) = &self.host {
            self.bound
                .values()
                .flatten()
                .filter_map(|bound| bound.claim)
                .for_each(|claim| host.release(claim));
        }
    }
}

/// The service number of a port, as other processes know it.
fn service(space: PortSpace, port: u16) -> u32 {
    ServiceId::new(space.cm(), port).0 as u32
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
