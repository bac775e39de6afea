//! Blocks: what was written is read, by every way that data can go.

use nvmf::status::Status;
use nvmf::wire::Sgl;
use nvmf_target::host::{Controller, Data, Host, HostQueue, Io, NamespaceInfo, Options, discover};
use nvmf_target::store::{Direct, File, FileError, Ring};
use nvmf_target::target::Config;
use verbs::port::fault::rng::Rng;
use verbs::{Access, Mr};
use zerocopy::IntoBytes;

use crate::common::{
    BLOCK, LoopDevice, PATIENCE, SUBSYSTEM, Scratch, Setup, View, goes_direct, nqn, skipped, with_target,
};

const RIGHTS: Access = Access::LOCAL_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_WRITE);

/// A connected controller with one queue, and memory for data.
struct Disk<'v> {
    host: Host<'v>,
    controller: Controller,
    queue: HostQueue,
    mr: Mr,
}

impl<'v> Disk<'v> {
    fn new(view: &'v View, entries: u16, bytes: usize) -> Self {
        let mut host = view.host(1);
        let mut controller =
            Controller::connect(&mut host, view.at, &nqn(SUBSYSTEM), Options::default()).unwrap();
        let queue = controller.io_queue(&mut host, 1, entries).unwrap();
        let mr = host.pd().reg_mr(bytes, RIGHTS).unwrap();
        Self { host, controller, queue, mr }
    }
    fn sgl(&self, len: usize) -> Sgl {
        Sgl::keyed(self.mr.iova(), len as u32, self.mr.rkey(), false)
    }
    /// The status code of a command.
    fn call(&mut self, sqe: &nvmf::wire::Sqe) -> u16 {
        self.call_with(sqe, false, 0)
    }
    fn call_with(&mut self, sqe: &nvmf::wire::Sqe, in_capsule: bool, len: usize) -> u16 {
        let data = if in_capsule { Data::InCapsule(&self.mr, 0..len) } else { Data::Elsewhere };
        match self.host.call(&mut self.queue, sqe, data) {
            Ok(_) => 0,
            Err(e) => e.code().unwrap_or_else(|| panic!("{e}")),
        }
    }
    fn write(&mut self, lba: u64, data: &[u8], in_capsule: bool) -> u16 {
        self.mr.write(0, data).unwrap();
        let io = Io::new(1, lba, (data.len() / BLOCK) as u32);
        let sgl = if in_capsule { Sgl::in_capsule(0, data.len() as u32) } else { self.sgl(data.len()) };
        self.call_with(&io.write(sgl), in_capsule, data.len())
    }
    fn compare(&mut self, lba: u64, data: &[u8], in_capsule: bool) -> u16 {
        self.mr.write(0, data).unwrap();
        let io = Io::new(1, lba, (data.len() / BLOCK) as u32);
        let sgl = if in_capsule { Sgl::in_capsule(0, data.len() as u32) } else { self.sgl(data.len()) };
        self.call_with(&io.compare(sgl), in_capsule, data.len())
    }
    fn read(&mut self, lba: u64, blocks: usize) -> Vec<u8> {
        self.mr.fill(0..blocks * BLOCK, 0xa5).unwrap();
        let io = Io::new(1, lba, blocks as u32);
        assert_eq!(self.call(&io.read(self.sgl(blocks * BLOCK))), 0);
        self.mr.to_vec(0..blocks * BLOCK).unwrap()
    }
}

#[test]
fn a_host_discovers_connects_and_identifies() {
    with_target(&Setup::default(), |view| {
        let mut host = view.host(1);
        let records = discover(&mut host, view.at).unwrap();
        let names: Vec<_> = records.iter().map(|r| nvmf::Nqn::of_field(&r.subsystem).unwrap()).collect();
        assert!(names.contains(&nqn(SUBSYSTEM)), "{names:?}");
        let options = Options { queues: 3, ..Options::default() };
        let mut controller = Controller::connect(&mut host, view.at, &nqn(SUBSYSTEM), options).unwrap();
        assert_eq!(controller.queues(), 3);
        let namespaces = controller.namespaces(&mut host).unwrap();
        let blocks = (Setup::default().bytes / BLOCK) as u64;
        assert_eq!(namespaces, [NamespaceInfo { nsid: 1, blocks, block: BLOCK as u32, nguid: [2; 16] }]);
        let queues: Vec<_> = (1..=3).map(|qid| controller.io_queue(&mut host, qid, 32).unwrap()).collect();
        view.until(&mut host, "four connections", || view.usage().connections == 4);
        drop(queues);
        controller.shutdown(&mut host).unwrap();
        view.until_nothing_is_left(&mut host);
    });
}

/// Files are waited for by threads.
fn without_ring() -> Config {
    Config { io_uring: false, ..Setup::default().config }
}

// Goal: every command, every way of its data, against a model of the namespace.
#[test]
fn what_was_written_is_read() {
    let file = Scratch::new("blocks");
    if let Err(e) = Ring::new(Vec::new()) {
        skipped("files by io_uring, and threads are tested twice", &e);
    }
    let mut setups = vec![
        Setup::default(),
        Setup { mtu: 1200, ..Setup::default() },
        Setup { file: Some(file.path()), ..Setup::default() },
        Setup { file: Some(file.path()), config: without_ring(), ..Setup::default() },
    ];
    if goes_direct(&file.path()) {
        let direct = Setup { direct: Some(Direct::Yes), file: Some(file.path()), ..Setup::default() };
        setups.push(direct.clone());
        setups.push(Setup { config: without_ring(), ..direct });
    }
    for setup in setups {
        with_target(&setup, |view| {
            let mut disk = Disk::new(view, 8, 1 << 20);
            let max = disk.controller.transfer_max();
            assert_eq!(max, 1 << 20);
            let size = Setup::default().bytes;
            let mut model =
                setup.file.as_ref().map_or_else(|| vec![0u8; size], |path| std::fs::read(path).unwrap());
            let mut random = Rng::new(31);
            for step in 0..300 {
                let blocks = match random.below(8) {
                    0 => max / BLOCK,
                    1..=3 => 1 + random.below(8) as usize,
                    _ => 1 + random.below(300) as usize,
                };
                let len = blocks * BLOCK;
                let lba = random.below((size / BLOCK - blocks + 1) as u64);
                let at = lba as usize * BLOCK;
                let in_capsule = len <= disk.controller.in_capsule() && random.below(2) == 0;
                let io = Io::new(1, lba, blocks as u32);
                match random.below(8) {
                    0..=2 => {
                        let data: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
                        assert_eq!(disk.write(lba, &data, in_capsule), 0, "step {step}");
                        model[at..at + len].copy_from_slice(&data);
                    }
                    3 => {
                        let mut data = model[at..at + len].to_vec();
                        assert_eq!(disk.compare(lba, &data, in_capsule), 0, "step {step}");
                        data[random.below(len as u64) as usize] ^= 1;
                        assert_eq!(disk.compare(lba, &data, in_capsule), Status::CompareFailure.code());
                    }
                    4 => {
                        assert_eq!(disk.call(&io.write_zeroes()), 0);
                        model[at..at + len].fill(0);
                    }
                    5 => {
                        let range = nvmf::wire::io::DsmRange {
                            attributes: 0.into(),
                            blocks: (blocks as u32).into(),
                            slba: lba.into(),
                        };
                        disk.mr.write(0, range.as_bytes()).unwrap();
                        let (sgl, in_capsule) = match random.below(2) {
                            0 => (disk.sgl(16), false),
                            _ => (Sgl::in_capsule(0, 16), true),
                        };
                        assert_eq!(disk.call_with(&Io::deallocate(1, 1, sgl), in_capsule, 16), 0);
                        model[at..at + len].fill(0);
                    }
                    6 => {
                        assert_eq!(disk.call(&io.verify()), 0);
                        assert_eq!(disk.call(&io.fua().verify()), 0);
                        assert_eq!(disk.call(&io.fua().read(disk.sgl(len))), 0);
                        assert!(disk.mr.to_vec(0..len).unwrap() == model[at..at + len], "step {step}");
                        assert_eq!(disk.call(&io.flush()), 0);
                    }
                    _ => {
                        assert!(disk.read(lba, blocks) == model[at..at + len], "step {step}: {lba} {blocks}")
                    }
                }
            }
            for lba in (0..size / BLOCK).step_by(max / BLOCK) {
                let at = lba * BLOCK;
                assert!(disk.read(lba as u64, max / BLOCK) == model[at..at + max], "at the end: {lba}");
            }
            let Disk { mut host, controller, queue, .. } = disk;
            drop((queue, controller));
            view.until_nothing_is_left(&mut host);
            if let Some(path) = &setup.file {
                assert!(std::fs::read(path).unwrap() == model, "the file has the bytes");
            }
        });
    }
}

// Goal: Writes that come in one turn, by both ways, each land at their own place, and each has its own response.
#[test]
fn writes_that_come_together_each_land_at_their_place() {
    with_target(&Setup::default(), |view| {
        const WRITES: usize = 60;
        const LEN: usize = 4096;
        let mut disk = Disk::new(view, WRITES as u16 + 1, WRITES * LEN);
        let place = |n: usize| (n * 7 % WRITES) as u64 * (LEN / BLOCK) as u64;
        let data: Vec<u8> = (0..WRITES * LEN).map(|at| (at / LEN) as u8 ^ (at % 251) as u8).collect();
        disk.mr.write(0, &data).unwrap();
        let (iova, rkey) = (disk.mr.iova(), disk.mr.rkey());
        for n in 0..WRITES {
            let io = Io::new(1, place(n), (LEN / BLOCK) as u32);
            let sent = if n % 3 == 0 {
                let keyed = Sgl::keyed(iova + (n * LEN) as u64, LEN as u32, rkey, false);
                disk.queue.submit(&io.write(keyed), Data::Elsewhere)
            } else {
                let data = Data::InCapsule(&disk.mr, n * LEN..(n + 1) * LEN);
                disk.queue.submit(&io.write(Sgl::in_capsule(0, LEN as u32)), data)
            };
            assert!(sent.unwrap().is_some());
        }
        let mut answered = [0; WRITES];
        view.until(&mut disk.host, "responses", || {
            disk.queue
                .poll(|cqe| {
                    assert_eq!(cqe.status.get(), 0);
                    answered[usize::from(cqe.cid.get())] += 1;
                })
                .unwrap();
            answered.iter().sum::<u32>() as usize >= WRITES
        });
        assert_eq!(answered, [1; WRITES]);
        for n in 0..WRITES {
            assert!(disk.read(place(n), LEN / BLOCK) == data[n * LEN..(n + 1) * LEN], "{n}");
        }
        let Disk { mut host, controller, queue, .. } = disk;
        drop((queue, controller));
        view.until_nothing_is_left(&mut host);
    });
}

// Goal: a device that another has is refused, and what is written to one that is ours is on it.
#[test]
fn a_block_device_is_ours_alone_and_has_what_was_written() {
    let file = Scratch::new("device");
    let setup = Setup::default();
    std::fs::write(file.path(), vec![0x5a; setup.bytes]).unwrap();
    let Some(device) = LoopDevice::new(&file.path()) else { return };
    let setups = [setup.clone(), Setup { config: without_ring(), ..setup }];
    for (n, setup) in (1..).zip(setups) {
        with_target(&Setup { file: Some(device.path().into()), ..setup }, |view| {
            let again = File::open(device.path(), None, true).unwrap_err();
            assert!(matches!(again, FileError::InUse(_)), "{again}");
            let mut disk = Disk::new(view, 8, 1 << 20);
            for (lba, in_capsule) in [(n, true), (100 + n, false)] {
                let data = vec![n as u8; 4 * BLOCK];
                assert_eq!(disk.write(lba, &data, in_capsule), 0);
                assert_eq!(disk.compare(lba, &data, in_capsule), 0);
                assert!(disk.read(lba, 4) == data);
            }
            assert_eq!(disk.call(&Io::new(1, 200 + n, 1).write_zeroes()), 0);
            assert_eq!(disk.call(&Io::new(1, 0, 1).flush()), 0);
            let Disk { mut host, controller, queue, .. } = disk;
            drop((queue, controller));
            view.until_nothing_is_left(&mut host);
        });
        let bytes = std::fs::read(file.path()).unwrap();
        let block = |lba: u64| &bytes[lba as usize * BLOCK..(lba as usize + 1) * BLOCK];
        assert!(block(n) == [n as u8; BLOCK] && block(103 + n) == [n as u8; BLOCK]);
        assert!(block(200 + n) == [0; BLOCK] && block(300) == [0x5a; BLOCK]);
    }
}

// Goal: what a host deallocates on a block device goes back to what is behind it, by either command, and reads as zeros.
#[test]
fn what_is_deallocated_on_a_block_device_is_given_back() {
    let file = Scratch::new("trim");
    let setup = Setup::default();
    std::fs::write(file.path(), vec![0x5a; setup.bytes]).unwrap();
    let Some(device) = LoopDevice::new(&file.path()) else { return };
    let opened = File::open(device.path(), None, false).unwrap();
    if opened.deallocates().is_none() {
        return skipped("deallocation on a block device", &"this loop device gives nothing back");
    }
    drop(opened);
    let stored = || {
        use std::os::unix::fs::MetadataExt as _;
        std::fs::metadata(file.path()).unwrap().blocks() * 512
    };
    for direct in [Direct::Yes, Direct::No] {
        let setup = Setup { file: Some(device.path().into()), direct: Some(direct), ..setup.clone() };
        with_target(&setup, |view| {
            let mut disk = Disk::new(view, 8, 1 << 20);
            let full = vec![0xa5; 1 << 20];
            for at in 0..4 {
                assert_eq!(disk.write(at * 2048, &full, false), 0);
            }
            assert_eq!(disk.call(&Io::new(1, 0, 1).flush()), 0);
            let before = stored();
            let range =
                nvmf::wire::io::DsmRange { attributes: 0.into(), blocks: 2048.into(), slba: 2048.into() };
            disk.mr.write(0, range.as_bytes()).unwrap();
            let sgl = disk.sgl(16);
            assert_eq!(disk.call(&Io::deallocate(1, 1, sgl)), 0);
            assert_eq!(before - stored(), 1 << 20, "Dataset Management");
            let mut zeroes = Io::new(1, 3 * 2048, 2048).write_zeroes();
            zeroes.cdw12 = (zeroes.cdw12.get() | 1 << 25).into();
            assert_eq!(disk.call(&zeroes), 0);
            assert_eq!(before - stored(), 2 << 20, "Write Zeroes that may deallocate");
            for (at, byte) in [(0, 0xa5), (1, 0), (2, 0xa5), (3, 0)] {
                assert!(disk.read(at * 2048, 2048) == vec![byte; 1 << 20], "{at}");
            }
        });
    }
}

#[test]
fn commands_that_cannot_be_are_answered_with_their_status() {
    with_target(&Setup::default(), |view| {
        let mut disk = Disk::new(view, 8, 2 << 20);
        let blocks = (Setup::default().bytes / BLOCK) as u64;
        let sgl = disk.sgl(BLOCK);
        for (sqe, status) in [
            (Io::new(1, blocks, 1).read(sgl), Status::LbaOutOfRange),
            (Io::new(1, u64::MAX, 1).write(sgl), Status::LbaOutOfRange),
            (Io::new(2, 0, 1).read(sgl), Status::InvalidNamespace),
            (Io::new(1, 0, 2).read(sgl), Status::SglLengthInvalid),
            (Io::new(1, 0, 1).write(Sgl::in_capsule(0, BLOCK as u32)), Status::SglOffsetInvalid),
            (Io::new(1, 0, 1).write(Sgl::in_capsule(u64::MAX, BLOCK as u32)), Status::SglOffsetInvalid),
            (Io::new(1, 0, 4096).read(disk.sgl(2 << 20)), Status::InvalidField),
            (nvmf::wire::Sqe { opcode: 0x7E, ..Io::new(1, 0, 1).read(sgl) }, Status::InvalidOpcode),
        ] {
            assert_eq!(disk.call(&sqe), status.code(), "{sqe:?}");
        }
        assert_eq!(disk.read(0, 1), [0; BLOCK], "the queue goes on");
    });
}

// Goal: N17 (queues of 128, several at a time, no RNR), and a pool that is short: commands wait, and all are answered.
#[test]
fn n17_full_queues_find_receives_and_wait_for_buffers() {
    for (buffers, waits) in [(16 << 20, false), (1 << 20, true)] {
        let mut setup = Setup::default();
        setup.config.receives = 2048;
        setup.config.buffers = buffers;
        with_target(&setup, |view| {
            const QUEUES: usize = 8;
            const LEN: usize = 8192;
            let mut host = view.host(1);
            let options = Options { queues: QUEUES as u16, ..Options::default() };
            let mut controller = Controller::connect(&mut host, view.at, &nqn(SUBSYSTEM), options).unwrap();
            let mut queues: Vec<_> =
                (1..=QUEUES as u16).map(|qid| controller.io_queue(&mut host, qid, 128).unwrap()).collect();
            let depth = queues[0].depth();
            let mr = host.pd().reg_mr(QUEUES * depth * LEN, RIGHTS).unwrap();
            let place = |q: usize, cid: usize| (q * depth + cid) % (setup.bytes / LEN);
            for write in [true, false] {
                for q in 0..QUEUES * depth {
                    mr.fill(
                        q * LEN..(q + 1) * LEN,
                        if write { place(q / depth, q % depth) as u8 } else { 0xee },
                    )
                    .unwrap();
                }
                let mut to_do = [2 * depth; QUEUES];
                let mut done = 0;
                let since = std::time::Instant::now();
                while done < QUEUES * 2 * depth {
                    host.turn();
                    for (q, queue) in queues.iter_mut().enumerate() {
                        done += queue.poll(|cqe| assert_eq!(cqe.status.get(), 0)).unwrap();
                        while to_do[q] > 0 && queue.under_way() < depth {
                            // The command takes the identifier that is free: data and blocks are chosen by it.
                            let cid = queue.next_cid().unwrap() as usize;
                            let at = (q * depth + cid) * LEN;
                            let sgl = Sgl::keyed(mr.iova() + at as u64, LEN as u32, mr.rkey(), false);
                            let io = Io::new(1, (place(q, cid) * LEN / BLOCK) as u64, (LEN / BLOCK) as u32);
                            let sqe = if write { io.write(sgl) } else { io.read(sgl) };
                            assert_eq!(queue.submit(&sqe, Data::Elsewhere).unwrap(), Some(cid as u16));
                            to_do[q] -= 1;
                        }
                    }
                    assert!(since.elapsed() < PATIENCE, "{done}");
                }
            }
            for q in 0..QUEUES * depth {
                let read = mr.to_vec(q * LEN..(q + 1) * LEN).unwrap();
                assert!(read.iter().all(|&b| b == place(q / depth, q % depth) as u8), "{q}");
            }
            // With memory enough a command waits only if all hundreds come at once.
            assert!(view.count("buffer_waits") > 0 || !waits);
            let counters = view.context.counters();
            let rnr = counters.iter().filter(|(name, _)| name.contains("rnr"));
            assert_eq!(rnr.map(|(_, n)| n).sum::<u64>(), 0, "every capsule finds a receive");
        });
    }
}
