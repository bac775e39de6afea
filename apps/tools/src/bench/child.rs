//! Starts child processes and waits for them. None outlives this process, even if this process is killed.

use apps::error::{AppError, Result};
use apps::stop;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How often a running program is polled.
const LOOK: Duration = Duration::from_millis(20);
/// Longest time that a server needs until it listens.
const START: Duration = Duration::from_secs(10);

/// Longest time of a measurement.
const PATIENCE: Duration = Duration::from_secs(30);
/// Attempts of a client, and the time between them: a server needs a moment to listen.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(100);

/// Makes the kernel kill the command when this process ends for any reason: runs it by `setpriv` of util-linux, where that is
/// installed.
fn tied(command: &Command) -> Command {
    static SETPRIV: LazyLock<bool> = LazyLock::new(|| {
        let mut trial = Command::new("setpriv");
        trial.args(["--pdeathsig", "KILL", "--", "true"]).stdin(Stdio::null()).stderr(Stdio::null());
        trial.status().is_ok_and(|status| status.success())
    });
    let mut tied = if *SETPRIV { Command::new("setpriv") } else { Command::new(command.get_program()) };
    if *SETPRIV {
        tied.args(["--pdeathsig", "KILL", "--"]).arg(command.get_program());
    }
    tied.args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => tied.env(name, value),
            None => tied.env_remove(name),
        };
    }
    tied
}

/// A program that is killed when this value is dropped.
#[derive(Debug)]
pub struct Guard(Child);

impl Guard {
    /// Starts a program without reading its output.
    ///
    /// # Errors
    /// When it does not start.
    pub fn quiet(command: &Command) -> Result<Self> {
        let child = tied(command).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        child.map(Self).map_err(|e| failed(command, &e.to_string()))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Repeats a client until its server listens: some clients report a failure by their exit code, others by missing figures.
pub(super) fn patiently<T>(client: impl Fn() -> Command, figures: impl Fn(&str) -> Option<T>) -> Result<T> {
    let mut last = None;
    for _ in 0..TRIES {
        let command = client();
        match output(&command, PATIENCE) {
            Err(e @ (AppError::Interrupted | AppError::Timeout(_))) => return Err(e),
            Err(e) => last = Some(e),
            Ok(said) => match figures(&said) {
                Some(figures) => return Ok(figures),
                None => last = Some(unreadable(&command, &said)),
            },
        }
        std::thread::sleep(PAUSE);
    }
    Err(last.unwrap_or(AppError::Interrupted))
}

fn unreadable(command: &Command, said: &str) -> AppError {
    let program = command.get_program().display();
    let end: String = said.trim().lines().rev().take(3).collect::<Vec<_>>().join(" ");
    AppError::Setup(format!("{program} printed no figures: {end:?}"))
}

/// Starts `n` programs that use all the CPU time they get.
///
/// # Errors
/// When one does not start.
pub fn busy_loops(n: usize) -> Result<Vec<Guard>> {
    (0..n).map(|_| Guard::quiet(Command::new("sh").args(["-c", "while :; do :; done"]))).collect()
}

/// Runs a program to its end and returns what it printed.
///
/// # Errors
/// When it does not start, does not end within `limit`, or fails, with its error output; [`AppError::Interrupted`].
pub fn output(command: &Command, limit: Duration) -> Result<String> {
    let child = tied(command).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut guard = Guard(child.map_err(|e| failed(command, &e.to_string()))?);
    // Read by separate threads: a full pipe would stop the program.
    let read = |pipe: Option<Box<dyn Read + Send>>| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = pipe.map(|mut pipe| pipe.read_to_end(&mut bytes));
            String::from_utf8_lossy(&bytes).into_owned()
        })
    };
    let out = read(guard.0.stdout.take().map(|p| Box::new(p) as _));
    let err = read(guard.0.stderr.take().map(|p| Box::new(p) as _));
    let end = Instant::now() + limit;
    let status = loop {
        stop::check()?;
        match guard.0.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < end => std::thread::sleep(LOOK),
            Ok(None) => {
                let program = command.get_program().display();
                return Err(AppError::Timeout(format!("{program}: no end after {limit:?}")));
            }
            Err(e) => return Err(failed(command, &e.to_string())),
        }
    };
    let (out, err) = (out.join().unwrap_or_default(), err.join().unwrap_or_default());
    if status.success() {
        return Ok(out);
    }
    // A program that prints its usage prints the error first.
    let said = err.trim().lines().find(|l| !l.is_empty()).unwrap_or_default();
    Err(failed(command, &format!("{status}: {said}")))
}

/// The CPU time of all child processes that have ended, and of their ended children.
pub fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let ticks = ended_children_ticks(&stat).unwrap_or(0);
    Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Fields 16 and 17 of proc_pid_stat(5), cutime and cstime; the program's name in front of them may contain blanks.
fn ended_children_ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(13);
    let mut next = || fields.next()?.parse::<u64>().ok();
    Some(next()? + next()?)
}

fn failed(command: &Command, why: &str) -> AppError {
    AppError::Setup(format!("{}: {why}", command.get_program().display()))
}

/// Range of the ports: below those that the system uses for outgoing connections. Otherwise a client that starts before its server
/// could get, as its own port, the port to which it connects, and would then be connected to itself.
const PORTS: Range<u16> = 10_000..30_000;

/// A TCP port on which no program listens at the moment; a different one in each call.
///
/// # Errors
/// When none of many ports is free.
pub fn free_port() -> Result<u16> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let mut why = None;
    for _ in 0..1000 {
        // Programs that start at the same time begin at different ports.
        let at = std::process::id().wrapping_mul(61).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = PORTS.start + (at % u32::from(PORTS.end - PORTS.start)) as u16;
        match bound(port) {
            Ok(_) => return Ok(port),
            Err(e) => why = Some(e),
        }
    }
    let why = why.map(|e| e.to_string()).unwrap_or_default();
    Err(AppError::Setup(format!("no TCP port on 127.0.0.1 from {} to {}: {why}", PORTS.start, PORTS.end)))
}

/// Waits until a program listens on this port, as long as a start may take.
///
/// # Errors
/// [`AppError::Interrupted`].
pub fn wait_for_listener(port: u16) -> Result<()> {
    let end = Instant::now() + START;
    while bound(port).is_ok() && Instant::now() < end {
        stop::check()?;
        std::thread::sleep(LOOK);
    }
    Ok(())
}

/// A socket bound to a port, if no program listens there. The socket never listens: a child process that another thread starts
/// meanwhile inherits it until that child executes its program. A port with an inherited listening socket would be taken for every
/// other program; a port with a bound socket is not.
fn bound(port: u16) -> rustix::io::Result<OwnedFd> {
    let socket =
        rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, Write};
    use std::net::TcpListener;

    #[test]
    fn output_and_failure_come_back() {
        let mut echo = Command::new("sh");
        assert_eq!(output(echo.args(["-c", "echo yes"]), Duration::from_secs(20)).unwrap(), "yes\n");
        let mut bad = Command::new("sh");
        let error = output(bad.args(["-c", "echo why >&2; exit 3"]), Duration::from_secs(20)).unwrap_err();
        assert!(error.to_string().contains("why"), "{error}");
        let none = output(&Command::new("/no/such/program"), Duration::from_secs(1)).unwrap_err();
        assert!(none.to_string().contains("/no/such/program"), "{none}");
    }

    #[test]
    fn a_free_port_is_one_whoever_still_holds_the_socket_that_found_it() {
        let listener = TcpListener::bind(("127.0.0.1", free_port().unwrap())).unwrap();
        assert!(bound(listener.local_addr().unwrap().port()).is_err(), "somebody listens");
        // As if inherited by a child process that was started at this moment. On another port, because such a child may have the
        // listener above as well.
        let port = free_port().unwrap();
        let _held = bound(port).unwrap();
        TcpListener::bind(("127.0.0.1", port)).unwrap();
    }

    /// The test starts itself again as a program that starts another program and is killed.
    #[test]
    fn what_a_killed_program_started_ends_with_it() {
        const AGAIN: &str = "ROCE_TEST_STARTS_A_PROGRAM";
        if std::env::var_os(AGAIN).is_some() {
            let guard = Guard::quiet(Command::new("sleep").arg("1000")).unwrap();
            writeln!(std::io::stdout(), "started {}", guard.0.id()).unwrap();
            std::thread::sleep(Duration::from_secs(1000));
        }
        if Command::new("setpriv").args(["--pdeathsig", "KILL", "--", "true"]).status().is_err() {
            let skipped = "SKIPPED what_a_killed_program_started_ends_with_it: setpriv is not installed";
            return writeln!(std::io::stderr(), "{skipped}").unwrap();
        }
        let name = "bench::child::tests::what_a_killed_program_started_ends_with_it";
        let mut starter = Command::new(std::env::current_exe().unwrap());
        starter.args(["--exact", name, "--nocapture"]).env(AGAIN, "1").stdout(Stdio::piped());
        let mut starter = Guard(starter.spawn().unwrap());
        let mut lines = std::io::BufReader::new(starter.0.stdout.take().unwrap()).lines();
        let pid = lines.find_map(|line| line.unwrap().split_once("started ").map(|(_, pid)| pid.to_owned()));
        let stat = format!("/proc/{}/stat", pid.expect("it says what it started"));
        let stat = || std::fs::read_to_string(&stat).unwrap_or_default();
        let wait_for = |what, holds: &dyn Fn(&str) -> bool| {
            let end = Instant::now() + Duration::from_secs(120);
            while !holds(&stat()) {
                assert!(Instant::now() < end, "{what}: {}", stat());
                std::thread::sleep(LOOK);
            }
        };
        // Until then the process is setpriv, which may not have made its system call.
        wait_for("it starts", &|stat| stat.contains("(sleep)"));
        drop(starter);
        // The process is gone, or is a zombie.
        wait_for("it ends", &|stat| stat.is_empty() || stat.contains(") Z "));
    }

    #[test]
    fn cpu_time_is_that_of_programs_that_ended() {
        let fields = "1 (a b) c) R 2 3 4 5 6 7 8 9 10 11 12 13 150 30 18";
        assert_eq!(ended_children_ticks(fields), Some(180));
        let before = cpu_time();
        let mut work = Command::new("sh");
        work.args(["-c", "n=0; while [ $n -lt 300000 ]; do n=$((n + 1)); done"]);
        output(&work, Duration::from_secs(300)).unwrap();
        assert!(cpu_time() > before);
    }

    #[test]
    fn what_does_not_end_is_ended() {
        let error = output(Command::new("sleep").arg("1000"), Duration::from_millis(50)).unwrap_err();
        assert!(error.to_string().contains("no end"), "{error}");
    }
}
