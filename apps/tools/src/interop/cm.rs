//! This stack's side of the programs that come with librdmacm, `rping`, `ucmatose` and `udaddy`: the same messages in the
//! same order, so that the stock program can be the peer.

use super::cell::Network;
use super::cli::{CmArgs, CmRole, CmTool};
use super::link::open_port;
use apps::completion;
use apps::error::{AppError, Result};
use apps::out::say;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use verbs::rdma_cm::{CmError, CmEventType, CmId, ConnParam, EventChannel, PortSpace};
use verbs::{
    Access, Ah, Context, Cq, GRH_LEN, Mr, Pd, Qp, QpCap, QpInitAttr, QpType, Qpn, RecvWr, SendWr, VerbsError,
    Wc, WcStatus,
};

/// Timeout of a step.
const PATIENCE: Duration = Duration::from_secs(30);
/// The reason of a REJ from a peer that still has an earlier connection (IBA 12.6.7.2), and the number of such REJs that are accepted.
const STALE: u16 = 10;
const STALE_MAX: u32 = 8;
/// Ports of `rping` and `udaddy`, and of `ucmatose`.
const RPING_PORT: u16 = 7174;
const UCMATOSE_PORT: u16 = 7471;
/// Largest buffer of `rping`, which is also the buffer's offset in the region: messages are in front of it.
const RPING_MAX: usize = 1 << 16;
const INFO_LEN: usize = 16;
const DATA: usize = 4096;

/// Runs one side of a program against its stock peer.
///
/// # Errors
/// The first deviation from the expected course.
pub fn run(args: &CmArgs) -> Result<()> {
    let host = Host::new(open_port(&args.link, None, args.seed)?)?;
    let start = Instant::now();
    let n = match (args.tool, args.role) {
        (CmTool::Rping, CmRole::Client) => host.rping_client(args)?,
        (CmTool::Rping, CmRole::Server) => host.rping_server(args)?,
        (CmTool::Ucmatose, CmRole::Client) => host.ucmatose_client(args)?,
        (CmTool::Ucmatose, CmRole::Server) => host.ucmatose_server(args)?,
        (CmTool::Udaddy, CmRole::Client) => host.udaddy_client(args)?,
        (CmTool::Udaddy, CmRole::Server) => host.udaddy_server(args)?,
    };
    say!("{n} messages over {} connections in {:.2} s", args.total(), start.elapsed().as_secs_f64())?;
    if args.successor { host.predecessor_ended() } else { Ok(()) }
}

/// Ends the process like a kill by the kernel: no messages, no cleanup.
fn die() -> Result<()> {
    use rustix::process::{Signal, getpid, kill_process};
    say!("killed")?;
    kill_process(getpid(), Signal::KILL).map_err(|e| AppError::Setup(format!("kill: {e}")))
}

struct Host {
    /// Completion queues of sends, and of receives.
    sends: Cq,
    receives: Cq,
    mr: Mr,
    pd: Pd,
    /// Keeps connection management running, and shows its counters.
    channel: EventChannel,
    context: Context,
}

/// A buffer as `rping` advertises it: address, key, length.
#[derive(Clone, Copy)]
struct Info {
    addr: u64,
    rkey: u32,
    len: u32,
}

impl Info {
    fn to_bytes(self) -> [u8; INFO_LEN] {
        let mut bytes = [0; INFO_LEN];
        bytes[..8].copy_from_slice(&self.addr.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        bytes[12..].copy_from_slice(&self.len.to_be_bytes());
        bytes
    }
    fn from_bytes(b: [u8; INFO_LEN]) -> Self {
        Self {
            addr: u64::from_be_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]),
            rkey: u32::from_be_bytes([b[8], b[9], b[10], b[11]]),
            len: u32::from_be_bytes([b[12], b[13], b[14], b[15]]),
        }
    }
}

/// The text that `rping` sends in round `n`, with its terminating byte.
fn ping(n: u64, len: usize) -> Vec<u8> {
    let mut text = format!("rdma-ping-{n}: ").into_bytes();
    text.extend((0..len).map(|i| b'A' + ((n as usize + i) % 58) as u8));
    text.truncate(len.saturating_sub(1));
    text.push(0);
    text
}

fn anywhere(net: Network, port: u16) -> SocketAddr {
    let any = match net {
        Network::Ipv6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        _ => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
    };
    SocketAddr::new(any, port)
}

impl Host {
    fn new(context: Context) -> Result<Self> {
        let pd = context.alloc_pd()?;
        let rights = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let mr = pd.reg_mr(DATA + 2 * RPING_MAX, rights)?;
        let (sends, receives) = (context.create_cq(16384)?, context.create_cq(16384)?);
        let channel = EventChannel::new()?;
        // Once it has had an identifier, the channel counts the events of the device's connection management, and keeps it running.
        drop(context.create_id(Some(&channel), PortSpace::Tcp)?);
        Ok(Self { sends, receives, mr, pd, channel, context })
    }

    fn qp(&self, id: &CmId, depth: u32) -> Result<Arc<Qp>> {
        let cap = QpCap {
            max_send_wr: depth,
            max_recv_wr: depth,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let qp_type = if id.port_space() == PortSpace::Udp { QpType::Ud } else { QpType::Rc };
        Ok(id
            .create_qp(&self.pd, &QpInitAttr::new(qp_type, &self.sends, &self.receives).cap(cap).sig_all())?)
    }

    fn poll(&self, cq: &Cq, what: &str) -> Result<Wc> {
        let since = Instant::now();
        let mut wc = [Wc::default()];
        while cq.poll(&mut wc)? == 0 {
            if since.elapsed() > PATIENCE {
                return Err(AppError::Timeout(format!("{what}: nothing for {PATIENCE:?}")));
            }
            apps::stop::check()?;
        }
        Ok(wc[0])
    }

    fn good(&self, cq: &Cq, what: &str) -> Result<Wc> {
        let wc = self.poll(cq, what)?;
        if wc.status == WcStatus::Success {
            return Ok(wc);
        }
        Err(AppError::Completion(format!("{what}: {}", completion::status(&wc))))
    }

    fn receive(&self, qp: &Qp, len: usize) -> Result<()> {
        Ok(qp.post_recv(&[RecvWr::new(1, &[self.mr.sge(0..len)?])])?)
    }

    fn connect_to(&self, args: &CmArgs, space: PortSpace, port: u16) -> Result<CmId> {
        let id = self.context.create_id(None, space)?;
        id.resolve_addr(None, SocketAddr::new(args.link.net.addresses().1, port), PATIENCE)?;
        id.resolve_route(PATIENCE)?;
        Ok(id)
    }

    fn listener(&self, args: &CmArgs, space: PortSpace, port: u16) -> Result<CmId> {
        let id = self.context.create_id(None, space)?;
        id.bind_addr(anywhere(args.link.net, port))?;
        id.listen(args.total().max(8))?;
        say!("listening")?;
        Ok(id)
    }

    fn request(&self, listener: &CmId) -> Result<CmId> {
        listener.get_request(PATIENCE)?.ok_or_else(|| AppError::Timeout("nobody connects".into()))
    }

    /// Waits until the peer ends the connection, if it has not ended yet. A killed peer counts, too.
    fn ended(&self, id: &CmId) -> Result<()> {
        let event =
            id.get_event(PATIENCE)?.ok_or_else(|| AppError::Timeout("the connection does not end".into()))?;
        if event.event() != CmEventType::Disconnected {
            return Err(AppError::Peer(format!("{} instead of the end", event.event())));
        }
        Ok(())
    }

    /// Sends the address of a buffer.
    fn send_info(&self, qp: &Qp, at: usize, len: usize) -> Result<()> {
        let info = Info { addr: self.mr.addr() + at as u64, rkey: self.mr.rkey(), len: len as u32 };
        self.mr.write(INFO_LEN, &info.to_bytes())?;
        qp.post_send(&[SendWr::send(2, &[self.mr.sge(INFO_LEN..2 * INFO_LEN)?])])?;
        self.good(&self.sends, "SEND")?;
        Ok(())
    }

    /// Sends the address of a buffer, and waits for the peer's message. Posts the next receive if `goes_on`.
    fn advertise(&self, qp: &Qp, at: usize, len: usize, goes_on: bool) -> Result<()> {
        self.send_info(qp, at, len)?;
        self.good(&self.receives, "receive")?;
        if goes_on { self.receive(qp, INFO_LEN) } else { Ok(()) }
    }

    fn rping_client(&self, args: &CmArgs) -> Result<u64> {
        let len = args.size as usize;
        for _ in 0..args.rounds {
            let (id, qp) = self.connect_anew(args)?;
            for n in 0..args.count.into() {
                let text = ping(n, len);
                self.mr.write(DATA, &text)?;
                self.mr.fill(DATA + RPING_MAX..DATA + RPING_MAX + len, 0xee)?;
                let dies_at = |n| args.die_at.is_some_and(|at| n == u64::from(at));
                if dies_at(n) {
                    // The peer receives the message, and READs data that is never sent. If another thread sends the message while this one
                    // waits for its core, no receive exists for the peer's next message, which is then never acknowledged.
                    self.send_info(&qp, DATA, len)?;
                    die()?;
                }
                self.advertise(&qp, DATA, len, true)?;
                self.advertise(&qp, DATA + RPING_MAX, len, !dies_at(n + 1))?;
                let mut back = vec![0; len];
                self.mr.read(DATA + RPING_MAX, &mut back)?;
                if back != text {
                    return Err(AppError::Verify(format!("ping {n} came back as something else")));
                }
            }
            id.disconnect()?;
            self.flush(1)?;
        }
        Ok(u64::from(args.count) * u64::from(args.rounds))
    }

    /// Connects. While the peer still has a connection of the previous process, tries again on a new identifier.
    fn connect_anew(&self, args: &CmArgs) -> Result<(CmId, Arc<Qp>)> {
        let mut stale = 0;
        loop {
            let id = self.connect_to(args, PortSpace::Tcp, RPING_PORT)?;
            let qp = self.qp(&id, 16)?;
            self.receive(&qp, INFO_LEN)?;
            let param = ConnParam {
                responder_resources: 1,
                initiator_depth: 1,
                retry_count: args.retries,
                ..ConnParam::default()
            };
            match id.connect(&param) {
                Ok(()) => return Ok((id, qp)),
                Err(VerbsError::Cm(CmError::Rejected { refusal, .. }))
                    if refusal.reason == STALE && stale < STALE_MAX =>
                {
                    say!("refused as stale")?;
                }
                Err(e) => return Err(e.into()),
            }
            stale += 1;
            drop((id, qp));
            self.flush(1)?;
        }
    }

    /// Waits until the peer has ended the connection of the previous process, and has been answered.
    fn predecessor_ended(&self) -> Result<()> {
        let mirrored = || self.channel.counters().iter().any(|(name, n)| *name == "dreq_mirrored" && *n > 0);
        let since = Instant::now();
        while !mirrored() {
            if since.elapsed() > PATIENCE {
                return Err(AppError::Timeout("no DREQ of the connection before this process".into()));
            }
            let _ = self.channel.get_event(Duration::from_millis(20))?;
            apps::stop::check()?;
        }
        say!("a DREQ of a connection that is not ours was answered")?;
        Ok(())
    }

    /// Waits for the flush of `n` unused receives at the end of the connection.
    fn flush(&self, n: u32) -> Result<()> {
        for _ in 0..n {
            let wc = self.poll(&self.receives, "flush")?;
            if wc.status != WcStatus::WrFlushErr {
                return Err(AppError::Completion(format!("receive: {}", completion::status(&wc))));
            }
        }
        Ok(())
    }

    /// The peer's next message; `None` when the peer is done. Posts the next receive if `goes_on`.
    fn receive_info(&self, qp: &Qp, goes_on: bool) -> Result<Option<Info>> {
        let wc = self.poll(&self.receives, "receive")?;
        match wc.status {
            WcStatus::Success => {}
            WcStatus::WrFlushErr => return Ok(None),
            _ => return Err(AppError::Completion(format!("receive: {}", completion::status(&wc)))),
        }
        let mut bytes = [0; INFO_LEN];
        self.mr.read(0, &mut bytes)?;
        let info = Info::from_bytes(bytes);
        if wc.byte_len as usize != INFO_LEN || info.len as usize > RPING_MAX {
            return Err(AppError::Peer(format!("it speaks of {} bytes in {}", info.len, wc.byte_len)));
        }
        if goes_on {
            self.receive(qp, INFO_LEN)?;
        }
        Ok(Some(info))
    }

    fn rping_server(&self, args: &CmArgs) -> Result<u64> {
        let listener = self.listener(args, PortSpace::Tcp, RPING_PORT)?;
        let mut pings = 0;
        for _ in 0..args.rounds {
            let id = self.request(&listener)?;
            let qp = self.qp(&id, 16)?;
            self.receive(&qp, INFO_LEN)?;
            id.accept(&ConnParam { responder_resources: 1, initiator_depth: 1, ..ConnParam::default() })?;
            let step = |wr: SendWr<'_>, what: &str| -> Result<bool> {
                qp.post_send(&[wr.signaled()])?;
                let wc = self.poll(&self.sends, what)?;
                // A killed peer ends the connection in any state.
                Ok(wc.status == WcStatus::Success)
            };
            while let Some(source) = self.receive_info(&qp, true)? {
                let data = [self.mr.sge(DATA..DATA + source.len as usize)?];
                let word = [self.mr.sge(INFO_LEN..2 * INFO_LEN)?];
                if !step(SendWr::read(2, &data, source.addr, source.rkey), "READ")?
                    || !step(SendWr::send(3, &word), "SEND")?
                {
                    break;
                }
                let dies = args.die_at == Some(pings as u32);
                let Some(sink) = self.receive_info(&qp, !dies)? else { break };
                if !step(SendWr::write(4, &data, sink.addr, sink.rkey), "WRITE")?
                    || !step(SendWr::send(5, &word), "SEND")?
                {
                    break;
                }
                if dies {
                    // The peer continues with its next ping. Its message is never received, because no receive is posted.
                    die()?;
                }
                pings += 1;
            }
            self.ended(&id)?;
            id.disconnect()?;
            drop(qp);
            id.destroy().map_err(|(e, _)| e)?;
        }
        Ok(pings)
    }

    fn ucmatose_client(&self, args: &CmArgs) -> Result<u64> {
        for _ in 0..args.rounds {
            self.ucmatose_connections(args)?;
        }
        Ok(u64::from(args.total()) * u64::from(args.count) * 2)
    }

    /// Runs all connections at once, driven by events.
    fn ucmatose_connections(&self, args: &CmArgs) -> Result<()> {
        let channel = EventChannel::new()?;
        let to = SocketAddr::new(args.link.net.addresses().1, UCMATOSE_PORT);
        let mut ids = HashMap::new();
        for _ in 0..args.connections {
            let id = self.context.create_id(Some(&channel), args.space())?;
            id.resolve_addr(None, to, PATIENCE)?;
            ids.insert(id.number(), id);
        }
        let len = args.size as usize;
        let (mut up, mut down, mut got, mut sent) = (0, 0, 0, 0);
        let messages = args.connections * args.count;
        let since = Instant::now();
        while down < args.connections {
            if since.elapsed() > 2 * PATIENCE {
                return Err(AppError::Timeout(format!(
                    "{up} of {} connections, {got} of {messages} messages, {sent} answers, {down} ended",
                    args.connections
                )));
            }
            apps::stop::check()?;
            if let Some(event) = channel.try_get_event() {
                let Some(id) = ids.get(&event.id()) else { continue };
                match event.event() {
                    CmEventType::AddrResolved => id.resolve_route(PATIENCE)?,
                    CmEventType::RouteResolved => {
                        let qp = self.qp(id, args.count.max(1))?;
                        for _ in 0..args.count {
                            self.receive(&qp, len)?;
                        }
                        let param =
                            ConnParam { responder_resources: 1, initiator_depth: 1, ..ConnParam::default() };
                        id.connect(&param)?;
                    }
                    CmEventType::Established => up += 1,
                    CmEventType::Disconnected => {
                        id.disconnect()?;
                        down += 1;
                    }
                    other => return Err(AppError::Peer(format!("{other} ({})", event.status()))),
                }
            }
            let mut wc = [Wc::default(); 16];
            let n = self.receives.poll(&mut wc)?;
            for wc in &wc[..n] {
                if !wc.is_ok() || wc.byte_len as usize != len {
                    return Err(AppError::Completion(format!(
                        "receive: {}, {} B",
                        completion::status(wc),
                        wc.byte_len
                    )));
                }
                got += 1;
            }
            if got == messages && sent == 0 {
                // The stock program receives answers only after it has sent all its messages.
                for id in ids.values() {
                    let qp = id.qp().ok_or_else(|| AppError::Peer("a connection has gone".into()))?;
                    for _ in 0..args.count {
                        qp.post_send(&[SendWr::send(2, &[self.mr.sge(DATA..DATA + len)?])])?;
                        sent += 1;
                    }
                }
            }
        }
        for _ in 0..sent {
            self.good(&self.sends, "SEND")?;
        }
        if got != messages {
            return Err(AppError::Verify(format!("{got} of {messages} messages came")));
        }
        Ok(())
    }

    fn ucmatose_server(&self, args: &CmArgs) -> Result<u64> {
        let listener = self.listener(args, args.space(), UCMATOSE_PORT)?;
        let len = args.size as usize;
        for _ in 0..args.rounds {
            let mut open = Vec::new();
            for _ in 0..args.connections {
                let id = self.request(&listener)?;
                let qp = self.qp(&id, args.count.max(1))?;
                for _ in 0..args.count {
                    self.receive(&qp, len)?;
                }
                id.accept(&ConnParam { responder_resources: 1, initiator_depth: 1, ..ConnParam::default() })?;
                open.push((id, qp));
            }
            for (_, qp) in &open {
                for _ in 0..args.count {
                    qp.post_send(&[SendWr::send(2, &[self.mr.sge(DATA..DATA + len)?])])?;
                }
            }
            for _ in 0..args.connections * args.count {
                self.good(&self.sends, "SEND")?;
            }
            for _ in 0..args.connections * args.count {
                self.good(&self.receives, "receive")?;
            }
            for (id, _) in &open {
                id.disconnect()?;
            }
        }
        Ok(u64::from(args.total()) * u64::from(args.count) * 2)
    }

    /// Exchanges datagrams. Each carries its sender's queue pair number as immediate data, as the stock program requires.
    fn datagrams(&self, qp: &Qp, ah: &Ah, to: (u32, u32), args: &CmArgs) -> Result<()> {
        let len = args.size as usize;
        for _ in 0..args.count {
            let sge = [self.mr.sge(DATA..DATA + len)?];
            let wr = SendWr::send_with_imm(2, &sge, qp.qp_num().get()).to(ah, Qpn::new(to.0), to.1);
            qp.post_send(&[wr.signaled()])?;
            self.good(&self.sends, "SEND")?;
        }
        Ok(())
    }

    fn udaddy_client(&self, args: &CmArgs) -> Result<u64> {
        for _ in 0..args.rounds {
            let id = self.connect_to(args, PortSpace::Udp, RPING_PORT)?;
            let qp = self.qp(&id, args.count.max(1))?;
            for _ in 0..args.count {
                self.receive(&qp, GRH_LEN + args.size as usize)?;
            }
            id.connect(&ConnParam::default())?;
            let event = id.event().ok_or_else(|| AppError::Peer("no answer".into()))?;
            let peer = event.ud().ok_or_else(|| AppError::Peer("no queue pair in the answer".into()))?;
            let ah = self.pd.create_ah(&peer.ah_attr)?;
            self.datagrams(&qp, &ah, (peer.qp_num, peer.qkey), args)?;
            for _ in 0..args.count {
                self.good(&self.receives, "receive")?;
            }
        }
        Ok(u64::from(args.rounds) * u64::from(args.count) * 2)
    }

    fn udaddy_server(&self, args: &CmArgs) -> Result<u64> {
        let listener = self.listener(args, PortSpace::Udp, RPING_PORT)?;
        for _ in 0..args.rounds {
            let id = self.request(&listener)?;
            let qp = self.qp(&id, args.count.max(1))?;
            for _ in 0..args.count {
                self.receive(&qp, GRH_LEN + args.size as usize)?;
            }
            id.accept(&ConnParam { qp_num: qp.qp_num().get(), ..ConnParam::default() })?;
            let mut last = Wc::default();
            for _ in 0..args.count {
                last = self.good(&self.receives, "receive")?;
            }
            let mut grh = [0; GRH_LEN];
            self.mr.read(0, &mut grh)?;
            let ah = self.pd.create_ah_from_wc(&last, &grh)?;
            self.datagrams(&qp, &ah, (last.src_qp.get(), verbs::rdma_cm::UDP_QKEY), args)?;
        }
        Ok(u64::from(args.rounds) * u64::from(args.count) * 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ping_is_a_text_of_its_length() {
        for len in [1, 8, 64, 4096] {
            let text = ping(12, len);
            assert_eq!(text.len(), len);
            assert!(text[len - 1] == 0 && text[..len - 1].iter().all(|b| *b != 0), "{text:?}");
        }
        assert!(ping(7, 64).starts_with(b"rdma-ping-7: "));
    }

    #[test]
    fn what_is_said_of_a_buffer_is_big_endian() {
        let info = Info { addr: 0x0102_0304_0506_0708, rkey: 0x090a_0b0c, len: 0x0d0e_0f10 };
        let bytes = info.to_bytes();
        assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]);
        let back = Info::from_bytes(bytes);
        assert_eq!((back.addr, back.rkey, back.len), (info.addr, info.rkey, info.len));
    }
}
