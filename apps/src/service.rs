//! Reports to the system's service manager (sd_notify(3)) that a service is ready, and that it ends.
//!
//! The manager names a socket in the environment (`NOTIFY_SOCKET`); without that variable nothing is sent. A message that cannot be
//! sent is lost: the manager then times out, and reports that itself.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Reports that the service is ready: services that depend on it may start.
pub fn ready() {
    tell("READY=1");
}
/// Reports that the service ends.
pub fn stopping() {
    tell("STOPPING=1");
}

fn tell(what: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else { return };
    if let Err(error) = send(&socket, what) {
        tracing::warn!(%error, "the service manager could not be told {what} (NOTIFY_SOCKET)");
    }
}

/// Sends a message. A socket name that begins with `@` is abstract: it is in no directory.
fn send(socket: &OsStr, what: &str) -> io::Result<()> {
    let to = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?.send_to_addr(what.as_bytes(), &to).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manager_is_told_at_a_path_and_at_an_abstract_name() {
        let path = std::env::temp_dir().join(format!("roce-notify-{}", std::process::id()));
        let name = format!("roce-notify-{}", std::process::id());
        let at_path = UnixDatagram::bind(&path).unwrap();
        let at_name = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        for (manager, socket) in
            [(at_path, path.clone().into_os_string()), (at_name, format!("@{name}").into())]
        {
            send(&socket, "READY=1").unwrap();
            let mut bytes = [0; 32];
            let n = manager.recv(&mut bytes).unwrap();
            assert_eq!(&bytes[..n], b"READY=1");
        }
        std::fs::remove_file(&path).unwrap();
        assert!(send(path.as_os_str(), "READY=1").is_err());
    }
}
