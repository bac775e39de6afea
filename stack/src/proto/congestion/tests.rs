//! What policies are told, by a requester that has probes for them.

use super::{Congestion, Controller, Event, Probe};
use crate::id::{Gid, Mtu, Psn, QpState, QpType};
use crate::proto::completer::Response;
use crate::proto::recovery::{self, Recovery, RetryCause, Scheme};
use crate::proto::requester::{
    Idle, Policies, Requester, RequesterConfig, SendRing, SendWindow, SeriesLimits, UNSHARED,
};
use crate::proto::state::Gates;
use crate::proto::status::{SendFlags, WrOpcode};
use crate::proto::tables::{NakCode, Syndrome};
use crate::proto::wqe::{Granule, SendWqe};
use crate::time::Instant;
use crate::wire::{Aeth, Ext, Flow, HEADERS_MAX, Header, Ingress, Opcode, Template, locate};

const GATES: Gates = Gates::of(QpState::Rts, QpType::Rc);
const DEPTH: u32 = 64;
/// An ACK without credits.
const ACK: Syndrome = Syndrome::Ack { credits: None };

struct Ring(Vec<Granule>);

impl SendRing for Ring {
    fn published(&self) -> u32 {
        self.0.len() as u32 / STRIDE as u32
    }
    fn slot(&self, seq: u32) -> &[Granule] {
        &self.0[seq as usize * STRIDE..][..STRIDE]
    }
    fn contiguous(&self, seq: u32, max: u32) -> (&[Granule], usize) {
        (&self.0[seq as usize * STRIDE..][..max as usize * STRIDE], STRIDE)
    }
}

const STRIDE: usize = 8;

struct Rig {
    requester: Requester,
    ring: Ring,
    now: Instant,
}

impl Rig {
    fn new(window: u32) -> Self {
        let policies = Policies { recovery: Scheme::Probe, congestion: Controller::Probe(window) };
        let mut requester = Requester::new(DEPTH, policies);
        requester.reset(0);
        requester.start(&RequesterConfig {
            mtu: Mtu::Mtu256,
            sq_psn: Psn::new(0xff_fffe),
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            max_rd_atomic: 4,
        });
        Self { requester, ring: Ring(Vec::new()), now: Instant::from_nanos(1000) }
    }

    fn post(&mut self, opcode: WrOpcode, length: u32) {
        let mut slot = [Granule::default(); STRIDE];
        let mut wqe = SendWqe::new(0, opcode, SendFlags::empty());
        wqe.length = length;
        wqe.put(&mut slot);
        self.ring.0.extend(slot);
    }

    fn window(&self) -> SendWindow {
        self.requester.send_window(self.now, UNSHARED)
    }

    /// Every packet that may go: its number and whether it requests an acknowledgement.
    fn send(&mut self) -> (Vec<(u32, bool)>, Idle) {
        let mut sent = Vec::new();
        loop {
            match self.requester.poll_transmit(&self.window(), GATES, 0, &self.ring) {
                Ok(segment) => sent.push((segment.psn.get(), segment.ack_req)),
                Err(idle) => return (sent, idle),
            }
        }
    }

    fn answer(&mut self, psn: u32, syndrome: Syndrome) -> Response {
        let template = Template::new(&Flow { dst: Gid::v4([10, 0, 0, 1]), ..Flow::default() });
        let ext = Ext::Aeth(Aeth { syndrome: syndrome.encode(), msn: 0 });
        let header = Header { opcode: Opcode::RC_ACKNOWLEDGE, psn: Psn::new(psn), ext, ..Header::default() };
        let mut frame = [0; HEADERS_MAX];
        let at = template.begin(&mut frame, &header);
        let len = template.seal(&mut frame, at, 0);
        let Ok(Ingress::Roce(layout)) = locate(&frame[..len]) else { panic!("it is a packet") };
        let answered = self.requester.handle_response(self.now, &layout.packet(&frame[..len]), &self.ring);
        answered.expect("something is outstanding")
    }

    fn probe(&mut self) -> &mut Probe {
        let Congestion::Probe(probe) = &mut self.requester.congestion else { panic!("it is a probe") };
        probe
    }

    /// What the controller was told since it was last asked.
    fn told(&mut self) -> Vec<(u64, Event)> {
        let events = self.probe().events.drain(..);
        events.map(|(at, event)| (at.as_nanos(), event)).collect()
    }

    fn recovery(&mut self) -> &mut recovery::Probe {
        let Recovery::Probe(probe) = &mut self.requester.recovery else { panic!("it is a probe") };
        probe
    }
}

fn sent(first: u32, behind: u32, bytes: u64, again: bool) -> Event {
    Event::Sent { first: Psn::new(first), behind: Psn::new(behind), bytes, again }
}

#[test]
fn a_reset_keeps_the_policies_and_nothing_that_they_know() {
    let mut rig = Rig::new(3);
    rig.post(WrOpcode::RdmaWrite, 1);
    rig.send();
    rig.recovery().first_alone = true;
    assert!(!rig.probe().events.is_empty());
    rig.requester.reset(1);
    assert_eq!((rig.probe().window, rig.told()), (3, vec![]));
    assert!(!rig.recovery().first_alone);
}

#[test]
fn the_window_is_the_controllers() {
    let mut rig = Rig::new(3);
    for _ in 0..5 {
        rig.post(WrOpcode::RdmaWrite, 1);
    }
    assert_eq!(rig.send(), (vec![(0xff_fffe, false), (0xff_ffff, false), (0, true)], Idle::Waiting));
    assert_eq!(rig.requester.waiting(&rig.window(), &rig.ring), 0);
    rig.answer(0xff_fffe, ACK);
    assert_eq!(rig.requester.waiting(&rig.window(), &rig.ring), 1);
    assert_eq!(rig.send(), (vec![(1, true)], Idle::Waiting));
    rig.probe().window = 100;
    let (window, limits) = (rig.window(), SeriesLimits { packets: 8, bytes: 256 });
    let series = rig.requester.begin_series(&window, GATES, 0, &rig.ring, limits);
    assert!(series.is_none(), "one is left");
    assert_eq!(rig.send(), (vec![(2, false)], Idle::NothingToDo));
}

#[test]
fn a_controller_is_told_when_packets_leave_and_arrive() {
    let mut rig = Rig::new(100);
    rig.post(WrOpcode::Send, 300);
    rig.post(WrOpcode::RdmaRead, 700);
    rig.send();
    let first = [sent(0xff_fffe, 0xff_ffff, 256, false), sent(0xff_ffff, 0, 44, false), sent(0, 3, 0, false)];
    assert_eq!(rig.told(), first.map(|event| (1000, event)));
    rig.requester.left_by(rig.now, Instant::from_nanos(5000));
    rig.now = Instant::from_nanos(6000);
    rig.answer(0xff_fffe, ACK);
    assert_eq!(
        rig.told(),
        [
            (5000, Event::LeftLate(Instant::from_nanos(1000))),
            (6000, Event::Acknowledged(Psn::new(0xff_ffff))),
        ]
    );
}

#[test]
fn a_series_is_told_of_at_once() {
    let mut rig = Rig::new(100);
    for _ in 0..4 {
        rig.post(WrOpcode::RdmaWrite, 9);
    }
    let (window, limits) = (rig.window(), SeriesLimits { packets: 3, bytes: 256 });
    let series = rig.requester.begin_series(&window, GATES, 0, &rig.ring, limits).expect("all are alike");
    let (outcome, built) = series.messages(&mut [(); 3], |_, ()| Ok(()));
    rig.requester.end_series(outcome);
    assert_eq!((built, rig.told()), (Ok(()), vec![(1000, sent(0xff_fffe, 1, 27, false))]));
}

#[test]
fn a_loss_is_told_once_and_what_goes_out_again() {
    let mut rig = Rig::new(100);
    for _ in 0..3 {
        rig.post(WrOpcode::RdmaWrite, 9);
    }
    rig.send();
    rig.told();
    let nak = Syndrome::Nak(NakCode::PsnSequenceError);
    assert_eq!(rig.answer(0xff_ffff, nak), Response::Retry(RetryCause::SequenceNak));
    assert_eq!(rig.answer(0xff_ffff, nak), Response::Done, "the same loss");
    rig.send();
    let lost = Psn::new(0xff_ffff);
    assert_eq!(
        rig.told().into_iter().map(|(_, event)| event).collect::<Vec<_>>(),
        [
            Event::Acknowledged(lost),
            Event::Lost(RetryCause::SequenceNak),
            sent(0xff_ffff, 0, 9, true),
            sent(0, 1, 9, true)
        ]
    );
    rig.now = rig.requester.deadline();
    assert_eq!(rig.requester.handle_timeout(rig.now), Response::Retry(RetryCause::Timeout));
    assert_eq!(rig.told(), [(rig.now.as_nanos(), Event::Lost(RetryCause::Timeout))]);
    let causes = [
        (RetryCause::SequenceNak, Some(lost)),
        (RetryCause::SequenceNak, None),
        (RetryCause::Timeout, Some(lost)),
    ];
    let recovery = rig.recovery();
    assert_eq!((&recovery.losses[..], &recovery.progress[..]), (&causes[..], &[lost][..]));
}

#[test]
fn a_controller_may_make_packets_wait() {
    let mut rig = Rig::new(100);
    let later = Instant::from_nanos(7000);
    rig.probe().resumes_at = later;
    rig.post(WrOpcode::RdmaWrite, 9);
    assert_eq!(rig.send(), (vec![], Idle::Waiting));
    assert_eq!(rig.requester.deadline(), later, "nothing else is timed");
    rig.now = later;
    assert_eq!(rig.requester.handle_timeout(later), Response::Done);
    assert_eq!(rig.send(), (vec![(0xff_fffe, false)], Idle::NothingToDo));
    assert_eq!(rig.told(), [(7000, Event::Resumed), (7000, sent(0xff_fffe, 0xff_ffff, 9, false))]);
    assert!(rig.requester.deadline() > later);
}

#[test]
fn a_scheme_may_send_a_single_packet_again() {
    let mut rig = Rig::new(100);
    rig.recovery().first_alone = true;
    for _ in 0..4 {
        rig.post(WrOpcode::RdmaWrite, 9);
    }
    rig.send();
    rig.post(WrOpcode::RdmaWrite, 9);
    rig.answer(0xff_ffff, Syndrome::Nak(NakCode::PsnSequenceError));
    assert_eq!(rig.send(), (vec![(0xff_ffff, true), (2, false)], Idle::NothingToDo));
    rig.answer(2, ACK);
    assert_eq!(rig.requester.head(), 5);
}

#[test]
fn a_controller_is_told_what_the_network_says() {
    let mut rig = Rig::new(100);
    rig.requester.handle_mark(Instant::from_nanos(1));
    rig.requester.handle_notification(Instant::from_nanos(2));
    assert_eq!(rig.told(), [(1, Event::Marked), (2, Event::Notified)]);
}
