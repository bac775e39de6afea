//! What plays the program and the host: it carries out steps, on a disk and a host's memory that are vectors.

use nvmf::config::{Backend, Hosts, Namespace, Port, Ports, Settings, Subsystem};
use nvmf::status::Status;
use nvmf::wire::fabrics::{ConnectCommand, ConnectData, PropertyCommand, fctype};
use nvmf::wire::identify::cns;
use nvmf::wire::{Sgl, Sqe, admin_opcode};
use nvmf::{
    Arrival, BackendError, End, Instant, Nqn, Op, Queue, Remote, Request, Response, Source, Step, Target,
    Ticket,
};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromZeros, IntoBytes};

pub mod random;

/// Where the host's memory starts, and its key.
pub const MEMORY: u64 = 0x7000_0000;
pub const KEY: u32 = 0x5a95;

pub const SUBSYSTEM: &str = "nqn.2024-01.test.interop:ram0";
pub const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555";
pub const HOST_ID: [u8; 16] =
    [0x11, 0x11, 0x11, 0x11, 0x22, 0x22, 0x33, 0x33, 0x44, 0x44, 0x55, 0x55, 0x55, 0x55, 0x55, 0x55];

pub fn nqn(text: &str) -> Nqn {
    text.parse().expect("an NQN")
}

/// Where connections come in, at port 1 and from one host.
pub fn arrival() -> Arrival {
    let local = "10.99.0.3:4420".parse().expect("an address");
    Arrival { port: 1, local, peer: "10.99.0.9".parse().expect("an address") }
}

pub fn namespace(nsid: u32, blocks: u64) -> Namespace {
    let id = |first: u8| {
        let mut id = [nsid as u8; 16];
        id[0] = first;
        id[1..5].copy_from_slice(&nsid.to_le_bytes());
        id
    };
    Namespace {
        nsid,
        backend: Backend(nsid),
        blocks,
        block_shift: 9,
        uuid: id(1),
        nguid: id(2),
        read_only: false,
        deallocates: Some(512),
    }
}

pub fn subsystem(namespaces: Vec<Namespace>) -> Subsystem {
    Subsystem {
        nqn: nqn(SUBSYSTEM),
        serial: "42".try_into().expect("short"),
        ports: Ports::All,
        hosts: Hosts::Any,
        namespaces,
    }
}

pub fn target(namespaces: Vec<Namespace>) -> Target {
    let target = Target::new(Settings::default()).expect("the default settings are right");
    target
        .add_port(Port { id: 1, address: "10.99.0.3:4420".parse().expect("an address") })
        .expect("a new port");
    target.add_subsystem(subsystem(namespaces)).expect("a new subsystem");
    target
}

/// A namespace's storage.
#[derive(Default)]
pub struct Disk {
    pub bytes: Vec<u8>,
    /// What the next request fails with.
    pub fails: Option<BackendError>,
    pub flushes: usize,
}

/// The program, and the memory of its host.
pub struct Program {
    pub target: Target,
    pub now: Instant,
    pub memory: Vec<u8>,
    pub disk: Disk,
    /// What was asked for on the way to the last response.
    pub trace: Vec<String>,
}

impl Program {
    /// With one subsystem, and one namespace of that many blocks of 512 bytes.
    pub fn new(blocks: u64) -> Self {
        let target = target(vec![namespace(1, blocks)]);
        let disk = Disk { bytes: vec![0; blocks as usize * 512], ..Disk::default() };
        Self { target, now: Instant::default(), memory: vec![0; 4 << 20], disk, trace: Vec::new() }
    }

    /// A connection, as the request says.
    pub fn connection(&self, qid: u16, entries: u16) -> Queue {
        let private = request(qid, entries);
        Queue::accept(&self.target, self.now, arrival(), &private).expect("a connection").queue
    }
    /// The admin queue of a new controller, which is enabled.
    pub fn admin(&mut self) -> (Queue, u16) {
        let mut queue = self.connection(0, 32);
        let cntlid = self.connect(&mut queue, 0xFFFF, SUBSYSTEM, 5000);
        self.enable(&mut queue);
        (queue, cntlid)
    }
    /// The admin queue of a discovery controller, which is enabled.
    pub fn discovery(&mut self, host: &str) -> Queue {
        let mut queue = self.connection(0, 32);
        let mut data = connect_data(0xFFFF, Nqn::DISCOVERY);
        data.host = nvmf::wire::zero_padded(host);
        self.expect(&mut queue, &self.connect_sqe(0, 31, 0), data.as_bytes(), Status::Success);
        self.enable(&mut queue);
        queue
    }
    pub fn io(&mut self, cntlid: u16, qid: u16) -> Queue {
        let mut queue = self.connection(qid, 128);
        assert_eq!(self.connect(&mut queue, cntlid, SUBSYSTEM, 0), cntlid);
        queue
    }
    pub fn connect(&mut self, queue: &mut Queue, cntlid: u16, subsystem: &str, kato_ms: u32) -> u16 {
        let entries = if queue.qid() == 0 { 32 } else { 128 };
        let sqe = self.connect_sqe(queue.qid(), entries - 1, kato_ms);
        let data = connect_data(cntlid, subsystem);
        self.expect(queue, &sqe, data.as_bytes(), Status::Success) as u16
    }
    pub fn connect_sqe(&self, qid: u16, sqsize: u16, kato_ms: u32) -> Sqe {
        let command = ConnectCommand {
            opcode: nvmf::wire::fabrics::OPCODE,
            flags: 0x40,
            fctype: fctype::CONNECT,
            sgl: Sgl::keyed(MEMORY, 1024, KEY, true),
            qid: U16::new(qid),
            sqsize: U16::new(sqsize),
            kato_ms: U32::new(kato_ms),
            ..ConnectCommand::new_zeroed()
        };
        zerocopy::transmute!(command)
    }
    pub fn enable(&mut self, queue: &mut Queue) {
        self.expect(queue, &property_set(0x14, 0x0046_0001), &[], Status::Success);
        assert_eq!(self.expect(queue, &property_get(0x1C, 0), &[], Status::Success), 1, "ready");
    }

    /// Sends a command whose data are `data`; gives the result.
    pub fn expect(&mut self, queue: &mut Queue, sqe: &Sqe, data: &[u8], status: Status) -> u64 {
        let response = self.send(queue, sqe, data);
        let cqe = response.cqe;
        assert_eq!(cqe.status.get(), status.field(), "{status} expected of {sqe:?}");
        assert_eq!((cqe.cid, cqe.sq_id.get()), (sqe.cid, queue.qid()));
        cqe.result.get()
    }
    /// The same with what the host reads, of `len` bytes.
    pub fn read(&mut self, queue: &mut Queue, sqe: &Sqe, len: usize) -> Vec<u8> {
        self.memory[..len].fill(0xa5);
        let sqe = Sqe { sgl: Sgl::keyed(MEMORY, len as u32, KEY, true), ..*sqe };
        let response = self.send(queue, &sqe, &[]);
        assert_eq!(response.cqe.status.get(), 0, "success expected of {sqe:?}");
        assert_eq!(response.invalidate, Some(KEY));
        self.memory[..len].to_vec()
    }
    /// Sends a command, with data in the host's memory, until its response.
    pub fn send(&mut self, queue: &mut Queue, sqe: &Sqe, data: &[u8]) -> Response {
        self.memory[..data.len()].copy_from_slice(data);
        self.capsule(queue, sqe.as_bytes()).expect("the queue lives").expect("a response")
    }
    /// Sends a capsule; no response if the command waits.
    pub fn capsule(&mut self, queue: &mut Queue, capsule: &[u8]) -> Result<Option<Response>, End> {
        self.trace.clear();
        let step = queue.handle_capsule(self.now, &capsule[..capsule.len().min(64)], capsule.len())?;
        let step = match step {
            Step::Fetch(ticket, from) => {
                self.trace.push(format!("fetch {}", from.len()));
                let data = self.fetch(capsule, &from);
                match queue.handle_data(self.now, ticket, &data)? {
                    // The request borrows from the data.
                    Step::Run(ticket, request) => {
                        return self.done(queue, ticket, &request, capsule).map(Some);
                    }
                    Step::Respond(response) => return Ok(Some(response)),
                    Step::Wait => return Ok(None),
                    other => panic!("{other:?}"),
                }
            }
            other => other,
        };
        match step {
            Step::Respond(response) => Ok(Some(response)),
            Step::Give(ticket, to) => {
                self.trace.push(format!("give {}", to.len));
                let mut data = vec![0xa5; to.len as usize];
                let response = queue.poll_data(ticket, &mut data)?;
                self.host(&to).copy_from_slice(&data);
                Ok(Some(response))
            }
            Step::Run(ticket, request) => self.done(queue, ticket, &request, capsule).map(Some),
            Step::Wait => Ok(None),
            Step::Fetch(..) => unreachable!("it was fetched above"),
        }
    }

    fn done(
        &mut self,
        queue: &mut Queue,
        ticket: Ticket,
        request: &Request<'_>,
        capsule: &[u8],
    ) -> Result<Response, End> {
        let done = self.run(request, capsule);
        queue.handle_done(ticket, done)
    }
    /// Memory of the host.
    pub fn host(&mut self, remote: &Remote) -> &mut [u8] {
        assert_eq!(remote.key, KEY, "the host's key");
        let at = remote.address.checked_sub(MEMORY).expect("the host's memory") as usize;
        &mut self.memory[at..at + remote.len as usize]
    }
    /// The bytes of the capsule, or of the host's memory.
    pub fn fetch(&mut self, capsule: &[u8], from: &Source) -> Vec<u8> {
        match *from {
            Source::Capsule { offset, len } => capsule[offset as usize..][..len as usize].to_vec(),
            Source::Remote(remote) => self.host(&remote).to_vec(),
        }
    }
    /// Does what is requested.
    fn run(&mut self, request: &Request<'_>, capsule: &[u8]) -> Result<(), BackendError> {
        if let Some(error) = self.disk.fails.take() {
            return Err(error);
        }
        let range = |offset: u64, len: u64| offset as usize..(offset + len) as usize;
        match request.op.clone() {
            Op::Read { offset, to, fua } => {
                self.trace.push(format!("read {} fua {fua}", to.len));
                let bytes = self.disk.bytes[range(offset, to.len as u64)].to_vec();
                self.host(&to).copy_from_slice(&bytes);
            }
            Op::Write { offset, from, fua } => {
                let kind = if matches!(from, Source::Capsule { .. }) { "capsule" } else { "remote" };
                self.trace.push(format!("write {} {kind} fua {fua}", from.len()));
                let bytes = self.fetch(capsule, &from);
                self.disk.bytes[range(offset, bytes.len() as u64)].copy_from_slice(&bytes);
            }
            Op::Compare { offset, from, .. } => {
                let bytes = self.fetch(capsule, &from);
                if self.disk.bytes[range(offset, bytes.len() as u64)] != bytes {
                    return Err(BackendError::Mismatch);
                }
            }
            Op::Verify { offset, len, .. } => {
                let _readable = &self.disk.bytes[range(offset, len)];
            }
            Op::WriteZeroes { offset, len, .. } => self.disk.bytes[range(offset, len)].fill(0),
            Op::Deallocate(ranges) => {
                for (offset, len) in ranges {
                    self.disk.bytes[range(offset, len)].fill(0);
                }
            }
            Op::Flush => self.disk.flushes += 1,
        }
        Ok(())
    }
}

/// Private data of a connection request.
pub fn request(qid: u16, entries: u16) -> [u8; 32] {
    let mut private = [0; 32];
    private[2..4].copy_from_slice(&qid.to_le_bytes());
    private[4..6].copy_from_slice(&entries.to_le_bytes());
    private[6..8].copy_from_slice(&(entries - 1).to_le_bytes());
    private
}

pub fn connect_data(cntlid: u16, subsystem: &str) -> ConnectData {
    ConnectData {
        host_id: HOST_ID,
        cntlid: U16::new(cntlid),
        subsystem: nvmf::wire::zero_padded(subsystem),
        host: nvmf::wire::zero_padded(HOST),
        ..ConnectData::new_zeroed()
    }
}

/// A command, with a descriptor that says no data.
pub fn command(opcode: u8, nsid: u32) -> Sqe {
    Sqe {
        opcode,
        flags: Sqe::FLAGS_SGL,
        cid: U16::new(0x1234),
        nsid: U32::new(nsid),
        sgl: Sgl::keyed(0, 0, 0, false),
        ..Sqe::new_zeroed()
    }
}

/// A command on blocks, whose data are in the host's memory.
pub fn blocks(opcode: u8, slba: u64, count: u32) -> Sqe {
    Sqe {
        sgl: Sgl::keyed(MEMORY, count * 512, KEY, true),
        cdw10: U32::new(slba as u32),
        cdw11: U32::new((slba >> 32) as u32),
        cdw12: U32::new(count - 1),
        ..command(opcode, 1)
    }
}

pub fn identify(what: u8, nsid: u32) -> Sqe {
    Sqe { cdw10: U32::new(what as u32), ..command(admin_opcode::IDENTIFY, nsid) }
}

pub fn identify_controller() -> Sqe {
    identify(cns::CONTROLLER, 0)
}

/// Get Log Page of `len` bytes from `start` on.
pub fn log_page(lid: u8, start: u64, len: usize, retain: bool) -> Sqe {
    let dwords = (len / 4 - 1) as u32;
    Sqe {
        cdw10: U32::new(lid as u32 | (retain as u32) << 15 | dwords << 16),
        cdw11: U32::new(dwords >> 16),
        cdw12: U32::new(start as u32),
        cdw13: U32::new((start >> 32) as u32),
        ..command(admin_opcode::GET_LOG_PAGE, 0xFFFF_FFFF)
    }
}

pub fn set_feature(fid: u8, value: u32) -> Sqe {
    Sqe { cdw10: U32::new(fid as u32), cdw11: U32::new(value), ..command(admin_opcode::SET_FEATURES, 0) }
}

pub fn property_get(offset: u32, attributes: u8) -> Sqe {
    property(fctype::PROPERTY_GET, offset, attributes, 0)
}

pub fn property_set(offset: u32, value: u64) -> Sqe {
    property(fctype::PROPERTY_SET, offset, 0, value)
}

pub fn property(fctype: u8, offset: u32, attributes: u8, value: u64) -> Sqe {
    let command = PropertyCommand {
        opcode: nvmf::wire::fabrics::OPCODE,
        flags: 0x40,
        cid: U16::new(0x4321),
        fctype,
        attributes,
        offset: U32::new(offset),
        value: U64::new(value),
        ..PropertyCommand::new_zeroed()
    };
    zerocopy::transmute!(command)
}
