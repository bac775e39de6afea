//! Any capsules, at any time: right, mutated and nonsense, at several queues, completed late and in any order, while the
//! target is reconfigured. What comes is drawn from a seed, or from the bytes of a fuzzer (`stack/fuzz`).
//!
//! What must hold: every command gets one response or its queue ends; nothing outside of the namespace is asked of the
//! backend, nothing outside of the capsule or the described memory of the program; in the end all is given back.

use std::collections::{BTreeMap, HashMap};

use nvmf::config::Backend;
use nvmf::status::Status;
use nvmf::wire::sgl::Described;
use nvmf::wire::{Sqe, admin_opcode, fabrics, io_opcode};
use nvmf::{BackendError, End, Instant, Nqn, Op, Queue, Remote, Request, Response, Source, Step, Ticket};
use zerocopy::{FromBytes, IntoBytes};

use crate::common::random::Random;
use crate::common::{
    HOST, Program, SUBSYSTEM, blocks, command, connect_data, identify, log_page, namespace, nqn,
    property_get, property_set, set_feature,
};

/// The largest namespace that there ever is, in blocks.
const BLOCKS: u64 = 5000;
const TRANSFER_MAX: u32 = 1 << 20;

/// What a command waits for.
enum Waiting {
    /// The program's data, of that many bytes.
    Data(u32),
    Page(u32),
    Backend,
}

/// A queue and what it owes.
struct Open {
    queue: Queue,
    /// Commands without a response, by identifier.
    owed: HashMap<u16, usize>,
    waiting: Vec<(Ticket, Waiting)>,
}

/// What was seen, and how often.
#[derive(Default)]
pub struct Found {
    pub counts: BTreeMap<String, u64>,
}

impl Found {
    fn note(&mut self, what: impl Into<String>) {
        *self.counts.entry(what.into()).or_default() += 1;
    }
    fn note_end(&mut self, end: End) {
        self.note(format!("end {}", end.to_string().split(' ').take(5).collect::<Vec<_>>().join(" ")));
    }
}

impl Open {
    fn new(queue: Queue) -> Self {
        Self { queue, owed: HashMap::new(), waiting: Vec::new() }
    }
    fn answered(&mut self, response: Response, found: &mut Found) {
        let cid = response.cqe.cid.get();
        let owed = self.owed.get_mut(&cid).filter(|n| **n > 0).expect("each response answers a command");
        *owed -= 1;
        let status = Status::ALL.iter().find(|s| s.field() == response.cqe.status.get());
        found.note(status.expect("a status of the list").name());
        assert_eq!(response.cqe.sq_id.get(), self.queue.qid());
    }

    /// A step that a command came to, whose capsule is known if it has just come.
    fn stepped(&mut self, step: Step<'_>, capsule: Option<(&Sqe, usize)>, sizes: &Sizes, found: &mut Found) {
        match step {
            Step::Respond(response) => self.answered(response, found),
            Step::Wait => found.note("wait"),
            Step::Fetch(ticket, from) => {
                found.note("fetch");
                assert!(from.len() as usize <= nvmf::limits::INPUT_MAX);
                check_source(&from, capsule.expect("fetched for a new command"));
                self.waiting.push((ticket, Waiting::Data(from.len())));
            }
            Step::Give(ticket, to) => {
                found.note("give");
                check_remote(&to, capsule.expect("given for a new command").0);
                self.waiting.push((ticket, Waiting::Page(to.len)));
            }
            Step::Run(ticket, request) => {
                check_request(request, capsule, sizes, found);
                self.waiting.push((ticket, Waiting::Backend));
            }
        }
    }

    /// Goes on with the command that waits at `at`.
    fn go_on(
        &mut self,
        at: usize,
        sizes: &Sizes,
        random: &mut Random<'_>,
        found: &mut Found,
    ) -> Result<(), End> {
        let (ticket, waiting) = self.waiting.swap_remove(at);
        let ticket = Ticket::from_raw(ticket.to_raw());
        let errors = [
            BackendError::Io,
            BackendError::NoSpace,
            BackendError::ReadOnly,
            BackendError::OutOfRange,
            BackendError::NotReady,
            BackendError::Mismatch,
            BackendError::Internal,
        ];
        let response = match waiting {
            _ if random.once_in(8) => {
                let error = match *random.pick(&errors) {
                    // It has the status of the other: saved inputs mean what they meant.
                    BackendError::Io if at % 2 == 1 => BackendError::Lost,
                    error => error,
                };
                self.queue.handle_done(ticket, Err(error))?
            }
            Waiting::Backend => self.queue.handle_done(ticket, Ok(()))?,
            Waiting::Page(len) => {
                let mut data = vec![0xa5; len as usize];
                self.queue.poll_data(ticket, &mut data)?
            }
            Waiting::Data(len) => {
                let data = host_data(len as usize, random);
                let step = self.queue.handle_data(Instant::default(), ticket, &data)?;
                self.stepped(step, None, sizes, found);
                return Ok(());
            }
        };
        self.answered(response, found);
        Ok(())
    }
}

/// Data that a host might give: of Connect, of Dataset Management, or nonsense.
fn host_data(len: usize, random: &mut Random<'_>) -> Vec<u8> {
    let mut data = vec![0; len];
    if len == 1024 {
        let cntlid = *random.pick(&[0xFFFF, 0xFFFF, 1, 2, 3, 0]);
        let name = *random.pick(&[SUBSYSTEM, SUBSYSTEM, Nqn::DISCOVERY, "nqn.2024-01.test:none"]);
        data.copy_from_slice(connect_data(cntlid, name).as_bytes());
    } else {
        for range in data.chunks_exact_mut(16) {
            range[4] = random.below(64) as u8;
            range[8..10].copy_from_slice(&(random.below(1100) as u16).to_le_bytes());
        }
    }
    if random.once_in(3) {
        for _ in 0..=random.below(4) {
            let at = random.below(len as u64) as usize;
            data[at] = random.next() as u8;
        }
    }
    data
}

fn check_remote(remote: &Remote, sqe: &Sqe) {
    let Described::Keyed { address, len, key, .. } = sqe.sgl.described() else {
        panic!("no memory was described")
    };
    assert_eq!((remote.address, remote.key), (address, key));
    assert!(remote.len > 0 && remote.len <= len && remote.len <= TRANSFER_MAX);
    assert!(remote.address.checked_add(remote.len as u64).is_some());
}

fn check_source(from: &Source, (sqe, capsule): (&Sqe, usize)) {
    match from {
        Source::Remote(remote) => check_remote(remote, sqe),
        Source::Capsule { offset, len } => {
            assert!(*offset >= 64 && *len > 0);
            assert!(*offset as u64 + *len as u64 <= capsule as u64, "outside of the capsule");
        }
    }
}

fn check_request(request: Request<'_>, capsule: Option<(&Sqe, usize)>, sizes: &Sizes, found: &mut Found) {
    let size = *sizes.get(&request.nsid).expect("a namespace that there is");
    assert_eq!(request.backend, Backend(request.nsid));
    let within = |offset: u64, len: u64| {
        assert!(
            len > 0 && offset.checked_add(len).is_some_and(|end| end <= size << 9),
            "outside of the namespace"
        );
        assert!(offset.is_multiple_of(512) && len.is_multiple_of(512));
    };
    match request.op {
        Op::Read { offset, to, .. } => {
            found.note("op read");
            within(offset, to.len as u64);
            check_remote(&to, capsule.expect("of a command").0);
        }
        Op::Write { offset, from, .. } => {
            found.note(if matches!(from, Source::Remote(_)) { "op write" } else { "op write in capsule" });
            within(offset, from.len() as u64);
            check_source(&from, capsule.expect("of a command"));
        }
        Op::Compare { offset, from, .. } => {
            found.note("op compare");
            within(offset, from.len() as u64);
            check_source(&from, capsule.expect("of a command"));
        }
        Op::Verify { offset, len, .. } => {
            found.note("op verify");
            within(offset, len);
        }
        Op::WriteZeroes { offset, len, .. } => {
            found.note("op write zeroes");
            within(offset, len);
        }
        Op::Deallocate(ranges) => {
            found.note("op deallocate");
            for (offset, len) in ranges {
                within(offset, len);
            }
        }
        Op::Flush => found.note("op flush"),
    }
}

/// A command that could be right.
fn plausible(p: &Program, queue: &Queue, random: &mut Random<'_>) -> Sqe {
    let qid = queue.qid();
    let slba = random.below(BLOCKS + 10);
    let most = *random.pick(&[8, 64, 2100]);
    let count = 1 + random.below(most) as u32;
    if random.once_in(if queue.cntlid().is_none() { 2 } else { 50 }) {
        return p.connect_sqe(qid, *random.pick(&[1, 7, 31]), 5000 * random.below(2) as u32);
    }
    if qid == 0 {
        let offset = random.below(3) * 512;
        return match random.below(12) {
            // Seldom anything else: what is not enabled serves little.
            0 if random.once_in(4) => property_set(0x14, *random.pick(&[0, 0x0046_4001, 1])),
            0 => property_set(0x14, 0x0046_0001),
            1 => property_get(*random.pick(&[0, 8, 0x14, 0x1C]), random.below(2) as u8),
            2 => described(identify(random.below(9) as u8, random.below(3) as u32), 4096),
            3 | 4 => described(
                log_page(*random.pick(&[1, 2, 3, 4, 5, 0x70]), offset, 1024, random.once_in(2)),
                1024,
            ),
            5 => set_feature(
                *random.pick(&[1, 6, 7, 0x0B, 0x0F]),
                *random.pick(&[0, 1, 0x100, 0x0003_0003, 1 << 31]),
            ),
            6 => described(
                Sqe { opcode: admin_opcode::GET_FEATURES, ..set_feature(*random.pick(&[7, 0x81]), 1) },
                16,
            ),
            7 | 8 => command(admin_opcode::ASYNC_EVENT_REQUEST, 0),
            9 => command(admin_opcode::KEEP_ALIVE, 0),
            _ => Sqe { cdw10: (random.below(8) as u32 * 0x10000).into(), ..command(admin_opcode::ABORT, 0) },
        };
    }
    let sqe = match random.below(8) {
        0 => command(io_opcode::FLUSH, 1),
        1 => {
            let count = 1 + random.below(20) as u32;
            let sqe = Sqe {
                cdw10: (count - 1).into(),
                cdw11: 4.into(),
                ..command(io_opcode::DATASET_MANAGEMENT, 1)
            };
            described(sqe, *random.pick(&[count * 16, 4096]))
        }
        n => blocks([0x01, 0x02, 0x05, 0x08, 0x0C, 0x01][n as usize - 2], slba, count),
    };
    Sqe { nsid: (1 + random.below(2) as u32).into(), ..sqe }
}

fn described(sqe: Sqe, len: u32) -> Sqe {
    Sqe { sgl: nvmf::wire::Sgl::keyed(crate::common::MEMORY, len, 7, true), ..sqe }
}

/// A capsule: plausible, mutated, or nonsense; its first 64 bytes and its length.
fn capsule(p: &Program, queue: &Queue, random: &mut Random<'_>) -> (Vec<u8>, usize) {
    let qid = queue.qid();
    let mut sqe = plausible(p, queue, random);
    sqe.cid = (random.below(8) as u16).into();
    let mut len = 64;
    if qid != 0 && random.once_in(4) {
        let data = *random.pick(&[512u32, 1024, 4096]);
        let offset = *random.pick(&[0u64, 0, 0, 1, 512, u64::MAX]);
        sqe.sgl = nvmf::wire::Sgl::in_capsule(offset, data);
        if sqe.opcode != fabrics::OPCODE {
            sqe.cdw12 = (data / 512 - 1).into();
        }
        len += *random.pick(&[0usize, 511, 512, 1024, 4096]);
    }
    let mut bytes = sqe.as_bytes().to_vec();
    if random.once_in(3) {
        for _ in 0..=random.below(3) {
            let (at, any) = (random.below(64) as usize, random.below(256) as u8);
            bytes[at] = *random.pick(&[0, 1, 0x40, 0x4F, 0x7F, 0x80, 0xFF, any]);
        }
    }
    if random.once_in(40) {
        bytes.iter_mut().for_each(|byte| *byte = random.next() as u8);
    }
    if random.once_in(400) {
        len = random.below(64) as usize;
        bytes.truncate(len);
    }
    (bytes, len)
}

/// Queues of a random kind, which may already be connected: one, or an I/O queue and its admin queue.
fn open(p: &mut Program, random: &mut Random<'_>) -> Vec<Queue> {
    let qid = *random.pick(&[0, 0, 1, 2, 3]);
    match random.below(4) {
        0 => vec![p.connection(qid, *random.pick(&[2, 8, 32]))],
        1 => vec![p.discovery(HOST)],
        _ => {
            let (admin, cntlid) = p.admin();
            if qid == 0 { vec![admin] } else { vec![p.io(cntlid, qid), admin] }
        }
    }
}

/// Sizes of the namespaces, as they are now.
type Sizes = HashMap<u32, u64>;

fn reconfigure(p: &Program, sizes: &mut Sizes, random: &mut Random<'_>) {
    let (subsystem, blocks) = (nqn(SUBSYSTEM), 1 + random.below(BLOCKS));
    // Whether it succeeds depends on what was changed before.
    let changed = match random.below(6) {
        0 => p.target.add_namespace(&subsystem, namespace(2, blocks)).map(|()| sizes.insert(2, blocks)),
        1 => p.target.remove_namespace(&subsystem, 2).map(|()| sizes.remove(&2)),
        2 => p.target.resize_namespace(&subsystem, 1, blocks).map(|()| sizes.insert(1, blocks)),
        3 => p.target.allow_host(&subsystem, nqn(HOST)).map(|()| None),
        4 => p.target.remove_port(1).map(|()| None),
        _ => {
            let address = "[fe80::1]:4420".parse().expect("an address");
            p.target.add_port(nvmf::config::Port { id: 1, address }).map(|()| None)
        }
    };
    drop(changed);
}

/// One life of a target: so many steps, or as long as there are bytes.
pub fn run(random: &mut Random<'_>, found: &mut Found) {
    let mut p = Program::new(BLOCKS);
    let mut sizes = Sizes::from([(1, BLOCKS)]);
    let mut queues: Vec<Open> = Vec::new();
    for _ in 0..400 {
        if random.is_over() {
            break;
        }
        if queues.len() < 2 || (queues.len() < 6 && random.once_in(20)) {
            // The host's Connect would wait for those of its queues that have ended.
            queues.retain_mut(|open| open.queue.poll_end().map(|end| found.note_end(end)).is_none());
            queues.extend(open(&mut p, random).into_iter().map(Open::new));
        }
        let at = random.below(queues.len() as u64) as usize;
        let open = &mut queues[at];
        let outcome = match random.below(8) {
            0 => {
                reconfigure(&p, &mut sizes, random);
                Ok(())
            }
            1..=3 if !open.waiting.is_empty() => {
                let at = random.below(open.waiting.len() as u64) as usize;
                open.go_on(at, &sizes, random, found)
            }
            4 => {
                while let Some(response) = open.queue.poll_response(Instant::default()) {
                    open.answered(response, found);
                }
                open.queue.poll_end().map_or(Ok(()), Err)
            }
            5 if random.once_in(50) => {
                let late = Instant::from_nanos(u64::MAX);
                while let Some(response) = open.queue.poll_response(late) {
                    open.answered(response, found);
                }
                open.queue.handle_timeout(late)
            }
            _ => {
                let (bytes, len) = capsule(&p, &open.queue, random);
                match open.queue.handle_capsule(Instant::default(), &bytes, len) {
                    Ok(step) => {
                        let (sqe, _) = Sqe::ref_from_prefix(&bytes).expect("a short one ends the queue");
                        *open.owed.entry(sqe.cid.get()).or_default() += 1;
                        open.stepped(step, Some((sqe, len)), &sizes, found);
                        Ok(())
                    }
                    Err(end) => Err(end),
                }
            }
        };
        let owed: usize = open.owed.values().sum();
        if let Err(end) = outcome {
            found.note_end(end);
            queues.swap_remove(at);
        } else {
            assert_eq!(owed, open.queue.commands(), "each command is answered once");
        }
    }
    // All that is under way comes to an end; what is left are requests for events.
    for open in &mut queues {
        while !open.waiting.is_empty() && open.go_on(0, &sizes, random, found).is_ok() {}
        while let Some(response) = open.queue.poll_response(Instant::default()) {
            open.answered(response, found);
        }
        if open.queue.poll_end().is_none() {
            assert!(open.queue.commands() <= 4, "only requests for events wait");
        }
    }
    drop(queues);
    assert_eq!(p.target.controllers(), (0, 0), "everything is given back");
}
