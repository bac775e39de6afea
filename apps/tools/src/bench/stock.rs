//! Runs programs of perftest, as distributed, on this stack by the drop-in library. The processes are not pinned: each end waits for the
//! other without a core of its own.

use super::child::{self, Guard, patiently};
use super::row::Row;
use apps::error::Result;
use std::path::PathBuf;
use std::process::Command;

/// Where the programs of this stack are, and where files may be written.
#[derive(Clone, Debug)]
pub struct Paths {
    /// `roce-run`.
    pub run: PathBuf,
    /// A directory for files.
    pub dir: PathBuf,
}

/// A program with its options, and the port that it runs over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stock {
    program: Program,
    over: Over,
}

/// The program, with its options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// `ib_write_bw`, 64 KiB, 512 outstanding.
    Write,
    /// `ib_read_bw`, 1 MiB.
    Read,
    /// `ib_write_bw`, 1 MiB.
    LongWrite,
    /// `ib_send_lat`, 64 B.
    Latency,
}

/// The port between the two processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// Shared memory.
    Memif,
    /// UDP sockets on the loopback interface.
    Udp,
}

/// Addresses of the two ends over UDP sockets.
const UDP: [&str; 2] = ["127.47.91.1", "127.47.91.2"];
/// Messages of a latency measurement of one second.
const MESSAGES: f64 = 2500.0;

impl Stock {
    /// This program over this port.
    pub const fn new(program: Program, over: Over) -> Self {
        Self { program, over }
    }

    /// Name in tables.
    pub const fn name(self) -> &'static str {
        match (self.program, self.over) {
            (Program::Write | Program::LongWrite, Over::Memif) => "ib_write_bw over memif",
            (Program::Write | Program::LongWrite, Over::Udp) => "ib_write_bw over udp",
            (Program::Read, Over::Memif) => "ib_read_bw over memif",
            (Program::Read, Over::Udp) => "ib_read_bw over udp",
            (Program::Latency, Over::Memif) => "ib_send_lat over memif",
            (Program::Latency, Over::Udp) => "ib_send_lat over udp",
        }
    }

    /// Bytes of a message.
    pub const fn size(self) -> u64 {
        match self.program {
            Program::Write => 65536,
            Program::Read | Program::LongWrite => 1 << 20,
            Program::Latency => 64,
        }
    }

    /// Measures for about `seconds`, and adds the figures to `row`.
    ///
    /// # Errors
    /// The program's error.
    pub fn measure(self, row: Row, tcp: u16, seconds: f64, paths: &Paths) -> Result<Row> {
        let program = |side| self.command(side, tcp, seconds, paths);
        let _server = Guard::quiet(&program(0))?;
        child::wait_for_listener(tcp)?;
        let client = || {
            let mut client = program(1);
            client.arg("127.0.0.1");
            client
        };
        let numbers = patiently(client, |said| numbers(said, self.size()))?;
        Ok(match self.program {
            Program::Latency => row.with("mean_ns", (numbers[LAT_MEAN] * 1e3).round() as u64),
            _ => {
                let rate = numbers[BW_MRATE] * 1e6;
                let size = self.size() as f64;
                // With a duration the program counts only the middle of it.
                let bytes = (rate * size * seconds.ceil()).round();
                row.with("gbit_per_s", rate * size * 8.0 / 1e9).with("bytes", bytes)
            }
        })
    }

    fn command(self, side: usize, tcp: u16, seconds: f64, paths: &Paths) -> Command {
        let port = match self.over {
            Over::Memif => format!("memif:{}", paths.dir.join("stock").display()),
            Over::Udp => format!("udp:{}", UDP[side]),
        };
        let (program, depth) = match self.program {
            Program::Write => ("ib_write_bw", "512"),
            Program::Read => ("ib_read_bw", "16"),
            Program::LongWrite => ("ib_write_bw", "32"),
            Program::Latency => ("ib_send_lat", "1"),
        };
        let mut command = Command::new(&paths.run);
        command.args([
            "--port",
            &port,
            program,
            "-F",
            "-p",
            &tcp.to_string(),
            "-s",
            &self.size().to_string(),
        ]);
        if self.program == Program::Latency {
            command.args(["-n", &(MESSAGES * seconds).ceil().max(1000.0).to_string()]);
        } else {
            command.args(["-t", depth, "-D", &seconds.ceil().to_string()]);
        }
        command
    }
}

/// Column of the message rate, in millions a second, in the figures of a bandwidth program.
const BW_MRATE: usize = 4;
/// Column of the mean one-way time, in microseconds, in the figures of a latency program.
const LAT_MEAN: usize = 5;

/// The numbers of the line for messages of this size.
fn numbers(said: &str, size: u64) -> Option<Vec<f64>> {
    let parse =
        |line: &str| line.split_ascii_whitespace().map(|n| n.parse().ok()).collect::<Option<Vec<f64>>>();
    said.lines().filter_map(parse).find(|n| n.len() > BW_MRATE && n[0] == size as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figures_are_those_of_the_line_of_the_size() {
        let bandwidth = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n \
                         65536      165142           0.00               5160.45\t\t   0.082567\n---\n";
        assert_eq!(numbers(bandwidth, 65536).unwrap()[BW_MRATE], 0.082_567);
        assert_eq!(numbers(bandwidth, 64), None);
        let latency = " 64      20000          0.34           1951.83      0.42     \t       0.52        \t1.09   5.49 19.40\n";
        assert_eq!(numbers(latency, 64).unwrap()[LAT_MEAN], 0.52);
        assert_eq!(numbers("Waiting for client to connect\n", 64), None);
    }
}
