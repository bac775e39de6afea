//! Stream or sequenced-packet sockets with names in the abstract namespace. No call blocks, except to close descriptors that a peer sent
//! ([`Connection::close_here`]).
//!
//! A peer may send descriptors of any kind, and closing one may block for as long as its owner likes. So descriptors are received only from
//! a member to which a request was sent, and a connection with unread data is closed on a thread of its own ([`apart`]), a bounded number
//! at a time.

use super::sys::{self, Life, Peer};
use crate::ipc::is_exhausted;
use crate::ipc::rights::{self, Sent};
use crate::sync::apart::{self, Apart};
use crate::sync::eventfd::wait_readable;
use crate::sync::process::Process;
use crate::sync::unforked::Unforked;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, ReturnFlags, SendFlags, Shutdown, SocketAddrUnix,
    SocketFlags, SocketType,
};
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

/// Most connections that wait to be accepted.
const BACKLOG: i32 = 1024;
/// Most connections that are closed on threads of their own at the same time.
const CLOSING_MAX: usize = 32;

/// Most pieces of 1024 wake-ups that are read at a time. By default a socket has room for some 300 wake-ups that were sent one by one; the
/// system's settings may allow more.
const TAKEN_MAX: usize = 64;
/// Most pieces of 512 bytes that are dropped before a connection is closed: as many wake-ups as a socket has room for.
const DROPPED_MAX: usize = 8;

static CLOSING: AtomicUsize = AtomicUsize::new(0);

const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

fn socket(kind: SocketType) -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(AddressFamily::UNIX, kind, FLAGS, None)?)
}

fn address(name: &str) -> io::Result<SocketAddrUnix> {
    Ok(SocketAddrUnix::new_abstract_name(name.as_bytes())?)
}

/// A socket whose name this process holds.
#[derive(Debug)]
pub struct Listener {
    /// Dropped first.
    _unforked: Unforked,
    fd: OwnedFd,
    made_by: Process,
}

impl Listener {
    /// Takes a name; `None` if another socket of this kind has it. The socket does not listen yet.
    ///
    /// # Errors
    /// Those of socket(2) and bind(2).
    pub fn bind(kind: SocketType, name: &str) -> io::Result<Option<Self>> {
        let (fd, unforked) = Unforked::make(|| socket(kind))?;
        match rustix::net::bind(&fd, &address(name)?) {
            Ok(()) => Ok(Some(Self { _unforked: unforked, fd, made_by: Process::this() })),
            Err(Errno::ADDRINUSE) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Lets other processes connect.
    ///
    /// # Errors
    /// Those of listen(2).
    pub fn listen(&self) -> io::Result<()> {
        Ok(rustix::net::listen(&self.fd, BACKLOG)?)
    }

    /// Accepts the next connection.
    ///
    /// # Errors
    /// `None` if none waits. Otherwise this process has no descriptor left, or the system has no descriptor or memory left: connections
    /// wait.
    pub fn accept(&self) -> Result<Connection, Option<io::Error>> {
        accept(self.fd.as_fd())
    }
}

/// See [`Listener::accept`].
fn accept(listener: BorrowedFd<'_>) -> Result<Connection, Option<io::Error>> {
    let made = Unforked::make(|| Ok(rustix::net::accept_with(listener, FLAGS)?));
    let open = made.map(|(fd, unforked)| Connection(Some(Open { _unforked: unforked, fd: Arc::new(fd) })));
    open.map_err(|error| is_exhausted(&error).then_some(error))
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // In a forked child the descriptor is no longer this socket.
        if !self.made_by.is_this() {
            return;
        }
        // Otherwise the connections in its queue would be closed with it, and their contents.
        let _ = rustix::net::shutdown(&self.fd, Shutdown::Both);
        while self.accept().is_ok() {}
    }
}

/// A connection. Dropping it closes it, on a thread of its own if it has unread data.
#[derive(Debug)]
pub struct Connection(Option<Open>);

#[derive(Debug)]
struct Open {
    /// Dropped first.
    _unforked: Unforked,
    fd: Arc<OwnedFd>,
}

/// Ends a connection while it is still open.
#[derive(Debug)]
pub struct LastWord(Arc<OwnedFd>);

impl LastWord {
    /// Ends the connection now, as the peer sees it. A system call that a signal handler may make.
    pub fn say(&self) {
        let _ = rustix::net::shutdown(&self.0, Shutdown::Write);
    }
}

/// Wake-ups over a connection: each byte wakes the threads that wait for the socket at the other end. Threads may share it.
#[derive(Debug)]
pub struct Wakeups(Arc<OwnedFd>);

/// Descriptors arrived with the wake-ups. They are still in the socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HasDescriptors;

impl Wakeups {
    /// Wakes the peer. Never blocks: if the socket has no room, the peer has not yet read bytes that woke it.
    pub fn send(&self) {
        let _ = rustix::net::send(&self.0, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    /// Reads the bytes that the peer has sent, so that there is room for more, all but one: while a byte is left, each thread that waits
    /// for the socket edge-triggered is woken, and none consumes the wake-up of another one. Only one thread at a time may call this.
    ///
    /// # Errors
    /// The peer has sent descriptors. None is received.
    pub fn take_all_but_one(&self) -> Result<(), HasDescriptors> {
        let mut bytes = [0; 1024];
        for _ in 0..TAKEN_MAX {
            match look(&self.0, &mut bytes, RecvFlags::DONTWAIT | RecvFlags::PEEK) {
                Lies::Descriptors => return Err(HasDescriptors),
                Lies::Bytes(len) if len > 1 => {
                    look(&self.0, &mut bytes[1..len], RecvFlags::DONTWAIT);
                    if len < bytes.len() {
                        break;
                    }
                }
                Lies::Bytes(_) | Lies::Nothing | Lies::End => break,
            }
        }
        Ok(())
    }
}

impl AsFd for Wakeups {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Receives or peeks bytes of a socket, and never descriptors: bytes that carry descriptors are reported as such when peeked, and the
/// descriptors are not touched.
fn look(socket: impl AsFd, bytes: &mut [u8], flags: RecvFlags) -> Lies {
    let slice = &mut [IoSliceMut::new(bytes)];
    match rustix::net::recvmsg(socket, slice, &mut RecvAncillaryBuffer::default(), flags) {
        Ok(got) if got.flags.contains(ReturnFlags::CTRUNC) => Lies::Descriptors,
        // Peers send no empty message.
        Ok(got) if got.bytes == 0 => Lies::End,
        Ok(got) => Lies::Bytes(got.bytes),
        Err(Errno::AGAIN | Errno::INTR) => Lies::Nothing,
        Err(_) => Lies::End,
    }
}

/// The result of a connect to a name.
#[derive(Debug)]
pub enum Connected {
    /// Connected to a process that listens.
    Open(Connection),
    /// No process, or one that does not listen.
    Nobody,
    /// A process whose queue of connections is full.
    Full,
}

/// What a connection has to receive.
#[derive(Debug, PartialEq, Eq)]
pub enum Lies {
    /// Nothing, yet.
    Nothing,
    /// End of file: nothing, and nothing will follow.
    End,
    /// This many bytes, limited by the buffer.
    Bytes(usize),
    /// Bytes and descriptors.
    Descriptors,
}

/// The result of a receive.
#[derive(Debug)]
pub enum Came {
    /// Nothing, yet.
    Nothing,
    /// The end of the connection.
    End,
    /// This many bytes, and descriptors.
    Message(usize, Vec<Apart<OwnedFd>>),
    /// Bytes, and descriptors for which this process has no room.
    NoRoom,
}

impl Connection {
    /// Connects to the process that has a name among the sockets of this kind.
    ///
    /// # Errors
    /// Those of socket(2).
    pub fn to(kind: SocketType, name: &str) -> io::Result<Connected> {
        let (fd, unforked) = Unforked::make(|| socket(kind))?;
        let open = Open { _unforked: unforked, fd: Arc::new(fd) };
        match rustix::net::connect(&open.fd, &address(name)?) {
            Ok(()) => Ok(Connected::Open(Self(Some(open)))),
            Err(Errno::AGAIN) => Ok(Connected::Full),
            Err(Errno::CONNREFUSED) => Ok(Connected::Nobody),
            Err(error) => Err(error.into()),
        }
    }

    /// The same connection, with a descriptor whose number is at least `least` if possible.
    #[must_use]
    pub fn renumbered(mut self, least: RawFd) -> Self {
        if let Ok((fd, unforked)) = Unforked::make(|| Ok(rustix::io::fcntl_dupfd_cloexec(&self, least)?)) {
            // Closes the old descriptor, which does not end the connection.
            self.0 = Some(Open { _unforked: unforked, fd: Arc::new(fd) });
        }
        self
    }

    /// The peer process and its user.
    ///
    /// # Errors
    /// Those of getsockopt(2).
    pub fn peer(&self) -> io::Result<Peer> {
        sys::peer(self)
    }

    /// Whether the peer process lives.
    ///
    /// # Errors
    /// This process has no descriptor left.
    pub fn life(&self, peer: Peer) -> io::Result<Life> {
        sys::life_of_peer(self, peer)
    }

    /// Sends a message with up to [`DESCRIPTORS`](rights::DESCRIPTORS) descriptors. Returns `false` if it cannot be sent now.
    ///
    /// # Errors
    /// The peer is gone.
    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<bool> {
        Ok(rights::send(self, bytes, fds)? == Sent::Yes)
    }

    /// A handle to end the connection at the end of the process. To be dropped before the connection.
    pub fn last_word(&self) -> Option<LastWord> {
        Some(LastWord(Arc::clone(&self.0.as_ref()?.fd)))
    }

    /// Sends as many of these bytes as there is room for now. Returns how many.
    ///
    /// # Errors
    /// The peer is gone.
    pub fn send_some(&self, bytes: &[u8]) -> io::Result<usize> {
        match rustix::net::send(self, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::INTR) => Ok(0),
            sent => Ok(sent?),
        }
    }

    /// Waits until there is room to send more, or the peer is gone.
    pub fn wait_for_room(&self, at_most: Duration) {
        wait_readable(&mut [PollFd::new(self, PollFlags::OUT)], at_most);
    }

    /// Wake-ups over this connection, for other threads. To be dropped before the connection.
    pub fn wakeups(&self) -> Option<Wakeups> {
        Some(Wakeups(Arc::clone(&self.0.as_ref()?.fd)))
    }

    /// Peeks what the connection has to receive. Consumes nothing.
    pub fn peek(&self, bytes: &mut [u8]) -> Lies {
        look(self, bytes, RecvFlags::DONTWAIT | RecvFlags::PEEK)
    }

    /// Consumes bytes that were peeked and carry no descriptors.
    pub fn take(&self, bytes: &mut [u8]) {
        look(self, bytes, RecvFlags::DONTWAIT);
    }

    /// Receives what has arrived, with its descriptors, which are dropped on threads of their own.
    pub fn receive(&self, bytes: &mut [u8]) -> Came {
        match rights::receive(self, bytes) {
            rights::Came::Nothing => Came::Nothing,
            rights::Came::End => Came::End,
            rights::Came::Message { fds, is_cut: true, .. } if fds.is_empty() => Came::NoRoom,
            rights::Came::Message { len, fds, .. } => {
                Came::Message(len, fds.into_iter().map(Apart::new).collect())
            }
        }
    }

    /// Closes the connection without blocking. Returns it if that is not possible now.
    pub fn close(mut self) -> Option<Self> {
        if self.is_empty() {
            drop(self.0.take());
            return None;
        }
        if CLOSING.fetch_add(1, Ordering::Relaxed) >= CLOSING_MAX {
            CLOSING.fetch_sub(1, Ordering::Relaxed);
            return Some(self);
        }
        let open = self.0.take();
        apart::run(move || {
            drop(open);
            CLOSING.fetch_sub(1, Ordering::Relaxed);
        });
        None
    }

    /// Closes the connection on this thread, which may block.
    pub fn close_here(mut self) {
        drop(self.0.take());
    }

    /// Shuts the connection down and drops unread bytes. Returns whether it is then empty; it is not if it holds descriptors or too many
    /// bytes.
    pub fn is_empty(&self) -> bool {
        let _ = rustix::net::shutdown(self, Shutdown::Both);
        let (mut bytes, mut has_ended) = ([0; 512], false);
        for _ in 0..DROPPED_MAX {
            match self.peek(&mut bytes) {
                // A reset is reported once, before the unread data.
                Lies::End if has_ended => return true,
                Lies::End => has_ended = true,
                // In a forked child, whose socket is not connected any more.
                Lies::Nothing => return true,
                Lies::Bytes(len) => self.take(&mut bytes[..len]),
                Lies::Descriptors => return false,
            }
        }
        false
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_ref().expect("it is there until it is closed").fd.as_fd()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if self.0.is_some() && !self.is_empty() {
            let open = Apart::new(self.0.take());
            drop(open);
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    fn name(of: &str) -> String {
        format!("roce-test-{}-{of}", std::process::id())
    }

    fn connect(name: &str) -> Connection {
        match Connection::to(SocketType::STREAM, name).unwrap() {
            Connected::Open(connection) => connection,
            other => panic!("{other:?}"),
        }
    }

    fn pair(of: &str) -> (Connection, Connection, Listener) {
        let listener = Listener::bind(SocketType::STREAM, &name(of)).unwrap().unwrap();
        listener.listen().unwrap();
        let client = connect(&name(of));
        (client, listener.accept().unwrap(), listener)
    }

    #[test]
    fn a_name_has_one_holder_until_it_is_dropped() {
        let name = name("one");
        assert!(matches!(Connection::to(SocketType::STREAM, &name).unwrap(), Connected::Nobody));
        let listener = Listener::bind(SocketType::STREAM, &name).unwrap().unwrap();
        assert!(Listener::bind(SocketType::STREAM, &name).unwrap().is_none());
        assert!(
            matches!(Connection::to(SocketType::STREAM, &name).unwrap(), Connected::Nobody),
            "it does not listen"
        );
        listener.listen().unwrap();
        let client = connect(&name);
        assert_eq!(client.peer().unwrap().pid, std::process::id());
        drop(listener);
        assert_eq!(client.peek(&mut [0; 8]), Lies::End);
        assert!(Listener::bind(SocketType::STREAM, &name).unwrap().is_some());
    }

    #[test]
    fn who_listens_and_takes_nobody_is_full_some_time() {
        let name = name("full");
        let listener = Listener::bind(SocketType::STREAM, &name).unwrap().unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let _client = connect(&name);
        assert!(matches!(Connection::to(SocketType::STREAM, &name).unwrap(), Connected::Full));
    }

    #[test]
    fn what_is_sent_is_seen_and_then_taken() {
        let (client, server, _listener) = pair("sent");
        let mut bytes = [0; 8];
        assert_eq!(server.peek(&mut bytes), Lies::Nothing);
        assert!(client.send(b"request", &[]).unwrap());
        assert_eq!((server.peek(&mut bytes), &bytes[..7]), (Lies::Bytes(7), &b"request"[..]));
        server.take(&mut bytes);
        assert_eq!(server.peek(&mut bytes), Lies::Nothing);
        assert!(server.send(b"answer", &[server.as_fd()]).unwrap());
        let Came::Message(6, fds) = client.receive(&mut bytes) else { panic!() };
        assert_eq!((fds.len(), &bytes[..6]), (1, &b"answer"[..]));
    }

    // Goal: a wake-up can always be sent, and however many were sent, the next one wakes each thread that waits edge-triggered.
    #[test]
    fn wake_ups_find_room_and_wake_all_who_wait() {
        use rustix::event::epoll::{self, EventData, EventFlags};
        let (client, server, _listener) = pair("wakeups");
        let (ours, theirs) = (client.wakeups().unwrap(), server.wakeups().unwrap());
        let waiting = [(); 2].map(|()| epoll::create(epoll::CreateFlags::CLOEXEC).unwrap());
        for epoll in &waiting {
            epoll::add(epoll, &theirs, EventData::new_u64(7), EventFlags::IN | EventFlags::ET).unwrap();
        }
        let wakes = |epoll: &OwnedFd| {
            let mut events = Vec::with_capacity(4);
            let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
            let buffer = rustix::buffer::spare_capacity(&mut events);
            epoll::wait(epoll, buffer, Some(&now)).unwrap() == 1
        };
        assert!(!waiting.iter().any(wakes));
        for sent in [1, 1, 2, 1000, 1, 1000, 1000] {
            (0..sent).for_each(|_| ours.send());
            for epoll in &waiting {
                assert!(wakes(epoll) && !wakes(epoll), "{sent}");
                theirs.take_all_but_one().unwrap();
            }
        }
        assert_eq!(server.peek(&mut [0; 8]), Lies::Bytes(1));
        // Unread wake-ups need no thread when the connection is closed.
        (0..100).for_each(|_| ours.send());
        drop((ours, theirs));
        assert!(client.is_empty() && server.is_empty());
    }

    #[test]
    fn descriptors_among_wake_ups_are_seen_and_not_received() {
        let (client, server, _listener) = pair("wakeups-rights");
        let (ours, theirs) = (client.wakeups().unwrap(), server.wakeups().unwrap());
        (0..5).for_each(|_| ours.send());
        assert!(client.send(b"w", &[client.as_fd()]).unwrap());
        ours.send();
        assert_eq!([(); 2].map(|()| theirs.take_all_but_one()), [Err(HasDescriptors); 2]);
        assert!(!server.is_empty());
    }

    // Goal: a peek neither receives nor closes a descriptor that the peer sent.
    #[test]
    fn descriptors_are_seen_and_not_touched() {
        let (client, server, _listener) = pair("rights");
        let (mut read, write) = std::io::pipe().unwrap();
        assert!(client.send(b"with", &[write.as_fd()]).unwrap());
        drop(write);
        let mut bytes = [0; 8];
        assert_eq!(
            (server.peek(&mut bytes), server.peek(&mut bytes)),
            (Lies::Descriptors, Lies::Descriptors)
        );
        assert!(!server.is_empty());
        rustix::io::ioctl_fionbio(&read, true).unwrap();
        let is_open = |read: &mut std::io::PipeReader| {
            std::io::Read::read(read, &mut [0]).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
        };
        assert!(is_open(&mut read));
        assert!(server.close().is_none());
        while is_open(&mut read) {
            std::thread::yield_now();
        }
    }
}
