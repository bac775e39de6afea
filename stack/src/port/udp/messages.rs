//! Decides which process of a host a message to queue pair 1 is for. The kernel decides the same by a BPF program
//! ([`steering`](super::steering)), as far as such a program can.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::packet::IpFields;
use super::steering::{ATTRIBUTE, BODY, MAD, REMOTE_ID, REQ, REQUEST_ID, SERVICE, SIDR_REP, SIDR_REQ};
use crate::registry::{RequestKey, Resident, Run};

/// UD SEND only (IBA 9.2.1): no message of connection management has another opcode.
const SEND_ONLY: u8 = 0x64;
/// Reject.
const REJ: u16 = 0x12;
/// Bytes of a MAD.
const MAD_LEN: usize = 256;
/// Communication management, of the class of a MAD.
const CLASS_CM: u8 = 0x07;
/// Offset of a peer's own communication id or request id, in all messages except SIDR_REP.
const PEERS_ID: usize = BODY;
/// Offset of the header of `rdma_cm` (IBA annex A11) in the private data of REQ and SIDR_REQ.
const REQ_HEADER: usize = BODY + 140;
const SIDR_REQ_HEADER: usize = BODY + 16;

/// Whom a message is for, by its contents.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Addressee {
    /// The process that has this run.
    Process(Run),
    /// The process that listens for this service at this address, or that has had the same request before.
    Service(u32, IpAddr, RequestKey),
    /// The process that has had this request.
    Request(RequestKey),
    /// No process in particular.
    Anyone,
}

/// Reads the addressee of a datagram to queue pair 1.
pub fn addressee(birth: u128, ip: &IpFields, datagram: &[u8]) -> Addressee {
    let is_mad = datagram.len() >= MAD + MAD_LEN && datagram[0] == SEND_ONLY && datagram[MAD + 1] == CLASS_CM;
    if !is_mad {
        return Addressee::Anyone;
    }
    let half = |at: usize| u16::from_be_bytes([datagram[at], datagram[at + 1]]);
    let word = |at: usize| u32::from(half(at)) << 16 | u32::from(half(at + 2));
    let attribute = half(ATTRIBUTE);
    let key = |is_sidr| RequestKey::new(birth, ip.src, is_sidr, word(PEERS_ID));
    let of_id = |id: u32| Addressee::Process(Run::of_communication_id(id));
    match attribute {
        REQ | SIDR_REQ => {
            let is_sidr = attribute == SIDR_REQ;
            let header = if is_sidr { SIDR_REQ_HEADER } else { REQ_HEADER };
            match word(SERVICE - 4) {
                // The service ids of `rdma_cm` are below 2^32.
                0 => {
                    let dst = asked_for(&datagram[header..]).unwrap_or(ip.dst);
                    Addressee::Service(word(SERVICE), dst, key(is_sidr))
                }
                _ => Addressee::Anyone,
            }
        }
        SIDR_REP => of_id(word(REQUEST_ID)),
        // From a peer that has given up before it got an answer.
        REJ if word(REMOTE_ID) == 0 => Addressee::Request(key(false)),
        _ => of_id(word(REMOTE_ID)),
    }
}

/// The destination address in a header of `rdma_cm`.
fn asked_for(header: &[u8]) -> Option<IpAddr> {
    let header: &[u8; 36] = header.first_chunk()?;
    let addr: [u8; 16] = *header[20..].first_chunk()?;
    match (header[0], header[1] >> 4) {
        (0, 4) => Some(Ipv4Addr::from(*addr[12..].first_chunk::<4>()?).into()),
        (0, 6) => Some(IpAddr::V6(Ipv6Addr::from(addr)).to_canonical()),
        _ => None,
    }
}

/// What is known of the processes of a host.
pub trait Processes {
    /// Whether this process has a run.
    fn is_ours(&self, run: Run) -> bool;
    /// Whose process has a run.
    fn resident(&self, run: Run) -> Resident;
    /// Whether a living process has a run.
    fn lives(&self, run: Run) -> bool {
        self.resident(run) != Resident::Nobody
    }
    /// Whether this process has a queue pair 1.
    fn serves(&self) -> bool;
    /// A process that has a queue pair 1.
    fn keeper(&self) -> Option<Run>;
    /// The process that listens for a service at an address.
    fn listener(&self, service: u32, dst: IpAddr) -> Option<Run>;
    /// The process that had a request.
    fn request(&self, key: RequestKey) -> Option<Run>;
    /// Records which process gets a request.
    fn note_request(&self, key: RequestKey, run: Run);
}

/// Which process gets a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whose {
    /// This one.
    Ours,
    /// Another one.
    Other(Run),
    /// None: nobody here has a queue pair 1.
    Nobody,
}

/// Decides which process gets a message.
pub(super) fn whose(addressee: Addressee, host: &impl Processes) -> Whose {
    let found = match addressee {
        Addressee::Process(run) => Some(run),
        Addressee::Service(service, dst, key) => {
            let before = host.request(key).filter(|run| host.is_ours(*run) || host.lives(*run));
            before.or_else(|| {
                let found = host.listener(service, dst)?;
                host.note_request(key, found);
                Some(found)
            })
        }
        Addressee::Request(key) => host.request(key),
        Addressee::Anyone => None,
    };
    match found {
        Some(run) if host.is_ours(run) => Whose::Ours,
        Some(run) if host.lives(run) => Whose::Other(run),
        // The message gets an answer nevertheless: that nobody listens, or that the connection has ended.
        _ if host.serves() => Whose::Ours,
        _ => match host.keeper() {
            Some(run) if host.is_ours(run) => Whose::Ours,
            Some(run) => Whose::Other(run),
            None => Whose::Nobody,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    const BIRTH: u128 = 77 << 70;

    fn run(index: usize) -> Run {
        Run::at(index).unwrap()
    }

    fn ip() -> IpFields {
        let [src, dst] = ["10.0.0.9", "10.0.0.1"].map(|addr| addr.parse().unwrap());
        IpFields { src, dst, traffic_class: 0, hop_limit: 64 }
    }

    /// A datagram with a message that has these bytes at these offsets, counted as in the tables of IBA 12.6.
    fn datagram(attribute: u16, fields: &[(usize, &[u8])]) -> Vec<u8> {
        let mut bytes = vec![0; 12 + 8 + 256 + 4];
        bytes[0] = 0x64;
        bytes[20..24].copy_from_slice(&[1, 7, 2, 3]);
        bytes[36..38].copy_from_slice(&attribute.to_be_bytes());
        for (at, field) in fields {
            bytes[44 + at..44 + at + field.len()].copy_from_slice(field);
        }
        bytes
    }

    fn of(attribute: u16, fields: &[(usize, &[u8])]) -> Addressee {
        addressee(BIRTH, &ip(), &datagram(attribute, fields))
    }

    #[test]
    fn each_message_says_whom_it_is_for() {
        let id = (run(300).communication_ids().start() | 0x5a).to_be_bytes();
        let to = Addressee::Process(run(300));
        // MRA, REJ, REP, RTU, DREQ, DREP, LAP, APR: local id, remote id.
        for attribute in [0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x19, 0x1a] {
            assert_eq!(of(attribute, &[(0, &[0, 0, 0, 5]), (4, &id)]), to, "{attribute:#x}");
        }
        assert_eq!(of(0x18, &[(0, &id)]), to);
        let key = |is_sidr| RequestKey::new(BIRTH, ip().src, is_sidr, 5);
        assert_eq!(of(0x12, &[(0, &[0, 0, 0, 5])]), Addressee::Request(key(false)));
        // REQ and SIDR_REQ: local id, service id, the header of rdma_cm with version, IP version, port, source and destination.
        let service = [0, 0, 0, 0, 1, 6, 0x1b, 0x58];
        for (attribute, at, is_sidr) in [(0x10, 140, false), (0x17, 16, true)] {
            let asked = |header: &[u8]| of(attribute, &[(0, &[0, 0, 0, 5]), (8, &service), (at, header)]);
            let at_address = |dst: &str| Addressee::Service(0x0106_1b58, dst.parse().unwrap(), key(is_sidr));
            let mut header = [0; 36];
            header[1] = 0x40;
            header[32..].copy_from_slice(&[10, 0, 0, 2]);
            assert_eq!(asked(&header), at_address("10.0.0.2"));
            header[1] = 0x60;
            header[20] = 0xfd;
            assert_eq!(asked(&header), at_address("fd00::a00:2"));
            for (byte, nonsense) in [(0, 1), (1, 0x50)] {
                let mut header = header;
                header[byte] = nonsense;
                assert_eq!(asked(&header), at_address("10.0.0.1"));
            }
            assert_eq!(of(attribute, &[(8, &[1]), (12, &service[4..])]), Addressee::Anyone);
        }
        let whole = datagram(0x15, &[(4, &id)]);
        for len in 0..20 + 256 {
            assert_eq!(addressee(BIRTH, &ip(), &whole[..len]), Addressee::Anyone);
        }
    }

    /// Runs 1 to 3 belong to processes, the first of them to this one.
    #[derive(Default)]
    struct Host {
        serves: bool,
        keeper: Option<usize>,
        dead: Option<usize>,
        listener: Option<usize>,
        requests: RefCell<Vec<(RequestKey, Run)>>,
    }

    impl Processes for Host {
        fn is_ours(&self, of: Run) -> bool {
            of == run(1)
        }
        fn resident(&self, of: Run) -> Resident {
            let lives = (1..4).any(|n| of == run(n)) && self.dead.is_none_or(|dead| of != run(dead));
            if lives { Resident::Owner } else { Resident::Nobody }
        }
        fn serves(&self) -> bool {
            self.serves
        }
        fn keeper(&self) -> Option<Run> {
            self.keeper.map(run)
        }
        fn listener(&self, _: u32, _: IpAddr) -> Option<Run> {
            self.listener.map(run)
        }
        fn request(&self, key: RequestKey) -> Option<Run> {
            self.requests.borrow().iter().rfind(|(of, _)| *of == key).map(|(_, run)| *run)
        }
        fn note_request(&self, key: RequestKey, run: Run) {
            self.requests.borrow_mut().push((key, run));
        }
    }

    #[test]
    fn a_message_goes_to_the_process_that_has_its_id_or_to_one_that_answers_for_the_dead() {
        let host = Host { serves: true, ..Host::default() };
        let to = |n, host: &Host| whose(Addressee::Process(run(n)), host);
        assert_eq!([1, 2, 9].map(|n| to(n, &host)), [Whose::Ours, Whose::Other(run(2)), Whose::Ours]);
        let host = Host { dead: Some(2), keeper: Some(3), ..Host::default() };
        assert_eq!(
            [1, 2, 9].map(|n| to(n, &host)),
            [Whose::Ours, Whose::Other(run(3)), Whose::Other(run(3))]
        );
        assert_eq!(to(9, &Host::default()), Whose::Nobody);
        assert_eq!(whose(Addressee::Anyone, &host), Whose::Other(run(3)));
    }

    #[test]
    fn a_request_goes_to_the_listener_and_a_repeated_one_to_whom_the_first_went() {
        let key = |id| RequestKey::new(BIRTH, ip().src, false, id);
        let ask = |id, host: &Host| whose(Addressee::Service(7, ip().dst, key(id)), host);
        let mut host = Host { listener: Some(2), keeper: Some(3), ..Host::default() };
        assert_eq!(ask(1, &host), Whose::Other(run(2)));
        // It listens no longer; then another process does.
        host.listener = None;
        assert_eq!([ask(1, &host), ask(2, &host)], [Whose::Other(run(2)), Whose::Other(run(3))]);
        host.listener = Some(1);
        assert_eq!([ask(1, &host), ask(3, &host)], [Whose::Other(run(2)), Whose::Ours]);
        assert_eq!(whose(Addressee::Request(key(1)), &host), Whose::Other(run(2)));
        assert_eq!(whose(Addressee::Request(key(4)), &host), Whose::Other(run(3)));
        host.dead = Some(2);
        assert_eq!(ask(1, &host), Whose::Ours, "the one that listens now");
        assert_eq!(host.request(key(1)), Some(run(1)));
    }
}
