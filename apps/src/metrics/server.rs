//! The HTTP server of `--metrics`: one thread, asleep until a collector connects.
//!
//! Strangers may connect where the address allows it, so each connection costs little: one short request, within a second. No client
//! delays another: each is answered as soon as its request is complete, and the oldest is closed when too many are connected. No
//! request changes anything.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use verbs::stats::Snapshot;

use super::families::text;

/// Bytes of a request, at most.
const REQUEST_MAX: usize = 8 << 10;
/// How long a client may take to send its request and read the answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// Clients at a time; the oldest is closed for a new one beyond these.
const CLIENTS: usize = 64;
/// Clients that are accepted at a time.
const ACCEPTS: usize = 16;
/// Rest after each turn, so that even clients that connect all the time get little of this machine.
const REST: Duration = Duration::from_millis(5);
const _: () = assert!(ACCEPTS <= CLIENTS);
/// Time between two checks whether the server was dropped.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// Why the server could not be started.
#[derive(Debug, thiserror::Error)]
#[error("--metrics {address}: {error}")]
pub struct MetricsError {
    /// The address that could not be used.
    pub address: SocketAddr,
    /// The reason.
    pub error: io::Error,
}

/// The server, until dropped.
#[derive(Debug)]
pub struct MetricsServer {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl MetricsServer {
    /// Answers at `address` with what `snapshot` returns.
    ///
    /// # Errors
    /// If the address cannot be used.
    pub fn open(
        address: SocketAddr,
        snapshot: impl Fn() -> Option<Snapshot> + Send + 'static,
    ) -> Result<Self, MetricsError> {
        Self::open_with(address, PATIENCE, snapshot)
    }
    fn open_with(
        address: SocketAddr,
        patience: Duration,
        snapshot: impl Fn() -> Option<Snapshot> + Send + 'static,
    ) -> Result<Self, MetricsError> {
        let failed = |error| MetricsError { address, error };
        let listener = TcpListener::bind(address).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let stop = Arc::new(AtomicBool::new(false));
        let its_stop = Arc::clone(&stop);
        let body = move || serve(&listener, patience, &snapshot, &its_stop);
        let thread = std::thread::Builder::new().name("roce-metrics".into()).spawn(body).map_err(failed)?;
        Ok(Self { address, stop, thread: Some(thread) })
    }
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A client that is connected.
struct Client {
    stream: TcpStream,
    since: Instant,
    request: Vec<u8>,
    /// The answer, and the number of its bytes that are sent; `None` while the request is incomplete.
    answer: Option<(Vec<u8>, usize)>,
}

impl Client {
    /// Reads and writes as far as that does not block. Returns whether work is left.
    fn turn(&mut self, answer: impl FnOnce(&[u8]) -> Vec<u8>) -> io::Result<bool> {
        while self.answer.is_none() {
            let mut part = [0; 1024];
            let n = match self.stream.read(&mut part) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                n => n?,
            };
            self.request.extend_from_slice(&part[..n]);
            if n == 0
                || self.request.len() > REQUEST_MAX
                || self.request.windows(4).any(|end| end == b"\r\n\r\n")
            {
                break;
            }
        }
        let request = &self.request;
        let (bytes, sent) = self.answer.get_or_insert_with(|| (answer(request), 0));
        while *sent < bytes.len() {
            match self.stream.write(&bytes[*sent..]) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                n => *sent += n?,
            }
        }
        Ok(false)
    }
    fn waits_for(&self) -> PollFlags {
        if self.answer.is_none() { PollFlags::IN } else { PollFlags::OUT }
    }
}

fn serve(
    listener: &TcpListener,
    patience: Duration,
    snapshot: &impl Fn() -> Option<Snapshot>,
    stop: &AtomicBool,
) {
    // The oldest comes first.
    let mut clients: VecDeque<Client> = VecDeque::new();
    while !stop.load(Ordering::Acquire) {
        let mut fds = vec![PollFd::new(listener, PollFlags::IN)];
        fds.extend(clients.iter().map(|client| PollFd::new(&client.stream, client.waits_for())));
        if !matches!(poll(&mut fds, Some(&LOOK)), Ok(n) if n > 0) {
            clients.retain(|client| client.since.elapsed() < patience);
            continue;
        }
        for _ in 0..ACCEPTS {
            let Ok((stream, _)) = listener.accept() else { break };
            if stream.set_nonblocking(true).is_ok() {
                clients.push_back(Client {
                    stream,
                    since: Instant::now(),
                    request: Vec::new(),
                    answer: None,
                });
            }
        }
        // A client that closed, or was too slow, has to connect again.
        clients.retain_mut(|client| {
            client.since.elapsed() < patience
                && client.turn(|request| answer(request, snapshot)).unwrap_or(false)
        });
        // The oldest clients, which have sent no request yet, make room for new ones.
        while clients.len() > CLIENTS {
            clients.pop_front();
        }
        std::thread::sleep(REST);
    }
}

/// The answer to a request.
fn answer(request: &[u8], snapshot: &impl Fn() -> Option<Snapshot>) -> Vec<u8> {
    let line = request.split(|&byte| byte == b'\r').next().unwrap_or_default();
    let mut words = line.split(|&byte| byte == b' ');
    let (status, kind, body) = match (words.next(), words.next()) {
        // A panic of the program's own counters costs this collector its answer, and no later one.
        (Some(b"GET"), Some(b"/metrics")) => match catch_unwind(AssertUnwindSafe(|| snapshot().map(text))) {
            Ok(Some(Ok(text))) => {
                ("200 OK", "application/openmetrics-text; version=1.0.0; charset=utf-8", text)
            }
            Err(_) => ("500 Internal Server Error", PLAIN, "the counters panicked\n".into()),
            _ => ("503 Service Unavailable", PLAIN, "the program ends\n".into()),
        },
        (Some(b"GET"), Some(_)) => ("404 Not Found", PLAIN, "there is /metrics\n".into()),
        _ => ("400 Bad Request", PLAIN, "GET /metrics\n".into()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    [head, body].concat().into_bytes()
}

/// Content type of an answer without metrics.
const PLAIN: &str = "text/plain; charset=utf-8";

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends a request, and returns the whole answer. Asks again if this machine was too busy to answer in time.
    fn ask(address: SocketAddr, request: &[u8]) -> String {
        loop {
            let mut stream = TcpStream::connect(address).unwrap();
            let _ = stream.write_all(request);
            let mut text = String::new();
            let _ = stream.read_to_string(&mut text);
            let (head, body) = text.split_once("\r\n\r\n").unwrap_or_default();
            if head.contains(&format!("Content-Length: {}\r\n", body.len())) {
                return text;
            }
        }
    }

    #[test]
    fn a_collector_gets_metrics_and_a_stranger_a_refusal() {
        let any = "127.0.0.1:0".parse().unwrap();
        let server = MetricsServer::open(any, || Some(Snapshot { link_up: true, ..Snapshot::default() }));
        let server = server.unwrap();
        let at = server.address();
        let text = ask(at, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.ends_with("# EOF\n"), "{text}");
        assert!(text.contains("application/openmetrics-text; version=1.0.0"));
        assert!(text.contains("\nroce_link_up 1\n"));
        assert!(ask(at, b"GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
        assert!(ask(at, b"POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 400"));
        assert!(ask(at, b"\x16\x03\x01\r\n\r\n").starts_with("HTTP/1.1 400"));
        // A client that sends nothing, and one that sends too much, delay others only for a limited time.
        let silent = TcpStream::connect(at).unwrap();
        let mut long = TcpStream::connect(at).unwrap();
        let _ = long.write_all(&vec![b'x'; 4 * REQUEST_MAX]);
        assert!(ask(at, b"GET /metrics HTTP/1.1\r\n\r\n").contains("roce_link_up 1"));
        drop((silent, long));
        let taken = MetricsServer::open(at, || None).unwrap_err();
        assert!(taken.to_string().starts_with(&format!("--metrics {at}: ")));
        drop(server);
        assert!(TcpStream::connect(at).is_err(), "it has ended");
    }

    // Goal: clients that send nothing do not delay a collector, however many they are and however long they stay connected.
    #[test]
    fn silent_clients_keep_no_collector_waiting() {
        let any = "127.0.0.1:0".parse().unwrap();
        // No client times out here.
        let for_ever = Duration::from_secs(1 << 30);
        let server = MetricsServer::open_with(any, for_ever, || Some(Snapshot::default())).unwrap();
        let at = server.address();
        let mut silent = Vec::new();
        for n in [12, CLIENTS, 2 * CLIENTS] {
            silent.extend((0..n).map(|_| TcpStream::connect(at).unwrap()));
            assert!(ask(at, b"GET /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200"));
        }
        // The oldest clients are closed.
        for stream in &mut silent[..12] {
            let gone = stream.read(&mut [0]);
            assert!(matches!(gone, Ok(0)) || gone.is_err_and(|e| e.kind() == io::ErrorKind::ConnectionReset));
        }
        // A request that comes in pieces is answered, too.
        let mut slow = TcpStream::connect(at).unwrap();
        for part in [&b"GET /met"[..], b"rics HTTP/1.1\r\n", b"\r\n"] {
            slow.write_all(part).unwrap();
            assert!(ask(at, b"GET /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200"));
        }
        let mut text = String::new();
        slow.read_to_string(&mut text).unwrap();
        assert!(text.ends_with("# EOF\n"), "{text}");
    }

    #[test]
    fn counters_that_panic_once_cost_one_answer() {
        let any = "127.0.0.1:0".parse().unwrap();
        let panicked = AtomicBool::new(false);
        let server = MetricsServer::open(any, move || {
            assert!(panicked.swap(true, Ordering::Relaxed), "once");
            Some(Snapshot::default())
        });
        let at = server.as_ref().unwrap().address();
        let first = ask(at, b"GET /metrics HTTP/1.1\r\n\r\n");
        // On a busy machine the first answer may come too late; the second attempt then finds that the program counts again.
        assert!(first.starts_with("HTTP/1.1 500") || first.starts_with("HTTP/1.1 200"), "{first}");
        assert!(ask(at, b"GET /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200"));
    }
}
