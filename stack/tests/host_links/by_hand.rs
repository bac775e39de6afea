//! Members played by the test itself: they accept and answer as the test wants.

use crate::member::wait_for;
use rustix::net::{bind, listen};
use sim::host_liar::{Liar, address, socket};
use stack::registry::RegistryConfig;
use std::os::fd::{AsFd, OwnedFd};

/// A listening socket with the name of a run, which never accepts.
pub fn mute(config: &RegistryConfig, run: usize) -> OwnedFd {
    let listener = socket();
    // Another test may have just started a process, which has copies of all of our descriptors for a moment.
    wait_for(|| bind(&listener, &address(config, run)).is_ok());
    listen(&listener, 100).unwrap();
    listener
}

/// Plays the process of a run: answers a call with these messages and numbers of descriptors, each after a message has arrived. Returns
/// the message that arrived last.
pub fn answer(
    config: &RegistryConfig,
    run: usize,
    answers: Vec<(Vec<u8>, usize)>,
) -> std::thread::JoinHandle<Vec<u8>> {
    let listener = mute(config, run);
    std::thread::spawn(move || {
        let mut last = Vec::new();
        while let Ok(socket) = rustix::net::accept(&listener) {
            let caller = Liar::at(socket);
            // A caller that only checks which process has the name sends nothing.
            if caller.hear().0.len() != 16 {
                continue;
            }
            for (bytes, fds) in &answers {
                let all = [caller.news.as_fd()].into_iter().cycle();
                caller.send(bytes, &all.take(*fds).collect::<Vec<_>>());
                last = caller.hear().0;
            }
            break;
        }
        last
    })
}
