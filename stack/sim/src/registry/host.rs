//! A simulated host: names, processes and a clock, in one process and on one seed.
//!
//! Each process is a thread, of which one runs at a time: whenever one asks the system for something, or touches shared memory,
//! a generator says who runs next. A process that is killed never returns from such a call. Its thread unwinds, and what it
//! drops meanwhile changes nothing.

use stack::port::fault::rng::Rng;
use stack::registry::{Answer, Found, Kernel, LEASE_WORDS, Name, RegistryError, Run, WORDS, Words};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Time that a step takes.
const STEP_NS: u64 = 1_000;

/// A process, by its number on the host.
pub type Pid = usize;

/// What is wrong with the host, on purpose: a checker must see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Plant {
    /// The name of a run is given to several.
    NamesAreShared,
    /// Nobody is ever found at the name of a birth, and that name is given to several.
    BirthsAreUnseen,
    /// Nothing rests.
    NoRest,
}

/// What the threads share.
pub struct Host(Mutex<State>);

/// The host, between two steps.
pub struct State {
    /// Says what happens.
    pub rng: Rng,
    /// Time.
    pub now: u64,
    /// Steps that were taken.
    pub steps: u64,
    /// The processes; the first one is the story itself.
    pub processes: Vec<Process>,
    /// When a process last took a name, or set it free: the step.
    pub touched: BTreeMap<(Name, Pid), u64>,
    /// When somebody last gave up a run of a registry, or ended.
    pub ends: BTreeMap<(u128, Run), u64>,
    /// Whether some process writes to all of the memory.
    pub is_scribbled: bool,
    /// Whether one writes to every word before another one reads it.
    pub is_stormy: bool,
    /// What a checker saw.
    pub failure: Option<String>,
    plant: Option<Plant>,
    turn: Pid,
    sockets: BTreeMap<Name, Socket>,
    next_socket: u64,
    /// Whoever asks the system goes on at once: the caller says who runs next.
    is_driven: bool,
}

/// A process.
pub struct Process {
    /// Whether it lives.
    pub is_alive: bool,
    /// Whether it is stopped.
    pub is_stopped: bool,
    /// Whether it answers nonsense.
    pub is_mad: bool,
    /// It has a thread; the fork of a process has none.
    pub is_program: bool,
    /// The birth of its registry, as long as it is a member.
    pub birth: Option<u128>,
    /// The runs that it has.
    pub runs: BTreeSet<Run>,
    memory: Option<Arc<[AtomicU64]>>,
    wakes_at: u64,
    turn: Arc<Condvar>,
}

struct Socket {
    id: u64,
    owner: Pid,
    listens: bool,
    foreign: Option<u32>,
    /// Those that have a descriptor of it.
    holders: BTreeSet<Pid>,
}

/// Why a thread unwinds whose process was killed.
pub struct Killed;

impl State {
    /// Names that are taken.
    pub fn is_taken(&self, name: Name) -> bool {
        self.sockets.contains_key(&name)
    }

    /// Begins a process.
    pub fn spawn(&mut self, is_program: bool) -> Pid {
        self.processes.push(Process {
            is_alive: true,
            is_stopped: false,
            is_mad: false,
            is_program,
            birth: None,
            runs: BTreeSet::new(),
            memory: None,
            wakes_at: 0,
            turn: Arc::default(),
        });
        self.processes.len() - 1
    }

    /// A fork in which no handler runs: it has the descriptors of its parent.
    pub fn fork(&mut self, parent: Pid) -> Pid {
        let child = self.spawn(false);
        for socket in self.sockets.values_mut().filter(|socket| socket.holders.contains(&parent)) {
            socket.holders.insert(child);
        }
        child
    }

    /// Ends a process at once.
    pub fn kill(&mut self, pid: Pid) {
        let process = &mut self.processes[pid];
        process.is_alive = false;
        process.turn.notify_all();
        self.leave(pid);
        for (name, socket) in &mut self.sockets {
            if socket.holders.remove(&pid) {
                self.touched.insert((*name, pid), self.steps);
            }
        }
        self.sockets.retain(|_, socket| !socket.holders.is_empty());
    }

    /// A process is no member any more.
    pub fn leave(&mut self, pid: Pid) {
        let process = &mut self.processes[pid];
        let (birth, runs) = (process.birth.take(), std::mem::take(&mut process.runs));
        process.memory = None;
        let ends = runs.into_iter().filter_map(|run| Some(((birth?, run), self.now)));
        self.ends.extend(ends);
    }

    /// Has another user take a name.
    pub fn squat(&mut self, name: Name, uid: u32) {
        let id = self.next_socket;
        self.next_socket += 1;
        let holders = BTreeSet::from([0]);
        let socket = Socket { id, owner: 0, listens: true, foreign: Some(uid), holders };
        self.sockets.entry(name).or_insert(socket);
    }

    /// Has a process write anything to some of its memory.
    pub fn scribble(&mut self, pid: Pid) {
        let Some(memory) = self.processes[pid].memory.clone() else { return };
        self.is_scribbled = true;
        let kind = self.rng.below(4);
        for word in memory.iter() {
            let random = self.rng.next();
            match kind {
                0 => word.store(0, Ordering::Relaxed),
                1 => word.store(u64::MAX, Ordering::Relaxed),
                2 => word.store(random, Ordering::Relaxed),
                _ if random.is_multiple_of(8) => word.store(self.rng.below(self.now), Ordering::Relaxed),
                _ => {}
            }
        }
    }

    /// Lets time pass until the next one wakes.
    pub fn skip(&mut self) {
        let sleepers = self.processes.iter().skip(1);
        let next = sleepers.filter(|it| it.is_program && it.is_alive && !it.is_stopped).map(|it| it.wakes_at);
        self.now = self.now.max(next.min().unwrap_or(0));
    }

    /// Says who is next.
    fn pick(&mut self, last: Pid) {
        self.steps += 1;
        self.now += STEP_NS;
        let awake = |process: &Process, now| {
            process.is_program && process.is_alive && !process.is_stopped && process.wakes_at <= now
        };
        if awake(&self.processes[last], self.now) && !self.rng.one_in(4) {
            self.turn = last;
            return;
        }
        // Now and then one wakes early.
        let early = if self.rng.one_in(4) { u64::MAX } else { self.now };
        let all: Vec<Pid> =
            (0..self.processes.len()).filter(|pid| awake(&self.processes[*pid], early)).collect();
        self.turn = self.rng.pick(&all);
        self.processes[self.turn].turn.notify_all();
    }
}

impl Host {
    /// A host with no process but the story.
    pub fn new(seed: u64, plant: Option<Plant>) -> Arc<Self> {
        let mut state = State {
            rng: Rng::new(seed),
            now: 1 << 40,
            steps: 0,
            processes: Vec::new(),
            touched: BTreeMap::new(),
            ends: BTreeMap::new(),
            is_scribbled: false,
            is_stormy: false,
            failure: None,
            plant,
            turn: 0,
            sockets: BTreeMap::new(),
            next_socket: 0,
            is_driven: false,
        };
        state.spawn(true);
        Arc::new(Self(Mutex::new(state)))
    }

    /// A host whose processes are no threads: the caller has one of them do something, to its end, and then another one. Time passes as
    /// the caller says, and while somebody waits. The memory has room for all that a registry knows.
    pub fn driven(seed: u64) -> Arc<Self> {
        let host = Self::new(seed, None);
        host.state().is_driven = true;
        host
    }

    /// The host, between two steps.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets others run, and returns when it is this one's turn; never, if it was killed.
    pub fn step(&self, pid: Pid) {
        let mut state = self.state();
        if state.is_driven {
            assert!(state.processes[pid].is_alive, "process {pid} was killed");
            (state.steps, state.now) = (state.steps + 1, state.now + STEP_NS);
            return;
        }
        if state.processes[pid].is_alive {
            state.pick(pid);
        }
        self.wait_for_turn(state, pid);
    }

    /// Returns when it is this one's turn.
    pub fn wait_for_turn<'a>(&'a self, mut state: MutexGuard<'a, State>, pid: Pid) {
        let turn = Arc::clone(&state.processes[pid].turn);
        while state.turn != pid && state.processes[pid].is_alive {
            state = turn.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let is_alive = state.processes[pid].is_alive;
        drop(state);
        if !is_alive && !std::thread::panicking() {
            resume_unwind(Box::new(Killed));
        }
    }

    /// A process has ended by itself: others run.
    pub fn end(&self, pid: Pid) {
        let mut state = self.state();
        if state.processes[pid].is_alive {
            state.kill(pid);
            state.pick(0);
            let turn = state.turn;
            state.processes[turn].turn.notify_all();
        }
    }
}

/// The system, for one process.
#[derive(Clone)]
pub struct SimKernel {
    /// The host.
    pub host: Arc<Host>,
    /// The process.
    pub pid: Pid,
}

impl core::fmt::Debug for SimKernel {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "process {}", self.pid)
    }
}

/// A name that a process holds.
#[derive(Debug)]
pub struct SimHeld {
    kernel: SimKernel,
    name: Name,
    id: u64,
}

impl Drop for SimHeld {
    fn drop(&mut self) {
        let mut state = self.kernel.host.state();
        if !state.processes[self.kernel.pid].is_alive {
            return;
        }
        let steps = state.steps;
        if let Some(socket) = state.sockets.get_mut(&self.name).filter(|socket| socket.id == self.id) {
            socket.holders.remove(&self.kernel.pid);
            if socket.holders.is_empty() {
                state.sockets.remove(&self.name);
            }
            state.touched.insert((self.name, self.kernel.pid), steps);
        }
    }
}

/// A process that was found at a name.
#[derive(Debug)]
pub struct SimProcess {
    name: Name,
    id: u64,
    pid: Pid,
}

/// Memory, as a process has it.
pub struct SimMemory {
    kernel: SimKernel,
    /// The words.
    pub words: Arc<[AtomicU64]>,
    /// What a process accesses that was killed.
    nowhere: AtomicU64,
}

impl core::fmt::Debug for SimMemory {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "memory of {:?}", self.kernel)
    }
}

impl Words for SimMemory {
    fn word(&self, index: usize) -> &AtomicU64 {
        let mut state = self.kernel.state();
        if state.is_driven {
            return &self.words[index];
        }
        if state.rng.one_in(16) {
            drop(state);
            self.kernel.step();
            state = self.kernel.state();
        }
        if state.is_stormy {
            self.words[index].store(state.rng.next(), Ordering::Relaxed);
        }
        drop(state);
        match self.kernel.is_ours() {
            true => &self.words[index],
            false => &self.nowhere,
        }
    }
}

impl SimKernel {
    fn step(&self) {
        self.host.step(self.pid);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.host.state()
    }

    fn memory(&self, words: Arc<[AtomicU64]>) -> SimMemory {
        SimMemory { kernel: self.clone(), words, nowhere: AtomicU64::new(0) }
    }

    /// This process is a member, and lets others join.
    pub fn serve(&self, birth: u128, memory: &SimMemory) {
        let process = &mut self.state().processes[self.pid];
        process.birth = Some(birth);
        process.memory = Some(Arc::clone(&memory.words));
    }

    fn block_until(&self, time: u64) {
        let mut state = self.state();
        if state.is_driven {
            state.now = state.now.max(time);
            return;
        }
        state.processes[self.pid].wakes_at = time;
        drop(state);
        self.step();
        self.state().processes[self.pid].wakes_at = 0;
    }

    fn is_at_end(&self, of: &SimProcess) -> bool {
        let state = self.state();
        let socket = state.sockets.get(&of.name);
        !state.processes[of.pid].is_alive || socket.is_none_or(|socket| socket.id != of.id)
    }

    /// What a process that was asked says by now.
    fn heard(&self, of: &SimProcess) -> Option<Answer<SimMemory>> {
        if self.is_at_end(of) {
            return Some(Answer::Gone);
        }
        let mut state = self.state();
        let (is_slow, nonsense) = (state.rng.one_in(2), state.rng.one_in(2));
        let process = &state.processes[of.pid];
        let (birth, memory) = (process.birth?, process.memory.clone()?);
        match () {
            () if process.is_stopped || is_slow => None,
            () if process.is_mad && nonsense => Some(Answer::Nonsense),
            () if process.is_mad => Some(Answer::Gone),
            () => {
                drop(state);
                Some(Answer::Welcome(self.memory(memory), birth))
            }
        }
    }
}

impl Kernel for SimKernel {
    type Held = Arc<SimHeld>;
    type Process = SimProcess;
    type Memory = SimMemory;

    fn is_ours(&self) -> bool {
        self.state().processes[self.pid].is_alive
    }

    fn pid(&self) -> u32 {
        self.pid as u32
    }

    fn now(&self) -> u64 {
        self.state().now
    }

    fn random(&self) -> Result<u64, RegistryError> {
        Ok(self.state().rng.next())
    }

    fn sleep(&self, time: Duration) {
        let until = self.state().now + time.as_nanos() as u64;
        while self.state().now < until {
            self.block_until(until);
        }
    }

    fn hold(&self, name: Name) -> Result<Option<Arc<SimHeld>>, RegistryError> {
        self.step();
        let mut state = self.state();
        let shared = match state.plant {
            Some(Plant::NamesAreShared) => matches!(name, Name::Run(_)),
            Some(Plant::BirthsAreUnseen) => matches!(name, Name::Birth(_)),
            _ => false,
        };
        if state.is_taken(name) && !shared {
            return Ok(None);
        }
        let id = state.next_socket;
        state.next_socket += 1;
        let (steps, holders) = (state.steps, BTreeSet::from([self.pid]));
        state.touched.insert((name, self.pid), steps);
        state.sockets.insert(name, Socket { id, owner: self.pid, listens: false, foreign: None, holders });
        drop(state);
        Ok(Some(Arc::new(SimHeld { kernel: self.clone(), name, id })))
    }

    fn listen(&self, held: &Arc<SimHeld>) -> Result<(), RegistryError> {
        self.step();
        if let Some(socket) = self.state().sockets.get_mut(&held.name).filter(|socket| socket.id == held.id) {
            socket.listens = true;
        }
        Ok(())
    }

    fn find(&self, name: Name) -> Result<Found<SimProcess>, RegistryError> {
        self.step();
        let state = self.state();
        let unseen = state.plant == Some(Plant::BirthsAreUnseen) && matches!(name, Name::Birth(_));
        let Some(socket) = state.sockets.get(&name).filter(|socket| socket.listens && !unseen) else {
            return Ok(Found::Nobody);
        };
        Ok(match socket.foreign {
            Some(uid) => Found::Foreign(uid),
            None if !state.processes[socket.owner].is_alive => Found::Dead,
            None => Found::Living(SimProcess { name, id: socket.id, pid: socket.owner }),
        })
    }

    fn pid_of(&self, process: &SimProcess) -> u32 {
        process.pid as u32
    }

    fn is_same(&self, now: &SimProcess, before: &SimProcess) -> bool {
        now.pid == before.pid && self.state().processes[before.pid].is_alive
    }

    fn wait_for_end(&self, of: &SimProcess, at_most: Duration) -> bool {
        let until = self.state().now + at_most.as_nanos() as u64;
        while !self.is_at_end(of) {
            if self.state().now >= until {
                return false;
            }
            self.block_until(until);
        }
        true
    }

    fn ask(&self, _: &SimProcess) {
        self.step();
    }

    fn answer(
        &self,
        asked: &[&SimProcess],
        at_most: Duration,
    ) -> Result<Option<(usize, Answer<SimMemory>)>, RegistryError> {
        let until = self.state().now + at_most.as_nanos() as u64;
        loop {
            for (index, of) in asked.iter().enumerate() {
                if let Some(answer) = self.heard(of) {
                    return Ok(Some((index, answer)));
                }
            }
            if self.state().now >= until {
                return Ok(None);
            }
            self.block_until(until);
        }
    }

    fn make(&self) -> Result<SimMemory, RegistryError> {
        self.step();
        let words = if self.state().is_driven { WORDS } else { LEASE_WORDS };
        Ok(self.memory((0..words).map(|_| AtomicU64::new(0)).collect()))
    }
}
