//! `roce-run`: sets the environment variables that the loader and the library read, and executes the program in its place.
//!
//! `roce-run` only prepares. The library that it names (`libibverbs.so.1`, built by `scripts/dropin --build`) opens the port in the
//! program's process, when the program first needs it.

mod image;
mod library;
mod sysfs;
mod tree;

use crate::check;
use crate::cli::run::{RunCli, RunDrive};
use crate::cli::{device::DEFAULT_PORT, parse};
use crate::error::{AppError, Result};
use crate::out::{note, say};
use clap::ValueEnum;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use sysfs::Facts;
use verbs::port::PortSpec;

/// Prefixed names of variables of UCX that get a default value for the program: `libroce-paths.so` returns it if the user has set
/// none. In the environment under its real name, a release of UCX that does not know the variable would warn of it.
const UCX_CHECK: &str = "ROCE_DEFAULT_UCX_UD_ETH_DGID_CHECK";
const UCX_REACHABILITY: &str = "ROCE_DEFAULT_UCX_IB_ROCE_REACHABILITY_MODE";

/// Executes the program in place of this process; returns only if that fails, or after printing.
///
/// # Errors
/// No library, no such program, or a program that cannot be run this way.
pub fn run(cli: &RunCli) -> Result<()> {
    if cli.check {
        let host = |host: &OsString| {
            host.to_str().map(str::to_owned).ok_or_else(|| AppError::Usage(format!("{host:?} is no host")))
        };
        return check::run(&cli.command.iter().map(host).collect::<Result<Vec<_>>>()?, cli.json);
    }
    if !cli.cores.is_empty() && cli.drive != Some(RunDrive::Dedicated) {
        return Err(AppError::Usage("--cores are those of --drive dedicated; taskset pins a program".into()));
    }
    let library = library::find(cli.libraries.as_deref())?;
    if cli.print {
        for (name, value) in variables(cli, &library)? {
            say!("export {name}={}", quoted(&value))?;
        }
        return Ok(());
    }
    let (name, args) = cli.command.split_first().ok_or_else(|| AppError::Usage("name a program".into()))?;
    let program = image::search(name, std::env::var_os("PATH").as_deref())?;
    if let Some(why) = image::check(&program)? {
        note!("roce-run: {why}");
    }
    let error = Command::new(&program).arg0(name).args(args).envs(variables(cli, &library)?).exec();
    Err(AppError::Setup(format!("{} cannot be run: {error}", program.display())))
}

/// The variables for the loader and for the library.
fn variables(cli: &RunCli, library: &Path) -> Result<Vec<(&'static str, OsString)>> {
    let old = |name: &str| std::env::var_os(name);
    let mut all = library::loader(library, old);
    all.extend(library::sanitizers(library, old));
    let mut set = |name, value: Option<OsString>| all.extend(value.map(|value| (name, value)));
    let facts = facts(cli);
    set("ROCE_PATHS", Some(tree::make(&facts)?.into_os_string()));
    // UCX 1.13 reads the IP version of a datagram from a field that only one vendor's devices fill in, and drops datagrams of others.
    set(UCX_CHECK, Some("n".into()));
    // UCX 1.19 and later asks the kernel for a route to each peer. If the port uses no interface of the kernel, the kernel has none.
    set(UCX_REACHABILITY, (!facts.has_interfaces()).then(|| "all".into()));
    set("ROCE_PORT", cli.port.as_ref().map(OsString::from));
    set("ROCE_ADDR", list(cli.ip.iter().map(|(addr, prefix)| format!("{addr}/{prefix}"))));
    set("ROCE_MTU", cli.link_mtu.map(|mtu| mtu.to_string().into()));
    set("ROCE_DRIVE", cli.drive.map(|drive| drive.value(&cli.cores).into()));
    set("ROCE_MEMORY", cli.on_demand.then(|| "on-demand".into()));
    // The program may change its directory before the library reads a path.
    let absolute = |path: &Path| {
        std::path::absolute(path).map_err(|e| AppError::Usage(format!("{}: {e}", path.display())))
    };
    let stats = match &cli.stats {
        Some(Some(path)) => Some(absolute(path)?),
        Some(None) => Some(verbs::stats::runtime_dir().map_err(|e| AppError::Setup(e.to_string()))?),
        None => None,
    };
    set("ROCE_STATS", stats.map(PathBuf::into_os_string));
    set("ROCE_PCAP", cli.pcap.as_deref().map(absolute).transpose()?.map(PathBuf::into_os_string));
    Ok(all)
}

/// What is known of the device before the library opens it, from the options or else from the variables. Values that the library
/// will refuse are left out.
fn facts(cli: &RunCli) -> Facts {
    let set = |name: &str| std::env::var(name).ok();
    let port = cli.port.clone().or_else(|| set("ROCE_PORT")).unwrap_or_else(|| DEFAULT_PORT.into());
    let port = parse::port(&port).ok();
    let host = port.as_ref().and_then(|port: &PortSpec| port.host_addresses().ok()).unwrap_or_default();
    let addrs = match &cli.ip[..] {
        [] => {
            let set = set("ROCE_ADDR").unwrap_or_default();
            set.split(',').flat_map(parse::ip_prefix).map(|(addr, _)| addr).collect()
        }
        given => given.iter().map(|(addr, _)| *addr).collect(),
    };
    Facts { port, addrs, mac: set("ROCE_MAC").and_then(|mac| mac.parse().ok()), host }
}

impl RunDrive {
    /// The value in the format that the library reads.
    fn value(self, cores: &[usize]) -> String {
        let name = self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
        let cores: Vec<String> = cores.iter().map(usize::to_string).collect();
        if cores.is_empty() { name } else { format!("{name}:{}", cores.join(",")) }
    }
}

/// A list as the value of one variable; `None` for an empty list.
fn list(elements: impl Iterator<Item = String>) -> Option<OsString> {
    let elements: Vec<String> = elements.collect();
    (!elements.is_empty()).then(|| elements.join(",").into())
}

/// A text quoted for a shell.
fn quoted(text: &OsStr) -> String {
    format!("'{}'", text.to_string_lossy().replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_back_what_is_printed() {
        for text in ["", "a b", "it's", "$HOME`x`\"\\"] {
            let line = format!("printf %s {}", quoted(OsStr::new(text)));
            let output = Command::new("sh").args(["-c", &line]).output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), text, "{line}");
        }
    }
}
