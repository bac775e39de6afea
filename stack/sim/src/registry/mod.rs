//! The registry of a simulated host: processes that join, lease, stop, fork, go mad and die at every step, on one seed.
//!
//! What is checked at each lease: no other living process has the run; all living members are in one registry; and no run that
//! rests was taken while another one was there that did not, as long as nobody writes what is not so. And at each failure: no
//! run is free that was not found.

pub mod host;

use host::{Host, Killed, Pid, Plant, SimKernel, State};
use stack::registry::{Addresses, Mark, Member, Name, RegistryError, Run, Terms};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// How long a run rests.
const REST: Duration = Duration::from_millis(200);
/// How long a process waits for others.
const PATIENCE: Duration = Duration::from_secs(1);
/// Processes that live at the same time.
const ALIVE_MAX: usize = 12;

/// What may happen in a run.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    /// Processes that start.
    pub starts: usize,
    /// Runs that there are.
    pub runs: usize,
    /// Processes are stopped.
    pub stops: bool,
    /// Forks keep the descriptors of the dead.
    pub forks: bool,
    /// Processes write to all of the memory, and answer nonsense.
    pub madness: bool,
    /// Other users take names.
    pub squatters: bool,
    /// What is wrong, on purpose.
    pub plant: Option<Plant>,
}

/// What happened.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Processes that started.
    pub starts: usize,
    /// Those that joined.
    pub joins: u64,
    /// Runs that were leased.
    pub leases: u64,
    /// Those of them that had not rested.
    pub unrested: u64,
    /// Registries.
    pub births: u64,
    /// Processes that were killed.
    pub kills: u64,
    /// Processes that failed to join or to lease, by the variant of the error.
    pub errors: BTreeMap<String, u64>,
}

/// What is counted while it runs.
type Shared = Arc<std::sync::Mutex<Report>>;

/// When a process began to take a run: time and step.
#[derive(Clone, Copy)]
struct Began {
    pid: Pid,
    now: u64,
    steps: u64,
}

/// Runs a seed.
///
/// # Errors
/// What a checker saw.
pub fn run(seed: u64, weather: Weather) -> Result<Report, String> {
    let host = Host::new(seed, weather.plant);
    let report = Shared::default();
    let mut threads: Vec<JoinHandle<()>> = Vec::new();
    if weather.squatters {
        let mut state = host.state();
        for index in 0..3 {
            state.squat(Name::Birth(index), 77);
            let name = Name::Run(Run::all().nth(index as usize * 2).expect("there are as many"));
            state.squat(name, 77);
        }
    }
    while count(&report, |report| report.starts < weather.starts) && host.state().failure.is_none() {
        if let Some(pid) = act(&mut host.state(), &report, weather) {
            let kernel = SimKernel { host: Arc::clone(&host), pid };
            let report = Arc::clone(&report);
            threads.push(std::thread::spawn(move || live(kernel, weather, &report)));
        }
        host.step(0);
    }
    let mut state = host.state();
    (1..state.processes.len()).for_each(|pid| state.kill(pid));
    let failure = state.failure.take();
    drop(state);
    threads.into_iter().for_each(|thread| drop(thread.join()));
    let report = count(&report, |report| report.clone());
    failure.map_or(Ok(report), |failure| Err(format!("seed {seed}: {failure}")))
}

fn count<T>(report: &Shared, change: impl FnOnce(&mut Report) -> T) -> T {
    change(&mut report.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
}

/// Something happens to the host; a process that is returned starts.
fn act(state: &mut State, report: &Shared, weather: Weather) -> Option<Pid> {
    let alive: Vec<Pid> = (1..state.processes.len()).filter(|pid| state.processes[*pid].is_alive).collect();
    let programs = alive.iter().filter(|pid| state.processes[**pid].is_program).count();
    // Sometimes all end at once, and sometimes nothing happens for a while.
    if state.rng.one_in(500) {
        alive.iter().for_each(|pid| state.kill(*pid));
        return None;
    }
    let kind = state.rng.below(64);
    if kind < 4 && programs < ALIVE_MAX {
        count(report, |report| report.starts += 1);
        return Some(state.spawn(true));
    }
    if alive.is_empty() {
        return None;
    }
    let victim = state.rng.pick(&alive);
    match kind {
        4 => {
            state.kill(victim);
            count(report, |report| report.kills += 1);
        }
        6 if weather.stops => state.processes[victim].is_stopped = true,
        7 | 8 => state.processes[victim].is_stopped = false,
        9 if weather.forks => drop(state.fork(victim)),
        10 if weather.madness => state.scribble(victim),
        11 if weather.madness && state.rng.one_in(4) => state.processes[victim].is_mad = true,
        12..14 => state.skip(),
        15 if weather.madness => {
            state.is_stormy = !state.is_stormy;
            state.is_scribbled = true;
        }
        14 => state.now += state.rng.below(REST.as_nanos() as u64),
        _ => {}
    }
    None
}

/// The life of a process.
fn live(kernel: SimKernel, weather: Weather, report: &Shared) {
    let life = catch_unwind(AssertUnwindSafe(|| {
        kernel.host.wait_for_turn(kernel.host.state(), kernel.pid);
        let rest = if weather.plant == Some(Plant::NoRest) { Duration::ZERO } else { REST };
        let terms = Terms { runs: weather.runs, rest, addresses: Addresses::default() };
        let began = began(&kernel);
        match Member::join(kernel.clone(), terms, PATIENCE) {
            Ok(member) => {
                kernel.serve(member.birth(), member.memory());
                leased(&member, member.runs()[0], began, weather, report);
                count(report, |report| report.joins += 1);
                be_member(&member, weather, report);
                kernel.host.state().leave(kernel.pid);
                drop(member);
            }
            Err(error) => failed(&kernel, &error, began, weather, report),
        }
    }));
    if life.is_err_and(|why| !why.is::<Killed>()) {
        let failure = format!("process {} panicked", kernel.pid);
        kernel.host.state().failure.get_or_insert(failure);
    }
    kernel.host.end(kernel.pid);
}

fn began(kernel: &SimKernel) -> Began {
    let state = kernel.host.state();
    Began { pid: kernel.pid, now: state.now, steps: state.steps }
}

/// Checks, and counts, an error since `began`.
fn failed(kernel: &SimKernel, error: &RegistryError, began: Began, weather: Weather, report: &Shared) {
    let text = format!("{error:?}");
    let variant = text.split([' ', '(', '{']).next().unwrap_or_default().to_string();
    let mut state = kernel.host.state();
    if variant == "Exhausted" {
        let free = Run::all().take(weather.runs).find(|run| is_free(&state, *run, began));
        let failure = free.map(|run| format!("{} found no run, though run {run} is free", kernel.pid));
        state.failure = state.failure.take().or(failure);
    }
    count(report, |report| *report.errors.entry(variant).or_default() += 1);
}

/// Whether nobody else had a run or wanted it since `began`.
fn is_free(state: &State, run: Run, began: Began) -> bool {
    let name = Name::Run(run);
    let touches = state.touched.range((name, 0)..=(name, Pid::MAX));
    let mut others = touches.filter(|((_, pid), _)| *pid != began.pid);
    !state.is_taken(name) && others.all(|(_, at)| *at < began.steps)
}

/// What a member does until it leaves or is killed.
fn be_member(member: &Member<SimKernel>, weather: Weather, report: &Shared) {
    use stack::registry::Kernel;
    let kernel = member.kernel();
    loop {
        let (kind, time) = {
            let rng = &mut kernel.host.state().rng;
            (rng.below(8), rng.below(2 * REST.as_nanos() as u64))
        };
        match kind {
            0 => return,
            1 | 2 => {
                let began = began(kernel);
                match member.lease_run() {
                    Ok(run) => leased(member, run, began, weather, report),
                    Err(error) => failed(kernel, &error, began, weather, report),
                }
            }
            _ => kernel.sleep(Duration::from_nanos(time)),
        }
    }
}

/// Checks a lease that was taken since `began`. No other process runs meanwhile.
fn leased(member: &Member<SimKernel>, run: Run, began: Began, weather: Weather, report: &Shared) {
    let (pid, birth) = (member.kernel().pid, member.birth());
    // Words are read without a step.
    let words = &member.memory().words;
    let mut state = member.kernel().host.state();
    let ended = state.ends.get(&(birth, run)).copied();
    let unrested = ended.is_some_and(|at| state.now - at < REST.as_nanos() as u64);
    let better = unrested.then(|| better_run(&state, words, began, weather)).flatten();
    count(report, |report| {
        report.leases += 1;
        report.unrested += u64::from(unrested);
    });
    let others = || state.processes.iter().enumerate().filter(|(other, it)| *other != pid && it.is_alive);
    let failure = if let Some((other, _)) = others().find(|(_, it)| it.runs.contains(&run)) {
        Some(format!("{pid} and {other} have run {run}"))
    } else if let Some((other, _)) = others().find(|(_, it)| it.birth.is_some_and(|other| other != birth)) {
        Some(format!("{pid} and {other} are in two registries"))
    } else {
        better.map(|better| format!("{pid} took run {run}, which rests, though run {better} does not"))
    };
    state.failure = state.failure.take().or(failure);
    if state.processes[pid].runs.is_empty() && !state.ends.keys().any(|(other, _)| *other == birth) {
        let is_first = !others_in(&state, pid, birth);
        count(report, |report| report.births += u64::from(is_first));
    }
    state.processes[pid].runs.insert(run);
}

fn others_in(state: &State, pid: Pid, birth: u128) -> bool {
    state.processes.iter().enumerate().any(|(other, it)| other != pid && it.birth == Some(birth))
}

/// A run that nobody had or wanted since `began`, and that had rested by then, or was never used.
fn better_run(
    state: &State,
    words: &[std::sync::atomic::AtomicU64],
    began: Began,
    weather: Weather,
) -> Option<Run> {
    if state.is_scribbled {
        return None;
    }
    Run::all().take(weather.runs).find(|run| {
        let rested = match stack::registry::mark_in(words, *run) {
            Mark::Never => true,
            Mark::Held(_) => false,
            Mark::Ended(at) => at + REST.as_nanos() as u64 <= began.now,
        };
        rested && is_free(state, *run, began)
    })
}
