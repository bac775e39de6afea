//! Members and the owner of a domain over their sockets, with a device that only records its calls.

use core::time::Duration;
use rustix::net::SocketType;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::Instant;

use super::*;
use crate::device::{AsyncEvent, Device, DeviceConfig, EventElement, QpState, Qpn};
use crate::registry::{Connected, Connection, Identity, Listener};
use attributes::Attributes;
use membership::{Membership, Patience, join};
use message::{Answer, Call, FromMember, FromOwner, Order, Outcome, VERSION};
use owner::tests::{FakeDomain, Shared};
use shadows::Executor;
use socket::Came;

const LINGER: Duration = Duration::from_millis(50);
/// A time limit that even a very busy machine keeps.
const PATIENCE: Patience = Patience { call: Duration::from_secs(60), up: Duration::from_secs(60) };

/// A domain that no other test has.
fn a_file() -> DomainFile {
    static LAST: AtomicU32 = AtomicU32::new(0);
    format!("{}:{}", std::process::id(), LAST.fetch_add(1, Ordering::Relaxed)).parse().unwrap()
}

/// A running owner, on a separate thread.
struct Running {
    device: Arc<Device>,
    thread: JoinHandle<Result<(), XrcError>>,
}

fn own(file: &DomainFile, linger: Duration) -> Running {
    let name = OwnerName::take(file).unwrap().expect("nobody has it");
    assert!(OwnerName::take(file).unwrap().is_none(), "it has an owner");
    let device = Device::open(DeviceConfig::loopback()).unwrap();
    let theirs = device.clone();
    let serve = move || name.serve(&theirs, FakeDomain(Shared::default()), linger);
    Running { device, thread: std::thread::spawn(serve) }
}

/// Reports what it receives.
struct Reporter(mpsc::Sender<String>);

impl Executor for Reporter {
    fn execute(&mut self, order: &Order) -> Result<Outcome, Refusal> {
        let (what, outcome) = match order {
            Order::Make(target, _) => (format!("make {target:?}"), Outcome::Shadow(Qpn::new(7))),
            Order::Modify(target, ..) => (format!("modify {target:?}"), Outcome::Done),
            Order::End(target) => (format!("end {target:?}"), Outcome::Done),
        };
        self.0.send(what).unwrap();
        Ok(outcome)
    }
    fn handle_event(&mut self, target: Qpn, event: AsyncEvent) {
        self.0.send(format!("{target:?} {}", event.name())).unwrap();
    }
}

fn member(file: &DomainFile) -> (Membership, mpsc::Receiver<String>) {
    let (says, hears) = mpsc::channel();
    let welcomed = join(file, None, PATIENCE).unwrap().expect("it has an owner");
    (Membership::new(welcomed, Reporter(says), PATIENCE).unwrap(), hears)
}

fn to(qpn: Qpn, state: QpState) -> Call {
    let attr = crate::device::QpAttr { qp_state: state, ..Default::default() };
    Call::Modify(qpn, Attributes::from(attr), crate::device::AttrMask::STATE)
}

fn target(member: &Membership) -> Qpn {
    match member.call(Call::Create) {
        Ok(Answer::Target(qpn)) => qpn,
        other => panic!("{other:?}"),
    }
}

fn soon(what: &str, holds: impl Fn() -> bool) {
    let since = Instant::now();
    while !holds() {
        assert!(since.elapsed() < PATIENCE.call, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A connection whose messages the test sends itself.
fn by_hand(file: &DomainFile) -> Connection {
    match socket::connect(file).unwrap() {
        Connected::Open(connection) => connection,
        other => panic!("{other:?}"),
    }
}

fn next(connection: &Connection) -> Option<FromOwner> {
    let mut buffer = [0; _];
    let since = Instant::now();
    loop {
        match socket::receive(connection, &mut buffer) {
            Came::Message(len) => return Some(FromOwner::parse(&buffer[..len]).expect("a message")),
            Came::End => return None,
            Came::Nothing => std::thread::sleep(Duration::from_millis(1)),
        }
        assert!(since.elapsed() < PATIENCE.call, "nothing came");
    }
}

#[test]
fn members_make_targets_and_queues_of_one_domain_and_the_owner_ends_after_them() {
    let file = a_file();
    let owner = own(&file, LINGER);
    let (one, of_one) = member(&file);
    let (two, of_two) = member(&file);
    let qpn = target(&one);
    assert!(matches!(two.call(Call::NewSrq(5)), Ok(Answer::Done)));
    assert!(one.call(to(qpn, QpState::Rtr)).is_ok());
    assert_eq!(of_two.try_recv(), Ok(format!("make {qpn:?}")), "before the call returned");
    let taken = one.call(Call::NewSrq(5));
    assert!(matches!(taken, Err(XrcError::Refused(Refusal { reason: Reason::Taken, .. }))), "{taken:?}");
    assert!(two.call(Call::Open(qpn)).is_ok());
    owner.device.raise(AsyncEvent::CommEst, EventElement::Qp(qpn));
    for heard in [&of_one, &of_two] {
        assert_eq!(heard.recv_timeout(PATIENCE.call), Ok(format!("{qpn:?} IBV_EVENT_COMM_EST")));
    }
    drop(one);
    // The owner may notice its end later than the next call.
    soon("one is gone", || join(&file, None, PATIENCE).unwrap().unwrap().others == 1);
    assert!(two.call(Call::Query(qpn)).is_ok(), "it outlives who made it");
    assert!(two.call(Call::Close(qpn)).is_ok());
    assert_eq!(of_two.recv_timeout(PATIENCE.call), Ok(format!("end {qpn:?}")));
    drop(two);
    owner.thread.join().unwrap().unwrap();
    assert!(join(&file, None, PATIENCE).unwrap().is_none(), "nobody is there any more");
    assert!(OwnerName::take(&file).unwrap().is_some());
}

#[test]
fn an_owner_that_nobody_comes_to_ends() {
    own(&a_file(), LINGER).thread.join().unwrap().unwrap();
}

// Goal: a member that misbehaves loses only its own connection, whatever it does.
#[test]
fn who_says_nonsense_is_sent_away_and_others_are_served() {
    let file = a_file();
    let owner = own(&file, LINGER);
    let (good, _hears) = member(&file);
    let hello = FromMember::Hello(VERSION).encode();
    let (_reader, writer) = std::io::pipe().unwrap();
    type Lie<'a> = &'a dyn Fn(&Connection);
    let send = |connection: &Connection, bytes: &[u8]| assert!(socket::send(connection, bytes).unwrap());
    let lies: [Lie<'_>; 5] = [
        &|them| send(them, b"hello"),
        &|them| send(them, &[0; 4096]),
        &|them| send(them, &FromMember::Call(1, Call::Create).encode()),
        &|them| assert!(them.send(&hello, &[writer.as_fd()]).unwrap()),
        &|them| {
            send(them, &hello);
            send(them, &hello);
        },
    ];
    for (index, lie) in lies.into_iter().enumerate() {
        let them = by_hand(&file);
        lie(&them);
        while next(&them).is_some() {}
        assert!(good.call(Call::NewSrq(index as u32 + 1)).is_ok(), "lie {index}");
    }
    let unlike = by_hand(&file);
    send(&unlike, &FromMember::Hello(VERSION + 1).encode());
    assert_eq!((next(&unlike), next(&unlike)), (Some(FromOwner::VersionMismatch(VERSION)), None));
    drop(good);
    owner.thread.join().unwrap().unwrap();
}

// Goal: a member that reads nothing does not delay the owner's other members, and is dropped before many messages wait for it.
#[test]
fn a_member_that_takes_nothing_is_dropped() {
    let file = a_file();
    let owner = own(&file, LINGER);
    let (good, hears) = member(&file);
    let qpn = target(&good);
    let deaf = by_hand(&file);
    for message in [FromMember::Hello(VERSION), FromMember::Call(1, Call::Open(qpn))] {
        assert!(socket::send(&deaf, &message.encode()).unwrap());
    }
    assert!(matches!(next(&deaf), Some(FromOwner::Welcome(1))));
    assert!(matches!(next(&deaf), Some(FromOwner::Answer(1, Ok(_)))));
    let since = Instant::now();
    let mut raised = 0;
    // After its end only `good` is left, which new members see in their welcome.
    let others = || {
        let them = by_hand(&file);
        assert!(socket::send(&them, &FromMember::Hello(VERSION).encode()).unwrap());
        next(&them)
    };
    while others() != Some(FromOwner::Welcome(1)) {
        assert!(since.elapsed() < PATIENCE.call, "after {raised} events");
        for _ in 0..100 {
            owner.device.raise(AsyncEvent::CommEst, EventElement::Qp(qpn));
            raised += 1;
        }
    }
    assert!(hears.recv_timeout(PATIENCE.call).is_ok());
    drop(good);
    owner.thread.join().unwrap().unwrap();
}

/// An owner whose messages the test sends itself, and which welcomes one member.
fn by_hand_owner(file: &DomainFile) -> Listener {
    let name = file.socket_name(Identity::of_this_process().uid);
    let listener = Listener::bind(SocketType::SEQPACKET, &name).unwrap().unwrap();
    listener.listen().unwrap();
    listener
}

fn welcome(listener: &Listener, answer: &FromOwner) -> Connection {
    let connection = loop {
        if let Ok(connection) = listener.accept() {
            break connection;
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    assert!(socket::send(&connection, &answer.encode()).unwrap());
    connection
}

#[test]
fn an_owner_that_is_silent_or_gone_or_mad_is_given_up() {
    let file = a_file();
    let listener = by_hand_owner(&file);
    let short = Patience { call: Duration::from_millis(20), ..PATIENCE };
    type Do<'a> = &'a dyn Fn(Connection) -> Option<Connection>;
    let nonsense = FromOwner::Answer(99, Ok(Answer::Done)).encode();
    let cases: [(&str, Patience, Do<'_>); 4] = [
        ("silent", short, &|them| Some(them)),
        ("gone", PATIENCE, &|_| None),
        ("mad", PATIENCE, &|them| {
            assert!(socket::send(&them, &nonsense).unwrap());
            Some(them)
        }),
        ("unintelligible", PATIENCE, &|them| {
            assert!(socket::send(&them, b"?").unwrap());
            Some(them)
        }),
    ];
    for (what, patience, act) in cases {
        let connection = std::thread::scope(|scope| {
            let connection = scope.spawn(|| welcome(&listener, &FromOwner::Welcome(0)));
            let welcomed = join(&file, None, PATIENCE).unwrap().unwrap();
            let member = Membership::new(welcomed, Reporter(mpsc::channel().0), patience).unwrap();
            let connection = act(connection.join().unwrap());
            let error = member.call(Call::Create).unwrap_err();
            match what {
                "silent" => assert!(matches!(error, XrcError::Silent { .. }), "{error:?}"),
                _ => assert!(matches!(error, XrcError::Ended), "{what}: {error:?}"),
            }
            soon(what, || !member.lives());
            assert!(matches!(member.call(Call::Create), Err(XrcError::Ended)), "{what}");
            connection
        });
        drop(connection);
    }
}

#[test]
fn an_owner_of_another_version_is_told_from_one_that_does_not_come_up() {
    let file = a_file();
    let listener = by_hand_owner(&file);
    std::thread::scope(|scope| {
        scope.spawn(|| welcome(&listener, &FromOwner::VersionMismatch(77)));
        let error = join(&file, None, PATIENCE).unwrap_err();
        assert!(matches!(error, XrcError::VersionMismatch { ours: VERSION, theirs: 77 }), "{error:?}");
    });
    let short = Patience { up: Duration::from_millis(20), ..PATIENCE };
    let error = join(&file, None, short).unwrap_err();
    assert!(matches!(error, XrcError::NotUp { .. }), "{error:?}");
}

#[test]
fn calls_of_many_threads_are_answered_each() {
    let file = a_file();
    let owner = own(&file, LINGER);
    let (member, _hears) = member(&file);
    let all = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..50).for_each(|_| all.lock().unwrap().push(target(&member))));
        }
    });
    let mut all = all.into_inner().unwrap();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 200);
    drop(member);
    owner.thread.join().unwrap().unwrap();
}

#[test]
fn a_port_that_joins_no_processes_shares_no_domains() {
    let device = Device::open(DeviceConfig::loopback()).unwrap();
    let error = SharedDomains::default().open(&device, a_file(), true, false).unwrap_err();
    assert!(matches!(error, XrcError::Port { .. }) && !can_share(&device), "{error:?}");
    assert!(error.to_string().contains("port host"), "{error}");
}
