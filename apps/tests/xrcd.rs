//! Goal: processes of a host share an XRC domain by a file. Any of them makes a target, any has shared receive queues, and a target
//! outlives whoever made it, as long as one of them is there. In a network namespace with lo alone, which needs root.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, wait};
use verbs::port::PortSpec;
use verbs::{
    Access, Context, Cq, DeviceConfig, Mr, Pd, Qp, QpInitAttr, Qpn, RcEndpoint, RcOptions, RecvWr, SendWr,
    Srq, SrqInitAttr, VerbsError, Wc, XrcTarget, Xrcd, XrcdOflags,
};

const CHILD: &str = "ROCE_XRCD_TEST_FILE";
const OWNER: &str = env!("CARGO_BIN_EXE_roce-xrcd");
/// The time that a machine may take, however busy it is.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of a message, at most.
const ROOM: usize = 64;
/// Receives that wait in a queue.
const DEPTH: usize = 16;

/// A process that shares the domain, or connects to it: does what it is told, a line each, until it is told no more.
#[test]
fn child() {
    let Some(path) = std::env::var_os(CHILD) else { return };
    let mut process = Process::new(Path::new(&path));
    for line in std::io::stdin().lines() {
        let said = match process.obey(&line.unwrap()) {
            Ok(said) => said,
            Err(error) => format!("error {} {error}", error.errno()),
        };
        println!("\n> {said}");
    }
}

struct Process {
    target: Option<XrcTarget>,
    initiator: Option<Qp>,
    srq: Option<Srq>,
    xrcd: Option<Xrcd>,
    file: PathBuf,
    mr: Mr,
    cq: Cq,
    pd: Pd,
    context: Context,
}

impl Process {
    fn new(file: &Path) -> Self {
        let context = Context::open(DeviceConfig::new("host".parse::<PortSpec>().unwrap())).unwrap();
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(64).unwrap());
        let mr = pd.reg_mr(DEPTH * ROOM, Access::LOCAL_WRITE).unwrap();
        let file = file.into();
        Self { target: None, initiator: None, srq: None, xrcd: None, file, mr, cq, pd, context }
    }

    fn obey(&mut self, line: &str) -> Result<String, VerbsError> {
        let words: Vec<&str> = line.split(' ').collect();
        let options = RcOptions::default().timeout(14).retry_cnt(3);
        Ok(match words[..] {
            ["open", flags] => {
                let file = File::open(&self.file).unwrap();
                let flags = XrcdOflags::from_bits(flags.parse().unwrap()).unwrap();
                self.xrcd = Some(self.context.open_xrcd_of(&file, flags)?);
                "open".into()
            }
            ["close"] => {
                self.xrcd.take().unwrap().close().map_err(|(error, _)| error)?;
                "closed".into()
            }
            ["target"] => {
                let target = self.xrcd.as_ref().unwrap().create_qp(None)?;
                let endpoint = target.endpoint(1)?.to_string();
                self.target = Some(target);
                endpoint
            }
            ["open-target", qpn] => {
                let qpn = Qpn::new(qpn.parse().unwrap());
                let target = self.xrcd.as_ref().unwrap().open_qp(qpn)?;
                let state = format!("{:?}", target.state());
                self.target = Some(target);
                state
            }
            ["close-target"] => {
                self.target.take().unwrap().destroy().map_err(|(error, _)| error)?;
                "closed".into()
            }
            ["connect", peer] => {
                let peer: RcEndpoint = peer.parse().unwrap();
                self.target.as_ref().unwrap().connect(&peer, &options)?;
                format!("{:?}", self.target.as_ref().unwrap().query()?.qp_state)
            }
            ["accept", peer] => {
                let qpn = self.xrcd.as_ref().unwrap().accept_xrc(&peer.parse().unwrap(), &options)?;
                let gid = self.context.query_gid(1, 1)?;
                RcEndpoint { gid, qpn, ..peer.parse().unwrap() }.to_string()
            }
            ["srq"] => {
                let (pd, xrcd) = (&self.pd, self.xrcd.as_ref().unwrap());
                let srq = pd.create_xrc_srq(&SrqInitAttr::new(DEPTH as u32, 1), xrcd, &self.cq)?;
                let number = srq.srq_num();
                self.srq = Some(srq);
                (0..DEPTH).try_for_each(|slot| self.receive(slot))?;
                number.to_string()
            }
            // A program that waits for any of its children finds none.
            ["children"] => format!("{:?}", wait(WaitOptions::NOHANG).map(drop)),
            ["initiator"] => {
                let qp = self.pd.create_qp(&QpInitAttr::xrc_ini(&self.cq))?;
                let endpoint = qp.endpoint(1)?.to_string();
                self.initiator = Some(qp);
                endpoint
            }
            ["join", peer] => {
                self.initiator.as_ref().unwrap().connect_rc(&peer.parse().unwrap(), &options)?;
                "joined".into()
            }
            ["send", srqn, text] => {
                let wr = SendWr::send(1, &[])
                    .inline(text.as_bytes())
                    .remote_srqn(srqn.parse().unwrap())
                    .signaled();
                self.initiator.as_ref().unwrap().post_send(&[wr])?;
                format!("{:?}", self.next()?.status)
            }
            ["take"] => {
                let wc = self.next()?;
                let mut text = vec![0; wc.byte_len as usize];
                self.mr.read(wc.wr_id as usize * ROOM, &mut text)?;
                self.receive(wc.wr_id as usize)?;
                format!("{} of {}", String::from_utf8(text).unwrap(), wc.qp_num.get())
            }
            _ => panic!("{line:?}"),
        })
    }

    fn receive(&self, slot: usize) -> Result<(), VerbsError> {
        let sge = [self.mr.sge(slot * ROOM..(slot + 1) * ROOM)?];
        Ok(self.srq.as_ref().unwrap().post_recv(&[RecvWr::new(slot as u64, &sge)])?)
    }

    fn next(&self) -> Result<Wc, VerbsError> {
        let mut wc = [Wc::default()];
        let since = Instant::now();
        while self.cq.poll(&mut wc)? == 0 {
            assert!(since.elapsed() < PATIENCE, "nothing completes");
        }
        Ok(wc[0])
    }
}

/// A host, and the file of a domain on it; gone when the test ends.
struct Host {
    space: String,
    dir: PathBuf,
    linger: &'static str,
}

impl Host {
    /// `None`, with a printed reason, where it cannot be set up.
    fn new(tag: char) -> Option<Self> {
        let space = format!("rox{tag}{}", std::process::id());
        let run = |args: &[&str]| Command::new("ip").args(args).status().is_ok_and(|status| status.success());
        if !run(&["netns", "add", &space]) || !run(&["-n", &space, "link", "set", "lo", "up"]) {
            let _ = writeln!(std::io::stderr(), "SKIPPED apps/tests/xrcd.rs: it needs root and the ip tool");
            return None;
        }
        let dir = std::env::temp_dir().join(&space);
        std::fs::create_dir_all(&dir).unwrap();
        File::create(dir.join("domain")).unwrap();
        Some(Self { space, dir, linger: "0.3" })
    }

    fn file(&self) -> PathBuf {
        self.dir.join("domain")
    }

    fn start(&self) -> Member {
        self.start_with(Path::new(OWNER))
    }

    fn start_with(&self, owner: &Path) -> Member {
        let test = std::env::current_exe().unwrap();
        let mut child = Command::new("ip")
            .args(["netns", "exec", &self.space])
            .arg(test)
            .args(["child", "--exact", "--nocapture", "--test-threads=1"])
            .env(CHILD, self.file())
            .env("ROCE_XRCD_PROGRAM", owner)
            .env("ROCE_XRCD_LINGER", self.linger)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (send, said) = mpsc::channel();
        let stdout = child.stdout.take().unwrap();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if let Some(said) = line.strip_prefix("> ") {
                    let _ = send.send(said.to_string());
                }
            }
        });
        Member { stdin: child.stdin.take(), child, said }
    }

    /// A process that has the domain open.
    fn member(&self) -> Member {
        let mut member = self.start();
        assert_eq!(member.does(&format!("open {}", XrcdOflags::CREAT.bits())), "open");
        member
    }

    /// Whether the domain has an owner.
    fn has_owner(&self) -> bool {
        let args = ["netns", "exec", &self.space, "cat", "/proc/net/unix"];
        let sockets = Command::new("ip").args(args).output().unwrap();
        String::from_utf8_lossy(&sockets.stdout).contains("/xrcd/")
    }

    fn owner_ends(&self) {
        let since = Instant::now();
        while self.has_owner() {
            assert!(since.elapsed() < PATIENCE, "the owner of the domain stays");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.space]).status();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Another process; killed when dropped.
struct Member {
    stdin: Option<ChildStdin>,
    child: Child,
    said: mpsc::Receiver<String>,
}

impl Member {
    fn begins(&mut self, line: &str) {
        writeln!(self.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    fn says(&mut self, after: &str) -> String {
        self.said.recv_timeout(PATIENCE * 2).unwrap_or_else(|_| panic!("no word after {after:?}"))
    }

    fn does(&mut self, line: &str) -> String {
        self.begins(line);
        self.says(line)
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Ends as a program does.
    fn ends(mut self) {
        drop(self.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // `ip netns exec` becomes the program: it is the process itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn qpn(endpoint: &str) -> u32 {
    endpoint.parse::<RcEndpoint>().unwrap().qpn.get()
}

/// Connects an initiator with a target that a member makes. Returns the target's number.
fn connect(initiator: &mut Member, maker: &mut Member) -> u32 {
    let target = maker.does("target");
    let peer = initiator.does("initiator");
    assert_eq!(maker.does(&format!("connect {peer}")), "Rtr");
    assert_eq!(initiator.does(&format!("join {target}")), "joined");
    qpn(&target)
}

/// Sends a message to a queue, and sees that its process gets it.
fn passes(initiator: &mut Member, receiver: &mut Member, srq: &str, target: u32, text: &str) {
    assert_eq!(initiator.does(&format!("send {srq} {text}")), "Success", "{text}");
    assert_eq!(receiver.does("take"), format!("{text} of {target}"));
}

#[test]
fn a_target_outlives_the_process_that_made_it_while_others_receive() {
    let Some(host) = Host::new('a') else { return };
    let (mut maker, mut one, mut two, mut initiator) =
        (host.member(), host.member(), host.member(), host.start());
    assert!(!host.has_owner(), "nobody needs one yet");
    let first = one.does("srq");
    assert!(host.has_owner());
    assert_eq!(
        one.does("children"),
        format!("{:?}", Err::<(), _>(Errno::CHILD)),
        "the owner is nobody's child"
    );
    let target = connect(&mut initiator, &mut maker);
    // A queue that is made afterwards is reached as well.
    let second = two.does("srq");
    assert_ne!(first, second);
    for turn in 0..10 {
        passes(&mut initiator, &mut one, &first, target, &format!("one{turn}"));
        passes(&mut initiator, &mut two, &second, target, &format!("two{turn}"));
    }
    drop(maker);
    for turn in 10..20 {
        passes(&mut initiator, &mut two, &second, target, &format!("two{turn}"));
        passes(&mut initiator, &mut one, &first, target, &format!("one{turn}"));
    }
    // Whoever has a queue can go, too.
    drop(one);
    passes(&mut initiator, &mut two, &second, target, "last");
    // And whoever comes finds the target.
    let mut late = host.member();
    assert_eq!(late.does(&format!("open-target {target}")), "Rtr");
    let third = late.does("srq");
    passes(&mut initiator, &mut late, &third, target, "late");
    late.ends();
    two.ends();
    host.owner_ends();
}

#[test]
fn the_last_handle_ends_a_target_and_the_last_process_the_domain() {
    let Some(host) = Host::new('b') else { return };
    let (mut maker, mut other, mut initiator) = (host.member(), host.member(), host.start());
    let srq = other.does("srq");
    let target = connect(&mut initiator, &mut maker);
    assert_eq!(other.does(&format!("open-target {target}")), "Rtr");
    assert_eq!(maker.does("close-target"), "closed");
    passes(&mut initiator, &mut other, &srq, target, "still");
    assert_eq!(other.does("close-target"), "closed");
    assert_eq!(initiator.does(&format!("send {srq} gone")), "RetryExcErr");
    assert!(maker.does(&format!("open-target {target}")).starts_with("error 22 "));
    // A receive-only target belongs to the domain.
    let peer = initiator.does("initiator");
    let receiver = maker.does(&format!("accept {peer}"));
    assert_eq!(initiator.does(&format!("join {receiver}")), "joined");
    passes(&mut initiator, &mut other, &srq, qpn(&receiver), "received");
    drop(maker);
    passes(&mut initiator, &mut other, &srq, qpn(&receiver), "still-received");
    other.ends();
    let mut next = host.member();
    assert!(
        next.does(&format!("open-target {}", qpn(&receiver))).starts_with("error 22 "),
        "it is another domain"
    );
    next.ends();
    host.owner_ends();
}

// Goal: the owner goes on serving others while it waits for one, and not for long.
#[test]
fn a_stopped_process_holds_up_others_for_a_few_seconds_and_is_dropped() {
    let Some(host) = Host::new('s') else { return };
    let (mut maker, mut one, mut stopped, mut initiator) =
        (host.member(), host.member(), host.member(), host.start());
    let (first, lost) = (one.does("srq"), stopped.does("srq"));
    stopped.signal(Signal::STOP);
    let target = maker.does("target");
    let peer = initiator.does("initiator");
    maker.begins(&format!("connect {peer}"));
    assert!(one.does("target").parse::<RcEndpoint>().is_ok(), "others are served meanwhile");
    assert!(maker.said.try_recv().is_err(), "it waits for the stopped one");
    assert_eq!(maker.says("connect"), "Rtr");
    assert_eq!(initiator.does(&format!("join {target}")), "joined");
    passes(&mut initiator, &mut one, &first, qpn(&target), "here");
    stopped.signal(Signal::CONT);
    let error = stopped.does("target");
    assert!(error.starts_with("error 5 ") && error.contains("open it again"), "{error}");
    assert_ne!(initiator.does(&format!("send {lost} there")), "Success", "nobody has that queue any more");
}

#[test]
fn a_domain_exists_for_others_once_something_is_made_in_it() {
    let Some(host) = Host::new('c') else { return };
    let (mut one, mut two) = (host.start(), host.start());
    assert!(two.does("open 0").starts_with("error 2 "), "there is none");
    let (creat, excl) = (XrcdOflags::CREAT.bits(), XrcdOflags::EXCL.bits());
    assert_eq!(one.does(&format!("open {}", creat | excl)), "open");
    one.does("srq");
    assert!(two.does(&format!("open {}", creat | excl)).starts_with("error 17 "), "it exists");
    assert_eq!(two.does("open 0"), "open");
    assert!(one.does("close").starts_with("error 16 "), "a queue is made in it");
    one.ends();
    assert_eq!(two.does("close"), "closed");
    host.owner_ends();
}

#[test]
fn without_its_program_a_domain_says_what_to_do() {
    let Some(host) = Host::new('d') else { return };
    let mut member = host.start_with(&host.dir.join("none"));
    assert_eq!(member.does(&format!("open {}", XrcdOflags::CREAT.bits())), "open");
    let error = member.does("srq");
    assert!(error.starts_with("error 2 ") && error.contains("ROCE_XRCD_PROGRAM"), "{error}");
}
