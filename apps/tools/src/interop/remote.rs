//! Controls the program in the guest over TCP: one line per request, one line per answer.

use apps::error::{AppError, Result};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Timeout for the guest's boot and its program's start.
const CONNECT_PATIENCE: Duration = Duration::from_secs(60);
/// Timeout of an answer; the program's own limits are shorter.
const ANSWER_PATIENCE: Duration = Duration::from_secs(90);

/// The connection to `peer` in the guest.
#[derive(Debug)]
pub struct Remote {
    lines: BufReader<TcpStream>,
    asked: String,
}

/// An answer: `key=value` pairs.
#[derive(Debug)]
pub struct Reply(HashMap<String, String>);

impl Reply {
    /// A number of the answer; 0 if the answer has no number of that name.
    pub fn num(&self, key: &str) -> u64 {
        self.0.get(key).and_then(|v| v.parse().ok()).unwrap_or(0)
    }
    /// A word of the answer; empty if the answer has no word of that name.
    pub fn text(&self, key: &str) -> &str {
        self.0.get(key).map_or("", String::as_str)
    }
    /// Every pair of the answer.
    pub fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(k, v)| (k.as_str(), v.as_str()))
    }
}

impl Remote {
    /// Connects; the guest's program may still be starting.
    ///
    /// # Errors
    /// [`AppError::Setup`].
    pub fn connect(addr: SocketAddr) -> Result<Self> {
        let start = Instant::now();
        loop {
            // The forwarder into the guest accepts before the guest's program does: only an answer shows that the program runs.
            let tried = TcpStream::connect_timeout(&addr, Duration::from_secs(2)).and_then(|stream| {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(ANSWER_PATIENCE))?;
                Ok(stream)
            });
            let failed = match tried {
                Ok(stream) => {
                    let mut remote = Self { lines: BufReader::new(stream), asked: String::new() };
                    match remote.ask("hello") {
                        Ok(_) => return Ok(remote),
                        Err(e) => e.to_string(),
                    }
                }
                Err(e) => e.to_string(),
            };
            if start.elapsed() > CONNECT_PATIENCE {
                return Err(AppError::Setup(format!(
                    "the guest's program at {addr} does not answer: {failed}"
                )));
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Sends a line; [`Remote::answer`] returns its answer.
    ///
    /// # Errors
    /// [`AppError::Peer`].
    pub fn send(&mut self, line: &str) -> Result<()> {
        self.asked = line.to_string();
        let stream = self.lines.get_mut();
        stream.write_all(format!("{line}\n").as_bytes()).map_err(|e| AppError::Peer(format!("{line}: {e}")))
    }

    /// Waits for the answer to the last line.
    ///
    /// # Errors
    /// [`AppError::Peer`] with the guest's error.
    pub fn answer(&mut self) -> Result<Reply> {
        let mut line = String::new();
        let n = self.lines.read_line(&mut line);
        let bad = |why: String| AppError::Peer(format!("{}: {why}", self.asked));
        match n {
            Err(e) => return Err(bad(e.to_string())),
            Ok(0) => return Err(bad("it hung up".into())),
            Ok(_) => {}
        }
        let mut words = line.split_whitespace();
        if words.next() != Some("ok") {
            return Err(bad(line.trim().trim_start_matches("error ").to_string()));
        }
        let pair = |word: &str| word.split_once('=').map(|(k, v)| (k.to_string(), v.to_string()));
        Ok(Reply(words.filter_map(pair).collect()))
    }

    /// Sends a line and waits for its answer.
    ///
    /// # Errors
    /// As [`Remote::send`] and [`Remote::answer`].
    pub fn ask(&mut self, line: &str) -> Result<Reply> {
        self.send(line)?;
        self.answer()
    }
}
