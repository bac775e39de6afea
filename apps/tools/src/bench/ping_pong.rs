//! A ping-pong over TCP on the loopback interface whose ends block in the kernel, as a program without RDMA does that leaves the core to
//! others while it waits.

use std::io::{Read, Result, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Instant;

/// The mean one-way time over `rounds` rounds with messages of `size` bytes, in nanoseconds.
///
/// # Errors
/// Those of the system calls.
pub fn mean_ns(size: usize, rounds: u32) -> Result<u64> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let mut client = TcpStream::connect(listener.local_addr()?)?;
    let (mut server, _) = listener.accept()?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let mut message = vec![0; size];
    let echo = std::thread::spawn(move || {
        let mut message = vec![0; size];
        // Ends when the client closes.
        while server.read_exact(&mut message).and_then(|()| server.write_all(&message)).is_ok() {}
    });
    let since = Instant::now();
    for _ in 0..rounds {
        client.write_all(&message)?;
        client.read_exact(&mut message)?;
    }
    let mean = since.elapsed().as_nanos() / u128::from(rounds.max(1)) / 2;
    drop(client);
    let _ = echo.join();
    Ok(mean as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_go_to_and_fro() {
        assert!(mean_ns(64, 10).unwrap() > 0);
        mean_ns(64, 0).unwrap();
    }
}
