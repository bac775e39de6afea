//! Runs `roce-perf`, or `roce-nvmf` and `roce-nvmf-perf`, as two processes, one core each; and `roce-many`, which starts its processes
//! itself.

use super::child::{self, Guard};
use super::cores::CORES;
use super::hosts;
use super::plan::{Link, Part};
use super::row::Row;
use apps::error::{AppError, Result};
use apps::stop;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Longest time of a part: a hundred thousand queue pairs take a while to connect.
const PATIENCE: Duration = Duration::from_secs(180);
/// Size of the target's namespace in memory.
const NAMESPACE: &str = "1g";
/// Addresses of the two ends over UDP sockets: all addresses of 127.0.0.0/8 are this host's.
const UDP: [&str; 2] = ["127.47.90.1", "127.47.90.2"];
/// Longest time until a server has opened its port.
const START_PATIENCE: Duration = Duration::from_secs(30);

/// A server, and how its clients reach it.
#[derive(Debug)]
pub struct Server {
    perf: PathBuf,
    dir: PathBuf,
    oob: u16,
    link: Link,
    server: Option<Guard>,
    /// The program that joins the server's host with the clients' host.
    relay: Option<Guard>,
}

impl Server {
    /// Starts a server that keeps its socket in `dir`.
    ///
    /// # Errors
    /// When the program does not start.
    pub fn start(perf: &Path, dir: &Path) -> Result<Self> {
        let mut out = Self {
            perf: perf.into(),
            dir: dir.into(),
            oob: 0,
            link: Link::default(),
            server: None,
            relay: None,
        };
        out.restart(Link::default())?;
        Ok(out)
    }

    /// Ends the server, if it still runs, and starts another one on this link.
    ///
    /// # Errors
    /// When the program does not start.
    pub fn restart(&mut self, link: Link) -> Result<()> {
        // The old server first: both would listen on the same socket.
        (self.server, self.relay) = (None, None);
        // A killed server leaves its socket behind.
        let _ = std::fs::remove_file(self.ethdev_socket());
        self.oob = child::free_port()?;
        self.link = link;
        if let Link::Hosts(cable) = link {
            self.relay = hosts::relay(cable, &self.perf)?;
        }
        let mut command = match link {
            Link::Nvme => {
                let mut target = Command::new(self.perf.with_file_name("roce-nvmf"));
                target.args(["serve", "--memory", NAMESPACE]);
                target
            }
            Link::Memif
            | Link::Ethdev
            | Link::Udp
            | Link::Host
            | Link::Hosts(_)
            | Link::Inside
            | Link::Members => {
                let mut server = self.perf_at(0);
                server.args(["server", "--bind", self.server_addr(), "--oob-port", &self.oob.to_string()]);
                server
            }
        };
        command.args(["--cores", &CORES[0].to_string(), "--port", &self.port("server")]);
        self.server = Some(Guard::quiet(&command)?);
        if link == Link::Nvme {
            return self.wait_for_target();
        }
        // DPDK's driver tries to connect once, when its device starts.
        let end = Instant::now() + START_PATIENCE;
        while link == Link::Ethdev && !self.ethdev_socket().exists() {
            stop::check()?;
            if Instant::now() >= end {
                return Err(AppError::Timeout(format!(
                    "the server's port did not open in {START_PATIENCE:?}"
                )));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Waits until the target accepts connections.
    fn wait_for_target(&self) -> Result<()> {
        let end = Instant::now() + START_PATIENCE;
        loop {
            stop::check()?;
            let mut command = Command::new(self.perf.with_file_name("roce-nvmf-perf"));
            command.args(["discover", "--port", &self.port("client")]);
            match child::output(&command, START_PATIENCE) {
                Ok(_) => return Ok(()),
                Err(AppError::Interrupted) => return Err(AppError::Interrupted),
                Err(e) if Instant::now() >= end => return Err(e),
                Err(_) => std::thread::sleep(Duration::from_millis(100)),
            }
        }
    }

    fn ethdev_socket(&self) -> PathBuf {
        self.dir.join("ethdev")
    }

    /// Measures a part, with a new server if this one has another link; returns the part's rows, marked with its name.
    ///
    /// # Errors
    /// The error of `roce-perf`.
    pub fn measure(&mut self, part: &Part) -> Result<Vec<Row>> {
        if part.link != self.link && !part.link.has_all_ends() {
            self.restart(part.link)?;
        }
        let json = self.dir.join("rows.json");
        let mut command = match part.link {
            Link::Nvme | Link::Inside => Command::new(self.perf.with_file_name("roce-nvmf-perf")),
            Link::Members => Command::new(self.perf.with_file_name("roce-many")),
            Link::Memif | Link::Ethdev | Link::Udp | Link::Host | Link::Hosts(_) => {
                let mut client = self.perf_at(1);
                client.args(part.raw.then_some("raw"));
                client.args(["client", self.server_addr(), "--oob-port", &self.oob.to_string()]);
                client
            }
        };
        command.args(&part.args).arg("--json").arg(&json);
        if !part.link.has_all_ends() {
            command.args(["--cores", &CORES[1].to_string(), "--port", &self.port("client")]);
        }
        child::output(&command, PATIENCE)?;
        let text = std::fs::read_to_string(&json)
            .map_err(|e| AppError::Setup(format!("{}: {e}", json.display())))?;
        let rows = Row::parse(&text).map_err(AppError::Setup)?;
        Ok(rows.into_iter().map(|row| row.with("part", part.name)).collect())
    }

    /// `roce-perf` as a command on the server's or the client's host.
    fn perf_at(&self, side: usize) -> Command {
        match self.link {
            Link::Hosts(cable) => hosts::command(cable, side, &self.perf),
            _ => Command::new(&self.perf),
        }
    }

    /// The address at which the client reaches the server.
    fn server_addr(&self) -> &'static str {
        if matches!(self.link, Link::Hosts(_)) { hosts::ADDRS[0] } else { "127.0.0.1" }
    }

    fn port(&self, role: &str) -> String {
        let side = usize::from(role != "server");
        match self.link {
            Link::Memif | Link::Nvme | Link::Inside | Link::Members => {
                format!("memif:{}", self.dir.join("memif").display())
            }
            Link::Udp => format!("udp:{}", UDP[side]),
            Link::Host => "host".into(),
            Link::Hosts(_) => format!("udp:{}", hosts::ADDRS[side]),
            // Buffers of the default size do not hold a packet of path MTU 4096.
            Link::Ethdev => {
                let socket = self.ethdev_socket();
                let socket = socket.display();
                format!("dpdk:net_memif0,role={role},socket={socket},socket-abstract=no,bsize=4288")
            }
        }
    }
}
