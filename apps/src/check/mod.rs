//! `--check`: what this host lets RoCE over its UDP sockets do, on one page, with what to do about the rest.
//!
//! Each file looks at one thing and returns findings. Files of the kernel are read below a root that a test gives; what cannot be
//! read is said to be unknown, as the page is for machines on which something is wrong.

mod buffers;
mod cores;
mod descriptors;
mod interfaces;
mod route;
mod udp_port;

use crate::error::{AppError, Result};
use crate::out::say;
use serde::Serialize;
use std::net::IpAddr;
use std::path::Path;
use verbs::port::{HostAddress, PortSpec};

/// How something is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    /// As it should be.
    Ok,
    /// It works, and could be better.
    Note,
    /// It keeps RoCE from working.
    Broken,
    /// It could not be seen.
    Unknown,
}

impl Verdict {
    const fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Broken => "BROKEN",
            Self::Unknown => "?",
        }
    }
}

/// What was found out about a thing.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
struct Finding {
    topic: &'static str,
    verdict: Verdict,
    what: String,
    /// What to do; empty where there is nothing to do.
    advice: String,
}

impl Finding {
    fn new(topic: &'static str, verdict: Verdict, what: impl Into<String>) -> Self {
        Self { topic, verdict, what: what.into(), advice: String::new() }
    }
    fn ok(topic: &'static str, what: impl Into<String>) -> Self {
        Self::new(topic, Verdict::Ok, what)
    }
    fn advice(self, advice: impl Into<String>) -> Self {
        Self { advice: advice.into(), ..self }
    }
}

/// Looks at this host, and at the ways to some others; prints the page, or with `json` an array of findings.
///
/// # Errors
/// [`AppError::Setup`] where something keeps RoCE from working; a host that has no address.
pub fn run(hosts: &[String], json: bool) -> Result<()> {
    let peers: Vec<(&str, IpAddr)> =
        hosts.iter().map(|host| Ok((host.as_str(), route::resolve(host)?))).collect::<Result<_>>()?;
    let spec: PortSpec = "udp".parse().expect("it is a port");
    let addrs = spec.host_addresses().unwrap_or_default();
    let root = Path::new("/");
    let (held, mut findings) = udp_port::check(root);
    findings.extend(udp_port::check_loop(held.as_ref(), &addrs));
    drop(held);
    findings.extend(buffers::check(root));
    findings.extend(interfaces::check(root, &addrs));
    findings.extend(peers.iter().flat_map(|(name, peer)| route::check(name, *peer)));
    findings.extend(descriptors::check());
    findings.extend(cores::check(root));
    let text =
        if json { serde_json::to_string(&findings).expect("findings are text") } else { page(&findings) };
    say!("{text}")?;
    match findings.iter().filter(|finding| finding.verdict == Verdict::Broken).count() {
        0 => Ok(()),
        1 => Err(AppError::Setup(
            "one thing keeps RoCE over UDP from working here; it is marked BROKEN".into(),
        )),
        n => Err(AppError::Setup(format!(
            "{n} things keep RoCE over UDP from working here; they are marked BROKEN"
        ))),
    }
}

/// The findings as lines: verdict, topic, what it is; and below it what to do.
fn page(findings: &[Finding]) -> String {
    let width = findings.iter().map(|finding| finding.topic.len()).max().unwrap_or(0);
    let mut lines = vec!["RoCE over the UDP sockets of this host (--port udp:)\n".to_owned()];
    for Finding { topic, verdict, what, advice } in findings {
        lines.push(format!("{:6}  {topic:width$}  {what}", verdict.word()));
        if !advice.is_empty() {
            lines.push(format!("{:6}  {:width$}  -> {advice}", "", ""));
        }
    }
    lines.join("\n")
}

/// A file of the kernel; empty where it cannot be read.
fn read(root: &Path, path: &str) -> String {
    std::fs::read_to_string(root.join(path)).unwrap_or_default()
}

/// The interfaces that have addresses, each with one of them, without the loopback interface if there are others.
fn interfaces_of(addrs: &[HostAddress]) -> Vec<&str> {
    let mut names: Vec<&str> =
        addrs.iter().map(|addr| addr.iface.as_str()).filter(|name| !name.is_empty()).collect();
    names.dedup();
    names.sort_unstable();
    names.dedup();
    names
}

/// Bytes as people write them.
fn bytes(n: u64) -> String {
    match n {
        0..1024 => format!("{n} B"),
        1024..1_048_576 => format!("{} KiB", n / 1024),
        1_048_576..1_073_741_824 => format!("{} MiB", n / 1_048_576),
        _ => format!("{:.1} GiB", n as f64 / 1_073_741_824.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_a_line_for_what_is_and_one_for_what_to_do() {
        let findings = [
            Finding::ok("port", "free"),
            Finding::new("buffers", Verdict::Note, "small").advice("make them larger"),
            Finding::new("firewall", Verdict::Broken, "closed"),
        ];
        let page = page(&findings);
        let lines: Vec<_> = page.lines().skip(2).collect();
        assert_eq!(
            lines,
            [
                "ok      port      free",
                "note    buffers   small",
                "                  -> make them larger",
                "BROKEN  firewall  closed"
            ]
        );
    }

    #[test]
    fn bytes_are_read_at_a_glance() {
        let text = [0, 1023, 212_992, 4 << 20, 3 << 29].map(bytes);
        assert_eq!(text, ["0 B", "1023 B", "208 KiB", "4 MiB", "1.5 GiB"]);
    }
}
