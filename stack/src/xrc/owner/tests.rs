//! The owner's decisions, with a device that only records its calls.

use std::cell::RefCell;
use std::rc::Rc;

use super::*;
use crate::device::DeviceError;
use crate::xrc::members::PATIENCE;

/// The calls of the device, and its state.
#[derive(Default)]
pub(in crate::xrc) struct World {
    last: u32,
    states: BTreeMap<Qpn, QpState>,
    legs: BTreeMap<(Qpn, MemberId), Option<Qpn>>,
    srqs: BTreeMap<u32, MemberId>,
    /// No further leg can be made.
    is_full: bool,
}

pub(in crate::xrc) type Shared = Rc<RefCell<World>>;

pub(in crate::xrc) struct FakeDomain(pub Shared);

pub(in crate::xrc) struct FakeTarget(Qpn, Shared);

fn full() -> Refusal {
    DeviceError::Exhausted { what: "queue pair number", limit: 1 }.into()
}

impl Domain for FakeDomain {
    type Target = FakeTarget;

    fn create(&self) -> Result<FakeTarget, Refusal> {
        let mut world = self.0.borrow_mut();
        world.last += 1;
        let qpn = Qpn::new(0x1000 + world.last);
        world.states.insert(qpn, QpState::Reset);
        Ok(FakeTarget(qpn, self.0.clone()))
    }

    fn set_srq_owner(&self, number: u32, member: Option<MemberId>) -> Result<(), Refusal> {
        let srqs = &mut self.0.borrow_mut().srqs;
        match member {
            Some(member) => drop(srqs.insert(number, member).map(|_| panic!("{number} has an owner"))),
            None => drop(srqs.remove(&number)),
        }
        Ok(())
    }
}

impl Target for FakeTarget {
    fn qpn(&self) -> Qpn {
        self.0
    }
    fn state(&self) -> QpState {
        self.1.borrow().states[&self.0]
    }
    fn modify(&self, attr: &Attributes, mask: AttrMask) -> Result<(), Refusal> {
        if mask.contains(AttrMask::CAP) {
            return Err(DeviceError::Unsuitable("queues are not resized").into());
        }
        if mask.contains(AttrMask::STATE) {
            self.1.borrow_mut().states.insert(self.0, attr.attr.qp_state);
        }
        Ok(())
    }
    fn query(&self) -> Result<Attributes, Refusal> {
        Ok(into(self.state()))
    }
    fn add_leg(&self, member: MemberId) -> Result<Attributes, Refusal> {
        let mut world = self.1.borrow_mut();
        if world.is_full {
            return Err(full());
        }
        assert!(world.legs.insert((self.0, member), None).is_none(), "one leg for each");
        Ok(QpAttr { dest_qp_num: member.0, ..QpAttr::default() }.into())
    }
    fn connect_leg(&self, member: MemberId, shadow: Qpn) -> Result<(), Refusal> {
        let before = self.1.borrow_mut().legs.insert((self.0, member), Some(shadow));
        assert_eq!(before, Some(None), "it is there, and not connected");
        Ok(())
    }
    fn remove_leg(&self, member: MemberId) {
        assert!(self.1.borrow_mut().legs.remove(&(self.0, member)).is_some());
    }
}

impl Drop for FakeTarget {
    fn drop(&mut self) {
        let mut world = self.1.borrow_mut();
        world.states.remove(&self.0);
        world.legs.retain(|(target, _), _| *target != self.0);
    }
}

/// An owner, and its messages to each member.
struct Host {
    now: Instant,
    owner: Owner<FakeDomain>,
    world: Shared,
    said: HashMap<MemberId, VecDeque<FromOwner>>,
    ended: Vec<MemberId>,
    last_call: u32,
}

impl Host {
    fn new() -> Self {
        let (now, world) = (Instant::now(), Shared::default());
        let owner = Owner::new(now, FakeDomain(world.clone()));
        Self { now, owner, world, said: HashMap::new(), ended: Vec::new(), last_call: 0 }
    }

    fn collect(&mut self) {
        while let Some(output) = self.owner.poll_output() {
            match output {
                Output::Send(id, message) => self.said.entry(id).or_default().push_back(message),
                Output::End(id) => self.ended.push(id),
            }
        }
    }

    fn says(&mut self, id: MemberId, message: FromMember) {
        self.owner.handle_message(self.now, id, message);
        self.collect();
    }

    fn join(&mut self) -> MemberId {
        let id = self.owner.handle_connected(self.now);
        self.says(id, FromMember::Hello(VERSION));
        assert!(matches!(self.said.get_mut(&id).unwrap().pop_front(), Some(FromOwner::Welcome(_))));
        id
    }

    fn leave(&mut self, id: MemberId) {
        self.owner.handle_end(self.now, id);
        self.collect();
    }

    fn begin(&mut self, id: MemberId, call: Call) {
        self.last_call += 1;
        self.says(id, FromMember::Call(self.last_call, call));
    }

    /// The answer to a member's call, if it was sent.
    fn answer(&mut self, id: MemberId) -> Option<Result<Answer, Refusal>> {
        let said = self.said.get_mut(&id)?;
        let at = said.iter().position(|message| matches!(message, FromOwner::Answer(..)))?;
        match said.remove(at) {
            Some(FromOwner::Answer(number, answer)) => {
                assert!(number <= self.last_call);
                Some(answer)
            }
            _ => None,
        }
    }

    /// Makes a call that is answered at once.
    fn call(&mut self, id: MemberId, call: Call) -> Result<Answer, Refusal> {
        self.begin(id, call.clone());
        self.answer(id).unwrap_or_else(|| panic!("{call:?} waits"))
    }

    fn orders(&mut self, id: MemberId) -> Vec<(u32, Order)> {
        let said = self.said.entry(id).or_default();
        let orders = said.iter().filter_map(|message| match message {
            FromOwner::Order(number, order) => Some((*number, *order)),
            _ => None,
        });
        let orders = orders.collect();
        said.retain(|message| !matches!(message, FromOwner::Order(..)));
        orders
    }

    /// Has a member execute its orders. Returns them.
    fn execute(&mut self, id: MemberId) -> Vec<Order> {
        let mut done = Vec::new();
        loop {
            let orders = self.orders(id);
            if orders.is_empty() {
                return done;
            }
            for (number, order) in orders {
                let outcome = match order {
                    Order::Make(target, attr) => {
                        assert_eq!(attr.attr.dest_qp_num, id.0, "the attributes of its own leg");
                        Outcome::Shadow(shadow(target, id))
                    }
                    Order::Modify(..) | Order::End(_) => Outcome::Done,
                };
                self.says(id, FromMember::Outcome(number, Ok(outcome)));
                done.push(order);
            }
        }
    }

    fn target(&mut self, id: MemberId) -> Qpn {
        match self.call(id, Call::Create) {
            Ok(Answer::Target(qpn)) => qpn,
            other => panic!("{other:?}"),
        }
    }

    /// Creates a target in RTR, with its shadows connected.
    fn receiver(&mut self, id: MemberId) -> Qpn {
        let qpn = self.target(id);
        self.begin(id, to(qpn, QpState::Rtr));
        let members: Vec<_> = self.said.keys().copied().collect();
        members.into_iter().for_each(|member| drop(self.execute(member)));
        assert_eq!(self.answer(id), Some(Ok(Answer::Done)));
        qpn
    }

    /// Adds a member with a shared receive queue of this number.
    fn with_srq(&mut self, number: u32) -> MemberId {
        let id = self.join();
        self.begin(id, Call::NewSrq(number));
        self.execute(id);
        assert_eq!(self.answer(id), Some(Ok(Answer::Done)));
        id
    }

    fn shadow_of(&self, target: Qpn, id: MemberId) -> Option<Qpn> {
        self.world.borrow().legs.get(&(target, id)).copied().flatten()
    }

    fn state(&self, target: Qpn) -> Option<QpState> {
        self.world.borrow().states.get(&target).copied()
    }
}

fn target_of(order: &Order) -> Qpn {
    let (Order::Make(target, _) | Order::Modify(target, ..) | Order::End(target)) = order;
    *target
}

fn shadow(target: Qpn, id: MemberId) -> Qpn {
    Qpn::new(target.get() << 8 | id.0)
}

fn to(qpn: Qpn, state: QpState) -> Call {
    Call::Modify(qpn, into(state), AttrMask::STATE)
}

#[test]
fn a_shared_receive_queue_is_there_when_its_process_has_shadows_of_all_targets_that_receive() {
    let mut host = Host::new();
    let maker = host.join();
    let (one, two, idle) = (host.receiver(maker), host.receiver(maker), host.target(maker));
    let member = host.join();
    host.begin(member, Call::NewSrq(7));
    assert_eq!(host.answer(member), None);
    assert!(host.world.borrow().srqs.is_empty(), "nothing is routed to it yet");
    let made: Vec<_> = host.execute(member).iter().map(target_of).collect();
    assert_eq!(made, [one, two], "and none of {idle:?}");
    assert_eq!(host.answer(member), Some(Ok(Answer::Done)));
    assert_eq!(host.world.borrow().srqs.get(&7), Some(&member));
    for target in [one, two] {
        assert_eq!(host.shadow_of(target, member), Some(shadow(target, member)));
    }
    // The second queue needs no further shadows.
    assert_eq!(host.call(member, Call::NewSrq(8)), Ok(Answer::Done));
    assert_eq!(host.call(member, Call::RemoveSrq(7)), Ok(Answer::Done));
    assert_eq!(host.world.borrow().srqs.keys().copied().collect::<Vec<_>>(), [8]);
}

#[test]
fn a_target_receives_when_all_processes_with_queues_have_their_shadows() {
    let mut host = Host::new();
    let (maker, idle) = (host.join(), host.join());
    let (one, two) = (host.with_srq(1), host.with_srq(2));
    let target = host.target(maker);
    assert_eq!(host.call(maker, to(target, QpState::Init)), Ok(Answer::Done));
    host.begin(maker, to(target, QpState::Rtr));
    assert_eq!((host.orders(idle), host.orders(maker)), (vec![], vec![]), "they have no queues");
    host.execute(one);
    assert_eq!(host.answer(maker), None);
    // Other members are served meanwhile.
    assert!(host.call(idle, Call::Open(target)).is_ok());
    host.execute(two);
    assert_eq!(host.answer(maker), Some(Ok(Answer::Done)));
    let attr = host.call(maker, Call::Query(target));
    assert!(matches!(attr, Ok(Answer::Attributes(attr)) if attr.attr.qp_state == QpState::Rtr), "{attr:?}");
}

#[test]
fn who_does_not_answer_in_time_is_dropped_and_holds_up_nobody_any_longer() {
    let mut host = Host::new();
    let maker = host.join();
    let (good, silent) = (host.with_srq(1), host.with_srq(2));
    let target = host.target(maker);
    host.begin(maker, to(target, QpState::Rtr));
    host.execute(good);
    assert_eq!(host.owner.poll_timeout(), Some(host.now + PATIENCE));
    host.now += PATIENCE - Duration::from_millis(1);
    host.owner.handle_timeout(host.now);
    host.collect();
    assert_eq!((host.answer(maker), &host.ended[..]), (None, &[][..]));
    host.now += Duration::from_millis(1);
    host.owner.handle_timeout(host.now);
    host.collect();
    assert_eq!((host.answer(maker), &host.ended[..]), (Some(Ok(Answer::Done)), &[silent][..]));
    assert_eq!(host.world.borrow().srqs.keys().copied().collect::<Vec<_>>(), [1]);
    assert_eq!((host.shadow_of(target, silent), host.owner.poll_timeout()), (None, None));
    // Its later messages are ignored.
    host.says(silent, FromMember::Call(9, Call::Create));
    assert_eq!(host.answer(silent), None);
}

#[test]
fn a_number_has_one_queue_until_that_is_gone() {
    let mut host = Host::new();
    let (one, two) = (host.with_srq(5), host.join());
    let taken = host.call(two, Call::NewSrq(5)).unwrap_err();
    assert_eq!(taken.reason, Reason::Taken);
    assert_eq!(
        host.call(two, Call::RemoveSrq(5)).unwrap_err().reason,
        Reason::Invalid,
        "it is another one's"
    );
    host.leave(one);
    assert!(host.world.borrow().srqs.is_empty());
    assert_eq!(host.call(two, Call::NewSrq(5)), Ok(Answer::Done));
    assert_eq!(host.world.borrow().srqs.get(&5), Some(&two));
}

#[test]
fn a_target_outlives_its_maker_until_the_last_handle_is_given_up() {
    let mut host = Host::new();
    let (maker, other) = (host.join(), host.with_srq(1));
    let (target, lost) = (host.receiver(maker), host.receiver(maker));
    assert!(host.call(other, Call::Open(target)).is_ok() && host.call(other, Call::Open(target)).is_ok());
    host.leave(maker);
    assert_eq!((host.state(target), host.state(lost)), (Some(QpState::Rtr), Some(QpState::Rtr)));
    assert_eq!(host.shadow_of(lost, other), Some(shadow(lost, other)), "messages still arrive by it");
    assert_eq!(host.call(other, Call::Query(lost)), Err(unknown(lost)), "it has no handle");
    assert_eq!(host.call(other, Call::Close(lost)), Err(unknown(lost)));
    assert_eq!(host.call(other, Call::Close(target)), Ok(Answer::Done));
    assert_eq!(host.state(target), Some(QpState::Rtr));
    assert_eq!(host.call(other, Call::Close(target)), Ok(Answer::Done));
    assert_eq!((host.state(target), host.execute(other)), (None, vec![Order::End(target)]));
    // A member that opens the target again can destroy it.
    assert!(host.call(other, Call::Open(lost)).is_ok());
    assert_eq!(host.call(other, Call::Close(lost)), Ok(Answer::Done));
    assert_eq!(host.state(lost), None);
}

#[test]
fn a_domain_ends_with_its_last_member_and_the_owner_some_time_later() {
    let linger = Duration::from_secs(10);
    let mut host = Host::new();
    assert_eq!(host.owner.over_at(linger), Some(host.now + linger));
    // A process without a hello is no member.
    let silent = host.owner.handle_connected(host.now);
    assert_eq!(host.owner.over_at(linger), Some(host.now + linger));
    let (one, two) = (host.join(), host.join());
    let target = host.target(one);
    host.leave(one);
    host.now += linger * 2;
    assert_eq!((host.owner.over_at(linger), host.state(target)), (None, Some(QpState::Reset)));
    host.leave(two);
    assert_eq!((host.owner.over_at(linger), host.state(target)), (Some(host.now + linger), None));
    let _ = silent;
    // The domain is a new one.
    let three = host.join();
    assert_eq!(host.call(three, Call::Open(target)), Err(unknown(target)));
}

#[test]
fn who_joins_learns_whether_there_are_others() {
    let mut host = Host::new();
    for others in 0..3 {
        let id = host.owner.handle_connected(host.now);
        host.says(id, FromMember::Hello(VERSION));
        assert_eq!(host.said[&id], [FromOwner::Welcome(others)]);
    }
}

#[test]
fn a_receive_only_target_lives_until_the_last_registration_is_ended() {
    let mut host = Host::new();
    let (one, two, three) = (host.join(), host.with_srq(1), host.join());
    host.begin(one, Call::CreateReceiver(10, Attributes::default()));
    assert_eq!(host.answer(one), None, "another one has a queue");
    let target = target_of(&host.execute(two)[0]);
    assert_eq!(host.answer(one), Some(Ok(Answer::Target(target))));
    assert_eq!(host.state(target), Some(QpState::Rtr));
    // It has no handles, and any member may query it.
    assert_eq!(host.call(one, Call::Query(target)), Err(unknown(target)));
    assert_eq!(host.call(one, Call::Open(target)), Err(unknown(target)));
    assert!(host.call(three, Call::QueryReceiver(target)).is_ok());
    assert_eq!(host.call(two, Call::Register(10, target)), Ok(Answer::Done));
    assert_eq!(host.call(two, Call::Register(10, target)), Ok(Answer::Done));
    assert_eq!(host.call(two, Call::Unregister(11, target)), Err(unknown(target)));
    host.leave(one);
    assert_eq!(host.call(two, Call::Unregister(10, target)), Ok(Answer::Done));
    assert_eq!((host.state(target), host.execute(two)), (None, vec![Order::End(target)]));
    // The end of a process does not destroy the target.
    host.begin(three, Call::CreateReceiver(1, Attributes::default()));
    let target = target_of(&host.execute(two)[0]);
    host.leave(three);
    assert_eq!(host.state(target), Some(QpState::Rtr));
    // A target with handles is not receive-only.
    let other = host.target(two);
    assert_eq!(host.call(two, Call::QueryReceiver(other)), Err(unknown(other)));
    assert_eq!(host.call(two, Call::Register(1, other)), Err(unknown(other)));
}

#[test]
fn a_shadow_that_a_process_cannot_make_is_its_own_failure() {
    let mut host = Host::new();
    let (maker, poor) = (host.join(), host.with_srq(1));
    let refusal = Refusal::new(Reason::NoRoom, "none is left");
    let fail = |host: &mut Host| {
        let [(number, Order::Make(..))] = host.orders(poor)[..] else { panic!("one order") };
        host.says(poor, FromMember::Outcome(number, Err(refusal.clone())));
    };
    let target = host.target(maker);
    host.begin(maker, to(target, QpState::Rtr));
    fail(&mut host);
    assert_eq!(host.answer(maker), Some(Ok(Answer::Done)));
    assert!(host.world.borrow().legs.is_empty());
    // With its next queue the member tries again.
    host.begin(poor, Call::NewSrq(2));
    fail(&mut host);
    assert_eq!(host.answer(poor), Some(Err(refusal)));
    assert!(host.world.borrow().legs.is_empty() && !host.world.borrow().srqs.contains_key(&2));
    host.begin(poor, Call::NewSrq(2));
    host.execute(poor);
    assert_eq!(host.answer(poor), Some(Ok(Answer::Done)));
    assert_eq!(host.shadow_of(target, poor), Some(shadow(target, poor)));
}

#[test]
fn a_target_that_cannot_reach_all_is_in_reset_and_its_maker_is_told() {
    let mut host = Host::new();
    let (maker, other) = (host.join(), host.with_srq(1));
    let target = host.target(maker);
    host.world.borrow_mut().is_full = true;
    assert_eq!(host.call(maker, to(target, QpState::Rtr)), Err(full()));
    assert_eq!(host.state(target), Some(QpState::Reset));
    assert_eq!(host.call(maker, Call::CreateReceiver(1, Attributes::default())), Err(full()));
    assert_eq!(host.world.borrow().states.len(), 1, "nothing is left of it");
    host.world.borrow_mut().is_full = false;
    host.begin(maker, to(target, QpState::Rtr));
    assert_eq!(host.execute(other).len(), 1);
    assert_eq!(host.answer(maker), Some(Ok(Answer::Done)));
    host.world.borrow_mut().is_full = true;
    let poor = host.join();
    assert_eq!(host.call(poor, Call::NewSrq(3)), Err(full()));
    host.world.borrow_mut().is_full = false;
    host.begin(poor, Call::NewSrq(3));
    assert_eq!(host.execute(poor).len(), 1);
}

#[test]
fn what_is_refused_changes_nothing() {
    let mut host = Host::new();
    let (maker, other) = (host.join(), host.with_srq(1));
    let target = host.receiver(maker);
    let attr = into(QpState::Err);
    let refused = host.call(maker, Call::Modify(target, attr, AttrMask::STATE | AttrMask::CAP));
    assert!(refused.unwrap_err().text.contains("not resized"));
    assert_eq!((host.state(target), host.orders(other)), (Some(QpState::Rtr), vec![]));
    assert_eq!(host.call(other, to(target, QpState::Err)), Err(unknown(target)), "it has no handle");
    assert_eq!(host.state(target), Some(QpState::Rtr));
}

#[test]
fn shadows_follow_what_their_target_allows() {
    let mut host = Host::new();
    let (maker, other) = (host.join(), host.with_srq(1));
    let target = host.receiver(maker);
    let attr = QpAttr { qp_access_flags: 3, timeout: 14, qp_state: QpState::Rts, ..QpAttr::default() };
    let attr = Attributes::from(attr);
    let mask = AttrMask::STATE | AttrMask::TIMEOUT | AttrMask::SQ_PSN;
    assert_eq!(host.call(maker, Call::Modify(target, attr, mask)), Ok(Answer::Done), "nothing of theirs");
    host.begin(maker, Call::Modify(target, attr, mask | AttrMask::ACCESS_FLAGS));
    assert_eq!(host.answer(maker), None);
    assert_eq!(host.execute(other), [Order::Modify(target, attr, AttrMask::ACCESS_FLAGS)]);
    assert_eq!(host.answer(maker), Some(Ok(Answer::Done)));
}

// Goal: a shadow that belongs to an earlier connection of the target gets no packets of the next one.
#[test]
fn reset_ends_shadows_and_late_ones_are_not_used() {
    let mut host = Host::new();
    let (maker, other) = (host.join(), host.with_srq(1));
    let target = host.receiver(maker);
    assert_eq!(host.call(maker, to(target, QpState::Reset)), Ok(Answer::Done));
    assert_eq!(host.execute(other), [Order::End(target)]);
    let helper = host.join();
    assert!(host.call(helper, Call::Open(target)).is_ok());
    host.begin(maker, to(target, QpState::Rtr));
    let first = host.orders(other);
    assert_eq!(host.call(helper, to(target, QpState::Reset)), Ok(Answer::Done));
    host.begin(helper, to(target, QpState::Rtr));
    let [(make, Order::Make(..))] = first[..] else { panic!("{first:?}") };
    host.says(other, FromMember::Outcome(make, Ok(Outcome::Shadow(Qpn::new(1)))));
    assert_eq!((host.answer(maker), host.answer(helper)), (Some(Ok(Answer::Done)), None));
    assert_eq!(host.shadow_of(target, other), None);
    assert!(matches!(host.execute(other)[..], [Order::End(_), Order::Make(..)]));
    assert_eq!(host.answer(helper), Some(Ok(Answer::Done)));
    assert_eq!(host.shadow_of(target, other), Some(shadow(target, other)));
}

#[test]
fn a_target_that_fails_takes_its_shadows_along_once_and_its_holders_hear_of_it() {
    let mut host = Host::new();
    let (maker, holder, other) = (host.join(), host.join(), host.with_srq(1));
    let (target, stopped) = (host.receiver(maker), host.receiver(maker));
    assert!(host.call(holder, Call::Open(target)).is_ok());
    let err = |order: &Order| matches!(order, Order::Modify(_, attr, AttrMask::STATE) if attr.attr.qp_state == QpState::Err);
    host.owner.handle_event(host.now, target, AsyncEvent::CommEst);
    host.collect();
    assert_eq!(host.orders(other), []);
    host.world.borrow_mut().states.insert(target, QpState::Err);
    for times in [1, 0] {
        host.owner.handle_event(host.now, target, AsyncEvent::QpFatal);
        host.collect();
        let orders = host.execute(other);
        assert!(orders.len() == times && orders.iter().all(err), "{orders:?}");
    }
    for id in [maker, holder] {
        let [comm_est, fatal, again] = [AsyncEvent::CommEst, AsyncEvent::QpFatal, AsyncEvent::QpFatal];
        let events = [comm_est, fatal, again].map(|event| FromOwner::Event(target, event));
        assert_eq!(host.said[&id], events);
    }
    assert_eq!(host.said[&other], [], "it has no handle");
    host.begin(maker, to(stopped, QpState::Err));
    assert_eq!(host.answer(maker), None, "until they have stopped");
    assert!(host.execute(other).iter().all(err));
    assert_eq!(host.answer(maker), Some(Ok(Answer::Done)));
}

#[test]
fn who_says_what_it_may_not_is_dropped_and_nobody_else() {
    type Lie = fn(&mut Host, MemberId);
    let lies: [(&str, Lie); 6] = [
        ("a second hello", |host, id| host.says(id, FromMember::Hello(VERSION))),
        ("an outcome of nothing", |host, id| host.says(id, FromMember::Outcome(1, Ok(Outcome::Done)))),
        ("a second call", |host, id| {
            host.begin(id, Call::NewSrq(77));
            host.begin(id, Call::Create);
        }),
        ("the outcome of a later order", |host, id| {
            host.begin(id, Call::NewSrq(77));
            let orders = host.orders(id);
            assert_eq!(orders.len(), 2);
            host.says(id, FromMember::Outcome(orders[1].0, Ok(Outcome::Shadow(Qpn::new(1)))));
        }),
        ("no shadow for one that was ordered", |host, id| {
            host.begin(id, Call::NewSrq(77));
            let orders = host.orders(id);
            host.says(id, FromMember::Outcome(orders[0].0, Ok(Outcome::Done)));
        }),
        ("a shadow for none", |host, id| {
            host.begin(id, Call::NewSrq(77));
            host.execute(id);
            let target = *host.world.borrow().states.keys().next().unwrap();
            assert_eq!(host.answer(id), Some(Ok(Answer::Done)));
            assert!(host.call(id, Call::Open(target)).is_ok());
            host.begin(id, to(target, QpState::Err));
            let orders = host.orders(id);
            let at = orders.iter().find(|(_, order)| matches!(order, Order::Modify(..))).unwrap();
            host.says(id, FromMember::Outcome(at.0, Ok(Outcome::Shadow(Qpn::new(1)))));
        }),
    ];
    for (what, lie) in lies {
        let mut host = Host::new();
        let good = host.join();
        let target = host.receiver(good);
        host.receiver(good);
        let id = host.join();
        lie(&mut host, id);
        assert_eq!(host.ended, [id], "{what}");
        assert!(host.world.borrow().srqs.is_empty() && host.world.borrow().legs.is_empty(), "{what}");
        assert!(host.call(good, Call::Query(target)).is_ok(), "{what}");
    }
    let mut host = Host::new();
    let id = host.owner.handle_connected(host.now);
    host.says(id, FromMember::Call(1, Call::Create));
    assert_eq!((&host.ended[..], host.world.borrow().last), (&[id][..], 0), "before it said hello");
}

#[test]
fn unlike_versions_are_told_and_who_says_nothing_is_dropped() {
    let mut host = Host::new();
    let unlike = host.owner.handle_connected(host.now);
    host.says(unlike, FromMember::Hello(VERSION + 1));
    assert_eq!(
        (host.said[&unlike].clone(), &host.ended[..]),
        ([FromOwner::VersionMismatch(VERSION)].into(), &[unlike][..])
    );
    let silent = host.owner.handle_connected(host.now);
    host.now += PATIENCE;
    host.owner.handle_timeout(host.now);
    host.collect();
    assert_eq!(host.ended, [unlike, silent]);
}

#[test]
fn a_member_has_a_bounded_number_of_orders_under_way() {
    let mut host = Host::new();
    let maker = host.join();
    let targets: Vec<_> = (0..200).map(|_| host.receiver(maker)).collect();
    let member = host.join();
    host.begin(member, Call::NewSrq(1));
    let sent = host.said[&member].len();
    assert!((1..=32).contains(&sent), "{sent} orders at once");
    let made: Vec<_> = host.execute(member).iter().map(target_of).collect();
    assert_eq!((made, host.answer(member)), (targets, Some(Ok(Answer::Done))));
}

#[test]
fn the_end_of_a_caller_ends_its_call() {
    let mut host = Host::new();
    let (maker, other) = (host.join(), host.with_srq(1));
    let target = host.target(maker);
    host.begin(maker, to(target, QpState::Rtr));
    host.leave(maker);
    host.execute(other);
    assert_eq!(host.shadow_of(target, other), Some(shadow(target, other)));
    // And a member that is about to get a queue does not get it.
    let member = host.join();
    host.begin(member, Call::NewSrq(2));
    host.leave(member);
    assert_eq!(host.world.borrow().srqs.keys().copied().collect::<Vec<_>>(), [1]);
    assert_eq!(host.shadow_of(target, member), None);
}

/// A generator of pseudo-random numbers (splitmix64).
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ mixed >> 31) % n
    }
    fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len() as u64) as usize]
    }
}

/// Any call of a member, with few distinct numbers, so that calls collide.
fn any_call(rng: &mut Rng) -> Call {
    let qpn = Qpn::new(0x1000 + rng.below(8) as u32);
    let state = rng.pick(&[QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Err]);
    let (srq, open) = (rng.below(6) as u32 + 1, rng.below(2) as u32);
    let mask = rng.pick(&[AttrMask::STATE, AttrMask::ACCESS_FLAGS, AttrMask::CAP]);
    match rng.below(13) {
        0..=2 => Call::NewSrq(srq),
        3 => Call::RemoveSrq(srq),
        4 => Call::Create,
        5 => Call::Open(qpn),
        6 => Call::Close(qpn),
        7 | 8 => Call::Modify(qpn, into(state), mask),
        9 => Call::CreateReceiver(open, into(QpState::Reset)),
        10 => Call::ModifyReceiver(qpn, into(state), mask),
        11 => Call::Register(open, qpn),
        _ => Call::Unregister(open, qpn),
    }
}

impl Host {
    /// A member's call is answered, at the latest when members that do not execute their orders are dropped.
    fn ask(&mut self, id: MemberId, call: Call) -> Result<Answer, Refusal> {
        self.begin(id, call.clone());
        for _ in 0..3 {
            self.execute(id);
            if let Some(answer) = self.answer(id) {
                return answer;
            }
            self.now += PATIENCE;
            self.owner.handle_timeout(self.now);
            self.collect();
        }
        panic!("{call:?} is not answered")
    }
}

// Goal: one member is served, whatever other members send, omit and leave behind; the fakes check that each pair has one leg, and each
// number one owner.
#[test]
#[cfg_attr(miri, ignore = "too long for the interpreter")]
fn members_gone_mad_hurt_themselves_alone() {
    for seed in 0..200 {
        let (mut host, mut rng) = (Host::new(), Rng(seed));
        let good = host.join();
        let mut others: Vec<MemberId> = Vec::new();
        let mut served = 0;
        for _ in 0..150 {
            let id = if others.is_empty() { None } else { Some(rng.pick(&others)) };
            match (rng.below(12), id) {
                (0, _) if others.len() < 6 => others.push(host.join()),
                (1, Some(id)) => host.leave(id),
                (2..=5, Some(id)) => host.begin(id, any_call(&mut rng)),
                (6..=8, Some(id)) => drop(host.execute(id)),
                (9, Some(id)) => {
                    let outcome = match rng.below(3) {
                        0 => Ok(Outcome::Done),
                        1 => Ok(Outcome::Shadow(Qpn::new(rng.below(99) as u32))),
                        _ => Err(full()),
                    };
                    let number = rng.below(40) as u32;
                    host.says(id, FromMember::Outcome(number, outcome));
                }
                (10, _) => {
                    let (srq, qpn) = (1000 + served, host.ask(good, Call::Create));
                    let Ok(Answer::Target(qpn)) = qpn else { panic!("seed {seed}: {qpn:?}") };
                    assert_eq!(host.ask(good, Call::NewSrq(srq)), Ok(Answer::Done), "seed {seed}");
                    assert_eq!(host.ask(good, to(qpn, QpState::Rtr)), Ok(Answer::Done), "seed {seed}");
                    assert_eq!(host.shadow_of(qpn, good), Some(shadow(qpn, good)), "seed {seed}");
                    assert_eq!(host.ask(good, Call::RemoveSrq(srq)), Ok(Answer::Done), "seed {seed}");
                    assert_eq!(host.ask(good, Call::Close(qpn)), Ok(Answer::Done), "seed {seed}");
                    host.execute(good);
                    served += 1;
                }
                _ => host.now += PATIENCE / 4,
            }
            host.execute(good);
            assert!(!host.ended.contains(&good), "seed {seed}");
            others.retain(|id| !host.ended.contains(id));
        }
        assert!(served > 0 && !host.ended.is_empty(), "seed {seed}");
        [&others[..], &[good]].concat().into_iter().for_each(|id| host.leave(id));
        let world = host.world.borrow();
        assert!(world.states.is_empty() && world.legs.is_empty() && world.srqs.is_empty(), "seed {seed}");
    }
}
