//! Disks that fail, are full, or are slow: each command gets the right status, and no acknowledged write is lost.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use nvmf::BackendError;
use nvmf::status::Status;
use nvmf::wire::{Cqe, Sgl, Sqe};
use nvmf_target::host::{Controller, Data, Host, HostQueue, Io, Options};
use nvmf_target::store::{BlockingStorage, Direct, Health, Work};
use nvmf_target::target::{Config, Core, run_all};
use verbs::Access;
use verbs::port::fault::rng::Rng;
use verbs::port::{Port, PortLayer, PortOptions, PortQueue, PortSpec, QueueLayer, RxBurst};

use crate::common::{
    BLOCK, LoopDevice, PATIENCE, SUBSYSTEM, Scratch, Setup, Tmpfs, View, device, nqn, with_target,
};

const RIGHTS: Access = Access::LOCAL_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_WRITE);
const BYTES: usize = 64 * BLOCK;

/// A disk in memory that fails on request.
#[derive(Debug)]
struct Disk(Mutex<State>, Health);

#[derive(Debug)]
struct State {
    bytes: Vec<u8>,
    /// What a crash would leave: the flushed data.
    stable: Vec<u8>,
    /// If set, every request fails with this.
    fails: Option<BackendError>,
    /// If set, a random quarter of the requests fails with this.
    flaky: Option<(Rng, BackendError)>,
    /// How many different blocks can be written until the disk is full.
    room: usize,
    written: HashSet<u64>,
}

impl Disk {
    fn new() -> Arc<Self> {
        let zeros = vec![0; BYTES];
        let state = State {
            bytes: zeros.clone(),
            stable: zeros,
            fails: None,
            flaky: None,
            room: usize::MAX,
            written: HashSet::new(),
        };
        Arc::new(Self(Mutex::new(state), Health::default()))
    }
    fn set(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.0.lock().unwrap());
    }
    fn stable(&self) -> Vec<u8> {
        self.0.lock().unwrap().stable.clone()
    }
}

impl BlockingStorage for Disk {
    fn size(&self) -> std::io::Result<u64> {
        Ok(BYTES as u64)
    }
    fn run(&self, work: &Work) -> Result<(), BackendError> {
        let mut state = self.0.lock().unwrap();
        let state = &mut *state;
        if let Some(error) = state.fails {
            return Err(error);
        }
        if let Some((rng, error)) = &mut state.flaky
            && rng.one_in(4)
        {
            return Err(*error);
        }
        let internal = |_| BackendError::Internal;
        let mut settle = |offset: u64, len: usize, fua: bool| {
            if fua {
                let range = offset as usize..offset as usize + len;
                state.stable[range.clone()].copy_from_slice(&state.bytes[range]);
            }
        };
        match work {
            Work::Read { offset, to, fua } => {
                settle(*offset, to.len, *fua);
                to.mr.write(to.at, &state.bytes[*offset as usize..][..to.len]).map_err(internal)
            }
            Work::Write { offset, from, fua } => {
                for at in (*offset..*offset + from.len as u64).step_by(BLOCK) {
                    if state.written.len() >= state.room && !state.written.contains(&at) {
                        return Err(BackendError::NoSpace);
                    }
                    state.written.insert(at);
                }
                let range = *offset as usize..*offset as usize + from.len;
                from.mr.read(from.at, &mut state.bytes[range.clone()]).map_err(internal)?;
                if *fua {
                    state.stable[range.clone()].copy_from_slice(&state.bytes[range]);
                }
                Ok(())
            }
            Work::Compare { offset, with, fua } => {
                settle(*offset, with.len, *fua);
                let mut theirs = vec![0; with.len];
                with.mr.read(with.at, &mut theirs).map_err(internal)?;
                let same = state.bytes[*offset as usize..][..with.len] == theirs;
                if same { Ok(()) } else { Err(BackendError::Mismatch) }
            }
            Work::Zero { offset, len, .. } => {
                state.bytes[*offset as usize..][..*len as usize].fill(0);
                Ok(())
            }
            Work::Flush => {
                state.stable = state.bytes.clone();
                Ok(())
            }
            Work::Verify { offset, len, fua } => {
                settle(*offset, *len as usize, *fua);
                Ok(())
            }
            Work::Deallocate(_) => Ok(()),
        }
    }
    fn health(&self) -> &Health {
        &self.1
    }
}

/// Runs `test` with a target on the disk, and a host with an I/O queue of `entries` entries.
fn with_disk(disk: &Arc<Disk>, entries: u16, test: impl FnOnce(&View, Host<'_>, Controller, HostQueue)) {
    let setup = Setup { bytes: BYTES, blocks: Some(disk.clone()), ..Setup::default() };
    with_target(&setup, |view| {
        let mut host = view.host(1);
        let mut controller =
            Controller::connect(&mut host, view.at, &nqn(SUBSYSTEM), Options::default()).unwrap();
        let queue = controller.io_queue(&mut host, 1, entries).unwrap();
        test(view, host, controller, queue);
    });
}

/// Status code, and the bit that says do not retry (DNR); `None` for success.
fn status(answer: Result<Cqe, nvmf_target::host::HostError>) -> Option<(u16, bool)> {
    match answer {
        Ok(_) => None,
        Err(nvmf_target::host::HostError::Status { status, .. }) => {
            Some((status & 0x7FF, status & 0x4000 != 0))
        }
        Err(e) => panic!("{e}"),
    }
}

// Goal: each error of a disk gives its own status and DNR bit, for every command, with data in the capsule and in host memory. Afterwards
// commands succeed again.
#[test]
fn each_error_of_a_disk_has_its_status() {
    let disk = Disk::new();
    with_disk(&disk, 16, |view, mut host, controller, mut queue| {
        let mr = host.pd().reg_mr(BLOCK, RIGHTS).unwrap();
        let keyed = Sgl::keyed(mr.iova(), BLOCK as u32, mr.rkey(), false);
        let io = Io::new(1, 3, 1);
        let commands = |inside: bool| -> [(Sqe, bool, bool); 5] {
            let sgl = if inside { Sgl::in_capsule(0, BLOCK as u32) } else { keyed };
            [
                (io.write(sgl), inside, true),
                (io.compare(sgl), inside, false),
                (io.read(keyed), false, false),
                (io.verify(), false, false),
                (io.flush(), false, true),
            ]
        };
        for (error, read, write) in [
            (BackendError::Io, Status::UnrecoveredReadError, Status::WriteFault),
            (BackendError::NoSpace, Status::CapacityExceeded, Status::CapacityExceeded),
            (BackendError::ReadOnly, Status::WriteProtected, Status::WriteProtected),
            (BackendError::NotReady, Status::NamespaceNotReady, Status::NamespaceNotReady),
            (BackendError::Internal, Status::InternalError, Status::InternalError),
        ] {
            for inside in [false, true] {
                for (sqe, in_capsule, writes) in commands(inside) {
                    let data = || if in_capsule { Data::InCapsule(&mr, 0..BLOCK) } else { Data::Elsewhere };
                    disk.set(|state| state.fails = Some(error));
                    let expected = if writes { write } else { read };
                    let answer = status(host.call(&mut queue, &sqe, data())).expect("it fails");
                    assert_eq!(answer.0, expected.code(), "{error:?} {sqe:?}");
                    assert_eq!(answer.1, expected.field() & 0x8000 != 0, "{error:?} {sqe:?}");
                    disk.set(|state| state.fails = None);
                    assert_eq!(status(host.call(&mut queue, &sqe, data())), None, "it goes on: {sqe:?}");
                }
            }
        }
        assert!(view.target.totals(&nqn(SUBSYSTEM)).unwrap().media_errors > 0);
        drop((queue, controller));
        view.until_nothing_is_left(&mut host);
    });
}

/// Status and DNR of a Write, a Read and a Flush of block 3.
fn outcomes(host: &mut Host<'_>, queue: &mut HostQueue) -> [Option<(u16, bool)>; 3] {
    let mr = host.pd().reg_mr(BLOCK, RIGHTS).unwrap();
    let keyed = Sgl::keyed(mr.iova(), BLOCK as u32, mr.rkey(), false);
    let io = Io::new(1, 3, 1);
    [io.write(keyed), io.read(keyed), io.flush()].map(|sqe| status(host.call(queue, &sqe, Data::Elsewhere)))
}
/// The same of a failed namespace: media errors with DNR, so that no host tries again, here or by another path.
fn of_a_failed_namespace() -> [Option<(u16, bool)>; 3] {
    let [write, read] = [Status::WriteFault, Status::UnrecoveredReadError].map(|s| Some((s.code(), true)));
    [write, read, write]
}

// Goal: after storage has reported once that it lost data, the namespace fails without asking it again: its next flush would succeed.
#[test]
fn a_flush_that_lost_data_fails_the_namespace_until_it_is_restored() {
    let disk = Disk::new();
    with_disk(&disk, 16, |_, mut host, _controller, mut queue| {
        assert_eq!(outcomes(&mut host, &mut queue), [None; 3]);
        disk.set(|state| state.fails = Some(BackendError::Lost));
        let flush = status(host.call(&mut queue, &Io::new(1, 0, 1).flush(), Data::Elsewhere));
        assert_eq!(flush, of_a_failed_namespace()[2]);
        disk.set(|state| state.fails = None);
        for _ in 0..3 {
            assert_eq!(outcomes(&mut host, &mut queue), of_a_failed_namespace(), "it would succeed now");
        }
        disk.health().restore();
        assert_eq!(outcomes(&mut host, &mut queue), [None; 3]);
    });
}

// Goal: the same with a real block device that is full when the page cache is written back. The kernel reports that error only once.
#[test]
fn a_device_that_could_not_write_its_pages_fails_every_flush_after_the_first() {
    let scratch = Scratch::new("writeback");
    let folder = scratch.path().parent().unwrap().join("full");
    std::fs::create_dir(&folder).unwrap();
    let Some(_mounted) = Tmpfs::new(&folder, "size=1m") else { return };
    let file = folder.join("disk");
    let bytes = 8 << 20;
    std::fs::File::create(&file).unwrap().set_len(bytes).unwrap();
    let Some(device) = LoopDevice::new(&file) else { return };
    let setup = Setup {
        bytes: bytes as usize,
        file: Some(device.path().into()),
        direct: Some(Direct::No),
        ..Setup::default()
    };
    with_target(&setup, |view| {
        let mut host = view.host(1);
        let mut controller =
            Controller::connect(&mut host, view.at, &nqn(SUBSYSTEM), Options::default()).unwrap();
        let mut queue = controller.io_queue(&mut host, 1, 16).unwrap();
        let len = 128 << 10;
        let mr = host.pd().reg_mr(len, RIGHTS).unwrap();
        mr.fill(0..len, 0x5a).unwrap();
        let keyed = Sgl::keyed(mr.iova(), len as u32, mr.rkey(), false);
        for lba in (0..bytes / BLOCK as u64).step_by(len / BLOCK) {
            let write = Io::new(1, lba, (len / BLOCK) as u32).write(keyed);
            // If the kernel writes pages back meanwhile, writes do not report the error.
            assert_eq!(status(host.call(&mut queue, &write, Data::Elsewhere)), None, "into the page cache");
        }
        for _ in 0..3 {
            let flush = status(host.call(&mut queue, &Io::new(1, 0, 1).flush(), Data::Elsewhere));
            assert_eq!(flush, of_a_failed_namespace()[2]);
        }
        assert_eq!(outcomes(&mut host, &mut queue), of_a_failed_namespace());
    });
}

// Goal: data that a host reads, compares or verifies with FUA is stable once it has the response, with data in the capsule and in host
// memory.
#[test]
fn what_is_read_with_fua_is_stable() {
    let disk = Disk::new();
    with_disk(&disk, 16, |_, mut host, _controller, mut queue| {
        let mr = host.pd().reg_mr(BLOCK, RIGHTS).unwrap();
        mr.fill(0..BLOCK, 7).unwrap();
        let keyed = Sgl::keyed(mr.iova(), BLOCK as u32, mr.rkey(), false);
        let inside = Sgl::in_capsule(0, BLOCK as u32);
        type Make<'m> = (fn(Io, Sgl) -> Sqe, Sgl, Data<'m>);
        let commands: [Make<'_>; 4] = [
            (Io::read, keyed, Data::Elsewhere),
            (Io::compare, keyed, Data::Elsewhere),
            (Io::compare, inside, Data::InCapsule(&mr, 0..BLOCK)),
            (|io, _| io.verify(), keyed, Data::Elsewhere),
        ];
        for (lba, (make, sgl, data)) in (0..).zip(commands) {
            let io = Io::new(1, lba, 1);
            host.call(&mut queue, &io.write(keyed), Data::Elsewhere).unwrap();
            let stable = || disk.stable()[lba as usize * BLOCK..][..BLOCK].to_vec();
            host.call(&mut queue, &make(io, sgl), data.clone()).unwrap();
            assert_eq!(stable(), [0; BLOCK], "{lba}: without FUA it need not be");
            host.call(&mut queue, &make(io.fua(), sgl), data).unwrap();
            assert_eq!(stable(), [7; BLOCK], "{lba}");
        }
    });
}

/// A disk whose writes wait until the flag is set. It notes offset and content of each write.
#[derive(Debug, Default)]
struct Stuck(Mutex<(bool, Vec<(u64, u8)>)>, Condvar, Health);

impl BlockingStorage for Stuck {
    fn size(&self) -> std::io::Result<u64> {
        Ok(BYTES as u64)
    }
    fn run(&self, work: &Work) -> Result<(), BackendError> {
        let Work::Write { offset, from, .. } = work else { return Ok(()) };
        let mut state = self.1.wait_while(self.0.lock().unwrap(), |state| !state.0).unwrap();
        let bytes = from.mr.to_vec(from.at..from.at + from.len).map_err(|_| BackendError::Internal)?;
        assert!(bytes.iter().all(|&b| b == bytes[0]));
        state.1.push((*offset, bytes[0]));
        Ok(())
    }
    fn health(&self) -> &Health {
        &self.2
    }
}

// Goal: a host whose writes wait for a stuck disk keeps no more than its share of the capsules. Commands of other hosts are served at
// once, and none of its writes is lost.
#[test]
fn a_host_whose_disk_is_stuck_leaves_receives_for_others() {
    const WRITES: usize = 120;
    let disk = Arc::new(Stuck::default());
    let mut setup = Setup { bytes: BYTES, blocks: Some(disk.clone()), ..Setup::default() };
    // Fewer than the entries of the host's queue.
    setup.config.receives = 64;
    with_target(&setup, |view| {
        let (mut host, mut other) = (view.host(1), view.host(2));
        let mut controller =
            Controller::connect(&mut host, view.at, &nqn(SUBSYSTEM), Options::default()).unwrap();
        let mut queue = controller.io_queue(&mut host, 1, WRITES as u16 + 1).unwrap();
        let mr = host.pd().reg_mr(WRITES * BLOCK, RIGHTS).unwrap();
        let place = |n: usize| n % (BYTES / BLOCK);
        for n in 0..WRITES {
            mr.fill(n * BLOCK..(n + 1) * BLOCK, place(n) as u8 + 1).unwrap();
            let data = Data::InCapsule(&mr, n * BLOCK..(n + 1) * BLOCK);
            let write = Io::new(1, place(n) as u64, 1).write(Sgl::in_capsule(0, BLOCK as u32));
            while queue.submit(&write, data.clone()).unwrap().is_none() {
                host.turn();
            }
        }
        view.until(&mut host, "all have come", || view.usage().commands == WRITES);
        assert!(view.usage().capsules <= 32, "half of them: {:?}", view.usage());
        let mut quick =
            Controller::connect(&mut other, view.at, &nqn(SUBSYSTEM), Options::default()).unwrap();
        let mut second = quick.io_queue(&mut other, 1, 16).unwrap();
        for _ in 0..4 {
            other.call(&mut second, &Io::new(2, 0, 1).verify(), Data::Elsewhere).unwrap_err();
        }
        disk.0.lock().unwrap().0 = true;
        disk.1.notify_all();
        let mut done = 0;
        view.until(&mut host, "its writes are done", || {
            done += queue.poll(|cqe| assert_eq!(cqe.status.get(), 0)).unwrap();
            done == WRITES
        });
        let written = disk.0.lock().unwrap().1.clone();
        assert_eq!(written.len(), WRITES);
        assert!(written.iter().all(|&(offset, value)| value as u64 == offset / BLOCK as u64 + 1));
        drop((queue, controller, second, quick));
        view.until_nothing_is_left(&mut host);
    });
}

// Goal: on a disk that is full and fails now and then, with many commands at a time, each block has the content of its last
// acknowledged write or of a failed write since then. After a successful Flush this content is stable.
#[test]
fn no_acknowledged_write_is_lost_on_a_bad_disk() {
    let disk = Disk::new();
    with_disk(&disk, 33, |view, mut host, _controller, mut queue| {
        let depth = queue.depth();
        let mr = host.pd().reg_mr(depth * BLOCK, RIGHTS).unwrap();
        let blocks = BYTES / BLOCK;
        disk.set(|state| {
            state.room = blocks / 2;
            state.flaky = Some((Rng::new(7), BackendError::Io));
        });
        let mut random = Rng::new(3);
        // What each block may hold: the last acknowledged content, and that of writes since then.
        let mut may: Vec<HashSet<u8>> = vec![HashSet::from([0]); blocks];
        let mut busy: HashSet<usize> = HashSet::new();
        let mut sent: Vec<Option<(usize, u8)>> = vec![None; depth];
        let (mut failed, mut done, since) = ([0usize; 2], 0, Instant::now());
        while done < 3000 {
            assert!(since.elapsed() < PATIENCE, "{done} {failed:?}");
            host.turn();
            let mut answers = Vec::new();
            queue.poll(|cqe| answers.push((cqe.cid.get() as usize, cqe.status.get() >> 1 & 0x7FF))).unwrap();
            for (cid, status) in answers {
                let (block, value) = sent[cid].take().unwrap();
                busy.remove(&block);
                done += 1;
                match status {
                    0 => may[block] = HashSet::from([value]),
                    full if full == Status::CapacityExceeded.code() => failed[0] += 1,
                    bad => {
                        assert_eq!(bad, Status::WriteFault.code());
                        failed[1] += 1;
                    }
                }
            }
            while let Some(cid) = queue.next_cid() {
                let block = random.below(blocks as u64) as usize;
                if !busy.insert(block) {
                    break;
                }
                let (cid, value) = (cid as usize, random.next() as u8);
                mr.fill(cid * BLOCK..(cid + 1) * BLOCK, value).unwrap();
                may[block].insert(value);
                sent[cid] = Some((block, value));
                let sgl = Sgl::keyed(mr.iova() + (cid * BLOCK) as u64, BLOCK as u32, mr.rkey(), false);
                queue.submit(&Io::new(1, block as u64, 1).write(sgl), Data::Elsewhere).unwrap().unwrap();
            }
        }
        view.until(&mut host, "the rest is answered", || {
            queue.poll(|_| {}).unwrap();
            queue.under_way() == 0
        });
        assert!(failed.iter().all(|&n| n > 0), "{failed:?}");
        disk.set(|state| state.flaky = None);
        let sgl = Sgl::keyed(mr.iova(), BLOCK as u32, mr.rkey(), false);
        host.call(&mut queue, &Io::new(1, 0, 1).flush(), Data::Elsewhere).unwrap();
        let stable = disk.stable();
        for (block, may) in may.iter().enumerate() {
            host.call(&mut queue, &Io::new(1, block as u64, 1).read(sgl), Data::Elsewhere).unwrap();
            let read = mr.to_vec(0..BLOCK).unwrap();
            assert!(may.contains(&read[0]) && read.iter().all(|&byte| byte == read[0]), "block {block}");
            assert!(stable[block * BLOCK..][..BLOCK] == read, "block {block} is stable");
        }
    });
}

/// A port whose second queue panics once the flag is set, as a program's own port may.
struct Odd(Box<dyn Port>, Arc<AtomicBool>);

impl PortLayer for Odd {
    fn inner(&self) -> &dyn Port {
        &*self.0
    }
    fn take_queue(&self, index: usize) -> Option<Box<dyn PortQueue>> {
        let queue = self.0.take_queue(index)?;
        Some(if index == 1 { Box::new(OddQueue(queue, self.1.clone())) } else { queue })
    }
}

struct OddQueue(Box<dyn PortQueue>, Arc<AtomicBool>);

impl QueueLayer for OddQueue {
    fn inner(&mut self) -> &mut dyn PortQueue {
        &mut *self.0
    }
    fn rx_burst(&mut self, out: &mut RxBurst) -> usize {
        assert!(!self.1.load(Ordering::Relaxed), "the port panics");
        self.0.rx_burst(out)
    }
}

// Goal: a target does not keep running with some of its cores dead: hosts of these cores would wait, and nobody would know why.
#[test]
fn a_core_that_dies_ends_the_others() {
    let (breaks, ran) = (Arc::new(AtomicBool::new(false)), AtomicU32::new(0));
    let options = PortOptions { queues: 2, ..PortOptions::default() };
    let port = Odd(PortSpec::Loopback.open(&options).unwrap(), breaks.clone());
    let context = device(Box::new(port), 1, 2);
    let pd = Arc::new(context.alloc_pd().unwrap());
    let target = nvmf::Target::new(Setup::default().settings).unwrap();
    let stores = Arc::new(nvmf_target::store::Stores::default());
    let mut cores: Vec<_> = (0..2)
        .map(|shard| {
            let config = Config { shard, ..Setup::default().config };
            Core::new(&context, pd.clone(), target.clone(), stores.clone(), config).unwrap()
        })
        .collect();
    // The cores are not told to stop. After some turns the port of the second one panics.
    let never = || {
        breaks.fetch_or(ran.fetch_add(1, Ordering::Relaxed) > 100, Ordering::Relaxed);
        false
    };
    let end = catch_unwind(AssertUnwindSafe(|| run_all(&mut cores, never)));
    assert!(end.is_err(), "{end:?}");
}

/// A disk whose first Write waits until [`Slow::let_go`].
#[derive(Debug)]
struct Slow {
    disk: Arc<Disk>,
    state: Mutex<Held>,
    change: Condvar,
}

/// Progress of the first Write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Held {
    NotCome,
    Waits,
    LetGo,
    Done,
}

impl Slow {
    fn is(&self, state: Held) -> bool {
        *self.state.lock().unwrap() == state
    }
    fn let_go(&self) {
        let mut state = self.state.lock().unwrap();
        if *state != Held::Done {
            *state = Held::LetGo;
            self.change.notify_all();
        }
    }
}

/// Calls [`Slow::let_go`] when dropped, even if the test panics: the target waits for its disk.
struct LetGo(Arc<Slow>);

impl Drop for LetGo {
    fn drop(&mut self) {
        self.0.let_go();
    }
}

impl BlockingStorage for Slow {
    fn size(&self) -> std::io::Result<u64> {
        self.disk.size()
    }
    fn run(&self, work: &Work) -> Result<(), BackendError> {
        let mut state = self.state.lock().unwrap();
        if *state != Held::NotCome || !matches!(work, Work::Write { .. }) {
            drop(state);
            return self.disk.run(work);
        }
        *state = Held::Waits;
        while *state == Held::Waits {
            state = self.change.wait(state).unwrap();
        }
        let result = self.disk.run(work);
        *state = Held::Done;
        result
    }
    fn health(&self) -> &Health {
        self.disk.health()
    }
}

// Goal: a Write that the disk has not done when its connection ends does not overwrite what the host writes after it has reconnected.
// No other host waits for that Write.
#[test]
fn a_host_that_reconnects_does_not_overtake_its_writes() {
    let slow = Arc::new(Slow { disk: Disk::new(), state: Mutex::new(Held::NotCome), change: Condvar::new() });
    let setup = Setup { bytes: BYTES, blocks: Some(slow.clone()), ..Setup::default() };
    with_target(&setup, |view| {
        let _in_the_end = LetGo(slow.clone());
        let connect = |host: &mut Host<'_>| {
            let mut controller =
                Controller::connect(host, view.at, &nqn(SUBSYSTEM), Options::default()).unwrap();
            let queue = controller.io_queue(host, 1, 8).unwrap();
            (controller, queue)
        };
        let mut host = view.host(1);
        let mr = host.pd().reg_mr(BLOCK, RIGHTS).unwrap();
        let keyed = Sgl::keyed(mr.iova(), BLOCK as u32, mr.rkey(), false);
        let (controller, mut queue) = connect(&mut host);
        mr.fill(0..BLOCK, 1).unwrap();
        queue.submit(&Io::new(1, 0, 1).write(keyed), Data::Elsewhere).unwrap();
        view.until(&mut host, "the disk has the write", || slow.is(Held::Waits));
        drop((queue, controller));
        view.until(&mut host, "the target knows that the host has gone", || {
            view.target.controllers() == (0, 0)
        });

        let mut other = view.host(2);
        let (_controller, mut queue) = connect(&mut other);
        other.call(&mut queue, &Io::new(1, 1, 1).flush(), Data::Elsewhere).unwrap();
        assert!(slow.is(Held::Waits));

        let its = slow.clone();
        host.beside(move || {
            if view.count("connect_waits") > 0 {
                its.let_go();
            }
        });
        let (_controller, mut queue) = connect(&mut host);
        mr.fill(0..BLOCK, 2).unwrap();
        host.call(&mut queue, &Io::new(1, 0, 1).write(keyed), Data::Elsewhere).unwrap();
        // The first write is released by now at the latest.
        slow.let_go();
        view.until(&mut host, "the first write is done", || slow.is(Held::Done));
        host.call(&mut queue, &Io::new(1, 0, 1).read(keyed), Data::Elsewhere).unwrap();
        assert_eq!(mr.to_vec(0..BLOCK).unwrap(), [2; BLOCK], "what was acknowledged last");
        assert_eq!(view.count("connect_waits"), 1);
    });
}
