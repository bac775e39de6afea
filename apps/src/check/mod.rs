//! `--check`: reports what this host lets RoCE over its UDP sockets do, on one page, with advice for what does not work well.
//!
//! Each file checks one thing and returns findings. Files of the kernel are read below a root directory, which tests replace. What
//! cannot be read is reported as unknown: the page is for machines on which something is wrong.

mod buffers;
mod cores;
mod descriptors;
mod finding;
mod interfaces;
mod route;
mod udp_port;

use crate::error::{AppError, Result};
use crate::out::say;
use finding::{Finding, Verdict};
use std::net::IpAddr;
use std::path::Path;
use verbs::port::PortSpec;

/// Checks this host, and its routes to `hosts`; prints the page, or with `json` an array of findings.
///
/// # Errors
/// [`AppError::Setup`] where something keeps RoCE from working; a host that has no address.
pub fn run(hosts: &[String], json: bool) -> Result<()> {
    let peers: Vec<(&str, IpAddr)> =
        hosts.iter().map(|host| Ok((host.as_str(), route::resolve(host)?))).collect::<Result<_>>()?;
    let spec: PortSpec = "udp".parse().expect("it is a port");
    let addrs = spec.host_addresses().unwrap_or_default();
    let root = Path::new("/");
    let (held, port) = udp_port::check(root);
    let mut findings = vec![port, udp_port::check_loop(held.as_ref(), &addrs)];
    drop(held);
    findings.extend(buffers::check(root));
    findings.extend(interfaces::check(root, &addrs));
    findings.extend(peers.iter().flat_map(|(name, peer)| route::check(name, *peer)));
    findings.push(descriptors::check());
    findings.push(cores::check(root));
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

/// The findings as lines: verdict, topic and what was found; below each the advice.
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
}
