//! Goal: options take effect, and error messages name the valid values.

use super::*;

fn parsed(options: &str) -> Result<Settings, String> {
    let text = format!("memif:{}/no-such-memif.sock{options}", std::env::temp_dir().display());
    let PortSpec::Memif { path, role, options } = text.parse().unwrap() else { panic!("{text}") };
    settings(&path, role, &options, &PortOptions::default())
}

#[test]
#[cfg_attr(miri, ignore = "looks at files")]
fn options_are_what_they_say() {
    let me = rustix::process::geteuid().as_raw();
    let settings = parsed("").unwrap();
    assert_eq!((settings.role, settings.terms.log2, settings.buffer), (None, 10, 4288));
    assert_eq!(settings.peers, Peers::Users(vec![me, 0]));
    let settings = parsed(",role=client,rsize=11,bsize=9000,id=3,secret=psst").unwrap();
    assert_eq!((settings.role, settings.terms.log2, settings.buffer), (Some(MemifRole::Client), 11, 9000));
    assert_eq!((settings.terms.id, &settings.terms.secret[..6]), (3, &b"psst\0\0"[..]));
    let settings = parsed(",owner-uid=7,owner-gid=8,peer-uid=9").unwrap();
    assert_eq!((settings.owner, settings.peers), ((Some(7), Some(8)), Peers::Users(vec![me, 0, 7, 9])));
    assert_eq!(parsed(",peer-uid=any").unwrap().peers, Peers::Any);
}

#[test]
#[cfg_attr(miri, ignore = "looks at files")]
fn errors_say_what_is_right() {
    for (options, part) in [
        (",rsize=15", "2^14"),
        (",rsize=0", "2^14"),
        (",rsize=x", "not a number"),
        (",bsize=2048", "a frame of 4218 bytes"),
        (",bsize=65536", "at most 65535"),
        (",zero-copy=yes", "off for good"),
        (",secret=longer-than-twenty-four-bytes", "24 bytes at most"),
        (",peer-uid=root", "neither the number of a user nor any"),
        (",colour=red", "the options are rsize, bsize, id"),
        (",rsize=14,bsize=65535", "use a smaller rsize"),
    ] {
        let many = PortOptions { queues: 16, ..PortOptions::default() };
        let text = format!("memif:/tmp/x.sock{options}");
        let PortSpec::Memif { path, role, options } = text.parse().unwrap() else { panic!("{text}") };
        let error = settings(&path, role, &options, &many).err().expect("an error");
        assert!(error.contains(part), "{text}: {error}");
    }
    let nowhere = settings(Path::new("/no/such/directory/x.sock"), None, &[], &PortOptions::default());
    assert!(nowhere.err().expect("an error").contains("/no/such/directory"));
}

#[test]
#[cfg_attr(miri, ignore = "uses sockets")]
fn other_users_are_not_welcome() {
    // Goal: either end checks the user of the peer's process, and refuses a user that is not accepted with a message; here only a user that
    // no process has is accepted.
    let path = std::env::temp_dir().join(format!("roce-memif-user-{}.sock", std::process::id()));
    let terms = handshake::Terms { queues: 1, log2: 4, id: 0, secret: [0; message::SECRET] };
    let settings = |role, peers| Settings {
        path: path.clone(),
        role: Some(role),
        terms: terms.clone(),
        buffer: 4288,
        peers,
        owner: (None, None),
        stall: STALL,
    };
    let state = |role, peers: Peers| {
        let settings = settings(role, peers);
        let end = end(&settings).unwrap();
        State::new(meeting::Common::new("test".into(), settings.terms, settings.peers).unwrap(), end)
    };
    let refused = State::refused;
    let (nobody, all) = (Peers::Users(vec![u32::MAX - 1]), Peers::Any);
    for (server, client) in [(nobody.clone(), all.clone()), (all.clone(), nobody)] {
        let server_refuses = server != all;
        let (server, client) = (state(MemifRole::Server, server), state(MemifRole::Client, client));
        while refused(if server_refuses { &server } else { &client }) == 0 {
            client.serve();
            server.serve();
            assert!(server.current().is_none() && client.current().is_none());
        }
    }
    let (server, client) = (state(MemifRole::Server, all.clone()), state(MemifRole::Client, all));
    while server.current().is_none() || client.current().is_none() {
        client.serve();
        server.serve();
    }
    assert_eq!((refused(&server), refused(&client)), (0, 0));
}
