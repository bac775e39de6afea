//! `--report`: the facts of the machine that the analysis of a fault needs first, as text for a bug report.
//!
//! What cannot be read is left out: a report is made on machines on which something is wrong.

use std::fmt::Write;
use std::path::Path;

/// Settings of the kernel: buffer sizes that limit `udp` ports, huge pages, mappings, and what processes may do to each other.
const SETTINGS: &[&str] = &[
    "net/core/rmem_max",
    "net/core/wmem_max",
    "net/core/netdev_max_backlog",
    "vm/nr_hugepages",
    "vm/max_map_count",
    "kernel/yama/ptrace_scope",
    "kernel/io_uring_disabled",
];
/// Limits of a process that matter to a stack.
const LIMITS: &[&str] = &["Max locked memory", "Max open files", "Max processes"];

/// Describes the machine from the files below `root` (`/`) and these environment variables.
pub fn machine(root: &Path, variables: impl Iterator<Item = (String, String)>) -> String {
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap_or_default();
    let mut text = String::from("## Machine\n\n");
    let mut line = |what: &str, value: &str| {
        if !value.trim().is_empty() {
            let words: Vec<_> = value.split_whitespace().collect();
            // Writing to a string does not fail.
            let _ = writeln!(text, "- {what}: {}", words.join(" "));
        }
    };
    line("programs", concat!(env!("CARGO_PKG_NAME"), " ", env!("CARGO_PKG_VERSION")));
    line("kernel", &read("proc/version"));
    line("distribution", field(&read("etc/os-release"), "PRETTY_NAME=").trim_matches('"'));
    let processor = read("proc/cpuinfo");
    line("processor", value(&processor, "model name"));
    line("processors", &processor.lines().filter(|line| line.starts_with("processor")).count().to_string());
    let guest = value(&processor, "flags").split(' ').any(|flag| flag == "hypervisor");
    line("virtual machine", if guest { "yes" } else { "" });
    let memory = read("proc/meminfo");
    for name in ["MemTotal", "MemAvailable", "HugePages_Total", "HugePages_Free", "Hugepagesize"] {
        line(name, value(&memory, name));
    }
    for setting in SETTINGS {
        line(&setting.replace('/', "."), &read(&format!("proc/sys/{setting}")));
    }
    let limits = read("proc/self/limits");
    for limit in LIMITS {
        line(&limit.to_lowercase(), field(&limits, limit));
    }
    line("capabilities", value(&read("proc/self/status"), "CapEff"));
    for (name, value) in variables.filter(|(name, _)| name.starts_with("ROCE_")) {
        line(&name, &value);
    }
    text.push_str("\n## Network\n\n");
    for name in names(&root.join("sys/class/net")) {
        let of = |file: &str| read(&format!("sys/class/net/{name}/{file}")).trim().to_owned();
        let driver = std::fs::read_link(root.join(format!("sys/class/net/{name}/device/driver")));
        let driver = driver.ok().and_then(|path| Some(format!(", {}", path.file_name()?.to_str()?)));
        let _ = writeln!(
            text,
            "- {name}: {}, MTU {}{}, received {} dropped {}, sent {} dropped {}",
            of("operstate"),
            of("mtu"),
            driver.unwrap_or_default(),
            of("statistics/rx_packets"),
            of("statistics/rx_dropped"),
            of("statistics/tx_packets"),
            of("statistics/tx_dropped"),
        );
    }
    for name in names(&root.join("sys/class/infiniband")) {
        let _ = writeln!(text, "- {name}: a device of the kernel's RDMA");
    }
    let udp = counters(&read("proc/net/snmp"), "Udp:");
    if !udp.is_empty() {
        let _ = writeln!(text, "- UDP of the kernel: {udp}");
    }
    text
}

/// The text after `name` in the first line that begins with it.
fn field<'a>(text: &'a str, name: &str) -> &'a str {
    text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default()
}

/// The text after `name` and a colon, in the first line that begins with both.
fn value<'a>(text: &'a str, name: &str) -> &'a str {
    let of = |line: &'a str| line.strip_prefix(name)?.trim_start().strip_prefix(':');
    text.lines().find_map(of).unwrap_or_default()
}

/// The counters of a protocol that are not 0. Its names and values are in the two lines that begin with the protocol's name.
fn counters(text: &str, protocol: &str) -> String {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(protocol));
    let (names, values) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let both = names.split_whitespace().zip(values.split_whitespace()).filter(|(_, value)| *value != "0");
    both.map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", ")
}

/// The names in a directory, sorted.
fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_what_can_be_read_and_leaves_the_rest_out() {
        let root = std::env::temp_dir().join(format!("roce-report-{}", std::process::id()));
        let file = |path: &str, text: &str| {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        file("proc/version", "Linux version 6.1.0\n");
        file(
            "proc/cpuinfo",
            "processor\t: 0\nmodel name\t: A processor\nflags\t\t: fpu hypervisor\nprocessor\t: 1\n",
        );
        file("proc/sys/net/core/rmem_max", "212992\n");
        file("proc/self/limits", "Limit   Soft Limit\nMax locked memory   8388608   8388608   bytes\n");
        file("proc/net/snmp", "Udp: InDatagrams NoPorts RcvbufErrors\nUdp: 7 0 3\n");
        file("sys/class/net/eth0/mtu", "1500\n");
        file("sys/class/net/eth0/operstate", "up\n");
        let set = [("ROCE_PORT", "udp:"), ("HOME", "/root")].map(|(name, value)| (name.into(), value.into()));
        let text = machine(&root, set.into_iter());
        std::fs::remove_dir_all(&root).unwrap();
        for line in [
            "- kernel: Linux version 6.1.0\n",
            "- processor: A processor\n",
            "- processors: 2\n",
            "- virtual machine: yes\n",
            "- net.core.rmem_max: 212992\n",
            "- max locked memory: 8388608 8388608 bytes\n",
            "- ROCE_PORT: udp:\n",
            "- eth0: up, MTU 1500, ",
            "- UDP of the kernel: InDatagrams 7, RcvbufErrors 3\n",
        ] {
            assert!(text.contains(line), "{line:?} is not in\n{text}");
        }
        assert!(
            !text.contains("distribution") && !text.contains("HOME") && !text.contains("MemTotal"),
            "{text}"
        );
    }
}
