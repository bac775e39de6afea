//! The members of a measurement, as their parent handles them: started as copies of this program, given orders, and ended.

use super::order::{Make, Order, RemoteEnd, Report};
use apps::error::{AppError, Result};
use apps::stop;
use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// Longest time of a short order: many members may start at once on few cores, and one may run in an emulator.
const PATIENCE: Duration = Duration::from_secs(120);
/// Time between two checks for signals.
const LOOK: Duration = Duration::from_millis(50);
/// Longest time until members have closed their devices.
const END: Duration = Duration::from_secs(60);

/// How a member is started.
#[derive(Clone, Debug, Default)]
pub struct MemberOptions {
    /// A program that runs the member, with its options.
    pub by: Vec<OsString>,
    /// Options of `roce-many member`.
    pub args: Vec<String>,
}

impl MemberOptions {
    /// A member on the port `host` whose device is turned by its calls and by a thread of the device, as in most programs.
    pub fn usual() -> Self {
        Self::default()
    }

    /// A member that turns its device itself.
    pub fn embedded() -> Self {
        Self { args: vec!["--drive".into(), "embedded".into()], ..Self::default() }
    }

    /// These options with an option and its value added.
    #[must_use]
    pub fn with(mut self, option: &str, value: impl ToString) -> Self {
        self.args.extend([option.into(), value.to_string()]);
        self
    }
}

/// A member.
struct Member {
    child: Child,
    orders: Option<ChildStdin>,
    reports: VecDeque<Report>,
    /// Whether another member is about to end this one.
    may_end: bool,
}

/// A member's index and a line that it reported; `None` if the member has ended.
type Said = (usize, Option<String>);

/// The members, each identified by its index. Members that still run are killed when this value is dropped.
pub struct Team {
    members: Vec<Member>,
    said: Receiver<Said>,
}

impl Team {
    /// Starts the members, and waits until each has its device.
    ///
    /// # Errors
    /// The failure of a member.
    pub fn start(members: &[MemberOptions]) -> Result<Self> {
        let (to, said) = channel();
        let mut team = Self { members: Vec::new(), said };
        for options in members {
            let member = start(team.members.len(), options, &to)?;
            team.members.push(member);
        }
        for at in 0..members.len() {
            match team.receive_report(at, PATIENCE)? {
                Report::Ready => {}
                other => return Err(out_of_turn(at, &other)),
            }
        }
        Ok(team)
    }

    /// Number of members.
    pub fn size(&self) -> usize {
        self.members.len()
    }

    /// Process number of a member.
    pub fn pid(&self, at: usize) -> u32 {
        self.members[at].child.id()
    }

    /// Sends an order to a member.
    ///
    /// # Errors
    /// The member has ended.
    pub fn send_order(&mut self, at: usize, order: &Order) -> Result<()> {
        let line = serde_json::to_string(order);
        let line =
            line.map_err(|e| AppError::ProtocolViolation(format!("an order cannot be written: {e}")))?;
        let written = match &mut self.members[at].orders {
            Some(orders) => writeln!(orders, "{line}").and_then(|()| orders.flush()),
            None => Err(std::io::ErrorKind::BrokenPipe.into()),
        };
        // An earlier report says more than the failure to write.
        if written.is_err() {
            self.receive_report(at, LOOK)?;
            return Err(AppError::Peer(format!("member {at} takes no orders")));
        }
        Ok(())
    }

    /// The next report of a member.
    ///
    /// # Errors
    /// The failure of a member; a member that has ended, or reports nothing within `patience`; a signal.
    pub fn receive_report(&mut self, at: usize, patience: Duration) -> Result<Report> {
        let end = Instant::now() + patience;
        loop {
            stop::check()?;
            if let Some(report) = self.members[at].reports.pop_front() {
                return Ok(report);
            }
            match self.said.recv_timeout(LOOK) {
                Ok((of, line)) => self.take(of, line)?,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) if Instant::now() >= end => {
                    return Err(AppError::Timeout(format!("member {at} said nothing for {patience:?}")));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(LOOK),
            }
        }
    }

    /// Stores a member's report. The failure of one member is the failure of all.
    fn take(&mut self, of: usize, line: Option<String>) -> Result<()> {
        let Some(line) = line else {
            if self.members[of].may_end {
                return Ok(());
            }
            let how =
                self.members[of].child.wait().map_or_else(|e| e.to_string(), |status| status.to_string());
            return Err(AppError::Peer(format!("member {of} has ended ({how})")));
        };
        match serde_json::from_str(&line) {
            Ok(Report::Failed(why)) => Err(AppError::Peer(format!("member {of}: {why}"))),
            Ok(report) => {
                self.members[of].reports.push_back(report);
                Ok(())
            }
            Err(e) => Err(AppError::ProtocolViolation(format!("member {of} said {line:?} ({e})"))),
        }
    }

    /// Sends an order, and waits for its report: for `lasts` and a margin.
    ///
    /// # Errors
    /// As [`send_order`](Self::send_order) and [`receive_report`](Self::receive_report).
    pub fn run_order(&mut self, at: usize, order: &Order, lasts: Duration) -> Result<Report> {
        self.send_order(at, order)?;
        self.receive_report(at, PATIENCE + lasts)
    }

    /// Sends each member its order, all at once, and waits for their reports.
    ///
    /// # Errors
    /// As [`run_order`](Self::run_order).
    pub fn run_orders(&mut self, order: impl Fn(usize) -> Order, lasts: Duration) -> Result<Vec<Report>> {
        for at in 0..self.size() {
            self.send_order(at, &order(at))?;
        }
        (0..self.size()).map(|at| self.receive_report(at, PATIENCE + lasts)).collect()
    }

    /// Makes members create queue pairs: `peers` names, for each queue pair of a member in turn, the member at its other end. Queue pairs
    /// between the same two members are paired in their order. Returns the far end of each.
    ///
    /// # Errors
    /// As [`run_order`](Self::run_order).
    pub fn make(&mut self, peers: &[Vec<usize>], make: Make) -> Result<Vec<Vec<RemoteEnd>>> {
        let makes = |at: usize| Order::Make(Make { count: peers[at].len(), ..make });
        let made = self.run_orders(makes, Duration::ZERO)?;
        let mut ends = Vec::new();
        for (at, made) in made.into_iter().enumerate() {
            let Report::Made(remote) = made else { return Err(out_of_turn(at, &made)) };
            ends.push(remote);
        }
        let remote = |at: usize| joined(peers, at).map(|(peer, n)| ends[peer][n].clone()).collect();
        Ok((0..self.size()).map(remote).collect())
    }

    /// Makes members create queue pairs, and connects them all at once.
    ///
    /// # Errors
    /// As [`run_order`](Self::run_order).
    pub fn connect(&mut self, peers: &[Vec<usize>], make: Make) -> Result<()> {
        let remote = self.make(peers, make)?;
        self.run_orders(|at| Order::Connect(remote[at].clone()), Duration::ZERO)?;
        Ok(())
    }

    /// Connects two members that have never communicated: first the second member connects a queue pair, and then the first one, which sends
    /// a message. Each member is given with its queue pair and the far end of it. Returns nanoseconds to the completion: from the post, and
    /// from when the second member began to connect.
    ///
    /// # Errors
    /// As [`run_order`](Self::run_order).
    pub fn meet(
        &mut self,
        first: (usize, usize, &RemoteEnd),
        second: (usize, usize, &RemoteEnd),
    ) -> Result<[u64; 2]> {
        let notify = self.pid(first.0);
        self.send_order(first.0, &Order::Meet { queue: first.1, remote: first.2.clone() })?;
        self.run_order(
            second.0,
            &Order::Join { queue: second.1, remote: second.2.clone(), notify },
            Duration::ZERO,
        )?;
        let report = self.receive_report(first.0, PATIENCE)?;
        match &report {
            Report::Times(times) => times[..].try_into().map_err(|_| out_of_turn(first.0, &report)),
            other => Err(out_of_turn(first.0, other)),
        }
    }

    /// Notes that another member is about to end this one.
    pub fn may_end(&mut self, at: usize) {
        self.members[at].may_end = true;
    }

    /// Ends all members by closing their orders.
    ///
    /// # Errors
    /// A member that fails as it ends, or does not end.
    pub fn end(mut self) -> Result<()> {
        self.members.iter_mut().for_each(|member| member.orders = None);
        let end = Instant::now() + END;
        for (at, Member { child, may_end, .. }) in self.members.iter_mut().enumerate() {
            loop {
                stop::check()?;
                let failed = |why: String| Err(AppError::Peer(format!("member {at}, as it ended: {why}")));
                match child.try_wait() {
                    Ok(Some(status)) if status.success() || *may_end => break,
                    Ok(Some(status)) => return failed(status.to_string()),
                    Ok(None) if Instant::now() >= end => return failed(format!("it has not after {END:?}")),
                    Ok(None) => std::thread::sleep(Duration::from_millis(1)),
                    Err(e) => return failed(e.to_string()),
                }
            }
        }
        Ok(())
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        for member in &mut self.members {
            let _ = member.child.kill();
        }
        for member in &mut self.members {
            let _ = member.child.wait();
        }
    }
}

/// The error for a report that was not requested.
pub fn out_of_turn(at: usize, report: &Report) -> AppError {
    AppError::ProtocolViolation(format!("member {at} reported {report:?}, which was not asked for"))
}

fn start(at: usize, options: &MemberOptions, to: &Sender<Said>) -> Result<Member> {
    let failed = |e: std::io::Error| AppError::Setup(format!("member {at} does not start: {e}"));
    let this = std::env::current_exe().map_err(failed)?;
    let mut words = options.by.clone();
    words.extend([this.into_os_string(), "member".into()]);
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).args(&options.args).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command
        .spawn()
        .map_err(|e| AppError::Setup(format!("member {at} does not start: {}: {e}", words[0].display())))?;
    let (orders, said, to) = (child.stdin.take(), child.stdout.take(), to.clone());
    std::thread::spawn(move || {
        let lines = said.map(|said| BufReader::new(said).lines().map_while(std::result::Result::ok));
        for line in lines.into_iter().flatten() {
            let _ = to.send((at, Some(line)));
        }
        let _ = to.send((at, None));
    });
    Ok(Member { child, orders, reports: VecDeque::new(), may_end: false })
}

/// For each queue pair of a member: the member at its other end, and the index of that member's queue pair.
fn joined(peers: &[Vec<usize>], at: usize) -> impl Iterator<Item = (usize, usize)> {
    peers[at].iter().enumerate().map(move |(n, peer)| {
        let which = peers[at][..n].iter().filter(|before| *before == peer).count();
        let theirs = peers[*peer].iter().enumerate().filter(|(_, back)| **back == at);
        let (index, _) = theirs.into_iter().nth(which).expect("each queue pair has two ends");
        (*peer, index)
    })
}

/// Peers for [`Team::make`] if each member has `connections` queue pairs with every other member.
pub fn all_to_all(members: usize, connections: usize) -> Vec<Vec<usize>> {
    let of = |at: usize| {
        let others = (0..members).filter(move |peer| *peer != at);
        others.flat_map(|peer| std::iter::repeat_n(peer, connections)).collect()
    };
    (0..members).map(of).collect()
}

/// Peers for [`Team::make`] if the first member has a queue pair with every other member.
pub fn star(members: usize) -> Vec<Vec<usize>> {
    (0..members).map(|at| if at == 0 { (1..members).collect() } else { vec![0] }).collect()
}

/// Peers for [`Team::make`] if each member has one queue pair, with its neighbour.
pub fn pairs(members: usize) -> Vec<Vec<usize>> {
    (0..members).map(|at| vec![at ^ 1]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_queue_pair_is_the_peer_of_its_peer() {
        for peers in [all_to_all(5, 3), all_to_all(2, 1), star(7), pairs(4)] {
            for at in 0..peers.len() {
                for (n, (peer, index)) in joined(&peers, at).enumerate() {
                    assert_ne!(peer, at);
                    assert_eq!(joined(&peers, peer).nth(index), Some((at, n)), "{peers:?}");
                }
            }
        }
        assert_eq!(all_to_all(3, 2), [[1, 1, 2, 2], [0, 0, 2, 2], [0, 0, 1, 1]]);
        assert_eq!(star(3), [vec![1, 2], vec![0], vec![0]]);
    }
}
