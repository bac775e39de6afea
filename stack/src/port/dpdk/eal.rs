//! DPDK's environment (EAL): started once per process, on a thread of its own, with options that do not conflict.

use crate::port::error::PortError;
use core::cell::Cell;
use core::ffi::{c_char, c_int};
use core::mem::zeroed;
use core::ptr;
use core_affinity::CoreId;
use dpdk_sys as sys;
use rustix::fs::Mode;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::collections::VecDeque;
use std::ffi::CString;
use std::sync::{Mutex, OnceLock, mpsc};

/// How DPDK's environment (EAL) starts. It starts with the first DPDK port; see [`configure`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EalOptions {
    /// MiB of memory if no huge pages are used. With huge pages the memory grows as needed.
    pub memory_mib: usize,
    /// Whether to use huge pages if they are reserved.
    pub huge_pages: bool,
    /// DPDK's log lines up to this level go to `tracing` (target "dpdk"): 1 emergency, 4 error, 8 debug.
    pub log_level: u32,
}

impl Default for EalOptions {
    fn default() -> Self {
        Self { memory_mib: 512, huge_pages: true, log_level: 5 }
    }
}

static OPTIONS: OnceLock<EalOptions> = OnceLock::new();
static EAL: OnceLock<Result<Eal, PortError>> = OnceLock::new();

/// Sets how DPDK's environment will start.
///
/// # Errors
/// When it has started already, or was configured before.
pub fn configure(options: EalOptions) -> Result<(), PortError> {
    OPTIONS.set(options).map_err(|_| {
        PortError::Eal(
            "its options are settled once, before the first DPDK port is opened: set them earlier".into(),
        )
    })
}

/// Whether DPDK's environment has started in this process. That happens when the first DPDK port opens, or is
/// started after [`open_lazy`](crate::port::PortSpec::open_lazy).
pub fn started() -> bool {
    EAL.get().is_some_and(Result::is_ok)
}

type Job = Box<dyn FnOnce() + Send>;

/// The started environment.
pub(super) struct Eal {
    jobs: mpsc::Sender<Job>,
    /// Whether huge pages are used.
    pub(super) huge: bool,
    /// Whether PCI devices can be added.
    pub(super) pci: bool,
}

thread_local! {
    static IS_EAL_THREAD: Cell<bool> = const { Cell::new(false) };
    /// Whether the thread has a umask of its own.
    static OWN_UMASK: Cell<bool> = const { Cell::new(false) };
}

impl Eal {
    /// Returns the environment; the first call starts it. `pci` is a PCI device with its options, if the caller wants one.
    pub(super) fn get(pci: Option<&str>) -> Result<&'static Self, PortError> {
        if forked() {
            return Err(PortError::Eal(
                "this process is a fork of one that uses DPDK, which cannot start again here: \
                 open ports after the fork, or start a new program"
                    .into(),
            ));
        }
        EAL.get_or_init(|| start(pci)).as_ref().map_err(Clone::clone)
    }

    /// Runs `job` on the environment's thread and returns its result.
    pub(super) fn call<R: Send + 'static>(&self, job: impl FnOnce() -> R + Send + 'static) -> R {
        if IS_EAL_THREAD.get() {
            return job();
        }
        let (reply, result) = mpsc::sync_channel(1);
        self.spawn(move || {
            let _ = reply.send(job());
        });
        result.recv().expect("DPDK's thread lives as long as the process")
    }

    /// Queues `job` for the environment's thread, without waiting for it.
    pub(super) fn spawn(&self, job: impl FnOnce() + Send + 'static) {
        self.jobs.send(Box::new(job)).expect("DPDK's thread lives as long as the process");
    }
}

/// Whether this process was forked from one that started DPDK.
pub(super) fn forked() -> bool {
    // SAFETY: reads one integer.
    unsafe { sys::dpdk_sys_forked() != 0 }
}

/// Sets the umask(2) of the calling thread and of the threads that it starts. The rest of the process keeps its own.
///
/// # Errors
/// Those of unshare(2); nothing has changed.
pub(super) fn set_umask(mask: Mode) -> std::io::Result<()> {
    if !OWN_UMASK.get() {
        // SAFETY: the thread gets its own copy of the working directory, the root and the umask. Descriptors stay shared.
        if unsafe { libc::unshare(libc::CLONE_FS) } != 0 {
            return Err(std::io::Error::last_os_error());
        }
        OWN_UMASK.set(true);
    }
    rustix::process::umask(mask);
    Ok(())
}

/// DPDK's last log lines, for messages.
static RECENT: Mutex<VecDeque<String>> = Mutex::new(VecDeque::new());
const RECENT_MAX: usize = 4;

unsafe extern "C" fn log_line(text: *const c_char, len: usize) {
    // SAFETY: the shim passes a buffer of `len` bytes that is valid for the call.
    let text = unsafe { core::slice::from_raw_parts(text.cast::<u8>(), len) };
    for line in String::from_utf8_lossy(text).lines().map(str::trim).filter(|line| !line.is_empty()) {
        tracing::debug!(target: "dpdk", "{line}");
        if let Ok(mut recent) = RECENT.try_lock() {
            if recent.len() == RECENT_MAX {
                recent.pop_front();
            }
            recent.push_back(line.to_owned());
        }
    }
}

/// Forgets DPDK's log lines so far.
pub(super) fn forget_log() {
    if let Ok(mut recent) = RECENT.lock() {
        recent.clear();
    }
}

/// DPDK's last log line, as the end of a sentence: empty, or ` (DPDK says: ..)`.
pub(super) fn last_log() -> String {
    match RECENT.lock().ok().and_then(|recent| recent.back().cloned()) {
        Some(line) => format!(" (DPDK says: {line})"),
        None => String::new(),
    }
}

/// The text of an error number.
pub(super) fn errno_text(errno: c_int) -> String {
    std::io::Error::from_raw_os_error(errno.abs()).to_string()
}

/// Sizes, in bytes, of huge pages of which enough are free, largest first.
fn free_huge_pages() -> Vec<usize> {
    let Ok(dir) = std::fs::read_dir("/sys/kernel/mm/hugepages") else { return Vec::new() };
    let mut sizes: Vec<usize> = dir
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let kib: usize = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
            let free = std::fs::read_to_string(entry.path().join("free_hugepages")).ok()?;
            let free: usize = free.trim().parse().ok()?;
            // With a few free pages that another program left over, a port would fail; plain memory works.
            (kib * 1024 * free >= HUGE_BYTES_MIN).then_some(kib * 1024)
        })
        .collect();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    sizes
}

/// Huge pages are used if at least this many bytes of them are free: about two queues.
const HUGE_BYTES_MIN: usize = 96 << 20;

/// Whether a huge page of `bytes` can be allocated right now.
fn huge_page_works(bytes: usize) -> bool {
    let size = MapFlags::from_bits_retain(bytes.ilog2() << libc::MAP_HUGE_SHIFT);
    let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::HUGETLB | size);
    // SAFETY: a new mapping, wherever there is room, which nothing uses.
    unsafe { mmap_anonymous(ptr::null_mut(), bytes, access, flags).map(|at| munmap(at, bytes)).is_ok() }
}

/// CPUs, in ascending order, as `--lcores` takes them: "0-3,6-6".
fn cpu_list(cpus: &[CoreId]) -> String {
    let runs = cpus.chunk_by(|a, b| a.id + 1 == b.id);
    let runs = runs.map(|run| format!("{}-{}", run[0].id, run[run.len() - 1].id));
    runs.collect::<Vec<_>>().join(",")
}

fn start(pci: Option<&str>) -> Result<Eal, PortError> {
    let options = OPTIONS.get_or_init(EalOptions::default);
    let huge = options.huge_pages && free_huge_pages().into_iter().any(huge_page_works);
    let cpus = cpu_list(&core_affinity::get_core_ids().unwrap_or_default());
    let arguments = arguments(options, huge, pci, &cpus);
    let pci = pci.is_some();
    let (jobs, inbox) = mpsc::channel::<Job>();
    let (ready, started) = mpsc::sync_channel(1);
    std::thread::Builder::new()
        .name("dpdk".into())
        .spawn({
            let level = options.log_level;
            move || {
                IS_EAL_THREAD.set(true);
                let _ = ready.send(init(&arguments, level));
                for job in inbox {
                    job();
                }
            }
        })
        .map_err(|error| PortError::Eal(format!("its thread could not be started: {error}")))?;
    let result = started.recv().unwrap_or_else(|_| Err("its thread ended".into()));
    result.map(|()| Eal { jobs, huge, pci }).map_err(|reason| {
        let hint = match (huge, options.memory_mib) {
            (true, _) => {
                "; start with EalOptions::huge_pages = false if the reserved huge pages cannot be used".into()
            }
            (false, mib) => format!("; it needs {mib} MiB of memory, see EalOptions::memory_mib"),
        };
        PortError::Eal(format!("the environment did not start: {reason}{}{hint}", last_log()))
    })
}

/// The command line of EAL: options that do not conflict.
fn arguments(options: &EalOptions, huge: bool, pci: Option<&str>, cpus: &str) -> Vec<String> {
    let mut arguments = vec!["roce".to_owned()];
    // One lcore that may run on any of our CPUs: otherwise the thread would be pinned to the first of them.
    if !cpus.is_empty() {
        arguments.push(format!("--lcores=0@({cpus})"));
    }
    if huge {
        arguments.push("--in-memory".into());
    } else {
        arguments.push("--no-huge".into());
        arguments.push(format!("-m{}", options.memory_mib));
        arguments.push("--no-shconf".into());
    }
    arguments.push("--no-telemetry".into());
    match pci {
        Some(device) => arguments.push(format!("--allow={device}")),
        None => {
            arguments.push("--no-pci".into());
            arguments.push("--iova-mode=va".into());
        }
    }
    arguments.push(format!("--log-level={}", options.log_level.clamp(1, 8)));
    arguments
}

/// Blocks every signal in the calling thread.
fn block_signals() {
    // SAFETY: a set of signals, and calls that write and read it.
    unsafe {
        let mut all: libc::sigset_t = zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, ptr::null_mut());
    }
}

/// Starts EAL, on its own thread. Signals are blocked, so no signal handler of the program runs on it or on the threads that it starts.
fn init(arguments: &[String], log_level: u32) -> Result<(), String> {
    // DPDK keeps the strings and may reorder the array.
    let mut argv: Vec<*mut c_char> = Vec::with_capacity(arguments.len() + 1);
    for argument in arguments {
        argv.push(CString::new(argument.as_str()).map_err(|_| "an option has a NUL")?.into_raw());
    }
    let argc = argv.len() as c_int;
    argv.push(ptr::null_mut());
    block_signals();
    // SAFETY: the strings and the array are leaked; this runs once a process, on a thread that stays.
    unsafe {
        sys::dpdk_sys_log_to(Some(log_line), log_level.clamp(1, 8));
        match sys::dpdk_sys_eal_init(argc, argv.leak().as_mut_ptr()) {
            0 => Ok(()),
            errno => Err(errno_text(errno)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_listed_by_runs() {
        let list = |cpus: &[usize]| cpu_list(&cpus.iter().map(|&id| CoreId { id }).collect::<Vec<_>>());
        assert_eq!(list(&[0, 1, 2, 3, 6, 8, 9]), "0-3,6-6,8-9");
        assert_eq!(list(&[]), "");
    }

    #[test]
    fn options_go_together() {
        let options = EalOptions::default();
        let line = |huge, pci| arguments(&options, huge, pci, "0-1").join(" ");
        assert_eq!(
            line(false, None),
            "roce --lcores=0@(0-1) --no-huge -m512 --no-shconf --no-telemetry --no-pci --iova-mode=va --log-level=5"
        );
        // DPDK 22.11 refuses --in-memory together with --no-huge.
        assert!(line(true, None).contains("--in-memory") && !line(true, None).contains("--no-huge"));
        assert!(line(true, Some("0000:03:00.0")).contains("--allow=0000:03:00.0"));
        assert!(!line(true, Some("0000:03:00.0")).contains("--no-pci"));
        assert!(line(true, Some("0000:03:00.0,speed=1")).contains("--allow=0000:03:00.0,speed=1 "));
    }
}
