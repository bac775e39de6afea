//! Calls for a link are handed over.

use crate::by_hand::{connect, name};
use crate::member::{Starter, config, hear, run, wait_for};
use stack::registry::{Call, Called, Came, Holder, Registry, Run, TakeCalls, VERSION};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};

/// Keeps the calls of others.
#[derive(Default)]
struct Kept(Mutex<Vec<Call>>);

impl TakeCalls for Kept {
    fn take(&self, call: Call) -> Option<Call> {
        self.0.lock().unwrap().push(call);
        None
    }
}

impl Kept {
    fn next(&self) -> Call {
        wait_for(|| !self.0.lock().unwrap().is_empty());
        self.0.lock().unwrap().remove(0)
    }
}

#[test]
fn a_call_reaches_who_takes_calls_at_the_run() {
    let config = config();
    let registry = Registry::join(&config).unwrap();
    let (mut other, _, theirs) = Starter::joined(&config);
    let ours = registry.runs()[0];
    // Nobody takes calls: it ends.
    let Called::Open(refused) = registry.call(run(theirs)).unwrap() else { panic!("it lives") };
    assert_eq!(refused.pid, other.pid());
    assert_eq!(hear(&refused), (Vec::new(), 0));
    assert!(matches!(registry.call(ours).unwrap(), Called::Nobody(Holder::Ourselves)));
    let nobodys = Run::all().find(|run| *run != ours && run.index() != theirs).unwrap();
    assert!(matches!(registry.call(nobodys).unwrap(), Called::Nobody(Holder::Nobody)));
    // We do: who is called speaks first, and descriptors come along.
    let kept = Arc::new(Kept::default());
    registry.take_calls(Some(Arc::clone(&kept) as Arc<dyn TakeCalls>));
    other.tell(&format!("call {}", ours.index()));
    let call = kept.next();
    assert_eq!(call.pid, other.pid());
    // It is counted behind the hand-over, by the registry's thread.
    wait_for(|| registry.counts().calls == 1);
    let mut bytes = [0; 8];
    assert!(matches!(call.connection.receive(&mut bytes), Came::Nothing));
    assert!(call.connection.send(b"hello", &[call.connection.as_fd(); 2]).unwrap());
    assert_eq!(other.hear(), "heard hello with 2");
    // Others join meanwhile, and one that says more than the request is refused: that is no request.
    let (_another, _, _) = Starter::joined(&config);
    let eager = connect(&name(&config, &format!("run/{ours}")));
    let more = [link_request(VERSION), vec![0]].concat();
    rustix::io::write(&eager, &more).unwrap();
    let mut reply = [0; 64];
    assert_eq!((rustix::io::read(&eager, &mut reply).unwrap(), reply[8]), (32, 3));
    // And one of another release is told so.
    let unlike = connect(&name(&config, &format!("run/{ours}")));
    rustix::io::write(&unlike, &link_request(9)).unwrap();
    assert_eq!(rustix::io::read(&unlike, &mut reply).unwrap(), 32);
    assert_eq!((reply[8], reply[12]), (2, VERSION as u8));
    assert_eq!(registry.counts().calls, 1);
    other.kill();
    assert!(matches!(registry.call(run(theirs)).unwrap(), Called::Nobody(Holder::Nobody)));
}

/// A request for a link, of a release with this version.
fn link_request(version: u32) -> Vec<u8> {
    [&b"ROCEJOIN"[..], &2u32.to_ne_bytes(), &version.to_ne_bytes()].concat()
}
