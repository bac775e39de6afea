//! What a Linux host and a Linux target said to each other, replayed: the host's capsules go to a target of ours.

use std::collections::{BTreeMap, HashMap};

use nvmf::status::Status;
use nvmf::wire::{Cqe, Sqe, cm, discovery, fabrics, identify};
use nvmf::{Instant, Queue, Source, Step, Target};
use zerocopy::{FromBytes, IntoBytes};

use crate::common::{arrival, namespace, target};

/// A line of `testdata/linux.txt`.
#[derive(Clone, Debug)]
struct Message {
    host: bool,
    qid: u16,
    kind: String,
    /// Address and key of a transfer; the key that a response invalidates.
    words: Vec<String>,
    bytes: Vec<u8>,
}

/// The conversations, by name.
fn conversations() -> BTreeMap<String, Vec<Message>> {
    let text = include_str!("../testdata/linux.txt");
    let mut all: BTreeMap<String, Vec<Message>> = BTreeMap::new();
    let mut name = String::new();
    for line in text.lines().filter(|l| !l.is_empty() && !l.starts_with('#')) {
        if let Some(title) = line.strip_prefix("= ") {
            name = title.to_string();
            continue;
        }
        let mut words = line.split(' ');
        let host = words.next() == Some(">");
        let qid = words.next().and_then(|q| q.strip_prefix('q')).expect("a queue").parse().expect("a number");
        let kind = words.next().expect("a kind").to_string();
        let own = match (kind.as_str(), host) {
            ("send", false) => 1,
            ("write", _) => 2,
            ("read", _) => 3,
            _ => 0,
        };
        let own: Vec<String> = words.by_ref().take(own).map(str::to_string).collect();
        let bytes = words.flat_map(bytes).collect();
        all.entry(name.clone()).or_default().push(Message { host, qid, kind, words: own, bytes });
    }
    all
}

/// `0102` or `00*8`.
fn bytes(word: &str) -> Vec<u8> {
    let byte = |hex: &str| u8::from_str_radix(hex, 16).expect("a byte");
    match word.split_once('*') {
        Some((hex, n)) => vec![byte(hex); n.parse().expect("a count")],
        None => (0..word.len()).step_by(2).map(|i| byte(&word[i..i + 2])).collect(),
    }
}

/// Commands of the Linux host to which our target says something else than the Linux target, because it announces less:
/// opcode, what tells the command (low byte of dword 10, or the fabrics type), our status.
#[rustfmt::skip]
const OTHERWISE: &[(u8, u8, Status)] = &[
    (0x02, 0x0C, Status::InvalidLogPage), // ANA, which is not announced
    (0x06, 0x08, Status::InvalidField),   // a structure of version 2.0
    (0x06, 0x05, Status::InvalidField),   // the same
    (0x09, 0x0B, Status::InvalidField),   // the event of ANA
];

struct Replay {
    target: Target,
    queues: HashMap<u16, Queue>,
    answered: usize,
}

impl Replay {
    /// Sends what the host sent. Each command is answered at once; returns those of our answers that differ.
    fn run(&mut self, messages: &[Message]) -> Vec<(u8, u8, Status)> {
        let mut otherwise = Vec::new();
        for (i, message) in messages.iter().enumerate().filter(|(_, m)| m.host) {
            let rest = || messages[i..].iter().filter(|m| m.qid == message.qid);
            match message.kind.as_str() {
                "req" => self.connection(message, rest().find(|m| m.kind == "rep").expect("a reply")),
                "send" => {
                    let cid = &message.bytes[2..4];
                    let is_answer = |m: &&Message| !m.host && m.kind == "send" && &m.bytes[12..14] == cid;
                    let theirs = rest().find(is_answer);
                    otherwise.extend(self.command(message, theirs, rest()));
                }
                _ => {}
            }
        }
        otherwise
    }

    fn connection(&mut self, request: &Message, theirs: &Message) {
        let accepted =
            Queue::accept(&self.target, Instant::default(), arrival(), &request.bytes).expect("accepted");
        let (theirs, _) = cm::ReplyData::ref_from_prefix(&theirs.bytes).expect("long enough");
        assert_eq!(theirs.format, accepted.reply.format);
        // As many receives as the other target at least; ours has some for event requests too.
        assert!((theirs.receives.get()..theirs.receives.get() + 5).contains(&accepted.reply.receives.get()));
        assert_eq!(accepted.queue.qid(), request.qid);
        self.queues.insert(request.qid, accepted.queue);
    }

    fn command<'a>(
        &mut self,
        message: &Message,
        theirs: Option<&Message>,
        mut rest: impl Iterator<Item = &'a Message> + Clone,
    ) -> Option<(u8, u8, Status)> {
        let queue = self.queues.get_mut(&message.qid).expect("a connection");
        let mut bytes = message.bytes[..64].to_vec();
        // The other target announces several command sets (CAP bit 43), so the host wrote 6 into CC.CSS. To ours it writes 0.
        if bytes[0] == fabrics::OPCODE && bytes[4] == fabrics::fctype::PROPERTY_SET {
            assert_eq!(bytes[44], 0x14, "CC is all that it sets");
            bytes[48] &= !0x70;
        }
        let (sqe, _) = Sqe::ref_from_prefix(&bytes).expect("a command");
        let key = sqe.sgl.invalidate();
        let step = queue.handle_capsule(Instant::default(), &bytes, message.bytes.len());
        let response = match step.expect("the queue lives") {
            Step::Respond(response) => response,
            Step::Fetch(ticket, from) => {
                let data = match from {
                    Source::Capsule { offset, len } => {
                        message.bytes[offset as usize..][..len as usize].to_vec()
                    }
                    Source::Remote(remote) => {
                        let read =
                            rest.clone().find(|m| m.kind == "read").expect("the other target reads too");
                        let theirs = format!("{:x} {:08x} {}", remote.address, remote.key, remote.len);
                        assert_eq!(read.words.join(" "), theirs);
                        rest.find(|m| m.kind == "data").expect("data").bytes.clone()
                    }
                };
                match queue.handle_data(Instant::default(), ticket, &data).expect("the queue lives") {
                    Step::Respond(response) => response,
                    other => panic!("{other:?}"),
                }
            }
            Step::Give(ticket, to) => {
                self.writes(&to, rest);
                let mut data = vec![0; to.len as usize];
                self.queues.get_mut(&message.qid).expect("it").poll_data(ticket, &mut data).expect("it lives")
            }
            Step::Run(ticket, request) => {
                match request.op {
                    nvmf::Op::Read { to, .. } => self.writes(&to, rest),
                    nvmf::Op::Write { from: Source::Capsule { offset, len }, .. } => {
                        assert_eq!((offset as usize, len as usize), (64, message.bytes.len() - 64));
                    }
                    nvmf::Op::Write { from: Source::Remote(remote), .. } => {
                        let read = rest.find(|m| m.kind == "read").expect("the other target reads too");
                        assert_eq!(read.words[0], format!("{:x}", remote.address));
                    }
                    _ => {}
                }
                self.queues.get_mut(&message.qid).expect("it").handle_done(ticket, Ok(())).expect("it lives")
            }
            Step::Wait => {
                assert!(theirs.is_none(), "the other target does not answer it either");
                return None;
            }
        };
        self.answered += 1;
        let cqe = Cqe::read_from_bytes(
            &theirs.unwrap_or_else(|| panic!("the other target does not answer {message:?}")).bytes,
        )
        .expect("16 bytes");
        assert_eq!((cqe.cid, cqe.sq_id), (response.cqe.cid, response.cqe.sq_id));
        assert_eq!(response.invalidate, key);
        assert_eq!(response.cqe.as_bytes().len(), 16);
        if response.cqe.status != cqe.status {
            let status = Status::ALL.iter().find(|s| s.field() == response.cqe.status.get()).expect("known");
            return Some((sqe.opcode, sqe.cdw10.get() as u8, *status));
        }
        None
    }

    /// The other target, too, writes there by that key.
    fn writes<'a>(&self, to: &nvmf::Remote, mut rest: impl Iterator<Item = &'a Message>) {
        let place = [format!("{:x}", to.address), format!("{:08x}", to.key)];
        let write =
            rest.find(|m| m.kind == "write" && m.words == place).expect("the other target writes there");
        assert_eq!(write.bytes.len(), to.len as usize);
    }
}

fn replay() -> Replay {
    Replay { target: target(vec![namespace(1, 0x8000)]), queues: HashMap::new(), answered: 0 }
}

fn check_otherwise(found: &[(u8, u8, Status)]) {
    for row in found {
        assert!(OTHERWISE.contains(row), "{row:x?} is not a known difference");
    }
}

// N02: connect, identify, first reads; then reads and writes, flush, shutdown.
#[test]
fn n02_a_linux_host_is_served_as_a_linux_target_serves_it() {
    let all = conversations();
    let mut replay = replay();
    for name in ["connect 6.12", "io 6.12", "disconnect 6.12"] {
        check_otherwise(&replay.run(&all[name]));
    }
    assert_eq!(replay.target.controllers(), (1, 0));
    let sent = |name: &&str| all[*name].iter().filter(|m| m.host && m.kind == "send").count();
    let sent: usize = ["connect 6.12", "io 6.12", "disconnect 6.12"].iter().map(sent).sum();
    // All but the request for an event.
    assert_eq!(replay.answered, sent - 1);
    replay.queues.clear();
    assert_eq!(replay.target.controllers(), (0, 0));
}

#[test]
fn n02_a_newer_linux_host_is_served() {
    let mut replay = replay();
    let found = replay.run(&conversations()["connect 7.2"]);
    check_otherwise(&found);
    for row in OTHERWISE {
        assert!(found.contains(row), "{row:x?} is not needed: strike it out");
    }
}

// N01
#[test]
fn n01_a_linux_host_discovers() {
    let mut replay = replay();
    let found = replay.run(&conversations()["discover 6.12"]);
    assert!(found.is_empty(), "{found:?}");
    assert_eq!(replay.target.controllers(), (0, 1));
}

/// What the Linux target wrote to the host, the n-th write of that length.
fn written(name: &str, len: usize, n: usize) -> Vec<u8> {
    let all = conversations();
    all[name]
        .iter()
        .filter(|m| m.kind == "write" && m.bytes.len() == len)
        .nth(n)
        .expect("a write")
        .bytes
        .clone()
}

// Goal: fields are where another implementation has them.
#[test]
fn structures_of_a_linux_target_are_read_right() {
    let bytes = written("connect 6.12", 4096, 0);
    let page = identify::Controller::ref_from_bytes(&bytes).expect("its length");
    assert_eq!(&page.sn, b"ba49997a2154d32dc4fc");
    assert_eq!(&page.mn[..6], b"Linux ");
    assert_eq!(&page.fr, b"6.12.95+");
    assert_eq!((page.cmic, page.cntlid.get(), page.ver.get()), (0x0b, 1, 0x0001_0300));
    assert_eq!((page.oaes.get(), page.cntrltype), (0x0900, 1));
    assert_eq!((page.acl, page.aerl, page.frmw, page.lpa, page.elpe), (3, 3, 3, 7, 0x7f));
    assert_eq!((page.kas.get(), page.sqes, page.cqes, page.maxcmd.get()), (10, 0x66, 0x44, 128));
    assert_eq!((page.nn.get(), page.mnan.get(), page.vwc), (1024, 1024, 1));
    assert_eq!(page.sgls.get(), identify::Controller::SGLS | identify::Controller::SGLS_OFFSET);
    assert_eq!(page.subnqn, nvmf::wire::zero_padded::<256>(crate::common::SUBSYSTEM));
    assert_eq!((page.ioccsz.get(), page.iorcsz.get(), page.icdoff.get(), page.msdbd), (0x104, 1, 0, 1));

    let bytes = written("connect 6.12", 4096, 5);
    let page = identify::Namespace::ref_from_bytes(&bytes).expect("its length");
    assert_eq!((page.nsze.get(), page.ncap.get(), page.nuse.get()), (0x8000, 0x8000, 0x8000));
    assert_eq!((page.nmic, page.lbaf[0].lbads), (1, 9));

    let bytes = written("discover 6.12", 3072, 0);
    let (header, rest) = discovery::Header::ref_from_prefix(&bytes).expect("long enough");
    assert_eq!((header.generation.get(), header.records.get(), header.format.get()), (2, 2, 0));
    let records = <[discovery::Record]>::ref_from_bytes(rest).expect("whole records");
    let ours = crate::admin::discovery_records();
    for (theirs, ours) in records.iter().zip(&ours) {
        assert_eq!((theirs.rdma.qp_type, theirs.rdma.cm), (1, 1));
        // They say nothing of the provider; ours is RoCEv2. All else is the same.
        let mut ours = *ours;
        ours.rdma.provider = theirs.rdma.provider;
        assert_eq!(theirs.as_bytes(), ours.as_bytes());
    }
    assert_eq!((records.len(), ours.len()), (2, 2));
}
