//! The out-of-band channels, with input that other programs may send.

use apps::error::{AppError, OobError};
use apps::oob::{self, Channel, GREETING_MAX, LINE_MAX};
use apps::pingpong::exchange::{self, Destination, Stream};
use apps::protocol::{Hello, Message, VERSION};
use std::cell::RefCell;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (a, listener.accept().unwrap().0)
}

fn recv(channel: &mut Channel) -> Result<Message, OobError> {
    let since = Instant::now();
    loop {
        if let Some(message) = channel.try_recv()? {
            return Ok(message);
        }
        assert!(since.elapsed() < Duration::from_secs(120), "nothing came");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The error of a channel for these bytes and the end of the stream.
fn said_to(bytes: &[u8]) -> String {
    let (mut stranger, ours) = pair();
    let bytes = bytes.to_vec();
    let writer = std::thread::spawn(move || {
        let _ = stranger.write_all(&bytes);
    });
    let error = recv(&mut Channel::new(ours).unwrap()).unwrap_err().to_string();
    writer.join().unwrap();
    error
}

#[test]
fn messages_come_back_in_order_however_they_are_cut() {
    let (mut a, b) = pair();
    let mut channel = Channel::new(b).unwrap();
    assert_eq!(channel.try_recv().unwrap(), None);
    let hello = Message::Hello(Hello::ours(4200));
    let text = format!("{}\n{}\n", serde_json::to_string(&hello).unwrap(), r#"{"type":"go"}"#);
    for byte in text.as_bytes() {
        a.write_all(&[*byte]).unwrap();
    }
    assert_eq!(recv(&mut channel).unwrap(), hello);
    assert_eq!(recv(&mut channel).unwrap(), Message::Go);
    channel.send(&Message::Bye).unwrap();
    let mut line = [0; 15];
    a.read_exact(&mut line).unwrap();
    assert_eq!(&line, b"{\"type\":\"bye\"}\n");
}

#[test]
fn strangers_are_refused_with_a_sentence() {
    for (bytes, part) in [
        (&b""[..], "closed the connection"),
        (
            b"GET / HTTP/1.1\r\n\r\n",
            "sent \"GET / HTTP/1.1\\r\" (HTTP); this end speaks with roce-perf alone",
        ),
        (b"0000:000031:12cf4f:00000000000000000000ffff0a630003\0", "roce-pingpong, ibv_rc_pingpong"),
        (b"SSH-2.0-OpenSSH_9.2p1\r\n", "(SSH)"),
        (b"\x16\x03\x01\x02\x00", "(TLS)"),
        (b"{\"type\":\"format_disk\"}\n", "not a message of this program"),
        (b"{\"type\":\"raw_start\",\"index\":-1,\"mac\":\"\"}\n", "not a message of this program"),
        (b"\xff\xfe\n", "this end speaks with roce-perf alone"),
        (b"{\"type\":\"raw_finish\",\"sent\":18446744073709551615}\n", "no measurement has more"),
        (b"{\"type\":\"finish\",\"sent\":[18446744073709551615,2]}\n", "no measurement has more"),
        (b"{\"type\":\"go\"}", "closed the connection"),
    ] {
        let said = said_to(bytes);
        assert!(said.contains(part), "{:?} gave {said:?}", String::from_utf8_lossy(bytes));
    }
}

#[test]
fn an_endless_line_is_cut_off() {
    // A peer may not send much before it has identified itself.
    let endless = vec![b'{'; LINE_MAX + 1];
    assert!(said_to(&endless).contains(&format!("more than {GREETING_MAX} bytes")));
    let (mut stranger, ours) = pair();
    let mut channel = Channel::new(ours).unwrap();
    channel.begin_session(None);
    let writer = std::thread::spawn(move || drop(stranger.write_all(&endless)));
    assert!(recv(&mut channel).unwrap_err().to_string().contains(&format!("more than {LINE_MAX} bytes")));
    drop(channel);
    writer.join().unwrap();
}

// A session has a time limit, whatever the other end does: also if it sends a byte now and then.
#[test]
fn a_session_that_lasts_too_long_is_ended() {
    let (mut slow, ours) = pair();
    let mut channel = Channel::new(ours).unwrap();
    channel.begin_session(Some(Duration::from_millis(200)));
    let since = Instant::now();
    let error = loop {
        let _ = slow.write_all(b"{");
        match channel.try_recv() {
            Ok(message) => assert_eq!(message, None),
            Err(e) => break e.to_string(),
        }
        assert!(since.elapsed() < Duration::from_secs(120));
        std::thread::sleep(Duration::from_millis(10));
    };
    assert!(error.contains("200ms") && error.contains("--max-session"), "{error}");
}

// Texts of the other end are shown on a terminal, which they must not control or fill.
#[test]
fn sentences_of_the_other_end_are_short_and_plain() {
    let reason = format!("\x1b[2J\u{9b}31m{}", "x".repeat(9000));
    let message = Message::Failed { reason }.checked().unwrap();
    let Message::Failed { reason } = message else { panic!("{message:?}") };
    assert!(reason.starts_with("?[2J?31mxxx") && reason.len() == 500, "{reason}");
    let counters = |name: &str| {
        let counters = apps::counters::Counts::new([(name, 1)]);
        Message::Report(apps::protocol::Report { counters, ..Default::default() }).checked()
    };
    assert!(counters("naks_sent").is_ok());
    assert!(counters("\x1b[31m").is_err() && counters(&"x".repeat(65)).is_err());
}

#[test]
fn other_versions_and_programs_are_refused() {
    assert_eq!(Hello::ours(1500).check(), Ok(()));
    let other = Hello { version: VERSION + 1, ..Hello::ours(1500) };
    assert!(other.check().unwrap_err().contains(&format!("version {}", VERSION + 1)));
    let other = Hello { program: "iperf".into(), ..Hello::ours(1500) };
    assert!(other.check().unwrap_err().contains("\"iperf\""));
}

#[test]
fn a_client_may_start_before_its_server() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let server = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        TcpListener::bind(("127.0.0.1", port)).unwrap().accept().unwrap();
    });
    oob::connect::<AppError>("127.0.0.1", port, Duration::from_secs(10), || Ok(())).unwrap();
    server.join().unwrap();
    let error =
        oob::connect::<AppError>("127.0.0.1", port, Duration::ZERO, || Ok(())).unwrap_err().to_string();
    assert!(error.contains("no server answers at 127.0.0.1"), "{error}");
}

const OURS: Destination = Destination {
    lid: 0,
    qpn: 0x31,
    psn: 0x12cf4f,
    gid: verbs::Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 99, 0, 3]),
};
const OURS_BYTES: &[u8; 52] = b"0000:000031:12cf4f:00000000000000000000ffff0a630003\0";
const THEIRS_BYTES: &[u8; 52] = b"0000:000011:e493e4:00000000000000000000ffff0a630002\0";

#[test]
fn pingpong_destinations_are_the_stock_tools_bytes() {
    assert_eq!(&OURS.to_bytes(), OURS_BYTES);
    assert_eq!(Destination::from_bytes(OURS_BYTES).unwrap(), OURS);
    assert_eq!(OURS.to_string(), "LID 0x0000, QPN 0x000031, PSN 0x12cf4f, GID ::ffff:10.99.0.3");
    for bad in [
        b"0000:000031:12cf4f:00000000000000000000ffff0a6300030",
        b"0000:+00031:12cf4f:00000000000000000000ffff0a630003\0",
        b"0000:000031:12cf4f:00000000000000000000ffff0a63000g\0",
        b"0000000031:12cf4f:::00000000000000000000ffff0a63000\0",
        b"GET / HTTP/1.1 Host: localhost User-Agent: curl/8.1\0",
        b"0000:000031:12cf4f:0000:0000000000000000ffff0a63000\0",
    ] {
        let error = Destination::from_bytes(bad).unwrap_err().to_string();
        assert!(error.contains("is not LID:QPN:PSN:GID"), "{error}");
    }
}

#[test]
fn the_client_speaks_first_and_says_done() {
    let (stock, ours) = pair();
    let server = std::thread::spawn(move || {
        let mut stock = stock;
        let mut question = [0; 52];
        stock.read_exact(&mut question).unwrap();
        stock.write_all(THEIRS_BYTES).unwrap();
        // The stock server reads once, into a buffer of 52 bytes, and wants exactly five.
        let mut done = [0; 52];
        let n = stock.read(&mut done).unwrap();
        (question, done[..n].to_vec())
    });
    let mut stream = Stream::new(ours).unwrap();
    let theirs = exchange::ask(&mut stream, &OURS, || Ok(())).unwrap();
    let (question, done) = server.join().unwrap();
    assert_eq!((&question, &done[..]), (OURS_BYTES, &b"done\0"[..]));
    assert_eq!((theirs.qpn, theirs.psn), (0x11, 0xe493e4));
}

/// A pingpong server in a thread: its address, and its result.
fn pingpong_server() -> (SocketAddr, JoinHandle<(Destination, Vec<u32>)>) {
    let listener = oob::listen("127.0.0.1", 0).unwrap();
    let addr = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let connected = RefCell::new(Vec::new());
        let connect = |theirs: &Destination, _: &mut _| {
            connected.borrow_mut().push(theirs.qpn);
            Ok(())
        };
        let disconnect = || {
            connected.borrow_mut().push(0);
            Ok(())
        };
        let (theirs, _) = exchange::serve(listener, &OURS, || Ok(()), connect, disconnect).unwrap();
        (theirs, connected.into_inner())
    });
    (addr, server)
}

#[test]
fn the_server_connects_before_it_answers() {
    let (addr, server) = pingpong_server();
    let mut stock = TcpStream::connect(addr).unwrap();
    stock.write_all(THEIRS_BYTES).unwrap();
    let mut answer = [0; 52];
    stock.read_exact(&mut answer).unwrap();
    stock.write_all(b"done\0").unwrap();
    assert_eq!(&answer, OURS_BYTES);
    let (theirs, connected) = server.join().unwrap();
    assert_eq!((theirs.qpn, connected), (0x11, vec![0x11]));
}

// A peer that is no client, or vanishes during the exchange, is refused with the reason and ends nothing; a silent one delays
// no client.
#[test]
fn a_pingpong_server_outlives_those_who_are_no_pingpong() {
    let (addr, server) = pingpong_server();
    let _silent = TcpStream::connect(addr).unwrap();
    let mut slow = TcpStream::connect(addr).unwrap();
    slow.write_all(&THEIRS_BYTES[..7]).unwrap();
    for (said, part) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], "(HTTP)"),
        (b"{\"type\":\"hello\",\"program\":\"roce-perf\"}\n", "(a message of roce-perf)"),
        (&[b'?'; 60], "is it a pingpong?"),
        (&[0; 1], "is it a pingpong?"),
    ] {
        let mut stranger = TcpStream::connect(addr).unwrap();
        stranger.write_all(said).unwrap();
        let mut words = String::new();
        stranger.read_to_string(&mut words).unwrap();
        assert!(words.starts_with("{\"type\":\"failed\"") && words.contains(part), "{words:?}");
    }
    drop(TcpStream::connect(addr).unwrap());
    let half = TcpStream::connect(addr).unwrap();
    half.shutdown(std::net::Shutdown::Write).unwrap();
    let mut leaves = TcpStream::connect(addr).unwrap();
    leaves.write_all(THEIRS_BYTES).unwrap();
    leaves.read_exact(&mut [0; 52]).unwrap();
    drop(leaves);
    let mut lies = TcpStream::connect(addr).unwrap();
    lies.write_all(THEIRS_BYTES).unwrap();
    lies.read_exact(&mut [0; 52]).unwrap();
    lies.write_all(b"enod\0").unwrap();
    let mut words = String::new();
    lies.read_to_string(&mut words).unwrap();
    assert!(words.contains("instead of"), "{words}");

    let mut client = Stream::new(TcpStream::connect(addr).unwrap()).unwrap();
    exchange::ask(&mut client, &Destination { qpn: 0x12, ..OURS }, || Ok(())).unwrap();
    let (theirs, connected) = server.join().unwrap();
    assert_eq!((theirs.qpn, connected), (0x12, vec![0x11, 0, 0x11, 0, 0x12]));
}

// The text of a server of another kind, if it sent any.
#[test]
fn a_pingpong_client_says_what_a_wrong_server_said() {
    for (answer, part) in [
        (format!("{}\n", serde_json::json!(Message::Failed { reason: "not here".into() })), "not here"),
        ("HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\n\r\n".into(), "(HTTP)"),
        ("?".repeat(52), "is it a pingpong?"),
        (String::new(), "closed the connection"),
    ] {
        let (mut server, ours) = pair();
        server.write_all(answer.as_bytes()).unwrap();
        server.shutdown(std::net::Shutdown::Write).unwrap();
        let error = exchange::ask(&mut Stream::new(ours).unwrap(), &OURS, || Ok(())).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}
