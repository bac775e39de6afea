//! A server and a client of `rdma_cm` whose calls wait, like programs over `librdmacm` without an event channel: the client
//! sends lines, the server sends each of them back.
//!
//! Both run in separate processes, on a port that needs no setup (any other works too, a DPDK one with the default features):
//!
//! ```sh
//! cargo run -p roce-verbs --no-default-features --example rdma_sync -- \
//!     server unix:/tmp/roce-a,peer=/tmp/roce-b 10.0.0.1/24 &
//! cargo run -p roce-verbs --no-default-features --example rdma_sync -- \
//!     client unix:/tmp/roce-b,peer=/tmp/roce-a 10.0.0.2/24 10.0.0.1
//! ```
//!
//! `rdma_events` does the same by events; each can be the other's peer.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};
use verbs::port::{PortOptions, PortSpec};
use verbs::rdma_cm::{CmEventType, CmId, ConnParam, PortSpace};
use verbs::{Access, Context, Cq, DeviceConfig, Mr, Qp, QpInitAttr, RecvWr, SendWr, Wc};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The server's port, and how long either side waits for the other.
const PORT: u16 = 7471;
const PATIENCE: Duration = Duration::from_secs(20);
/// Bytes of a line at most.
const LINE: usize = 256;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["server", port, addr] => {
            let context = open(port, addr)?;
            serve(&context, &listen(&context)?, 1)
        }
        ["client", port, addr, server] => {
            for line in talk(&open(port, addr)?, server.parse()?, &["hello", "and goodbye"])? {
                println!("{line}");
            }
            Ok(())
        }
        _ => Err("usage: rdma_sync server PORT ADDR/PREFIX | client PORT ADDR/PREFIX SERVER".into()),
    }
}

/// Opens a device on a port.
fn open(port: &str, addr: &str) -> Result<Context> {
    let (ip, prefix) = addr.split_once('/').ok_or("an address looks like 10.0.0.1/24")?;
    let port = port.parse::<PortSpec>()?.open(&PortOptions::default())?;
    Ok(Context::open(DeviceConfig::new(port).addr(ip.parse::<IpAddr>()?, prefix.parse()?))?)
}

/// An identifier that accepts requests, of which eight may wait.
fn listen(context: &Context) -> Result<CmId> {
    let listener = context.create_id(None, PortSpace::Tcp)?;
    listener.bind_addr(([0, 0, 0, 0], PORT))?;
    listener.listen(8)?;
    Ok(listener)
}

/// Accepts connections, one after the other, and sends back each line.
fn serve(context: &Context, listener: &CmId, connections: usize) -> Result<()> {
    for _ in 0..connections {
        let id = listener.get_request(PATIENCE)?.ok_or("nobody came")?;
        let end = End::new(context, &id)?;
        end.receive()?; // before the client knows that it may send
        id.accept(&ConnParam::default())?;
        while let Some(line) = end.line()? {
            end.send(&line)?;
            end.receive()?;
        }
        // The client has disconnected, which flushed the receive.
        let event = id.get_event(PATIENCE)?.ok_or("the connection does not end")?;
        assert_eq!(event.event(), CmEventType::Disconnected);
    }
    Ok(())
}

/// Sends lines to a server; returns the replies.
fn talk(context: &Context, server: IpAddr, lines: &[&str]) -> Result<Vec<String>> {
    let id = context.create_id(None, PortSpace::Tcp)?;
    id.resolve_addr(None, SocketAddr::new(server, PORT), PATIENCE)?;
    id.resolve_route(PATIENCE)?;
    let end = End::new(context, &id)?;
    id.connect(&ConnParam::default())?;
    let mut answers = Vec::new();
    for line in lines {
        end.receive()?;
        end.send(line)?;
        answers.push(end.line()?.ok_or("the server hung up")?);
    }
    id.disconnect()?;
    Ok(answers)
}

/// A queue pair with the objects that it needs.
struct End {
    qp: std::sync::Arc<Qp>,
    sends: Cq,
    receives: Cq,
    mr: Mr,
}

impl End {
    fn new(context: &Context, id: &CmId) -> Result<Self> {
        let pd = context.alloc_pd()?;
        let (sends, receives) = (context.create_cq(16)?, context.create_cq(16)?);
        let mr = pd.reg_mr(2 * LINE, Access::LOCAL_WRITE)?;
        let qp = id.create_qp(&pd, &QpInitAttr::rc(&sends, &receives))?;
        Ok(Self { qp, sends, receives, mr })
    }

    /// Posts a receive.
    fn receive(&self) -> Result<()> {
        Ok(self.qp.post_recv(&[RecvWr::new(1, &[self.mr.sge(0..LINE)?])])?)
    }

    /// Sends a line, and waits for its completion.
    fn send(&self, line: &str) -> Result<()> {
        self.mr.write(LINE, line.as_bytes())?;
        let sge = [self.mr.sge(LINE..LINE + line.len())?];
        self.qp.post_send(&[SendWr::send(2, &sge).signaled()])?;
        let wc = complete(&self.sends)?;
        if wc.is_ok() { Ok(()) } else { Err(wc.status.to_string().into()) }
    }

    /// Waits for a line; `None` when the connection has ended.
    fn line(&self) -> Result<Option<String>> {
        let wc = complete(&self.receives)?;
        if !wc.is_ok() {
            return Ok(None);
        }
        let mut line = vec![0; wc.byte_len as usize];
        self.mr.read(0, &mut line)?;
        Ok(Some(String::from_utf8(line)?))
    }
}

/// The next completion. Polling drives the device, unless it has threads.
fn complete(cq: &Cq) -> Result<Wc> {
    let since = Instant::now();
    let mut wc = [Wc::default()];
    while cq.poll(&mut wc)? == 0 {
        if since.elapsed() > PATIENCE {
            return Err("nothing happens".into());
        }
        std::thread::yield_now();
    }
    Ok(wc[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_back() {
        let dir = std::env::temp_dir();
        let path = |name: &str| format!("{}/rdma-sync-{}-{name}", dir.display(), std::process::id());
        let port = |near: &str, far: &str| format!("unix:{},peer={}", path(near), path(far));
        let server = open(&port("a", "b"), "10.0.0.1/24").unwrap();
        let client = open(&port("b", "a"), "10.0.0.2/24").unwrap();
        let listener = listen(&server).unwrap();
        std::thread::scope(|s| {
            let serving = s.spawn(|| serve(&server, &listener, 2));
            for _ in 0..2 {
                let answers = talk(&client, [10, 0, 0, 1].into(), &["one", "two", "three"]).unwrap();
                assert_eq!(answers, ["one", "two", "three"]);
            }
            serving.join().unwrap().unwrap();
        });
        for name in ["a", "b"] {
            let _ = std::fs::remove_file(path(name)); // the port may have done it
        }
    }
}
