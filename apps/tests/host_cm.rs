//! Connection management among the processes of a host, which have its addresses together: from another host, and among themselves. Needs
//! root, for network namespaces alone.

use crate::common::{Bench, Link, PATIENCE, PERF, Running, count, signal, until};
use crate::udp::{Ends, Lab, V4, V6};
use rustix::process::Signal;
use std::collections::{HashMap, HashSet};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::process::{self, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};
use verbs::port::PortSpec;
use verbs::rdma_cm::{CmError, CmEventType, CmId, CmOption, ConnParam, EventChannel, PortSpace};
use verbs::{Context, Cq, DeviceConfig, Pd, QpInitAttr, RecvWr, SendWr, VerbsError, Wc};

/// Two hosts, and processes on them that connect by `rdma_cm`.
struct Host<'a> {
    lab: Lab,
    bench: Bench,
    there: &'a str,
}

impl<'a> Host<'a> {
    fn new(tag: char, ends: &'a [Ends; 2]) -> Option<Self> {
        let bench = Bench::new(Link::Udp);
        Some(Self { lab: Lab::new(tag, ends)?, bench, there: ends[1].host })
    }

    /// A process on the second host that listens at a port.
    fn server(&self, port: &str) -> Running {
        let stats = self.bench.path(&format!("stats{port}"));
        let socket = format!("--stats={}", stats.display());
        let running =
            self.lab.start(1, PERF, &["server", "-R", "--port", "host", "--oob-port", port, &socket]);
        until(|| stats.exists().then_some(()));
        running
    }

    /// A process on either host that connects to it.
    fn client(&self, host: usize, port: &str, more: &[&str]) -> Running {
        let args = ["client", "-R", "--port", "host", "--oob-port", port, self.there, "-n", "10"];
        self.lab.start(host, PERF, &[&args[..], more].concat())
    }

    /// Clients on both hosts reach the server at this port.
    fn reach(&self, port: &str) {
        for host in [0, 1] {
            self.client(host, port, &PATIENCE).finish().good();
        }
    }

    /// Nobody listens at this port, and clients on both hosts are told so.
    fn refuse(&self, port: &str) {
        let clients = [0, 1].map(|host| self.client(host, port, &["--wait", "5s"]));
        clients.into_iter().for_each(|client| _ = client.finish().bad("no program listens"));
    }
}

// Goal: whichever process listens, whoever was first, it is reached from its own host and from others; a port has one process.
#[test]
fn each_process_of_a_host_is_reached_at_its_port() {
    for (tag, ends) in [('p', &V4), ('v', &V6)] {
        let Some(host) = Host::new(tag, ends) else { return };
        let mut servers = ["7000", "7001", "7002"].map(|port| host.server(port));
        for port in ["7001", "7000", "7002"] {
            host.reach(port);
        }
        // At the same time.
        let clients =
            [0, 1].map(|from| ["7000", "7001", "7002"].map(|port| host.client(from, port, &PATIENCE)));
        clients.into_iter().flatten().for_each(|client| _ = client.finish().good());
        host.refuse("7009");
        let again = ["server", "-R", "--port", "host", "--oob-port", "7001"];
        host.lab.start(1, PERF, &again).finish().bad("port 7001 is in use");
        // The keeper goes without a word, and then a port that others knew.
        for gone in [0, 1] {
            servers[gone].kill();
            host.reach("7002");
            host.refuse(["7000", "7001"][gone]);
        }
        servers[0] = host.server("7000");
        host.reach("7000");
    }
}

// Goal: a process that does not run keeps nobody from connecting with another one, whatever it kept for all of them.
#[test]
fn a_process_that_is_stopped_is_in_nobodys_way() {
    let Some(host) = Host::new('z', &V4) else { return };
    let mut keeper = host.server("7000");
    host.reach("7000");
    let _second = host.server("7001");
    host.reach("7001");
    // The kernel takes each message to its process: the keeper has few to pass on, of the first moments of a listener.
    host.reach("7001");
    let passed_on = count(&host.bench.path("stats7000"), "passed_on");
    assert!(passed_on < 10, "{passed_on}");
    let pid = keeper.id();
    signal(Signal::STOP, pid);
    host.reach("7001");
    let _third = host.server("7002");
    host.reach("7002");
    host.refuse("7009");
    signal(Signal::CONT, pid);
    host.reach("7000");
}

// Goal: processes that connect go on while others end at every moment, by whom all requests came.
#[test]
fn processes_that_are_killed_are_in_nobodys_way() {
    let Some(host) = Host::new('k', &V4) else { return };
    let mut first = host.server("7000");
    let _second = host.server("7001");
    for round in 0..4 {
        let clients = [0, 1].map(|from| host.client(from, "7001", &PATIENCE));
        first.kill();
        clients.into_iter().for_each(|client| _ = client.finish().good());
        first = host.server("7000");
        if round % 2 == 0 {
            host.reach("7000");
        }
    }
}

const CHILD: &str = "ROCE_HOST_CM_CHILD";
const SOON: Duration = Duration::from_secs(30);

/// A process of a host that does what it is told, line by line.
struct Child {
    process: process::Child,
    orders: ChildStdin,
    said: BufReader<ChildStdout>,
}

impl Child {
    fn new(lab: &Lab, host: usize) -> Self {
        let mut process = Command::new("ip")
            .args(["netns", "exec", lab.host(host)])
            .arg(std::env::current_exe().unwrap())
            .args(["host_cm::child", "--exact", "--nocapture"])
            .env(CHILD, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (orders, said) = (process.stdin.take().unwrap(), BufReader::new(process.stdout.take().unwrap()));
        let mut child = Self { process, orders, said };
        while child.hear() != "ready" {}
        child
    }

    fn tell(&mut self, order: &str) {
        writeln!(self.orders, "{order}").unwrap();
    }

    fn hear(&mut self) -> String {
        let mut line = String::new();
        assert!(self.said.read_line(&mut line).unwrap() > 0, "it ended: {:?}", self.process.wait());
        // The test runner writes a line of its own where a test takes long.
        if line.contains("has been running for over") { self.hear() } else { line.trim_end().into() }
    }

    fn order(&mut self, order: &str) -> String {
        self.tell(order);
        self.hear()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What a [`Child`] is: listeners that refuse with their port as private data or hold requests until they are told, and connections.
struct Role {
    context: Context,
    pd: Pd,
    cq: Cq,
    channel: EventChannel,
    listeners: HashMap<u16, CmId>,
    held: Vec<CmId>,
    came: Vec<CmEventType>,
    holds: bool,
    connected: Option<CmId>,
}

impl Role {
    fn new() -> Self {
        let context = Context::open(DeviceConfig::new("host".parse::<PortSpec>().unwrap())).unwrap();
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(16).unwrap());
        let (listeners, held) = (HashMap::new(), Vec::new());
        let channel = EventChannel::new().unwrap();
        Self { context, pd, cq, channel, listeners, held, came: Vec::new(), holds: false, connected: None }
    }

    /// Handles requests that have come.
    fn serve(&mut self) {
        while let Some(mut event) = self.channel.try_get_event() {
            let Some(id) = event.take_id() else {
                self.came.push(event.event());
                event.ack();
                continue;
            };
            event.ack();
            match self.holds {
                true => self.held.push(id),
                // It may be over already.
                false => _ = id.reject(&id.src_port().to_be_bytes()),
            }
        }
    }

    fn connect(&mut self, space: PortSpace, to: SocketAddr) -> Result<String, VerbsError> {
        let id = self.context.create_id(None, space)?;
        id.resolve_addr(None, to, SOON)?;
        id.resolve_route(SOON)?;
        id.set_option(CmOption::CmResponseTimeout(17))?;
        if space == PortSpace::Tcp {
            id.create_qp(&self.pd, &QpInitAttr::rc(&self.cq, &self.cq))?;
        }
        match id.connect(&ConnParam::default()) {
            Err(VerbsError::Cm(CmError::Rejected { refusal, .. })) => {
                let data = id.event().map(|event| event.private_data().to_vec()).unwrap_or_default();
                let port = data.first_chunk().map_or(0, |port| u16::from_be_bytes(*port));
                return Ok(format!("refused {} {port}", refusal.reason));
            }
            result => result?,
        }
        self.connected = Some(id);
        Ok("established".into())
    }

    fn obey(&mut self, order: &str) -> Result<String, VerbsError> {
        let words: Vec<&str> = order.split(' ').collect();
        let space = |name| if name == "udp" { PortSpace::Udp } else { PortSpace::Tcp };
        Ok(match words[..] {
            ["listen", name, first, count] => {
                let (first, count): (u16, u16) = (first.parse().unwrap(), count.parse().unwrap());
                for port in first..first + count {
                    let id = self.context.create_id(Some(&self.channel), space(name))?;
                    id.bind_addr(([0, 0, 0, 0], port))?;
                    id.listen(0)?;
                    self.listeners.insert(port, id);
                }
                "listening".into()
            }
            ["bind", addr, reuses] => {
                let id = self.context.create_id(None, PortSpace::Tcp)?;
                id.set_option(CmOption::ReuseAddr(reuses == "shared"))?;
                id.bind_addr(addr.parse::<SocketAddr>().unwrap())?;
                let port = id.src_port();
                self.listeners.insert(port, id);
                format!("bound {port}")
            }
            ["listen", port] => {
                self.listeners[&port.parse().unwrap()].listen(0)?;
                "listening".into()
            }
            ["close", port] => {
                self.listeners.remove(&port.parse().unwrap());
                "closed".into()
            }
            ["counters"] => {
                let counters = self.channel.counters().into_iter().filter(|(_, n)| *n > 0);
                format!("{:?}", counters.collect::<Vec<_>>())
            }
            ["hold"] => {
                self.holds = true;
                "holding".into()
            }
            ["held"] => wait(|| !self.held.is_empty(), "held"),
            ["repeated"] => {
                let repeated =
                    || self.channel.counters().iter().any(|(name, n)| *name == "duplicate_req" && *n > 0);
                wait(repeated, "repeated")
            }
            ["accept", ref here @ ..] => {
                for id in self.held.drain(..) {
                    if here.is_empty() {
                        id.migrate_id(None)?;
                    }
                    let qp = id.create_qp(&self.pd, &QpInitAttr::rc(&self.cq, &self.cq))?;
                    qp.post_recv(&[RecvWr::new(1, &[])])?;
                    id.accept(&ConnParam::default())?;
                    self.connected = Some(id);
                }
                "accepted".into()
            }
            ["send"] => {
                let qp = self.connected.as_ref().and_then(CmId::qp).unwrap();
                qp.post_send(&[SendWr::send(2, &[]).signaled()])?;
                let mut done = [Wc::default()];
                wait(|| self.cq.poll(&mut done).is_ok_and(|n| n == 1), "sent")
            }
            ["ended"] => wait(|| self.came.contains(&CmEventType::Disconnected), "ended"),
            ["connect", name, to] => self.connect(space(name), to.parse().unwrap())?,
            ["disconnect"] => {
                let id = self.connected.take().unwrap();
                id.disconnect()?;
                let event = id.event();
                format!("{:?}", event.map(|event| (event.event(), event.status())))
            }
            _ => panic!("{order}"),
        })
    }
}

fn wait(mut holds: impl FnMut() -> bool, said: &str) -> String {
    let began = Instant::now();
    while began.elapsed() < SOON / 3 {
        if holds() {
            return said.into();
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    format!("not {said}")
}

/// The other process.
#[test]
fn child() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let (orders, lines) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        std::io::stdin().lines().map_while(Result::ok).try_for_each(|line| orders.send(line))
    });
    let mut role = Role::new();
    println!("\nready");
    loop {
        role.serve();
        match lines.recv_timeout(Duration::from_millis(1)) {
            Ok(order) => {
                let began = Instant::now();
                let ended = |role: &Role| role.came.contains(&CmEventType::Disconnected);
                while (order == "held" && role.held.is_empty() || order == "ended" && !ended(&role))
                    && began.elapsed() < SOON
                {
                    role.serve();
                    std::thread::sleep(Duration::from_millis(1));
                }
                println!("{}", role.obey(&order).unwrap_or_else(|error| format!("error {}", error.errno())));
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => std::process::exit(0),
        }
    }
}

// Goal: the kernel tells the listeners of some services apart; those of others are reached all the same, for connections and datagrams.
#[test]
fn any_number_of_listeners_is_reached() {
    let _bench = Bench::new(Link::Udp);
    let Some(lab) = Lab::new('j', &V4) else { return };
    let mut servers = [Child::new(&lab, 1), Child::new(&lab, 1)];
    let services = [("tcp", 0, 7100, 50), ("tcp", 1, 7200, 50), ("udp", 0, 7300, 5), ("udp", 1, 7400, 5)];
    for (space, server, first, count) in services {
        assert_eq!(servers[server].order(&format!("listen {space} {first} {count}")), "listening");
    }
    for host in [0, 1] {
        let mut client = Child::new(&lab, host);
        for (space, _, first, count) in services {
            for port in first..first + count {
                let reason = if space == "tcp" { 28 } else { 2 };
                let said = client.order(&format!("connect {space} {}:{port}", V4[1].host));
                let counted = |server: &mut Child| server.order("counters");
                assert_eq!(
                    said,
                    format!("refused {reason} {port}"),
                    "{space} {host}: {:?}",
                    servers.each_mut().map(counted)
                );
            }
            let said = client.order(&format!("connect {space} {}:7999", V4[1].host));
            assert_eq!(said, if space == "tcp" { "refused 8 0" } else { "refused 1 0" });
        }
    }
}

/// The keeper of a host, a server beside it that holds a request for its port 7501, and the client that waits for the answer.
fn asked(lab: &Lab) -> [Child; 3] {
    let mut keeper = Child::new(lab, 1);
    assert_eq!(keeper.order("listen tcp 7500 1"), "listening");
    let mut server = Child::new(lab, 1);
    assert_eq!(server.order("hold"), "holding");
    assert_eq!(server.order("listen tcp 7501 1"), "listening");
    let mut client = Child::new(lab, 0);
    client.tell(&format!("connect tcp {}:7501", V4[1].host));
    assert_eq!(server.order("held"), "held");
    [keeper, server, client]
}

// Goal: a request that is repeated goes where the first one went, although nobody listens there any more, and all processes of the host know
// that.
#[test]
fn a_repeated_request_goes_where_the_first_one_went() {
    let _bench = Bench::new(Link::Udp);
    let Some(lab) = Lab::new('o', &V4) else { return };
    let [mut keeper, mut server, mut client] = asked(&lab);
    assert_eq!(server.order("close 7501"), "closed");
    // From now on the kernel knows nothing of that service.
    assert_eq!(keeper.order("listen tcp 7502 1"), "listening");
    assert_eq!(Child::new(&lab, 0).order(&format!("connect tcp {}:7501", V4[1].host)), "refused 8 0");
    assert_eq!(server.order("repeated"), "repeated");
    assert_eq!(server.order("accept"), "accepted");
    assert_eq!(client.hear(), "established");
}

// Goal: a peer need not wait for a process that has ended: another one answers for it.
#[test]
fn a_connection_with_a_process_that_has_ended_ends() {
    let _bench = Bench::new(Link::Udp);
    let Some(lab) = Lab::new('d', &V4) else { return };
    let [_keeper, mut server, mut client] = asked(&lab);
    assert_eq!(server.order("accept"), "accepted");
    assert_eq!(client.hear(), "established");
    drop(server);
    assert_eq!(client.order("disconnect"), "Some((Disconnected, 0))");
}

// Goal: the end of a process, in whatever way, ends its connections with others of its host, which wait for nothing.
#[test]
fn a_process_that_is_killed_ends_its_connections() {
    let _bench = Bench::new(Link::Udp);
    let Some(lab) = Lab::new('e', &V4) else { return };
    let mut server = Child::new(&lab, 1);
    assert_eq!(server.order("hold"), "holding");
    assert_eq!(server.order("listen tcp 7500 1"), "listening");
    let mut client = Child::new(&lab, 1);
    client.tell(&format!("connect tcp {}:7500", V4[1].host));
    assert_eq!(server.order("held"), "held");
    assert_eq!(server.order("accept here"), "accepted");
    assert_eq!(client.hear(), "established");
    // By a link, which is there from then on.
    assert_eq!(client.order("send"), "sent");
    drop(client);
    assert_eq!(server.order("ended"), "ended");
}

// Goal: for the processes of a host a port is what it is for the identifiers of one process.
#[test]
fn a_port_is_bound_once_on_a_host() {
    const IN_USE: &str = "error 98";
    let _bench = Bench::new(Link::Udp);
    let Some(lab) = Lab::new('b', &V4) else { return };
    let [mut one, mut two] = [Child::new(&lab, 1), Child::new(&lab, 1)];
    let here = V4[1].host;
    assert_eq!(one.order(&format!("bind {here}:7600 alone")), "bound 7600");
    for clashing in [&format!("bind {here}:7600 alone"), "bind 0.0.0.0:7600 alone", "bind [::]:7600 shared"] {
        assert_eq!(two.order(clashing), IN_USE, "{clashing}");
    }
    assert_eq!(two.order("bind 127.0.0.1:7600 alone"), "bound 7600", "another address");
    assert_eq!(one.order("close 7600"), "closed");
    assert_eq!(two.order("close 7600"), "closed");
    // Several may share it, one alone may listen.
    assert_eq!(one.order("bind 0.0.0.0:7601 shared"), "bound 7601");
    assert_eq!(two.order("bind 0.0.0.0:7601 shared"), "bound 7601");
    assert_eq!(two.order("listen 7601"), IN_USE);
    assert_eq!(one.order("close 7601"), "closed");
    assert_eq!(two.order("listen 7601"), "listening");
    // Ports that are chosen are chosen once.
    let mut chosen = HashSet::new();
    for _ in 0..50 {
        for child in [&mut one, &mut two] {
            let said = child.order("bind 0.0.0.0:0 alone");
            assert!(said.starts_with("bound ") && chosen.insert(said.clone()), "{said}");
        }
    }
    // And they are free when their process has ended, without a word.
    drop(two);
    assert_eq!(one.order("bind 0.0.0.0:7601 alone"), "bound 7601");
}
