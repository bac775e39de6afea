//! Two hosts on this machine: network namespaces joined by a pair of virtual interfaces (veth). The kernel treats them as two machines,
//! so sockets behave as over a network without distance.

use super::child::Guard;
use apps::error::{AppError, Result};
use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};

/// The connection between two hosts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cable {
    /// Ethernet's MTU.
    Mtu1500,
    /// Jumbo frames.
    Mtu9000,
    /// A network that limits each flow to [`CAP`], at Ethernet's MTU: `roce-relay`.
    Capped,
}

/// Megabits a second of each flow in a [`Cable::Capped`] network.
pub const CAP: u32 = 64;
/// The addresses of the server's and the client's host.
pub const ADDRS: [&str; 2] = ["10.77.90.1", "10.77.90.2"];

impl Cable {
    const ALL: [Self; 3] = [Self::Mtu1500, Self::Mtu9000, Self::Capped];

    const fn mtu(self) -> u32 {
        if matches!(self, Self::Mtu9000) { 9000 } else { 1500 }
    }

    /// The namespaces of the two hosts on this cable.
    fn hosts(self) -> [String; 2] {
        ["a", "b"].map(|host| self.namespace(host))
    }

    fn namespace(self, what: &str) -> String {
        format!("roce-bench-{}-{self:?}-{what}", std::process::id())
    }

    /// The namespace between the two hosts, if this cable has one.
    fn between(self) -> Option<String> {
        (self == Self::Capped).then(|| self.namespace("relay"))
    }
}

/// Two hosts on each cable; removed when this value is dropped.
#[derive(Debug)]
pub struct Hosts(());

impl Hosts {
    /// Creates the hosts.
    ///
    /// # Errors
    /// Why they cannot be created: they need root, and the tools ip and ethtool.
    pub fn new() -> Result<Self> {
        let hosts = Self(());
        for cable in Cable::ALL {
            for name in cable.hosts().iter().chain(&cable.between()) {
                ip(&["netns", "add", name])?;
                ip(&["-n", name, "link", "set", "lo", "up"])?;
            }
            let [a, b] = &cable.hosts();
            match &cable.between() {
                None => join([a, "eth0"], [b, "eth0"], cable)?,
                Some(between) => {
                    join([a, "eth0"], [between, "left"], cable)?;
                    join([b, "eth0"], [between, "right"], cable)?;
                    for host in [a, b] {
                        // The relay must see frames as they are on a cable: segmented, and with their checksums.
                        exec(host, "ethtool", &["-K", "eth0", "tx", "off", "tx-udp-segmentation", "off"])?;
                    }
                }
            }
            for (host, addr) in [a, b].into_iter().zip(ADDRS) {
                ip(&["-n", host, "address", "add", &format!("{addr}/24"), "dev", "eth0"])?;
            }
        }
        Ok(hosts)
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for cable in Cable::ALL {
            for name in cable.hosts().iter().chain(&cable.between()) {
                let _ = ip(&["netns", "delete", name]);
            }
        }
    }
}

/// Joins two interfaces of namespaces, and brings both up.
fn join(one: [&str; 2], other: [&str; 2], cable: Cable) -> Result<()> {
    let [a, b] = [one, other];
    ip(&["link", "add", a[1], "netns", a[0], "type", "veth", "peer", "name", b[1], "netns", b[0]])?;
    for [host, iface] in [a, b] {
        ip(&["-n", host, "link", "set", iface, "mtu", &cable.mtu().to_string(), "up"])?;
    }
    Ok(())
}

/// Starts the program that joins the hosts on this cable, if the cable has one: `roce-relay`, from beside `perf`. The program uses CPU
/// time of the cores while it runs.
///
/// # Errors
/// When it does not start.
pub fn relay(cable: Cable, perf: &Path) -> Result<Option<Guard>> {
    let Some(between) = cable.between() else { return Ok(None) };
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &between, "nice", "-n", "-20"]).arg(perf.with_file_name("roce-relay"));
    command.args(["--rate", &CAP.to_string(), "left", "right"]);
    Guard::quiet(&command).map(Some)
}

/// A command that runs on the server's or the client's host of this cable.
pub fn command(cable: Cable, side: usize, program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &cable.hosts()[side]]).arg(program);
    command
}

fn exec(host: &str, program: &str, args: &[&str]) -> Result<()> {
    ip(&[&["netns", "exec", host, program][..], args].concat())
}

fn ip(args: &[&str]) -> Result<()> {
    let said = Command::new("ip").args(args).stdin(Stdio::null()).output();
    let said = said.map_err(|e| AppError::Setup(format!("ip: {e}")))?;
    if said.status.success() {
        return Ok(());
    }
    let error = String::from_utf8_lossy(&said.stderr);
    Err(AppError::Setup(format!("ip {}: {}", args.join(" "), error.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    // Goal: everything that is created is removed afterwards, and the two hosts reach each other at the MTU of their cable.
    #[test]
    fn the_hosts_reach_each_other_and_leave_nothing_behind() {
        let trial = format!("roce-bench-{}-trial", std::process::id());
        let able = ip(&["netns", "add", &trial]).is_ok() && ip(&["netns", "delete", &trial]).is_ok();
        if !able || Command::new("ethtool").arg("--version").output().is_err() {
            let skipped =
                "SKIPPED the_hosts_reach_each_other_and_leave_nothing_behind: it needs root, ip, ethtool";
            return writeln!(std::io::stderr(), "{skipped}").unwrap();
        }
        let hosts = Hosts::new().unwrap();
        for cable in Cable::ALL {
            let said = command(cable, 1, "ip").args(["route", "get", ADDRS[0]]).output().unwrap();
            assert!(String::from_utf8_lossy(&said.stdout).contains("dev eth0"), "{said:?}");
            let of = command(cable, 0, "ip").args(["link", "show", "eth0"]).output().unwrap();
            let mtu = format!("mtu {} ", cable.mtu());
            assert!(String::from_utf8_lossy(&of.stdout).contains(&mtu), "{of:?}");
        }
        drop(hosts);
        let left = Command::new("ip").args(["netns", "list"]).output().unwrap();
        let left = String::from_utf8_lossy(&left.stdout).into_owned();
        let names = Cable::ALL.into_iter().flat_map(|cable| cable.hosts().into_iter().chain(cable.between()));
        assert!(names.into_iter().all(|name| !left.contains(&name)), "{left}");
    }
}
