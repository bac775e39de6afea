//! A server and a client of `rdma_cm` by events, like programs over `librdmacm` with an event channel: one loop polls the
//! channel and the completion queue, for all connections.
//!
//! ```sh
//! cargo run -p roce-verbs --no-default-features --example rdma_events -- \
//!     server unix:/tmp/roce-a,peer=/tmp/roce-b 10.0.0.1/24 &
//! cargo run -p roce-verbs --no-default-features --example rdma_events -- \
//!     client unix:/tmp/roce-b,peer=/tmp/roce-a 10.0.0.2/24 10.0.0.1
//! ```
//!
//! The channel has a descriptor ([`EventChannel`] is `AsFd`), and so have completion channels: a program with other work
//! waits for both in epoll(7). `rdma_sync` does the same with calls that wait.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use verbs::port::{PortOptions, PortSpec};
use verbs::rdma_cm::{CmEvent, CmEventType, CmId, ConnParam, EventChannel, PortSpace};
use verbs::{Access, Context, Cq, DeviceConfig, Mr, Pd, Qp, QpInitAttr, RecvWr, SendWr, Wc, WcOpcode};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The server's port, and how long a program waits without an event or completion.
const PORT: u16 = 7471;
const PATIENCE: Duration = Duration::from_secs(20);
/// Bytes of a line at most.
const LINE: usize = 256;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["server", port, addr] => {
            let shared = Shared::new(open(port, addr)?)?;
            serve(&shared, &shared.listen()?, 1)
        }
        ["client", port, addr, server] => {
            for line in talk(&Shared::new(open(port, addr)?)?, server.parse()?, 1, "hello")? {
                println!("{line}");
            }
            Ok(())
        }
        _ => Err("usage: rdma_events server PORT ADDR/PREFIX | client PORT ADDR/PREFIX SERVER".into()),
    }
}

/// Opens a device on a port.
fn open(port: &str, addr: &str) -> Result<Context> {
    let (ip, prefix) = addr.split_once('/').ok_or("an address looks like 10.0.0.1/24")?;
    let port = port.parse::<PortSpec>()?.open(&PortOptions::default())?;
    Ok(Context::open(DeviceConfig::new(port).addr(ip.parse::<IpAddr>()?, prefix.parse()?))?)
}

/// Shared by all connections.
struct Shared {
    channel: EventChannel,
    cq: Cq,
    pd: Pd,
    context: Context,
}

impl Shared {
    fn new(context: Context) -> Result<Self> {
        Ok(Self {
            channel: EventChannel::new()?,
            cq: context.create_cq(1024)?,
            pd: context.alloc_pd()?,
            context,
        })
    }

    /// An identifier that accepts requests.
    fn listen(&self) -> Result<CmId> {
        let listener = self.context.create_id(Some(&self.channel), PortSpace::Tcp)?;
        listener.bind_addr(([0, 0, 0, 0], PORT))?;
        listener.listen(0)?;
        Ok(listener)
    }

    /// The next event or completion. Polling drives the device, unless it has threads.
    fn next(&self) -> Result<Happened> {
        let since = Instant::now();
        let mut wc = [Wc::default()];
        loop {
            if self.cq.poll(&mut wc)? == 1 {
                return Ok(Happened::Work(wc[0]));
            }
            if let Some(event) = self.channel.try_get_event() {
                return Ok(Happened::Event(event));
            }
            if since.elapsed() > PATIENCE {
                return Err("nothing happens".into());
            }
            std::thread::yield_now();
        }
    }

    /// A queue pair and memory for an identifier, with a receive posted.
    fn end(&self, id: CmId) -> Result<End> {
        let qp = id.create_qp(&self.pd, &QpInitAttr::rc(&self.cq, &self.cq))?;
        let mr = self.pd.reg_mr(2 * LINE, Access::LOCAL_WRITE)?;
        let end = End { id, qp, mr };
        end.receive()?;
        Ok(end)
    }
}

enum Happened {
    Event(CmEvent),
    Work(Wc),
}

/// One connection. Its work requests carry the number of its identifier, so that completions name it.
struct End {
    id: CmId,
    qp: Arc<Qp>,
    mr: Mr,
}

impl End {
    fn receive(&self) -> Result<()> {
        Ok(self.qp.post_recv(&[RecvWr::new(self.id.number(), &[self.mr.sge(0..LINE)?])])?)
    }
    fn send(&self, line: &[u8]) -> Result<()> {
        self.mr.write(LINE, line)?;
        let sge = [self.mr.sge(LINE..LINE + line.len())?];
        Ok(self.qp.post_send(&[SendWr::send(self.id.number(), &sge).signaled()])?)
    }
    fn line(&self, wc: &Wc) -> Result<Vec<u8>> {
        let mut line = vec![0; wc.byte_len as usize];
        self.mr.read(0, &mut line)?;
        Ok(line)
    }
}

/// Accepts connections, any number at a time, until this many have ended, and sends back each line.
fn serve(shared: &Shared, _listener: &CmId, connections: usize) -> Result<()> {
    let mut ends: HashMap<u64, End> = HashMap::new();
    let mut ended = 0;
    while ended < connections {
        match shared.next()? {
            Happened::Event(mut event) => match event.event() {
                CmEventType::ConnectRequest => {
                    let id = event.take_id().ok_or("a request without an identifier")?;
                    let end = shared.end(id)?;
                    end.id.accept(&ConnParam::default())?;
                    ends.insert(end.id.number(), end);
                }
                CmEventType::Disconnected => {
                    let number = event.id();
                    drop(event); // acknowledges it: an identifier with unacknowledged events stays
                    ends.remove(&number);
                    ended += 1;
                }
                CmEventType::Established | CmEventType::TimewaitExit => {}
                other => return Err(format!("{other}, status {}", event.status()).into()),
            },
            // Receives flushed at the end of a connection are ignored.
            Happened::Work(wc) if wc.is_ok() && wc.opcode == WcOpcode::Recv => {
                if let Some(end) = ends.get(&wc.wr_id) {
                    let line = end.line(&wc)?;
                    end.receive()?;
                    end.send(&line)?;
                }
            }
            Happened::Work(_) => {}
        }
    }
    Ok(())
}

/// Makes this many connections to a server at once, and sends a line over each; returns the replies.
fn talk(shared: &Shared, server: IpAddr, connections: usize, line: &str) -> Result<Vec<String>> {
    let mut ids = HashMap::new();
    for _ in 0..connections {
        let id = shared.context.create_id(Some(&shared.channel), PortSpace::Tcp)?;
        id.resolve_addr(None, SocketAddr::new(server, PORT), PATIENCE)?;
        ids.insert(id.number(), id);
    }
    let mut ends: HashMap<u64, End> = HashMap::new();
    let mut answers = Vec::new();
    let mut ended = 0;
    while ended < connections {
        match shared.next()? {
            Happened::Event(event) => match event.event() {
                CmEventType::AddrResolved => ids[&event.id()].resolve_route(PATIENCE)?,
                CmEventType::RouteResolved => {
                    let id = ids.remove(&event.id()).ok_or("an event of nobody")?;
                    let end = shared.end(id)?;
                    end.id.connect(&ConnParam::default())?;
                    ends.insert(end.id.number(), end);
                }
                CmEventType::Established => {
                    let number = event.id();
                    ends[&number].send(format!("{line} from {number}").as_bytes())?;
                }
                CmEventType::Disconnected => ended += 1,
                CmEventType::TimewaitExit => {}
                other => return Err(format!("{other}, status {}", event.status()).into()),
            },
            Happened::Work(wc) if wc.is_ok() && wc.opcode == WcOpcode::Recv => {
                let end = &ends[&wc.wr_id];
                answers.push(String::from_utf8(end.line(&wc)?)?);
                end.id.disconnect()?;
            }
            Happened::Work(_) => {}
        }
    }
    Ok(answers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_back_over_many_connections() {
        let dir = std::env::temp_dir();
        let path = |name: &str| format!("{}/rdma-events-{}-{name}", dir.display(), std::process::id());
        let port = |near: &str, far: &str| format!("unix:{},peer={}", path(near), path(far));
        let server = Shared::new(open(&port("a", "b"), "10.0.0.1/24").unwrap()).unwrap();
        let client = Shared::new(open(&port("b", "a"), "10.0.0.2/24").unwrap()).unwrap();
        let listener = server.listen().unwrap();
        std::thread::scope(|s| {
            let serving = s.spawn(|| serve(&server, &listener, 20));
            let mut answers = talk(&client, [10, 0, 0, 1].into(), 20, "hello").unwrap();
            serving.join().unwrap().unwrap();
            answers.sort();
            answers.dedup();
            assert_eq!(answers.len(), 20, "each connection has its own line: {answers:?}");
            assert!(answers.iter().all(|a| a.starts_with("hello from ")));
        });
        for name in ["a", "b"] {
            let _ = std::fs::remove_file(path(name)); // the port may have done it
        }
    }
}
