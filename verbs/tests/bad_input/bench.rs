//! The bench on which every case runs: two queue pairs that are connected to each other, with all kinds of objects, and a
//! second device. After each case it must be unchanged, must still work, and every object must be destroyable.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::{Arc, Mutex, OnceLock};

use stack::device::ModifyError;
use verbs::rdma_cm::CmError;
use verbs::{
    Access, Context, CounterSnapshot, Cq, DeviceConfig, DeviceError, Drive, Gid, Mr, OpenError, Pd,
    PostError, PostErrorKind, Qp, QpAttr, QpCap, QpInitAttr, QpType, RecvWr, SendWr, VerbsError, Wc,
};

use super::inside::Spare;
use crate::common::hooked::Inside;
use crate::common::{all_rights, assert_no_completion, options, take};

pub const CAP: QpCap =
    QpCap { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 3, max_recv_sge: 2, max_inline_data: 60 };

/// The refusal of a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// `Enum::Variant` of the innermost error.
    pub variant: String,
    pub errno: i32,
    pub text: String,
}

/// The name of an enum's variant, as `Debug` writes it.
fn variant(name: &str, error: &impl std::fmt::Debug) -> String {
    let text = format!("{error:?}");
    let end = text.find(|c: char| !c.is_alphanumeric()).unwrap_or(text.len());
    format!("{name}::{}", &text[..end])
}

fn of_open(e: &OpenError) -> String {
    match e {
        OpenError::Net(e) => variant("NetConfigError", e),
        OpenError::Port(e) => variant("PortError", e),
        e => variant("OpenError", e),
    }
}

fn of_device(e: &DeviceError) -> String {
    match e {
        DeviceError::Modify(ModifyError::Av(e)) | DeviceError::Ah(e) => variant("AvError", e),
        DeviceError::Modify(e) => variant("ModifyError", e),
        DeviceError::Memory(e) => variant("MemError", e),
        DeviceError::Address(e) => variant("NetConfigError", e),
        DeviceError::Port(e) => variant("PortError", e),
        e => variant("DeviceError", e),
    }
}

fn of_post(e: &PostError) -> String {
    match &e.kind {
        PostErrorKind::Bind(e) => variant("BindError", e),
        e => variant("PostErrorKind", e),
    }
}

impl From<VerbsError> for Refusal {
    fn from(e: VerbsError) -> Self {
        let variant = match &e {
            VerbsError::Open(e) => of_open(e),
            VerbsError::Device(e) => of_device(e),
            VerbsError::Post(e) => of_post(e),
            VerbsError::Bind(e) => variant("BindError", e),
            VerbsError::Cm(CmError::Machine(e)) => variant("Error", e),
            VerbsError::Cm(e) => variant("CmError", e),
            e => variant("VerbsError", e),
        };
        Self { variant, errno: e.errno(), text: e.to_string() }
    }
}

impl From<PostError> for Refusal {
    fn from(e: PostError) -> Self {
        Self { variant: of_post(&e), errno: e.errno(), text: e.to_string() }
    }
}

impl From<DeviceError> for Refusal {
    fn from(e: DeviceError) -> Self {
        VerbsError::Device(e).into()
    }
}

/// The refusal in a result.
#[track_caller]
pub fn err<T>(result: Result<T, impl Into<Refusal>>) -> Refusal {
    result.err().expect("it should be refused").into()
}

/// The refusal of a call that returns its object; the object must still be destroyable.
#[track_caller]
pub fn back<T>(result: Result<(), (VerbsError, T)>) -> (Refusal, T) {
    let Err((e, object)) = result else { panic!("it should be refused") };
    (e.into(), object)
}

/// The refusal of a list, whose position must be `bad_wr`.
#[track_caller]
pub fn at(bad_wr: usize, result: Result<(), PostError>) -> Refusal {
    let e = result.expect_err("it should be refused");
    assert_eq!(e.bad_wr, bad_wr, "{e}");
    e.into()
}

/// A call with an argument that it refuses.
pub struct Case {
    /// `Type::call`.
    pub call: &'static str,
    /// The error: `Enum::Variant`.
    pub variant: &'static str,
    pub errno: i32,
    pub run: fn(&Bench) -> Refusal,
    /// Whether the call is made inside a turn.
    pub inside: bool,
}

pub const fn case(call: &'static str, variant: &'static str, errno: i32, run: fn(&Bench) -> Refusal) -> Case {
    Case { call, variant, errno, run, inside: false }
}

/// A second device, with objects of its own.
pub struct Other {
    pub cq: Cq,
    pub pd: Pd,
    pub context: Context,
}

pub struct Bench {
    pub a: Qp,
    pub b: Qp,
    pub mr: Mr,
    pub cq: Cq,
    pub pd: Pd,
    pub other: Other,
    pub context: Context,
    inside: Inside,
    spare: OnceLock<Spare>,
}

/// The state that a refused call must not change.
#[derive(PartialEq, Debug)]
struct State {
    counters: CounterSnapshot,
    qps: [QpAttr; 2],
    gids: Vec<Gid>,
    net: Vec<(&'static str, u64)>,
    /// Hash of the region's bytes.
    memory: u64,
    keys: (u32, Access, usize),
    live: usize,
    events_lost: u64,
}

impl Bench {
    pub fn new() -> Self {
        let inside = Inside::default();
        let config = DeviceConfig::loopback().port(inside.port());
        let context = Context::open(config.drive(Drive::Embedded)).unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(64).unwrap();
        let init = QpInitAttr::rc(&cq, &cq).cap(CAP);
        let (a, b) = (pd.create_qp(&init).unwrap(), pd.create_qp(&init).unwrap());
        a.connect_rc(&b.endpoint(1).unwrap(), &options()).unwrap();
        b.connect_rc(&a.endpoint(1).unwrap(), &options()).unwrap();
        let mr = pd.reg_mr(4096, all_rights() | Access::MW_BIND).unwrap();
        let other = Context::open(DeviceConfig::loopback().drive(Drive::Embedded)).unwrap();
        let other = Other { cq: other.create_cq(4).unwrap(), pd: other.alloc_pd().unwrap(), context: other };
        Self { a, b, mr, cq, pd, other, context, inside, spare: OnceLock::new() }
    }

    pub fn gid(&self) -> Gid {
        self.context.query_gid(1, 1).unwrap()
    }

    /// Objects for cases inside a turn, where no objects can be created.
    pub fn spare(&self) -> &Spare {
        self.spare.get().expect("the case runs inside of a turn")
    }

    /// A new queue pair of any type, in RESET.
    pub fn qp(&self, ty: QpType) -> Qp {
        self.pd.create_qp(&QpInitAttr::new(ty, &self.cq, &self.cq).cap(CAP)).unwrap()
    }

    /// A UD queue pair that can send.
    pub fn ud(&self) -> Qp {
        let qp = self.qp(QpType::Ud);
        qp.activate_ud(5).unwrap();
        qp
    }

    /// A UD queue pair of the second device that can send.
    pub fn other_ud(&self) -> Qp {
        let qp = self.other.pd.create_qp(&QpInitAttr::ud(&self.other.cq, &self.other.cq)).unwrap();
        qp.activate_ud(5).unwrap();
        qp
    }

    /// A UC queue pair that is connected to itself.
    pub fn uc(&self) -> Qp {
        let qp = self.qp(QpType::Uc);
        qp.connect_uc(&qp.endpoint(1).unwrap(), &options()).unwrap();
        qp
    }

    fn state(&self) -> State {
        State {
            counters: self.context.counters(),
            qps: [&self.a, &self.b].map(|qp| qp.query().unwrap().0),
            gids: self.context.gid_table(),
            net: self.context.net_counters(),
            memory: BuildHasherDefault::<DefaultHasher>::default().hash_one(self.mr.to_vec(0..4096).unwrap()),
            keys: (self.mr.rkey(), self.mr.access(), self.mr.len()),
            live: self.context.stats().qps_total,
            events_lost: self.context.async_events_lost(),
        }
    }

    /// Runs a case, and checks that it changed nothing.
    pub fn check(self, case: &Case) {
        let name = format!("{} -> {}", case.call, case.variant);
        if case.inside {
            assert!(self.spare.set(Spare::new(&self)).is_ok());
        }
        let before = self.state();
        let bench = Arc::new(self);
        let refusal = if case.inside { bench.inside_a_turn(case.run) } else { (case.run)(&bench) };
        let bench = Arc::into_inner(bench).expect("the turn is over");
        assert_eq!(
            (&*refusal.variant, refusal.errno),
            (case.variant, case.errno),
            "{name}: {}",
            refusal.text
        );
        assert!(refusal.text.len() > 20, "{name} says what was wrong: {}", refusal.text);

        assert_no_completion(&bench.context, &bench.cq);
        assert_eq!(bench.state(), before, "{name}");
        assert!(bench.context.try_get_async_event().is_none(), "{name}");
        bench.works(&name);
        bench.close(&name);
    }

    /// The refusal of a case that is run inside a turn.
    fn inside_a_turn(self: &Arc<Self>, run: fn(&Self) -> Refusal) -> Refusal {
        let refusal = Arc::new(Mutex::new(None));
        let (bench, place) = (self.clone(), refusal.clone());
        self.inside.next(move || {
            let refusal = run(&bench);
            drop(bench); // never the last one
            *place.lock().unwrap() = Some(refusal);
        });
        self.context.reactor(0).unwrap().poll_once().expect("nobody else turns the shard");
        refusal.lock().unwrap().take().expect("it was called")
    }

    /// Checks that every slot of every queue is free, by full queues of messages both ways.
    fn works(&self, name: &str) {
        for qp in [&self.a, &self.b] {
            let (mut sq, mut rq) = qp.split().unwrap();
            assert_eq!((sq.free(), rq.free()), (8, 8), "{name}: a ring moved");
        }
        for (from, to) in [(&self.a, &self.b), (&self.b, &self.a)] {
            to.post_recv(&[RecvWr::new(1, &[self.mr.sge(512..1024).unwrap()]); 8]).unwrap();
            let sge = [self.mr.sge(0..512).unwrap()];
            from.post_send(&[SendWr::send(2, &sge).signaled(); 8]).unwrap();
            let done = take(&self.context, &self.cq, 16);
            assert!(done.iter().all(Wc::is_ok), "{name}: {done:?}");
        }
    }

    /// Checks that no reference is left: each object can be destroyed in order.
    fn close(self, name: &str) {
        let Self { a, b, mr, cq, pd, other, context, inside, spare } = self;
        if let Some(spare) = spare.into_inner() {
            spare.close();
        }
        let gone = |result: Result<(), VerbsError>| result.unwrap_or_else(|e| panic!("{name}: {e}"));
        for qp in [a, b] {
            gone(qp.destroy().map_err(|(e, _)| e));
        }
        gone(mr.dereg().map_err(|(e, _)| e));
        gone(cq.destroy().map_err(|(e, _)| e));
        gone(pd.dealloc().map_err(|(e, _)| e));
        gone(context.close().map_err(|(e, _)| e));
        gone(other.cq.destroy().map_err(|(e, _)| e));
        gone(other.pd.dealloc().map_err(|(e, _)| e));
        gone(other.context.close().map_err(|(e, _)| e));
        drop(inside);
    }
}

/// Runs cases, each on a separate bench.
pub fn run(cases: &[Case]) {
    for case in cases {
        // Shown when a case fails.
        println!("{} -> {}", case.call, case.variant);
        Bench::new().check(case);
    }
}
