//! The out-of-band channels, fed with what a stranger may send.

use apps::error::AppError;
use apps::oob::{self, Channel, LINE_MAX, OobError};
use apps::pingpong::exchange::{self, Destination, Stream};
use apps::protocol::{Hello, Message, VERSION};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
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
        assert!(since.elapsed() < Duration::from_secs(10), "nothing came");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// What a channel says to these bytes and the end of the stream.
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
    assert_eq!(channel.try_recv::<Message>().unwrap(), None);
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
        (b"GET / HTTP/1.1\r\n\r\n", "not a message of this program: \"GET / HTTP/1.1"),
        (b"{\"type\":\"format_disk\"}\n", "not a message of this program"),
        (b"{\"type\":\"raw_start\",\"index\":-1,\"mac\":\"\"}\n", "not a message of this program"),
        (b"\xff\xfe\n", "not a message of this program"),
        (b"{\"type\":\"go\"}", "closed the connection"),
    ] {
        let said = said_to(bytes);
        assert!(said.contains(part), "{:?} gave {said:?}", String::from_utf8_lossy(bytes));
    }
}

#[test]
fn an_endless_line_is_cut_off() {
    assert!(said_to(&vec![b'x'; LINE_MAX + 1]).contains("more than 1048576 bytes"));
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

#[test]
fn the_server_connects_before_it_answers() {
    let (stock, ours) = pair();
    let client = std::thread::spawn(move || {
        let mut stock = stock;
        stock.write_all(THEIRS_BYTES).unwrap();
        let mut answer = [0; 52];
        stock.read_exact(&mut answer).unwrap();
        stock.write_all(b"done\0").unwrap();
        answer
    });
    let mut stream = Stream::new(ours).unwrap();
    let mut connected = None;
    let connect = |theirs: &Destination| {
        connected = Some(theirs.qpn);
        Ok(())
    };
    exchange::answer(&mut stream, &OURS, || Ok(()), connect).unwrap();
    assert_eq!(connected, Some(0x11));
    assert_eq!(&client.join().unwrap(), OURS_BYTES);
}

#[test]
fn a_peer_that_is_no_pingpong_is_refused() {
    let (mut stranger, ours) = pair();
    stranger.write_all(&[b'?'; 60]).unwrap();
    let mut stream = Stream::new(ours).unwrap();
    let error = exchange::answer(&mut stream, &OURS, || Ok(()), |_| Ok(())).unwrap_err().to_string();
    assert!(error.contains("is it a pingpong?"), "{error}");
    let (short, ours) = pair();
    drop(short);
    let mut stream = Stream::new(ours).unwrap();
    let error = exchange::ask(&mut stream, &OURS, || Ok(())).unwrap_err().to_string();
    assert!(error.contains("closed the connection"), "{error}");
}
