//! Decides what becomes of a datagram that arrived at a process of a host: it is for this process, for another one, or for nobody. No
//! socket and no clock here: what is known of the host comes from [`Sorter`], so that the simulator decides as the port does.

use core::net::IpAddr;

use crate::id::Qpn;
use crate::registry::{Resident, Run};

use super::messages;
use super::passing::{self, HOPS};
use super::steering::{DEST_QP, PROBED};

pub use super::living::Living;
pub use super::messages::{Addressee, Processes, Whose, addressee};
pub use super::packet::{IpFields, Outgoing};
pub use super::passing::Passed;

/// What a process knows of itself and of the other processes of its host.
pub trait Sorter: Processes {
    /// The birth number of the registry.
    fn birth(&self) -> u128;
    /// Whether a datagram from this source address was sent by a process of this host.
    fn is_here(&self, from: IpAddr) -> bool;
    /// A datagram for a run of another process arrived here: the steering does not know the socket of that process.
    fn note_stray(&self, run: Run);
}

/// How a datagram arrived at the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrived {
    /// Its IP fields.
    pub ip: IpFields,
    /// The UDP port that it came from.
    pub port: u16,
    /// How often other processes have passed it on.
    pub hops: u8,
    /// Bytes in front of it: the header with which it was passed on.
    pub front: usize,
}

impl Arrived {
    /// As the socket says.
    pub fn new(ip: IpFields, port: u16) -> Self {
        Self { ip, port, hops: 0, front: 0 }
    }
}

/// What becomes of a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sorted {
    /// It is for this process.
    Ours,
    /// It is passed on to another process, with this header in front.
    PassOn(Passed),
    /// It is for the guest that has this run, which has no socket of the group: it goes on by a link.
    Guest(Run),
    /// It is dropped: no living process has its queue pair, or it was passed on too often.
    Stray,
    /// It is dropped: it was passed on, and is no datagram.
    Nothing,
    /// It is a probe of the steering.
    Probe,
}

/// Decides what becomes of a datagram, and how it arrived at the host if another process has passed it on.
#[inline]
pub fn sort(mut arrived: Arrived, datagram: &[u8], host: &impl Sorter) -> (Arrived, Sorted) {
    let mut datagram = datagram;
    if let Some(passed) = Passed::read(datagram)
        && has_passed(arrived.ip.src, &passed, host)
    {
        datagram = &datagram[passing::LEN..];
        arrived = Arrived { ip: passed.ip, port: passed.port, hops: passed.hops, front: passing::LEN };
        // The rest of the code relies on addresses of one family and on at least one byte.
        if datagram.is_empty() || arrived.ip.src.is_ipv6() != arrived.ip.dst.is_ipv6() {
            return (arrived, Sorted::Nothing);
        }
    }
    // A datagram too short for a destination queue pair is for nobody, and is counted like all others that are no RoCE packets.
    let Some(word) = datagram.get(DEST_QP..).and_then(|from| from.first_chunk()) else {
        return (arrived, Sorted::Ours);
    };
    let number = Qpn::new(u32::from_be_bytes(*word));
    if number == Qpn::MULTICAST {
        return (arrived, Sorted::Ours); // each process has a copy
    }
    if number == PROBED {
        return (arrived, Sorted::Probe);
    }
    let sorted = match whose(number, &arrived.ip, datagram, host) {
        Whose::Ours => Sorted::Ours,
        Whose::Other(run) if host.resident(run) == Resident::Guest => Sorted::Guest(run),
        Whose::Other(run) if arrived.hops < HOPS => Sorted::PassOn(Passed {
            birth: host.birth(),
            to: *run.numbers().start(),
            hops: arrived.hops + 1,
            ip: arrived.ip,
            port: arrived.port,
        }),
        Whose::Other(_) | Whose::Nobody => Sorted::Stray,
    };
    (arrived, sorted)
}

/// Which process a datagram to this queue pair number is for.
#[inline]
fn whose(number: Qpn, ip: &IpFields, datagram: &[u8], host: &impl Sorter) -> Whose {
    if number == Qpn::GSI {
        return whose_message(ip, datagram, host);
    }
    let run = Run::of(number.block());
    if number.block().is_reserved() || host.is_ours(run) {
        return Whose::Ours;
    }
    whose_stray(run, host)
}

#[cold]
fn whose_message(ip: &IpFields, datagram: &[u8], host: &impl Sorter) -> Whose {
    let addressee = addressee(host.birth(), ip, datagram);
    let whose = messages::whose(addressee, host);
    // The program should have chosen that process.
    if let (Addressee::Process(run), Whose::Other(to)) = (addressee, whose)
        && run == to
        && host.resident(run) != Resident::Guest
    {
        host.note_stray(run);
    }
    whose
}

#[cold]
fn whose_stray(run: Run, host: &impl Sorter) -> Whose {
    let resident = host.resident(run);
    if resident != Resident::Guest {
        host.note_stray(run);
    }
    if resident == Resident::Nobody { Whose::Nobody } else { Whose::Other(run) }
}

/// Whether a datagram that claims to have been passed on was passed on by a process of this host. No other host can send from such an
/// address, and no other user knows the birth number.
fn has_passed(from: IpAddr, passed: &Passed, host: &impl Sorter) -> bool {
    let is_true = host.is_here(from) && passed.birth == host.birth();
    let to = Run::of(passed.to.block());
    if is_true && !host.is_ours(to) {
        host.note_stray(to);
    }
    is_true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::RequestKey;
    use std::cell::Cell;

    /// Run 1 is this process's, run 2 that of a living process, run 4 that of a guest.
    #[derive(Default)]
    struct Host(Cell<Option<Run>>);

    fn run(index: usize) -> Run {
        Run::at(index).unwrap()
    }

    impl Processes for Host {
        fn is_ours(&self, of: Run) -> bool {
            of == run(1)
        }
        fn resident(&self, of: Run) -> Resident {
            match of.index() {
                2 => Resident::Owner,
                4 => Resident::Guest,
                _ => Resident::Nobody,
            }
        }
        fn serves(&self) -> bool {
            true
        }
        fn keeper(&self) -> Option<Run> {
            None
        }
        fn listener(&self, _: u32, _: IpAddr) -> Option<Run> {
            None
        }
        fn request(&self, _: RequestKey) -> Option<Run> {
            None
        }
        fn note_request(&self, _: RequestKey, _: Run) {}
    }

    impl Sorter for Host {
        fn birth(&self) -> u128 {
            7 << 70
        }
        fn is_here(&self, from: IpAddr) -> bool {
            from == ip().dst
        }
        fn note_stray(&self, run: Run) {
            self.0.set(Some(run));
        }
    }

    fn ip() -> IpFields {
        let [src, dst] = ["10.0.0.9", "10.0.0.1"].map(|addr| addr.parse().unwrap());
        IpFields { src, dst, traffic_class: 3, hop_limit: 64 }
    }

    fn to(number: Qpn) -> [u8; 16] {
        let mut datagram = [4; 16];
        datagram[DEST_QP..DEST_QP + 4].copy_from_slice(&number.get().to_be_bytes());
        datagram
    }

    fn first(index: usize) -> Qpn {
        *run(index).numbers().start()
    }

    // Goal: what was passed on arrives as it had arrived at the host; it is passed on again so many times, and not for ever.
    #[test]
    fn a_datagram_is_passed_on_to_the_process_that_has_its_number() {
        let (host, arrived) = (Host::default(), Arrived::new(ip(), 77));
        let sorted = |datagram: &[u8]| sort(arrived, datagram, &host).1;
        for ours in [first(1), Qpn::new(5), Qpn::MULTICAST] {
            assert_eq!(sorted(&to(ours)), Sorted::Ours);
        }
        assert_eq!((sorted(&[4; 7]), sorted(&to(PROBED))), (Sorted::Ours, Sorted::Probe));
        assert_eq!((sorted(&to(first(3))), host.0.take()), (Sorted::Stray, Some(run(3))), "nobody has it");
        assert_eq!((sorted(&to(first(4))), host.0.take()), (Sorted::Guest(run(4)), None));
        let Sorted::PassOn(mut passed) = sorted(&to(first(2))) else { panic!("another process has it") };
        assert_eq!((passed.to, passed.hops, passed.ip, passed.port), (first(2), 1, ip(), 77));
        let here = Arrived::new(IpFields { src: ip().dst, ..ip() }, 5);
        let again = |passed: &Passed, number| sort(here, &[&passed.write()[..], &to(number)].concat(), &host);
        let whole = Arrived { hops: 1, front: passing::LEN, ..arrived };
        assert_eq!(again(&passed, first(1)), (whole, Sorted::Ours));
        for hops in 1..=HOPS {
            passed.hops = hops;
            let is_on = matches!(again(&passed, first(2)).1, Sorted::PassOn(next) if next.hops == hops + 1);
            assert_eq!(is_on, hops < HOPS, "{hops}");
        }
        assert_eq!(again(&passed, first(2)).1, Sorted::Stray);
        assert_eq!(sort(here, &passed.write(), &host).1, Sorted::Nothing);
        // From another host, or of another registry: what it is by its contents, whose first bytes name a number of run 2.
        passed.hops = 0;
        let forged = [&passed.write()[..], &to(first(1))].concat();
        assert!(matches!(sort(arrived, &forged, &host), (same, Sorted::PassOn(_)) if same == arrived));
        passed.birth = 1;
        assert!(matches!(again(&passed, first(1)), (same, Sorted::PassOn(_)) if same == here));
    }
}
