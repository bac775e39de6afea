//! The system as it is: names in the abstract space, memory in a memfd, the clock that goes on while the system sleeps.

use super::admission::Admitted;
use super::call::Call;
use super::error::RegistryError;
use super::identity::Identity;
use super::kernel::{Answer, Found, Kernel};
use super::memory::Memory;
use super::message::{REPLY, Reply, Request};
use super::name::Name;
use super::socket::{Came, Connected, Connection, Listener};
use super::sys::{self, Life, Peer};
use crate::sync::eventfd::wait_readable;
use crate::sync::process::Process;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use rustix::event::{PollFd, PollFlags};
use rustix::net::SocketType;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

/// The system, for the process that made this.
#[derive(Debug)]
pub struct Linux {
    host: Identity,
    /// What all names begin with.
    space: String,
    admitted: Admitted,
    made_by: Process,
    foreign: AtomicU64,
}

/// A process that was found at a name.
#[derive(Debug)]
pub struct Neighbour {
    connection: Connection,
    peer: Peer,
    life: Life,
}

impl Linux {
    /// The system, for this process, on the host that these users are part of.
    pub fn new(space: &str, admitted: Admitted) -> Self {
        Self {
            host: Identity::of_user(admitted.owner()),
            space: space.into(),
            admitted,
            made_by: Process::this(),
            foreign: AtomicU64::new(0),
        }
    }

    /// How often a name was found that another user had taken.
    pub fn foreign(&self) -> u64 {
        self.foreign.load(Ordering::Relaxed)
    }

    /// The host that this process is on.
    pub fn host(&self) -> Identity {
        self.host
    }

    /// Whose processes are part of the host.
    pub fn admitted(&self) -> &Admitted {
        &self.admitted
    }

    /// Asks a process for a link; `None`: it is gone, or takes nothing now.
    pub fn call(&self, process: Neighbour) -> Option<Call> {
        process.ask(&Request::link())
    }

    /// Asks a process for statistics; `None`: as for a link.
    pub fn call_for_stats(&self, process: Neighbour) -> Option<Call> {
        process.ask(&Request::stats())
    }

    fn text(&self, name: Name) -> String {
        name.text(&self.space, self.host.uid)
    }
}

impl Kernel for Linux {
    type Held = Arc<Listener>;
    type Process = Neighbour;
    type Memory = Memory;

    fn is_ours(&self) -> bool {
        self.made_by.is_this()
    }

    fn guest_of(&self) -> Option<u32> {
        self.admitted.are_guests().then_some(self.admitted.owner())
    }

    fn pid(&self) -> u32 {
        std::process::id()
    }

    fn now(&self) -> u64 {
        sys::since_boot()
    }

    fn random(&self) -> Result<u64, RegistryError> {
        getrandom::u64().map_err(|_| RegistryError::Random)
    }

    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }

    fn hold(&self, name: Name) -> Result<Option<Self::Held>, RegistryError> {
        let held = Listener::bind(SocketType::STREAM, &self.text(name))
            .map_err(RegistryError::system("taking a name"))?;
        Ok(held.map(Arc::new))
    }

    fn listen(&self, held: &Self::Held) -> Result<(), RegistryError> {
        held.listen().map_err(RegistryError::system("listen(2)"))
    }

    fn find(&self, name: Name) -> Result<Found<Neighbour>, RegistryError> {
        let failed = RegistryError::system("looking who has a name");
        let found = Connection::to(SocketType::STREAM, &self.text(name)).and_then(|connected| {
            let connection = match connected {
                Connected::Open(connection) => connection,
                Connected::Nobody => return Ok(Found::Nobody),
                Connected::Full => return Ok(Found::Full),
            };
            let peer = connection.peer()?;
            if !self.admitted.may_have(name, peer.uid) {
                self.foreign.fetch_add(1, Ordering::Relaxed);
                return Ok(Found::Foreign(peer.uid));
            }
            let life = connection.life(peer)?;
            if life.is_over() {
                return Ok(Found::Dead);
            }
            Ok(Found::Living(Neighbour { connection, peer, life }))
        });
        found.map_err(failed)
    }

    fn pid_of(&self, process: &Neighbour) -> u32 {
        process.peer.pid
    }

    fn is_guest(&self, process: &Neighbour) -> bool {
        self.admitted.is_guest(process.peer.uid)
    }

    fn is_same(&self, now: &Neighbour, before: &Neighbour) -> bool {
        // A number belongs to one process as long as that lives.
        now.peer == before.peer && !before.life.is_over()
    }

    fn wait_for_end(&self, of: &Neighbour, at_most: Duration) -> bool {
        // Nothing is ever sent to us there: the connection is readable when it has ended.
        wait_readable(&mut of.fds(), at_most)
    }

    fn ask(&self, process: &Neighbour) {
        // If it fails, the connection has ended, which is an answer.
        let _ = process.connection.send(&Request::join(), &[]);
    }

    fn answer(
        &self,
        asked: &[&Neighbour],
        at_most: Duration,
    ) -> Result<Option<(usize, Answer<Memory>)>, RegistryError> {
        let since = Instant::now();
        loop {
            for (index, process) in asked.iter().enumerate() {
                if let Some(answer) = process.answer()? {
                    return Ok(Some((index, answer)));
                }
            }
            let Some(left) = at_most.checked_sub(since.elapsed()) else { return Ok(None) };
            let mut fds: Vec<PollFd<'_>> = asked.iter().flat_map(|process| process.fds()).collect();
            wait_readable(&mut fds, left);
        }
    }

    fn make(&self) -> Result<Memory, RegistryError> {
        Memory::make().map_err(RegistryError::system("making the memory that processes share"))
    }
}

impl Neighbour {
    fn ask(self, request: &[u8]) -> Option<Call> {
        let Self { connection, peer, .. } = self;
        let is_sent = connection.send(request, &[]).unwrap_or(false);
        is_sent.then_some(Call { connection, pid: peer.pid, uid: peer.uid })
    }

    /// Whether it has not ended, as far as the system says.
    pub fn lives(&self) -> bool {
        !self.life.is_over()
    }

    /// What is readable when it has said something or ended.
    fn fds(&self) -> Vec<PollFd<'_>> {
        let fds = [Some(self.connection.as_fd()), self.life.fd().map(AsFd::as_fd)];
        fds.into_iter().flatten().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect()
    }

    /// What it says to a request to join; `None`: nothing yet.
    fn answer(&self) -> Result<Option<Answer<Memory>>, RegistryError> {
        // Looked at first: what it said before its end still counts.
        let is_over = self.life.is_over();
        let mut bytes = [0; REPLY + 1];
        let (len, fds) = match self.connection.receive(&mut bytes) {
            Came::Nothing if is_over => return Ok(Some(Answer::Gone)),
            Came::Nothing => return Ok(None),
            Came::End => return Ok(Some(Answer::Gone)),
            Came::NoRoom => {
                let error = std::io::Error::from_raw_os_error(libc::EMFILE);
                return Err(RegistryError::System { what: "receiving a descriptor", error });
            }
            Came::Message(len, fds) => (len, fds),
        };
        let answer = match Reply::parse(&bytes[..len]) {
            Some(Reply::Unlike(version)) => Answer::Unlike(version),
            Some(Reply::Welcome(birth)) => {
                let [fd] = <[_; 1]>::try_from(fds).map_or([None], |[fd]| [Some(fd)]);
                let memory = fd.and_then(|fd| Memory::take(fd.into_inner()));
                memory.map_or(Answer::Nonsense, |memory| Answer::Welcome(memory, birth))
            }
            Some(Reply::Counted(_) | Reply::Unknown) | None => Answer::Nonsense,
        };
        Ok(Some(answer))
    }
}
