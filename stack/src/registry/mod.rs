//! The registry of a host: which of a user's processes has which numbers.
//!
//! All processes of a user in a network namespace are one RDMA device with the same addresses: a host (`identity`). A queue
//! pair number says which process it belongs to. So a process leases numbers by the [`Run`], eight adjacent blocks of 4096, and
//! no daemon gives them out: a lease is a name that the kernel gives to one process at a time, and frees when that ends
//! (`name`, `lease`). At the name others find the process. Beside the names the processes have memory in common, in which
//! stands when each run was used, so that the numbers of the dead rest (`table`, `draw`); which ports their identifiers are bound to
//! (`bindings`), and where requests for connections went (`requests`), and which of the host's addresses they have (`addresses`).
//! The first process makes it (`birth`);
//! each later one gets it from any member (`join`). And at the name one process calls another one for a link of their own (`call`),
//! which is made elsewhere. Who wants to see all of them reads the memory and asks each for statistics, and is no member (`reader`).
//!
//! A host is its owner's, who may admit processes of other users (`admission`): their names are among the owner's, and they are members as
//! any other. Members are admitted, and never believed: one that goes mad can write to all of the memory, and answer whatever it likes. It can thereby shorten the rest of runs, keep processes from joining through itself, and have others wait for a process
//! that has ended or, for a moment, take a new one for ended; it cannot make two processes have one run. Those of other users are not heard.
//! They can take names before us: those are skipped, and if nothing is left the error names the user.
//!
//! What is decided is in `draw`, `lease`, `birth` and `join`, over what the system has to do ([`Kernel`]): the simulator has a
//! system of its own. Here is the one that programs have: [`Registry`], which has a thread that answers (`serving`). `unsafe`
//! is in `sys` and `memory`.

mod addresses;
mod admission;
mod answers;
mod binding;
mod bindings;
mod birth;
mod call;
mod draw;
mod error;
mod identity;
mod join;
mod kernel;
mod layout;
mod lease;
mod linux;
mod member;
mod memory;
mod message;
mod name;
mod patience;
mod reader;
mod requests;
mod run;
mod services;
mod serving;
mod socket;
mod sys;
mod table;

pub use addresses::Addresses;
pub use admission::{Admitted, user};
pub use answers::Counts;
pub use binding::{Binding, Family};
pub use bindings::{Beside, Claim, Clash};
pub use call::{Call, TakeCalls};
pub use error::RegistryError;
pub use identity::Identity;
pub use kernel::{Answer, Found, Kernel};
pub use layout::{LEASE_WORDS, WORDS};
pub use lease::Terms;
pub use member::{Holder, Member, Resident};
pub use name::Name;
pub use reader::{Look, Reader, Said, Seen};
pub use requests::RequestKey;
pub use run::Run;
pub use socket::{Came, Connected, Connection, HasDescriptors, LastWord, Lies, Listener, Wakeups};
pub use sys::{Life, Peer};
pub use table::{Mark, RunInfo, VERSION, Words, mark_in};

use crate::config::{REGISTRY_PATIENCE, RUN_REST};
use answers::{Answers, Takers};
use core::net::IpAddr;
use core::time::Duration;
use linux::Linux;
use serving::Serving;
use std::sync::Arc;

/// How to join. Programs take the default; the fields are for tests.
#[derive(Clone, Debug)]
pub struct RegistryConfig {
    /// What all names begin with. Those with different ones do not see each other.
    pub space: String,
    /// How many runs there are.
    pub runs: usize,
    /// How long a run rests.
    pub rest: Duration,
    /// How long others may keep this process waiting.
    pub patience: Duration,
    /// The addresses that the processes of the host are to have.
    pub addresses: Addresses,
    /// Whose host this process is to be part of, as a guest; `None`: that of its own user.
    pub owner: Option<u32>,
    /// Users whose processes this one admits.
    pub admit: Vec<u32>,
}

impl Default for RegistryConfig {
    fn default() -> Self {
        let addresses = Addresses::default();
        Self {
            space: "roce".into(),
            runs: Run::COUNT,
            rest: RUN_REST,
            patience: REGISTRY_PATIENCE,
            addresses,
            owner: None,
            admit: Vec::new(),
        }
    }
}

/// A process's place in the registry of its host. When it is dropped, or the process ends, its runs are free, and rest. A fork
/// of the process has nothing of it, and may join by itself.
#[derive(Debug)]
pub struct Registry {
    /// Dropped first: it answers only while the process is a member.
    serving: Serving,
    takers: Takers,
    member: Member<Linux>,
}

/// What comes of a call.
#[derive(Debug)]
pub enum Called {
    /// The request is sent: the other process speaks next.
    Open(Call),
    /// No other process of the host that could be called has the run.
    Nobody(Holder),
}

impl Registry {
    /// Joins the registry of the host, or makes it; leases the first run.
    ///
    /// # Errors
    /// [`RegistryError`] says what to do.
    ///
    /// # Panics
    /// When the configuration has no run, or more than there are.
    pub fn join(config: &RegistryConfig) -> Result<Self, RegistryError> {
        assert!((1..=Run::COUNT).contains(&config.runs), "{} runs", config.runs);
        let terms = Terms { runs: config.runs, rest: config.rest, addresses: config.addresses };
        let admitted = Admitted::new(config.owner, &config.admit)?;
        let linux = Linux::new(&config.space, admitted.clone());
        let member = Member::join(linux, terms, config.patience)?;
        let takers = Takers::default();
        let answers = Answers::new(member.memory().clone(), member.birth(), admitted, takers.clone());
        let serving = Serving::start(answers, member.held())
            .map_err(RegistryError::system("starting the thread of the registry"))?;
        if !member.is_sound() {
            tracing::warn!("a process of this user writes to the registry's memory where it should not");
        }
        Ok(Self { serving, takers, member })
    }

    /// Leases one more run.
    ///
    /// # Errors
    /// None is left, or the process has as many as it may have.
    pub fn lease_run(&self) -> Result<Run, RegistryError> {
        let run = self.member.lease_run()?;
        self.serving.listen_at(self.member.held());
        Ok(run)
    }

    /// The runs of this process, in the order in which they were leased.
    pub fn runs(&self) -> Vec<Run> {
        self.member.runs()
    }

    /// Who has a run, as the kernel says.
    ///
    /// # Errors
    /// Those of socket(2), or this process is a fork of the one that joined.
    pub fn holder_of(&self, run: Run) -> Result<Holder, RegistryError> {
        self.member.holder_of(run)
    }

    /// How often a run was leased, as the memory says. A lease is counted before anyone can know a number of it, so what was found out about
    /// a run holds as long as this has not changed since before.
    pub fn leases(&self, run: Run) -> u64 {
        self.member.info(run).generation
    }

    /// Calls the process that has a run, for a link. Waits for nobody.
    ///
    /// # Errors
    /// As [`holder_of`](Self::holder_of).
    pub fn call(&self, run: Run) -> Result<Called, RegistryError> {
        Ok(match self.member.find(run)? {
            Ok(process) => match self.member.kernel().call(process) {
                Some(call) => Called::Open(call),
                None => Called::Nobody(Holder::Unknown),
            },
            Err(holder) => Called::Nobody(holder),
        })
    }

    /// Hands the calls of others to this from now on; `None`: they are refused.
    pub fn take_calls(&self, by: Option<Arc<dyn TakeCalls>>) {
        self.takers.links.set(by);
    }

    /// Hands those who want to see statistics to this from now on: they have been told whose they are, and wait for them. `None`: they are
    /// refused.
    pub fn take_questions(&self, by: Option<Arc<dyn TakeCalls>>) {
        self.takers.stats.set(by);
    }

    /// The runs that were ever used, and what the memory says of them: hints, for people and for [`holder_of`](Self::holder_of).
    pub fn used_runs(&self) -> Vec<(Run, RunInfo)> {
        let infos = Run::all().map(|run| (run, self.member.info(run)));
        infos.filter(|(_, info)| info.mark != Mark::Never).collect()
    }

    /// The addresses of the host that its processes have: the first one chose them.
    pub fn addresses(&self) -> Addresses {
        self.member.addresses()
    }

    /// Notes at which socket packets to a run of this process arrive: its index in the group of the host's sockets on an address, the
    /// `of`th of those that are named.
    pub fn set_socket(&self, run: Run, of: usize, index: u16) {
        self.member.set_socket(run, of, index);
    }

    /// The runs that are said to be held, and the indices of their sockets on an address, where they are known: hints.
    pub fn sockets(&self, of: usize) -> Vec<(Run, u16)> {
        self.member.sockets(of)
    }

    /// The UDP port on which the processes of the host receive, once one of them has chosen it.
    pub fn udp_port(&self) -> Option<u16> {
        self.member.udp_port()
    }

    /// Chooses the UDP port on which the processes of the host receive, if `before` is still what was chosen; returns what is chosen now.
    pub fn choose_udp_port(&self, before: Option<u16>, port: u16) -> Option<u16> {
        self.member.choose_udp_port(before, port)
    }

    /// Changes with every change of what steers packets: sockets, listeners, the keeper. What was noted before a change is seen by
    /// whoever sees the change.
    pub fn changes(&self) -> u64 {
        self.member.changes()
    }

    /// Binds a port for this process, beside what the other processes of the host are bound to.
    ///
    /// # Errors
    /// [`Clash::Taken`], [`Clash::Full`].
    pub fn bind(&self, binding: &Binding, beside: Beside) -> Result<Claim, Clash> {
        self.member.bind(binding, beside)
    }

    /// Listens at a port that it has bound.
    ///
    /// # Errors
    /// [`Clash::Taken`].
    pub fn listen(&self, claim: Claim) -> Result<Claim, Clash> {
        self.member.listen(claim)
    }

    /// Gives a port up.
    pub fn release(&self, claim: Claim) {
        self.member.release(claim);
    }

    /// The run of the process that listens for a service at an address. `lives`: whether a living process has a run; each
    /// [`lives`](Self::lives) is a call of the system.
    pub fn listener(&self, service: u32, dst: IpAddr, lives: &dyn Fn(Run) -> bool) -> Option<Run> {
        self.member.listener(service, dst, lives)
    }

    /// The services for which processes are said to listen, at most so many, and the run of one of them each: hints.
    pub fn listeners(&self, most: usize) -> Vec<(u32, Run)> {
        self.member.listeners(most)
    }

    /// The process to which a request for a connection went.
    pub fn request(&self, key: RequestKey) -> Option<Run> {
        self.member.request(key)
    }

    /// Notes that a request for a connection goes to a process.
    pub fn note_request(&self, key: RequestKey, run: Run) {
        self.member.note_request(key, run);
    }

    /// This process has a queue pair 1 from now on, or has none any more.
    pub fn serve_cm(&self, serves: bool) {
        self.member.serve_cm(serves);
    }

    /// Says that this process still serves connection management, if it does: to be called every 10 ms while it is awake. Returns whether
    /// the host needs a keeper then.
    pub fn still_serves(&self) -> bool {
        self.member.still_serves()
    }

    /// The process that gets the messages of queue pair 1 that are for no process in particular; chosen anew, if there is none that serves.
    pub fn keeper(&self) -> Option<Run> {
        self.member.keeper()
    }

    /// Whether this process has a queue pair 1.
    pub fn serves(&self) -> bool {
        self.member.serves_cm()
    }

    /// Whether the memory says that somebody has a run.
    pub fn may_be_held(&self, run: Run) -> bool {
        matches!(self.member.info(run).mark, Mark::Held(_))
    }

    /// Whether a living process of the host has a run, or may have it.
    pub fn lives(&self, run: Run) -> bool {
        self.member.lives(run)
    }

    /// Whose process has a run.
    pub fn resident(&self, run: Run) -> Resident {
        self.member.resident(run)
    }

    /// Whether this process is a guest on another user's host.
    pub fn is_guest(&self) -> bool {
        self.member.kernel().admitted().are_guests()
    }

    /// Nanoseconds since the start of the system, the same for all members.
    pub fn now(&self) -> u64 {
        self.member.kernel().now()
    }

    /// The number of the registry's birth: its members know it, and nobody else.
    pub fn birth(&self) -> u128 {
        self.member.birth()
    }

    /// The node GUID of the host, until the last member ends.
    pub fn node_guid(&self) -> [u8; 8] {
        self.member.kernel().host().node_guid(self.member.birth())
    }

    /// The host.
    pub fn host(&self) -> Identity {
        self.member.kernel().host()
    }

    /// What became of those that wanted to join by way of this process, a link, or statistics.
    pub fn counts(&self) -> Counts {
        self.serving.counts()
    }

    /// How often this process found a name that another user had taken, and passed over it.
    pub fn foreign_names(&self) -> u64 {
        self.member.kernel().foreign()
    }

    /// Whether the memory still begins as it was made.
    pub fn is_sound(&self) -> bool {
        self.member.is_sound()
    }
}
