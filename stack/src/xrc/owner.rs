//! The decisions of a domain's owner. Input: messages and disconnects of its members, and the time; output: messages. It does no I/O.
//!
//! The owner has the targets of the domain; members have its shared receive queues, and a *shadow* of each target, a queue pair to which
//! the owner relays the target's requests. A *leg* connects owner and shadow. A leg is made for each pair of a target that can receive and
//! a member that has a shared receive queue, before the call returns that made the second of the two: so a number that a program knows
//! works. The end of a member ends its queues, legs, handles and registrations; the targets stay as long as any member exists.
//!
//! Members are processes of one user, admitted but not trusted. Each has one call at a time, so the state that it can make the owner keep
//! is bounded by its own queues and handles. A member that sends an invalid message, or does not execute an order in time, is dropped.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::{Duration, Instant};

use super::attributes::Attributes;
use super::members::{Member, MemberId, Pending, Then};
use super::message::{Answer, Call, FromMember, FromOwner, Order, Outcome, VERSION};
use super::parts::{Domain, Target};
use super::refusal::{Reason, Refusal};
use super::targets::{Entry, Users, unknown};
use crate::config::SRQ_MAX;
use crate::device::{AsyncEvent, AttrMask, QpAttr, QpState, QpType, Qpn, required};

/// An action for the caller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Output {
    /// Send this message to a member.
    Send(MemberId, FromOwner),
    /// Close the connection to a member that was dropped.
    End(MemberId),
}

/// The attributes that shadows copy from their target, and that can change without a change of state.
const SHADOWED: AttrMask =
    AttrMask::ACCESS_FLAGS.union(AttrMask::MIN_RNR_TIMER).union(AttrMask::MAX_DEST_RD_ATOMIC);

/// The owner of a domain.
pub struct Owner<D: Domain> {
    domain: D,
    members: HashMap<MemberId, Member>,
    targets: BTreeMap<Qpn, Entry<D::Target>>,
    /// The member that has each shared receive queue, by number.
    srqs: HashMap<u32, MemberId>,
    last_member: u32,
    last_order: u32,
    /// Since when no member has had the domain open.
    empty_since: Option<Instant>,
    out: VecDeque<Output>,
}

impl<D: Domain> Owner<D> {
    /// An owner without members.
    pub fn new(now: Instant, domain: D) -> Self {
        Self {
            domain,
            members: HashMap::new(),
            targets: BTreeMap::new(),
            srqs: HashMap::new(),
            last_member: 0,
            last_order: 0,
            empty_since: Some(now),
            out: VecDeque::new(),
        }
    }

    /// Adds a process that has connected. It becomes a member with its hello.
    pub fn handle_connected(&mut self, now: Instant) -> MemberId {
        let id = loop {
            // At most as many iterations as members.
            self.last_member = self.last_member.wrapping_add(1);
            let id = MemberId(self.last_member);
            if !self.members.contains_key(&id) {
                break id;
            }
        };
        self.members.insert(id, Member::new(now));
        id
    }

    /// Handles a message of a member, or of a process that is to become one.
    pub fn handle_message(&mut self, now: Instant, id: MemberId, message: FromMember) {
        let Some(member) = self.members.get_mut(&id) else { return };
        match (message, member.is_member()) {
            (FromMember::Hello(VERSION), false) => {
                let others = self.members.values().filter(|member| member.is_member()).count() as u32;
                self.members.entry(id).and_modify(|member| member.hello_deadline = None);
                self.empty_since = None;
                self.send(id, FromOwner::Welcome(others));
            }
            (FromMember::Hello(_), false) => {
                self.send(id, FromOwner::VersionMismatch(VERSION));
                self.end(now, id);
            }
            (FromMember::Call(number, call), true) if member.pending.is_none() => {
                self.handle_call(now, id, number, call);
            }
            (FromMember::Outcome(number, outcome), true) => {
                if self.handle_outcome(now, id, number, outcome).is_none() {
                    self.handle_nonsense(now, id);
                }
            }
            _ => self.handle_nonsense(now, id),
        }
        self.send_orders(id);
    }

    /// Handles an invalid message: drops the member.
    pub fn handle_nonsense(&mut self, now: Instant, id: MemberId) {
        tracing::warn!(member = id.0, "a process of this user says what no member of an XRC domain does");
        self.end(now, id);
    }

    /// Handles the end of the connection to a member, or a member that does not read its messages.
    pub fn handle_end(&mut self, now: Instant, id: MemberId) {
        self.end(now, id);
    }

    /// Handles an event of a target.
    pub fn handle_event(&mut self, now: Instant, qpn: Qpn, event: AsyncEvent) {
        let Some(entry) = self.targets.get_mut(&qpn) else { return };
        let holders = entry.users.holders();
        // The target failed by itself: messages in progress at its shadows end, too.
        let stops = entry.target.state() == QpState::Err && !entry.is_stopped;
        for holder in holders {
            self.send(holder, FromOwner::Event(qpn, event));
        }
        if stops {
            self.stop(now, None, qpn);
        }
    }

    /// Drops the members whose deadline has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        let is_late = |member: &Member| member.deadline().is_some_and(|deadline| deadline <= now);
        let late: Vec<_> = self.members.iter().filter(|(_, m)| is_late(m)).map(|(id, _)| *id).collect();
        for id in late {
            tracing::warn!(
                member = id.0,
                "a member of the XRC domain did not answer in time, and is dropped"
            );
            self.end(now, id);
        }
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.members.values().filter_map(Member::deadline).min()
    }

    /// The next action for the caller.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.out.pop_front()
    }

    /// When no member will have had the domain open for `linger`; `None` while one has it open.
    pub fn over_at(&self, linger: Duration) -> Option<Instant> {
        self.empty_since.map(|since| since + linger)
    }

    fn send(&mut self, id: MemberId, message: FromOwner) {
        self.out.push_back(Output::Send(id, message));
    }

    fn answer(&mut self, id: MemberId, number: u32, answer: Result<Answer, Refusal>) {
        self.send(id, FromOwner::Answer(number, answer));
    }

    /// Sends a member the next orders that its window permits.
    fn send_orders(&mut self, id: MemberId) {
        let Some(member) = self.members.get_mut(&id) else { return };
        while let Some(next) = member.next_order() {
            self.out.push_back(Output::Send(id, FromOwner::Order(next.number, next.order)));
        }
    }

    /// Queues an order for a member. The call of `caller`, if given, waits for it. Returns the order's number.
    fn order(&mut self, now: Instant, id: MemberId, caller: Option<MemberId>, order: Order) -> u32 {
        self.last_order = self.last_order.wrapping_add(1);
        let number = self.last_order;
        let Some(member) = self.members.get_mut(&id) else { return number };
        member.order(now, number, order, caller);
        let pending = caller.and_then(|caller| self.members.get_mut(&caller)?.pending.as_mut());
        if let Some(pending) = pending {
            pending.left += 1;
        }
        self.send_orders(id);
        number
    }
}

// Calls.
impl<D: Domain> Owner<D> {
    fn handle_call(&mut self, now: Instant, id: MemberId, number: u32, call: Call) {
        let (then, legs) = match self.carry_out(now, id, call) {
            Ok(done) => done,
            Err(refusal) => return self.answer(id, number, Err(refusal)),
        };
        // The call itself counts as one, until all orders are queued.
        let pending = Pending { number, left: 1, then, failed: None };
        self.members.entry(id).and_modify(|member| member.pending = Some(pending));
        let given = match legs {
            Legs::To(id) => self.make_legs_to(now, id),
            Legs::Of(qpn) => self.make_legs_of(now, id, qpn),
            Legs::AsTheyAre => Ok(()),
            Legs::Stop(qpn) => {
                self.stop(now, Some(id), qpn);
                Ok(())
            }
            Legs::Modify(qpn, order) => {
                self.order_shadows(now, Some(id), qpn, &order);
                Ok(())
            }
        };
        self.settle(now, id, given.err());
    }

    /// Executes a member's call. Returns what completes the call, and the work on legs to do before.
    fn carry_out(&mut self, now: Instant, id: MemberId, call: Call) -> Result<(Then, Legs), Refusal> {
        let answer = |answer| Ok((Then::Answer(answer), Legs::AsTheyAre));
        match call {
            Call::NewSrq(srq) => self.reserve(id, srq).map(|()| (Then::Srq(srq), Legs::To(id))),
            Call::CreateReceiver(open, attr) => {
                self.create_receiver(id, open, &attr).map(|qpn| (Then::ReceiverCreated(qpn), Legs::Of(qpn)))
            }
            Call::Modify(qpn, attr, mask) => self.modify(now, id, (qpn, false), &attr, mask),
            Call::ModifyReceiver(qpn, attr, mask) => self.modify(now, id, (qpn, true), &attr, mask),
            Call::RemoveSrq(srq) => self.release(id, srq).and_then(|()| answer(Answer::Done)),
            Call::Create => self.create(id).and_then(|qpn| answer(Answer::Target(qpn))),
            Call::Open(qpn) => self.open(id, qpn).and_then(|attr| answer(Answer::Attributes(attr))),
            Call::Close(qpn) => self.close(now, id, qpn).and_then(|()| answer(Answer::Done)),
            Call::Query(qpn) => {
                self.query(id, (qpn, false)).and_then(|attr| answer(Answer::Attributes(attr)))
            }
            Call::QueryReceiver(qpn) => {
                self.query(id, (qpn, true)).and_then(|attr| answer(Answer::Attributes(attr)))
            }
            Call::Register(open, qpn) => {
                let entry = self.targets.get_mut(&qpn).ok_or_else(|| unknown(qpn))?;
                entry.users.register(id, open, qpn).and_then(|()| answer(Answer::Done))
            }
            Call::Unregister(open, qpn) => {
                self.unregister(now, id, open, qpn).and_then(|()| answer(Answer::Done))
            }
        }
    }

    /// One order of a member's call, or the call itself, is done. Answers the call after the last of them.
    fn settle(&mut self, now: Instant, caller: MemberId, failed: Option<Refusal>) {
        let Some(member) = self.members.get_mut(&caller) else { return };
        let Some(pending) = &mut member.pending else { return };
        pending.left -= 1;
        if pending.failed.is_none() {
            pending.failed = failed;
        }
        if pending.left > 0 {
            return;
        }
        let Some(Pending { number, then, failed, .. }) = member.pending.take() else { return };
        let result = match failed {
            None => self.complete(caller, then),
            Some(refusal) => {
                self.undo(now, caller, &then);
                Err(refusal)
            }
        };
        self.answer(caller, number, result);
    }

    /// Completes a call whose orders have all been executed.
    fn complete(&mut self, caller: MemberId, then: Then) -> Result<Answer, Refusal> {
        match then {
            Then::Answer(answer) => Ok(answer),
            Then::Receives(_) => Ok(Answer::Done),
            Then::ReceiverCreated(qpn) => Ok(Answer::Target(qpn)),
            Then::Srq(srq) => match self.domain.set_srq_owner(srq, Some(caller)) {
                Ok(()) => Ok(Answer::Done),
                Err(refusal) => {
                    self.forget_srq(caller, srq);
                    Err(refusal)
                }
            },
        }
    }

    /// Undoes a call whose legs could not be made.
    fn undo(&mut self, now: Instant, caller: MemberId, then: &Then) {
        match *then {
            Then::Answer(_) => {}
            Then::Srq(srq) => self.forget_srq(caller, srq),
            Then::ReceiverCreated(qpn) => self.destroy(now, qpn),
            Then::Receives(qpn) => {
                self.end_legs_of(now, qpn);
                if let Some(entry) = self.targets.get(&qpn) {
                    // Always permitted, while the target's shard lives.
                    let _ = entry.target.modify(&into(QpState::Reset), AttrMask::STATE);
                }
            }
        }
    }

    fn reserve(&mut self, id: MemberId, srq: u32) -> Result<(), Refusal> {
        let Some(member) = self.members.get_mut(&id) else { return Ok(()) };
        if member.srqs.len() >= SRQ_MAX {
            let text = format!(
                "a process has {SRQ_MAX} shared receive queues of an XRC domain at most; destroy some"
            );
            return Err(Refusal::new(Reason::NoRoom, text));
        }
        if self.srqs.contains_key(&srq) {
            let text =
                format!("a shared receive queue of the XRC domain has the number {srq:#x}; take another one");
            return Err(Refusal::new(Reason::Taken, text));
        }
        member.srqs.insert(srq);
        self.srqs.insert(srq, id);
        Ok(())
    }

    fn release(&mut self, id: MemberId, srq: u32) -> Result<(), Refusal> {
        if self.srqs.get(&srq) != Some(&id) {
            let text =
                format!("no shared receive queue of this process has the number {srq:#x} in the XRC domain");
            return Err(Refusal::new(Reason::Invalid, text));
        }
        self.forget_srq(id, srq);
        // Refused only if the device has failed.
        let _ = self.domain.set_srq_owner(srq, None);
        Ok(())
    }

    fn forget_srq(&mut self, id: MemberId, srq: u32) {
        self.srqs.remove(&srq);
        if let Some(member) = self.members.get_mut(&id) {
            member.srqs.remove(&srq);
        }
    }

    fn create(&mut self, id: MemberId) -> Result<Qpn, Refusal> {
        let target = self.domain.create()?;
        Ok(self.keep(target, Users::with_handle(id)))
    }

    fn keep(&mut self, target: D::Target, users: Users) -> Qpn {
        let qpn = target.qpn();
        self.targets.insert(qpn, Entry { target, users, legs: HashMap::new(), is_stopped: false });
        qpn
    }

    fn create_receiver(&mut self, id: MemberId, open: u32, attr: &Attributes) -> Result<Qpn, Refusal> {
        let target = self.domain.create()?;
        for (from, to) in [(QpState::Reset, QpState::Init), (QpState::Init, QpState::Rtr)] {
            let next = Attributes { attr: QpAttr { qp_state: to, ..attr.attr }, ..*attr };
            target.modify(&next, required(from, to, QpType::XrcTgt))?;
        }
        Ok(self.keep(target, Users::with_open(id, open)))
    }

    /// A target that a member may use: a receive-only one, or one of which it has a handle.
    fn target(&self, id: MemberId, (qpn, is_receiver): (Qpn, bool)) -> Result<&D::Target, Refusal> {
        let may = |users: &Users| if is_receiver { users.is_receiver() } else { users.has_handle(id) };
        let entry = self.targets.get(&qpn).filter(|entry| may(&entry.users));
        entry.map(|entry| &entry.target).ok_or_else(|| unknown(qpn))
    }

    fn query(&self, id: MemberId, which: (Qpn, bool)) -> Result<Attributes, Refusal> {
        self.target(id, which)?.query()
    }

    fn open(&mut self, id: MemberId, qpn: Qpn) -> Result<Attributes, Refusal> {
        let entry = self.targets.get_mut(&qpn).filter(|entry| !entry.users.is_receiver());
        let entry = entry.ok_or_else(|| unknown(qpn))?;
        let attr = entry.target.query()?;
        entry.users.open(id).map(|()| attr).ok_or_else(|| unknown(qpn))
    }

    fn close(&mut self, now: Instant, id: MemberId, qpn: Qpn) -> Result<(), Refusal> {
        let closed = self.targets.get_mut(&qpn).and_then(|entry| entry.users.close(id));
        if closed.ok_or_else(|| unknown(qpn))? {
            self.destroy(now, qpn);
        }
        Ok(())
    }

    fn unregister(&mut self, now: Instant, id: MemberId, open: u32, qpn: Qpn) -> Result<(), Refusal> {
        let ended = self.targets.get_mut(&qpn).and_then(|entry| entry.users.unregister(id, open));
        if ended.ok_or_else(|| unknown(qpn))? {
            self.destroy(now, qpn);
        }
        Ok(())
    }

    fn destroy(&mut self, now: Instant, qpn: Qpn) {
        self.end_legs_of(now, qpn);
        self.targets.remove(&qpn);
    }

    fn modify(
        &mut self,
        now: Instant,
        id: MemberId,
        which: (Qpn, bool),
        attr: &Attributes,
        mask: AttrMask,
    ) -> Result<(Then, Legs), Refusal> {
        let (target, qpn) = (self.target(id, which)?, which.0);
        let before = target.state();
        target.modify(attr, mask)?;
        let done = Then::Answer(Answer::Done);
        Ok(match (receives(before), target.state()) {
            (_, QpState::Reset | QpState::Init) => {
                self.end_legs_of(now, qpn);
                (done, Legs::AsTheyAre)
            }
            (_, QpState::Err) => (done, Legs::Stop(qpn)),
            (false, _) => (Then::Receives(qpn), Legs::Of(qpn)),
            (true, _) if mask.intersects(SHADOWED) => {
                (done, Legs::Modify(qpn, Order::Modify(qpn, *attr, mask & SHADOWED)))
            }
            (true, _) => (done, Legs::AsTheyAre),
        })
    }
}

/// The work on legs before a call is answered.
enum Legs {
    AsTheyAre,
    /// Make the legs that the member lacks.
    To(MemberId),
    /// Make the legs of the target.
    Of(Qpn),
    /// Move the shadows of the target to ERR.
    Stop(Qpn),
    /// Modify the shadows of the target.
    Modify(Qpn, Order),
}

/// Attributes that only contain a state.
fn into(state: QpState) -> Attributes {
    QpAttr { qp_state: state, ..QpAttr::default() }.into()
}

/// Whether a target accepts requests in a state.
fn receives(state: QpState) -> bool {
    matches!(state, QpState::Rtr | QpState::Rts | QpState::Sqd)
}

// Legs.
impl<D: Domain> Owner<D> {
    /// Makes a leg to a member. The call of `caller` waits for its shadow.
    fn make_leg(&mut self, now: Instant, caller: MemberId, qpn: Qpn, id: MemberId) -> Result<(), Refusal> {
        let Some(entry) = self.targets.get(&qpn) else { return Ok(()) };
        let attr = entry.target.add_leg(id)?;
        let number = self.order(now, id, Some(caller), Order::Make(qpn, attr));
        if let Some(entry) = self.targets.get_mut(&qpn) {
            entry.legs.insert(id, number);
        }
        Ok(())
    }

    /// Makes the legs that a member lacks before it gets a shared receive queue.
    fn make_legs_to(&mut self, now: Instant, id: MemberId) -> Result<(), Refusal> {
        let lacks =
            |entry: &Entry<D::Target>| receives(entry.target.state()) && !entry.legs.contains_key(&id);
        let lacking = self.targets.iter().filter(|(_, entry)| lacks(entry));
        let lacking: Vec<_> = lacking.map(|(qpn, _)| *qpn).collect();
        lacking.into_iter().try_for_each(|qpn| self.make_leg(now, id, qpn, id))
    }

    /// Makes the legs of a target that receives from now on.
    fn make_legs_of(&mut self, now: Instant, caller: MemberId, qpn: Qpn) -> Result<(), Refusal> {
        if let Some(entry) = self.targets.get_mut(&qpn) {
            entry.is_stopped = false;
        }
        let with_queue = self.members.iter().filter(|(_, member)| !member.srqs.is_empty());
        let ids: Vec<_> = with_queue.map(|(id, _)| *id).collect();
        ids.into_iter().try_for_each(|id| self.make_leg(now, caller, qpn, id))
    }

    fn end_legs_of(&mut self, now: Instant, qpn: Qpn) {
        let Some(entry) = self.targets.get_mut(&qpn) else { return };
        let legs: Vec<_> = entry.legs.drain().map(|(id, _)| id).collect();
        for id in &legs {
            entry.target.remove_leg(*id);
        }
        for id in legs {
            self.order(now, id, None, Order::End(qpn));
        }
    }

    /// Orders the shadows of a target to enter ERR, so that their messages in progress end.
    fn stop(&mut self, now: Instant, caller: Option<MemberId>, qpn: Qpn) {
        if let Some(entry) = self.targets.get_mut(&qpn) {
            entry.is_stopped = true;
        }
        self.order_shadows(now, caller, qpn, &Order::Modify(qpn, into(QpState::Err), AttrMask::STATE));
    }

    fn order_shadows(&mut self, now: Instant, caller: Option<MemberId>, qpn: Qpn, order: &Order) {
        let legs = self.targets.get(&qpn).map(|entry| entry.legs.keys().copied().collect::<Vec<_>>());
        for id in legs.into_iter().flatten() {
            self.order(now, id, caller, *order);
        }
    }

    /// Handles the outcome of an order. `None`: the outcome is invalid.
    fn handle_outcome(
        &mut self,
        now: Instant,
        id: MemberId,
        number: u32,
        outcome: Result<Outcome, Refusal>,
    ) -> Option<()> {
        let ordered = self.members.get_mut(&id)?.take_order(number)?;
        let failed = match (ordered.order, outcome) {
            (Order::Make(qpn, _), Ok(Outcome::Shadow(shadow))) => {
                self.connect_leg(qpn, id, number, shadow).err()
            }
            (Order::Modify(..) | Order::End(_), Ok(Outcome::Done)) => None,
            (_, Ok(_)) => {
                // The call waits no longer, whatever becomes of the member.
                ordered.caller.into_iter().for_each(|caller| self.settle(now, caller, None));
                return None;
            }
            (order, Err(refusal)) => {
                if let Order::Make(qpn, _) = order {
                    self.drop_leg(qpn, id, number);
                }
                Some(refusal)
            }
        };
        // A failure in a member fails only its own call.
        if let Some(caller) = ordered.caller {
            self.settle(now, caller, failed.filter(|_| caller == id));
        }
        Some(())
    }

    fn connect_leg(&mut self, qpn: Qpn, id: MemberId, order: u32, shadow: Qpn) -> Result<(), Refusal> {
        let entry = self.targets.get(&qpn).filter(|entry| entry.legs.get(&id) == Some(&order));
        // Otherwise the leg was removed meanwhile, and its shadow will end, too.
        let connected = entry.map_or(Ok(()), |entry| entry.target.connect_leg(id, shadow));
        connected.inspect_err(|_| self.drop_leg(qpn, id, order))
    }

    fn drop_leg(&mut self, qpn: Qpn, id: MemberId, order: u32) {
        let entry = self.targets.get_mut(&qpn).filter(|entry| entry.legs.get(&id) == Some(&order));
        if let Some(entry) = entry {
            entry.legs.remove(&id);
            entry.target.remove_leg(id);
        }
    }
}

// The end of a member.
impl<D: Domain> Owner<D> {
    fn end(&mut self, now: Instant, id: MemberId) {
        let Some(member) = self.members.remove(&id) else { return };
        self.out.push_back(Output::End(id));
        let was_member = member.is_member();
        for srq in &member.srqs {
            self.srqs.remove(srq);
            // Refused only if the device has failed.
            let _ = self.domain.set_srq_owner(*srq, None);
        }
        for entry in self.targets.values_mut() {
            entry.users.forget(id);
            if entry.legs.remove(&id).is_some() {
                entry.target.remove_leg(id);
            }
        }
        for caller in member.into_orders().filter_map(|ordered| ordered.caller) {
            self.settle(now, caller, None);
        }
        if was_member && !self.members.values().any(Member::is_member) {
            // The targets end with the domain's last open.
            self.targets.clear();
            self.empty_since = Some(now);
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
