//! UC and UD in a random run: messages may be lost, but those that arrive are whole, and arrive no more often than the network delivered
//! them.
//!
//! A message carries its number in its first bytes, and the number determines length and content. So the receiver knows the expected bytes
//! of each message, however many are missing. A WRITE carries its number in each word, because it may be placed in part: each word of a
//! place must belong to a message that was written there. Once a WRITE has arrived whole, none of the words that it wrote may belong to an
//! older message, unless the link duplicates or reorders frames.

use super::check::{self, Check, Completions};
use super::layout::BLANK;
use super::memory::Region;
use super::node::{MrId, Node, QKEY, QpId, SendWr};
use super::rng::Rng;
use stack::id::{QpType, Qpn};
use stack::mem::Access;
use stack::proto::address::UdAddress;
use stack::proto::attr::GlobalRoute;
use stack::proto::responder::GRH_LEN;
use stack::proto::status::{WcFlags, WcOpcode, WcStatus, WrOpcode};
use stack::proto::wqe::Cqe;

/// The messages of an unreliable sender that arrived.
#[derive(Clone, Debug, Default)]
pub struct Numbers {
    /// Whether the link neither duplicates nor reorders frames.
    pub tame: bool,
    newest: Option<u64>,
    /// Number of messages that arrived.
    pub arrived: u64,
}

impl Numbers {
    /// Checks that message `number`, of `posted`, may arrive. `brought`, for datagrams: how many frames of it the network delivered, and
    /// how often it has arrived.
    pub fn arrived(&mut self, number: u64, posted: u64, brought: Option<(u64, u64)>) -> Check {
        self.arrived += 1;
        if number >= posted {
            return Err(format!("message {number} arrives, of {posted}"));
        }
        if self.tame && self.newest.is_some_and(|newest| number <= newest) {
            return Err(format!("message {number} arrives after {:?}", self.newest));
        }
        self.newest = Some(number);
        match brought {
            Some((frames, arrived)) if arrived > frames => {
                Err(format!("datagram {number} arrives {arrived} times out of {frames} frames"))
            }
            _ => Ok(()),
        }
    }
}

/// The bytes of message `number` of a sender: its number, then bytes that are derived from it.
pub fn message(seed: u64, number: u64, max: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed ^ number.wrapping_mul(0x9e37_79b9));
    let len = rng.range(8, max as u64) as usize;
    let mut bytes = rng.bytes(len);
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// The bytes of WRITE `number` of a sender: its number, repeated; a whole number of words.
pub fn words(seed: u64, number: u64, max: usize) -> Vec<u8> {
    let len = message(seed, number, max).len() / 8;
    number.to_le_bytes().repeat(len)
}

/// Checks that each word of a place is whole and belongs to a WRITE to that place. `kinds` has the opcode of each message; message `n` goes
/// to place `n % places`. If `oldest` is `Some((number, len))`, no word in the first `len` bytes may belong to a message older than
/// `number`.
pub fn place_holds(
    bytes: &[u8],
    (place, places): (u64, u64),
    kinds: &[WrOpcode],
    len_of: impl Fn(u64) -> usize,
    oldest: Option<(u64, usize)>,
) -> Check {
    for (i, word) in bytes.as_chunks::<8>().0.iter().enumerate() {
        let number = u64::from_le_bytes(*word);
        let required = oldest.filter(|(_, len)| 8 * i < *len).map(|(number, _)| number);
        if *word == [BLANK; 8] && required.is_none() {
            continue;
        }
        let writes = usize::try_from(number).ok().and_then(|n| kinds.get(n));
        let written = writes.is_some_and(|kind| is_write(*kind)) && number % places == place;
        if !written || 8 * i >= len_of(number) {
            return Err(format!("word {i} of place {place} is {number:#x}, which no message wrote there"));
        }
        if required.is_some_and(|required| number < required) {
            return Err(format!("word {i} of place {place} is of message {number}, behind {required:?}"));
        }
    }
    Ok(())
}

fn is_write(kind: WrOpcode) -> bool {
    matches!(kind, WrOpcode::RdmaWrite | WrOpcode::RdmaWriteWithImm)
}

/// The opcodes that a message of a service type can have.
pub const fn kinds(ty: QpType) -> &'static [WrOpcode] {
    match ty {
        QpType::Ud => &[WrOpcode::Send, WrOpcode::SendWithImm],
        _ => &[WrOpcode::Send, WrOpcode::SendWithImm, WrOpcode::RdmaWrite, WrOpcode::RdmaWriteWithImm],
    }
}

/// One direction of an unreliable pair.
#[derive(Debug)]
pub struct Lossy {
    /// UC or UD.
    pub ty: QpType,
    /// The sending node.
    pub from: usize,
    /// The receiving node.
    pub to: usize,
    /// The sending queue pair.
    pub qp: QpId,
    /// The receiving queue pair.
    pub peer: QpId,
    /// Number of the sending queue pair.
    pub qpn: Qpn,
    /// Number of the receiving queue pair.
    pub peer_qpn: Qpn,
    /// Checks the messages that arrive.
    pub numbers: Numbers,
    /// Number of requests posted.
    pub posted: u64,
    /// The completions of the send queue.
    pub sends: Completions,
    /// The completions of the peer's receive queue.
    pub receives: Completions,
    seed: u64,
    max: usize,
    depth: u64,
    slot: usize,
    src: MrId,
    recv: MrId,
    /// Target of WRITEs: one place for each request of the send queue.
    target: MrId,
    /// The opcode of each message.
    posted_as: Vec<WrOpcode>,
    rng: Rng,
    free: Vec<usize>,
    buffers: std::collections::VecDeque<usize>,
    receives_posted: u64,
    /// How often each datagram was received.
    times: std::collections::BTreeMap<u64, u64>,
}

impl Lossy {
    /// A direction between two queue pairs of the same type. `max`: most bytes of a message.
    pub fn new(
        nodes: &mut [Node],
        (from, qp): (usize, QpId),
        (to, peer): (usize, QpId),
        max: usize,
        seed: u64,
    ) -> Self {
        let (config, receives) = (nodes[from].qp(qp).config, nodes[to].qp(peer).config.recv_depth as usize);
        let depth = config.send_depth as usize;
        let slot = (GRH_LEN + max + 16).next_multiple_of(8);
        let target = nodes[to].register(depth * slot, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
        nodes[to].mr(target).fill(0, depth * slot, BLANK);
        Self {
            ty: config.ty,
            from,
            to,
            qp,
            peer,
            qpn: nodes[from].qp(qp).qpn,
            peer_qpn: nodes[to].qp(peer).qpn,
            numbers: Numbers::default(),
            posted: 0,
            sends: Completions::default(),
            receives: Completions::default(),
            seed,
            max,
            depth: depth as u64,
            slot,
            src: nodes[from].register(depth * slot, Access::empty()),
            recv: nodes[to].register(receives * slot, Access::LOCAL_WRITE),
            target,
            posted_as: Vec::new(),
            rng: Rng::new(seed),
            free: (0..receives).collect(),
            buffers: std::collections::VecDeque::new(),
            receives_posted: 0,
            times: std::collections::BTreeMap::new(),
        }
    }

    /// Offset of the message in a receive buffer.
    fn front(&self) -> usize {
        if self.ty == QpType::Ud { GRH_LEN } else { 0 }
    }

    /// Posts a receive for each free buffer.
    pub fn post_receives(&mut self, nodes: &mut [Node]) {
        while let Some(slot) = self.free.pop() {
            let sge = nodes[self.to].mr(self.recv).sge(slot * self.slot, self.slot - 8);
            if nodes[self.to].post_recv(self.peer, self.receives_posted, &[sge]).is_err() {
                return self.free.push(slot);
            }
            self.receives.posted(self.receives_posted, true);
            self.buffers.push_back(slot);
            self.receives_posted += 1;
        }
    }

    /// Posts the next message, of a random kind, if the queue has room. Returns whether it did.
    pub fn post(&mut self, nodes: &mut [Node]) -> bool {
        let kind = self.rng.pick(kinds(self.ty));
        self.post_as(nodes, kind)
    }

    /// Posts the next message, of this kind, if the queue has room. Returns whether it did.
    pub fn post_as(&mut self, nodes: &mut [Node], kind: WrOpcode) -> bool {
        let full = u64::from(nodes[self.from].sends_in_use(self.qp)) >= self.depth;
        if full || self.sends.outstanding() as u64 >= self.depth {
            return false;
        }
        let number = self.posted;
        let writes = is_write(kind);
        let bytes = if writes { words } else { message }(self.seed, number, self.max);
        let at = (number % self.depth) as usize * self.slot;
        let to = nodes[self.to].gid;
        let src = nodes[self.from].mr(self.src);
        src.write(at, &bytes);
        let mut wr =
            SendWr::new(number, kind).sges(&[src.sge(at, bytes.len())]).imm((number as u32).to_be_bytes());
        if writes {
            let target = nodes[self.to].mr(self.target);
            wr = wr.remote(target.va(at), target.key);
        }
        if self.ty == QpType::Ud {
            let grh = GlobalRoute { dgid: to, sgid_index: 1, ..GlobalRoute::default() };
            wr.address = Some(UdAddress::new(&grh, nodes[self.from].source(), 0).to(self.peer_qpn, QKEY));
        }
        nodes[self.from].post_send(self.qp, &wr).expect("the queue has room and the request is good");
        self.sends.posted(number, true);
        self.posted_as.push(kind);
        self.posted += 1;
        true
    }

    /// Checks a send completion, which may fail only during teardown. Returns the opcode of the request.
    pub fn sent(&mut self, cqe: &Cqe, teardown: bool) -> Result<Option<WrOpcode>, String> {
        let status = check::status(cqe);
        self.sends.completed(cqe.wr_id, status)?;
        match status {
            WcStatus::Success => Ok(Some(self.posted_as[cqe.wr_id as usize])),
            WcStatus::WrFlushErr if teardown => Ok(None),
            other => Err(format!("request {} completes with {other:?}", cqe.wr_id)),
        }
    }

    /// Changes a byte of the message that completes next, to test the checker.
    pub fn spoil(&self, nodes: &[Node]) {
        let Some(slot) = self.buffers.front() else { return };
        let (recv, at) = (nodes[self.to].mr(self.recv), slot * self.slot + self.front() + 7);
        recv.write(at, &[!recv.read(at, 1)[0]]);
    }

    /// Checks a receive completion. `frames` returns how many frames of a datagram arrived, by its number.
    pub fn received(
        &mut self,
        nodes: &[Node],
        cqe: &Cqe,
        teardown: bool,
        frames: impl Fn(u64) -> u64,
    ) -> Check {
        let status = check::status(cqe);
        self.receives.completed(cqe.wr_id, status)?;
        let slot = self.buffers.pop_front().ok_or("more receives complete than were posted")?;
        self.free.push(slot);
        match status {
            WcStatus::Success => {}
            WcStatus::WrFlushErr if teardown => return Ok(()),
            other => return Err(format!("receive {} completes with {other:?}", cqe.wr_id)),
        }
        let number = if cqe.opcode == WcOpcode::RecvRdmaWithImm {
            self.written(nodes, cqe)?
        } else {
            self.whole(nodes[self.to].mr(self.recv), slot, cqe)?
        };
        let times = self.times.entry(number).or_default();
        *times += 1;
        let brought = (self.ty == QpType::Ud).then(|| (frames(number), *times));
        self.numbers.arrived(number, self.posted, brought)
    }

    /// Checks that the message in a buffer is, from its first byte to its last, one that was sent. Returns its number.
    fn whole(&self, recv: &Region, slot: usize, cqe: &Cqe) -> Result<u64, String> {
        let (front, len) = (self.front(), cqe.byte_len as usize);
        if len < front + 8 {
            return Err(format!("a message of {len} bytes arrives that nobody sent"));
        }
        let got = recv.read(slot * self.slot + front, len - front);
        let number = u64::from_le_bytes(got[..8].try_into().expect("eight bytes"));
        if got != message(self.seed, number, self.max) {
            return Err(format!("message {number} is not what was sent"));
        }
        let flags = cqe.flags.bits();
        let imm = match self.posted_as.get(number as usize) {
            Some(WrOpcode::SendWithImm) => Some(number as u32),
            Some(WrOpcode::Send) => None,
            _ => return Err(format!("message {number} arrives, which is no SEND")),
        };
        let with = flags & WcFlags::WITH_IMM.bits() != 0;
        if with.then_some(cqe.imm.to_ne_bytes()) != imm.map(u32::to_be_bytes) {
            return Err(format!("message {number} came with other immediate data"));
        }
        let source = self.ty != QpType::Ud || cqe.src_qp == self.qpn;
        if !source || (flags & WcFlags::GRH.bits() != 0) != (self.ty == QpType::Ud) {
            return Err(format!("message {number} came from {:#x}, flags {flags:#x}", cqe.src_qp.get()));
        }
        Ok(number)
    }
}

impl Lossy {
    /// Checks that the WRITE of a completion was posted and that its bytes are in place. Returns its number.
    fn written(&self, nodes: &[Node], cqe: &Cqe) -> Result<u64, String> {
        let number = u64::from(u32::from_be_bytes(cqe.imm.to_ne_bytes()));
        let len = words(self.seed, number, self.max).len();
        if self.posted_as.get(number as usize) != Some(&WrOpcode::RdmaWriteWithImm)
            || cqe.byte_len as usize != len
        {
            return Err(format!("message {number} arrives as a WRITE of {} bytes", cqe.byte_len));
        }
        // A late duplicate of a WRITE may be placed again.
        let oldest = self.numbers.tame.then_some((number, len));
        self.place(nodes, number % self.depth, oldest)?;
        Ok(number)
    }

    fn place(&self, nodes: &[Node], place: u64, oldest: Option<(u64, usize)>) -> Check {
        let bytes = nodes[self.to].mr(self.target).read(place as usize * self.slot, self.slot);
        let len_of = |number| words(self.seed, number, self.max).len();
        place_holds(&bytes, (place, self.depth), &self.posted_as, len_of, oldest)
    }

    /// Checks that each place holds only bytes that WRITEs may have left there.
    pub fn places(&self, nodes: &[Node]) -> Check {
        (0..self.depth).try_for_each(|place| self.place(nodes, place, None))
    }

    /// Changes a word that a WRITE may have written, to test the checker.
    pub fn spoil_word(&self, nodes: &[Node]) {
        nodes[self.to].mr(self.target).write(0, &self.posted.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: the checker accepts parts of messages, and rejects other bytes.
    #[test]
    fn words_of_unreliable_writes() {
        let kinds = [WrOpcode::RdmaWrite, WrOpcode::Send, WrOpcode::RdmaWriteWithImm, WrOpcode::RdmaWrite];
        let holds = |words: [u64; 3], oldest| {
            let bytes = words.map(u64::to_le_bytes).concat();
            place_holds(&bytes, (0, 2), &kinds, |_| 16, oldest)
        };
        const NONE: u64 = u64::from_le_bytes([BLANK; 8]);
        assert_eq!(holds([0, 2, NONE], None), Ok(()));
        assert_eq!(holds([NONE; 3], None), Ok(()));
        assert!(holds([4, NONE, NONE], None).is_err(), "not posted");
        assert!(holds([1, NONE, NONE], None).is_err(), "no WRITE");
        assert!(holds([3, NONE, NONE], None).is_err(), "of another place");
        assert!(holds([0, 0, 0], None).is_err(), "too long");
        assert!(holds([2, 2, NONE], Some((2, 16))).is_ok());
        assert!(holds([2, 0, NONE], Some((2, 16))).is_err(), "older than what arrived");
        assert!(holds([2, NONE, NONE], Some((2, 16))).is_err(), "missing");
    }

    // Goal: the checker accepts losses, and rejects what a network cannot cause.
    #[test]
    fn unreliable_messages_are_never_too_many() {
        let mut n = Numbers { tame: true, ..Numbers::default() };
        n.arrived(0, 9, None).unwrap();
        n.arrived(5, 9, Some((1, 1))).unwrap();
        assert!(n.clone().arrived(5, 9, None).is_err(), "twice");
        assert!(n.clone().arrived(3, 9, None).is_err(), "out of order");
        assert!(n.clone().arrived(9, 9, None).is_err(), "never sent");
        assert!(n.arrived(6, 9, Some((1, 2))).is_err(), "out of one frame");
        let mut wild = Numbers::default();
        wild.arrived(5, 9, Some((2, 1))).unwrap();
        wild.arrived(5, 9, Some((2, 2))).unwrap();
    }

    #[test]
    fn a_number_decides_a_message() {
        assert_eq!(message(1, 7, 100), message(1, 7, 100));
        assert_ne!(message(1, 7, 100)[8..], message(1, 8, 100)[8..]);
        assert!((0..200).all(|i| (8..=100).contains(&message(1, i, 100).len())));
    }
}
