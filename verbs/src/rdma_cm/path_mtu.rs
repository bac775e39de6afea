//! The path MTU of connections whose two directions have different routes.
//!
//! A REQ contains one path MTU for both directions, but its sender knows only its own route. Therefore the passive side refuses a REQ whose
//! path MTU is too large for its route back, and names the path MTU that fits (IBA 12.6.7.2, reason 26). The active side then requests the
//! connection again with that one.

use stack::device::cm::{ConnId, Reason, Reject, Request};
use stack::device::{Device, Instant};

use super::refusal::Refusal;
use super::service::State;

/// Checks that packets of the requested path MTU fit the route back.
///
/// # Errors
/// The refusal, with the largest path MTU that fits.
pub(super) fn fits_way_back(device: &Device, request: &Request) -> Result<(), Reject> {
    let largest = device.path_mtu_to(&request.path.dgid);
    if request.mtu <= largest {
        return Ok(());
    }
    Err(Reject { reason: Reason::INVALID_MTU, info: vec![largest as u8], private_data: Vec::new() })
}

impl State {
    /// Requests a refused connection again, with the path MTU that the peer named. Each request has a smaller path MTU than the one before,
    /// so their number is limited.
    ///
    /// Returns `false` if the refusal is to be reported to the program: it has another reason, names no smaller path MTU, or the program
    /// has set the path MTU.
    pub(super) fn ask_again(&mut self, now: Instant, old: ConnId, refusal: &Refusal) -> bool {
        let Some(smaller) = refusal.peer_mtu else { return false };
        let Some(&number) = self.conns.get(&old) else { return false };
        let Some(id) = self.ids.get_mut(&number) else { return false };
        if id.options.path_mtu.is_some() {
            return false;
        }
        let Some(asked) = id.asked.as_mut().filter(|asked| smaller < asked.mtu) else { return false };
        asked.mtu = smaller;
        // Fails if a limit of the machine has been reached meanwhile.
        let Ok(new) = self.machine.connect(now, asked) else { return false };
        id.conn = Some(new);
        self.conns.remove(&old);
        self.conns.insert(new, number);
        true
    }
}

#[cfg(test)]
mod tests {
    use stack::device::cm::{Config, Connect, Machine, Path, ServiceId};
    use stack::device::{Gid, Mtu, QpType, Qpn};

    use super::super::param::PortSpace;
    use super::super::record::Id;
    use super::*;

    // Goal: a peer that always refuses gets at most one request for each smaller path MTU, whatever it names.
    #[test]
    fn each_request_asks_for_less_than_the_one_before() {
        let (now, number) = (Instant::ZERO, 7);
        let [sgid, dgid] = [1, 2].map(|n| Gid::from_ip([10, 0, 0, n].into()));
        let mut state = State::new(Machine::new(Config::default()), None);
        let path = Path { sgid, dgid, hop_limit: 64, ..Path::default() };
        let connect = Connect::new(ServiceId(1), path, Qpn::new(9));
        let connect = Connect { mtu: Mtu::Mtu2048, ..connect };
        let mut conn = state.machine.connect(now, &connect).unwrap();
        let mut id = Id::new(PortSpace::Tcp, QpType::Rc, 0);
        (id.conn, id.asked) = (Some(conn), Some(Box::new(connect)));
        state.ids.insert(number, id);
        state.conns.insert(conn, number);

        // The machine forgets a refused request before it reports the refusal.
        let mut refused = |reason, named: &[Mtu]| {
            let info: Vec<u8> = named.iter().map(|mtu| *mtu as u8).collect();
            let refusal = Refusal::rej(reason, &info, None);
            state.machine.destroy(now, conn).unwrap();
            let again = state.ask_again(now, conn, &refusal);
            let id = &state.ids[&number];
            if again {
                conn = id.conn.unwrap();
            } else {
                conn = state.machine.connect(now, id.asked.as_ref().unwrap()).unwrap();
                state.conns = [(conn, number)].into();
            }
            assert_eq!(state.conns.len(), 1);
            (again, state.ids[&number].asked.as_ref().unwrap().mtu)
        };
        let mtu = Reason::INVALID_MTU;
        assert_eq!(refused(mtu, &[]), (false, Mtu::Mtu2048));
        assert_eq!(refused(mtu, &[Mtu::Mtu4096]), (false, Mtu::Mtu2048));
        assert_eq!(refused(mtu, &[Mtu::Mtu2048]), (false, Mtu::Mtu2048));
        assert_eq!(refused(Reason::NO_RESOURCES, &[Mtu::Mtu1024]), (false, Mtu::Mtu2048));
        assert_eq!(refused(mtu, &[Mtu::Mtu1024]), (true, Mtu::Mtu1024));
        assert_eq!(refused(mtu, &[Mtu::Mtu1024]), (false, Mtu::Mtu1024));
        assert_eq!(refused(mtu, &[Mtu::Mtu256]), (true, Mtu::Mtu256));
        assert_eq!(refused(mtu, &[Mtu::Mtu256]), (false, Mtu::Mtu256));
    }
}
