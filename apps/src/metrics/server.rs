//! The server: one thread, asleep until a collector connects.
//!
//! Strangers may connect where the address lets them, so each costs little: one request at a time, of few bytes, within a
//! second. No request changes anything.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use verbs::stats::Snapshot;

use super::text;

/// Bytes of a request, at most.
const REQUEST_MAX: usize = 8 << 10;
/// How long a client may take for its request, and for the answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// Rest after each client, so that even those that connect all the time get little of this machine.
const REST: Duration = Duration::from_millis(5);
/// Time between two checks whether the program ends.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// Why there is no server.
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
        let failed = |error| MetricsError { address, error };
        let listener = TcpListener::bind(address).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let stop = Arc::new(AtomicBool::new(false));
        let its_stop = Arc::clone(&stop);
        let body = move || serve(&listener, &snapshot, &its_stop);
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

fn serve(listener: &TcpListener, snapshot: &impl Fn() -> Option<Snapshot>, stop: &AtomicBool) {
    while !stop.load(Ordering::Acquire) {
        let mut fds = [PollFd::new(listener, PollFlags::IN)];
        if !matches!(poll(&mut fds, Some(&LOOK)), Ok(n) if n > 0) {
            continue;
        }
        if let Ok((client, _)) = listener.accept() {
            // A client that went away, or was too slow, has to connect again.
            let _ = answer(client, snapshot, stop);
        }
        std::thread::sleep(REST);
    }
}

fn answer(
    mut client: TcpStream,
    snapshot: &impl Fn() -> Option<Snapshot>,
    stop: &AtomicBool,
) -> io::Result<()> {
    client.set_nonblocking(false)?;
    let start = Instant::now();
    let left = || match PATIENCE.checked_sub(start.elapsed()) {
        Some(left) if !left.is_zero() && !stop.load(Ordering::Acquire) => Ok(left),
        _ => Err(io::Error::from(io::ErrorKind::TimedOut)),
    };
    let mut request = Vec::new();
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        let mut part = [0; 1024];
        client.set_read_timeout(Some(left()?))?;
        match client.read(&mut part)? {
            0 => break,
            n => request.extend_from_slice(&part[..n]),
        }
        if request.len() > REQUEST_MAX {
            break;
        }
    }
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
    for mut bytes in [head.as_bytes(), body.as_bytes()] {
        while !bytes.is_empty() {
            client.set_write_timeout(Some(left()?))?;
            match client.write(bytes)? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                n => bytes = &bytes[n..],
            }
        }
    }
    Ok(())
}

/// Content type of an answer without metrics.
const PLAIN: &str = "text/plain; charset=utf-8";

#[cfg(test)]
mod tests {
    use super::*;

    /// The whole answer. Where this machine was too busy for one in time, asks again.
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
        // One that says nothing, and one that says too much, keep nobody waiting for ever.
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
        // Where this machine was too busy to take the first answer in time, that was another one.
        assert!(first.starts_with("HTTP/1.1 500") || first.starts_with("HTTP/1.1 200"), "{first}");
        assert!(ask(at, b"GET /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200"));
    }
}
