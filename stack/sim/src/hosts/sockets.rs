//! The sockets that the processes of a host share: who gets a datagram, by a table that is as old as it is or by chance, and what a
//! process does with one that is not for it.

use core::net::IpAddr;
use std::collections::BTreeMap;
use std::time::Duration;

use super::host::{Host, Pid, Plant};
use stack::id::Qpn;
use stack::port::sorting::{
    Addressee, Arrived, IpFields, Outgoing, Processes, Sorted, Sorter, addressee, sort,
};
use stack::registry::{RequestKey, Resident, Run};
use stack::time::Instant;

/// Datagrams that a socket holds.
const ROOM: usize = 64;
/// Datagrams that a process passes on in a burst.
pub(super) const PASSES: usize = 64;
/// Least time between two changes of the table that nobody waits for.
const PAUSE: Duration = Duration::from_millis(100);
/// Services that the table has.
const SERVICES: usize = 64;

/// Offset of the destination queue pair in a datagram.
const DEST_QP: usize = 4;

/// A datagram in a socket.
#[derive(Clone)]
pub(super) struct Datagram {
    /// The same for all that the kernel keeps of one frame; another one for each copy that the network makes.
    pub number: u64,
    /// As the socket says.
    pub ip: IpFields,
    pub port: u16,
    /// The headers of the frame: sockets do not show all that the ICRC covers.
    pub head: Vec<u8>,
    /// The datagram, behind the header with which it was passed on.
    pub bytes: Vec<u8>,
}

/// Which process gets what, as the kernel was told last.
#[derive(Default)]
pub(super) struct Steering {
    runs: BTreeMap<usize, (Pid, usize)>,
    services: BTreeMap<u32, Run>,
    keeper: Option<Run>,
    is_stale: bool,
    next: Instant,
}

impl Host {
    /// Tells the kernel what the processes know now.
    pub(super) fn attach(&mut self) {
        let Some(member) = self.alive().first().and_then(|pid| self.member(*pid)) else { return };
        let (services, keeper) = (member.listeners(SERVICES).into_iter().collect(), member.keeper());
        let mut runs = BTreeMap::new();
        for pid in self.alive() {
            runs.extend(self.processes[pid].runs.iter().map(|(run, queue)| (run.index(), (pid, *queue))));
        }
        let next = self.now.after(PAUSE);
        self.steering = Steering { runs, services, keeper, is_stale: false, next };
    }

    /// A process has new entries in the registry.
    pub fn announce(&mut self) {
        if self.now >= self.steering.next {
            self.attach();
        } else {
            self.steering.is_stale = true;
        }
    }

    /// What a process does every now and then.
    pub(super) fn maintain(&mut self, pid: Pid) {
        let Some(member) = self.member(pid) else { return };
        if member.still_serves() {
            self.steering.is_stale = true;
        }
        if self.steering.is_stale && self.now >= self.steering.next {
            self.attach();
        }
    }

    /// A process sends a frame by the sockets.
    pub(super) fn send(&mut self, frame: &[u8]) {
        match Outgoing::of(frame) {
            Some(out) if self.addresses.contains(&out.ip.dst) => self.arrive(frame),
            Some(_) => self.outgoing.push_back(frame.to_vec()),
            None => self.deliveries.fail("a frame leaves that is no packet".into()),
        }
    }

    /// A frame arrives from the network, or from a process of this host.
    pub fn arrive(&mut self, frame: &[u8]) {
        let Some(out) = Outgoing::of(frame) else { return };
        let (head, bytes) = (frame[..out.payload.start].to_vec(), frame[out.payload.clone()].to_vec());
        let number = self.next_frame();
        self.put(Datagram { number, ip: out.ip, port: out.port, head, bytes });
    }

    /// The kernel puts a datagram into the socket of a process.
    fn put(&mut self, datagram: Datagram) {
        let alive = self.alive();
        if alive.is_empty() {
            return;
        }
        let chosen = self.chosen(&datagram).filter(|(pid, _)| self.processes[*pid].is_alive);
        let is_wrong = self.rng.ppm(self.weather.steered_wrong_ppm);
        let (pid, queue) = chosen.filter(|_| !is_wrong).unwrap_or_else(|| {
            let pid = self.rng.pick(&alive);
            (pid, self.rng.below(self.processes[pid].queues.len() as u64) as usize)
        });
        let arrived = &mut self.processes[pid].queues[queue].arrived;
        if arrived.len() < ROOM {
            arrived.push_back(datagram);
        } else {
            self.counts.overflowed += 1;
        }
    }

    /// Who gets a datagram by the table.
    fn chosen(&self, datagram: &Datagram) -> Option<(Pid, usize)> {
        let Steering { runs, services, keeper, .. } = &self.steering;
        let number = number_of(&datagram.bytes)?;
        let run = if number == Qpn::GSI {
            match addressee(0, &datagram.ip, &datagram.bytes) {
                Addressee::Process(run) => Some(run),
                Addressee::Service(service, ..) => services.get(&service).copied().or(*keeper),
                Addressee::Request(_) | Addressee::Anyone => *keeper,
            }
        } else {
            Some(Run::of(number.block()))
        };
        runs.get(&run?.index()).copied()
    }

    /// The next datagram of a queue that is for its process, as a frame. Others are passed on, as long as it may.
    pub(super) fn receive(&mut self, pid: Pid, queue: usize, passes: &mut usize) -> Option<Vec<u8>> {
        loop {
            let datagram = self.processes[pid].queues[queue].arrived.pop_front()?;
            self.counts.by_sockets += 1;
            let arrived = Arrived::new(datagram.ip, datagram.port);
            let (arrived, sorted) = sort(arrived, &datagram.bytes, &Of { host: self, pid });
            let bytes = &datagram.bytes[arrived.front..];
            let plant = self.weather.plant;
            match sorted {
                Sorted::PassOn(_) if plant == Some(Plant::StaysAtTheWrongProcess) && self.rng.one_in(4) => {
                    let bytes = bytes.to_vec();
                    return Some(self.deliver(pid, &datagram, &bytes));
                }
                Sorted::Ours => {
                    let bytes = bytes.to_vec();
                    return Some(self.deliver(pid, &datagram, &bytes));
                }
                Sorted::PassOn(passed) if *passes > 0 => {
                    *passes -= 1;
                    self.counts.passed_on += 1;
                    self.steering.is_stale = true;
                    // From a socket of this host to the port that all of them share.
                    let [_, own] = self.addresses;
                    let ip = IpFields { src: own, dst: own, traffic_class: 0, hop_limit: 64 };
                    let bytes = [&passed.write()[..], bytes].concat();
                    let passed = Datagram { ip, bytes, ..datagram };
                    if plant == Some(Plant::PassedOnTwice) && self.rng.one_in(4) {
                        self.put(passed.clone());
                    }
                    self.put(passed);
                }
                Sorted::PassOn(_) | Sorted::Guest(_) | Sorted::Stray => {
                    self.counts.strayed += 1;
                    self.steering.is_stale = true;
                }
                Sorted::Nothing | Sorted::Probe => {
                    self.deliveries.fail("a datagram was passed on that nobody sent".into());
                }
            }
        }
    }

    /// Checks a datagram that its process gets, and makes a frame of it.
    fn deliver(&mut self, pid: Pid, datagram: &Datagram, bytes: &[u8]) -> Vec<u8> {
        let frame = [&datagram.head[..], bytes].concat();
        let Some(ip) = Outgoing::of(&frame).map(|out| out.ip) else {
            self.deliveries.fail("a datagram that was passed on is cut".into());
            return frame;
        };
        self.deliveries.once(datagram.number);
        self.check_place(pid, bytes);
        let is_message = number_of(bytes) == Some(Qpn::GSI);
        if let Some(birth) = self.member(pid).map(|member| member.birth()).filter(|_| is_message) {
            self.check_message(pid, addressee(birth, &ip, bytes));
        }
        frame
    }

    /// A packet arrives at the process that has its queue pair.
    pub(super) fn check_place(&mut self, pid: Pid, bytes: &[u8]) {
        if let Some(number) = number_of(bytes)
            && !self.has_number(pid, number)
        {
            self.deliveries.fail(format!("a packet for {number:?} arrives at process {pid}"));
        }
    }

    /// A message of connection management arrives at the process that it is for, and a request that is repeated where the first went.
    fn check_message(&mut self, pid: Pid, addressee: Addressee) {
        match addressee {
            Addressee::Process(run) => {
                if let Some(holder) = self.holder(run).filter(|holder| *holder != pid) {
                    let complaint = format!("a message for process {holder} arrives at process {pid}");
                    self.deliveries.fail(complaint);
                }
            }
            Addressee::Service(service, _, key) => {
                let listens = self.processes[pid].listens.contains_key(&service);
                let first = self.deliveries.request(key).filter(|first| self.processes[*first].is_alive);
                match first {
                    Some(first) if first != pid => self.deliveries.fail(format!(
                        "a request went to process {first} first, and to process {pid} when it was repeated"
                    )),
                    Some(_) if !listens => self.counts.repeated += 1,
                    Some(_) => {}
                    None if listens => self.deliveries.note_request(key, pid),
                    None => {}
                }
            }
            Addressee::Request(_) | Addressee::Anyone => {}
        }
    }

    /// Binds a process to a service and listens, or closes that. Whether it listens now.
    pub fn listen(&mut self, pid: Pid, service: u32, on: bool) -> bool {
        use stack::registry::{Beside, Binding, Family};
        let Some(member) = self.member(pid) else { return false };
        let binding = Binding { service, addr: None, family: Family::Both, reuse: false };
        let claim = match on {
            true => member
                .bind(&binding, Beside::Clashing)
                .and_then(|claim| member.listen(claim).inspect_err(|_| member.release(claim))),
            false => {
                if let Some(claim) = self.processes[pid].listens.get(&service) {
                    member.release(*claim);
                }
                self.processes[pid].listens.remove(&service);
                self.announce();
                return false;
            }
        };
        let Ok(claim) = claim else { return false };
        self.processes[pid].listens.insert(service, claim);
        self.announce();
        true
    }
}

/// The destination queue pair of a datagram.
fn number_of(bytes: &[u8]) -> Option<Qpn> {
    let word = bytes.get(DEST_QP..)?.first_chunk()?;
    Some(Qpn::new(u32::from_be_bytes(*word)))
}

/// What a process knows of its host.
struct Of<'a> {
    host: &'a Host,
    pid: Pid,
}

impl Processes for Of<'_> {
    fn is_ours(&self, run: Run) -> bool {
        self.host.has(self.pid, run)
    }

    fn resident(&self, run: Run) -> Resident {
        let Some(member) = self.host.member(self.pid) else { return Resident::Nobody };
        let may_be_held = matches!(member.info(run).mark, stack::registry::Mark::Held(_));
        let living = &self.host.processes[self.pid].living;
        living.has(run, self.host.system_now(), may_be_held, || member.resident(run))
    }

    fn serves(&self) -> bool {
        self.host.member(self.pid).is_some_and(|member| member.serves_cm())
    }

    fn keeper(&self) -> Option<Run> {
        self.host.member(self.pid)?.keeper()
    }

    fn listener(&self, service: u32, dst: IpAddr) -> Option<Run> {
        self.host.member(self.pid)?.listener(service, dst, &|run| self.lives(run))
    }

    fn request(&self, key: RequestKey) -> Option<Run> {
        if self.host.weather.plant == Some(Plant::RequestsAreForgotten) {
            return None;
        }
        self.host.member(self.pid)?.request(key)
    }

    fn note_request(&self, key: RequestKey, run: Run) {
        if let Some(member) = self.host.member(self.pid) {
            member.note_request(key, run);
        }
    }
}

impl Sorter for Of<'_> {
    fn birth(&self) -> u128 {
        self.host.member(self.pid).map_or(0, |member| member.birth())
    }

    fn is_here(&self, from: IpAddr) -> bool {
        self.host.addresses.contains(&from)
    }

    // The caller takes note of it.
    fn note_stray(&self, _: Run) {}
}
