//! The machine and the time of a measurement.

use std::process::Command;

/// A machine at a point in time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// Properties: a name and a value each.
    pub facts: Vec<(&'static str, String)>,
}

impl Machine {
    /// This machine, now.
    pub fn here() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let mut facts = Vec::new();
        let mut add = |name, text: Option<String>| {
            facts.extend(text.filter(|t| !t.is_empty()).map(|t| (name, t)));
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        add("processor", Some(format!("{}, {cores} cores", processor(&read("/proc/cpuinfo")))));
        add("kernel", Some(read("/proc/sys/kernel/osrelease").trim().into()));
        add("huge pages", field(&read("/proc/meminfo"), "HugePages_Total").map(|n| format!("{n} reserved")));
        add("DPDK", said("pkg-config", &["--modversion", "libdpdk"]));
        add("commit", said("git", &["describe", "--always", "--dirty"]));
        add("date", said("date", &["-u", "+%F %H:%M UTC"]));
        Self { facts }
    }

    /// Everything in one line.
    pub fn line(&self) -> String {
        let all: Vec<_> = self.facts.iter().map(|(name, text)| format!("{name} {text}")).collect();
        all.join(" · ")
    }
}

/// The processor's name, and its model and the features that the figures depend on, because the name in a virtual machine is often
/// generic.
fn processor(cpuinfo: &str) -> String {
    const COUNTS: [&str; 4] = ["avx2", "pclmulqdq", "vpclmulqdq", "avx512vbmi"];
    let Some(name) = field(cpuinfo, "model name") else { return "unknown processor".into() };
    let flags = field(cpuinfo, "flags").unwrap_or_default();
    let has = COUNTS.into_iter().filter(|count| flags.split(' ').any(|flag| flag == *count));
    let number = |name| field(cpuinfo, name).map(|n| format!("{} {n}", name.trim_end()));
    let facts: Vec<_> = [number("cpu family"), number("model\t")]
        .into_iter()
        .flatten()
        .chain(has.map(String::from))
        .collect();
    format!("{name} ({})", facts.join(" "))
}

/// A field of a file of `name : value` lines.
fn field(text: &str, name: &str) -> Option<String> {
    let line = text.lines().find(|l| l.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_string())
}

fn said(program: &str, args: &[&str]) -> Option<String> {
    let out = Command::new(program).args(args).output().ok().filter(|out| out.status.success())?;
    Some(String::from_utf8_lossy(&out.stdout).trim().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found() {
        assert_eq!(field("cpu MHz\t: 1\nmodel name\t: X 1\n", "model name").as_deref(), Some("X 1"));
        assert_eq!(field("", "model name"), None);
        let cpuinfo =
            "cpu family\t: 25\nmodel\t\t: 1\nmodel name\t: X 1\nflags\t\t: fpu pclmulqdq avx avx2\n";
        assert_eq!(processor(cpuinfo), "X 1 (cpu family 25 model 1 avx2 pclmulqdq)");
        assert_eq!(processor(""), "unknown processor");
        assert!(Machine::here().line().contains("cores"));
    }
}
