//! Checks how many file descriptors a process may have open.

use super::finding::{Finding, Verdict};
use rustix::process::{Resource, getrlimit};

/// Enough for a program with a thousand connections, each with a channel of its own.
const PLENTY: u64 = 4096;

pub(super) fn check() -> Finding {
    let limit = getrlimit(Resource::Nofile);
    descriptors(limit.current.unwrap_or(u64::MAX), limit.maximum.unwrap_or(u64::MAX))
}

fn descriptors(now: u64, most: u64) -> Finding {
    const TOPIC: &str = "open files";
    if now == u64::MAX {
        return Finding::ok(TOPIC, "as many as a process wants");
    }
    let finding = Finding::ok(TOPIC, format!("{now} a process"));
    if now >= PLENTY {
        return finding;
    }
    let raise = if most >= PLENTY {
        format!("ulimit -n {PLENTY}")
    } else {
        "limits.conf(5), LimitNOFILE= of a unit".into()
    };
    Finding { verdict: Verdict::Note, ..finding }
        .advice(format!("for programs with many connections and channels: {raise}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_files_are_said_with_how_to_have_more() {
        assert_eq!(descriptors(u64::MAX, u64::MAX).verdict, Verdict::Ok);
        assert_eq!(descriptors(PLENTY, PLENTY).verdict, Verdict::Ok);
        assert!(descriptors(1024, 1 << 19).advice.contains("ulimit -n 4096"));
        assert!(descriptors(1024, 1024).advice.contains("LimitNOFILE"));
    }
}
