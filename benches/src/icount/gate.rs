//! The regression gate: compares counts with those committed in `benches/icount.txt`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Relative difference from the committed count that the gate tolerates. Compilers of neighbouring versions differ by less;
/// an additional check or copy on a hot path, by more.
pub const TOLERANCE: f64 = 0.04;
/// Differences below this many instructions a message are never worth a failure.
pub const FLOOR: f64 = 4.0;

/// Instructions per message, by `scenario step`.
pub type Counts = BTreeMap<String, f64>;

/// The text of a file of counts.
pub fn render(counts: &Counts, made_with: &str) -> String {
    let mut out = format!(
        "# Instructions a message on the hot paths: what `scripts/icount` compares with.\n\
         # Renew with `scripts/icount --renew` and commit it with the change that explains it.\n\
         # Made with {made_with}.\n"
    );
    for (key, n) in counts {
        let _ = writeln!(out, "{key:32} {n:9.1}");
    }
    out
}

/// Reads a file of counts.
///
/// # Errors
/// A sentence with the invalid line.
pub fn parse(text: &str) -> Result<Counts, String> {
    let mut counts = Counts::new();
    for (n, line) in text.lines().enumerate().filter(|(_, l)| !l.starts_with('#') && !l.trim().is_empty()) {
        let words: Vec<_> = line.split_ascii_whitespace().collect();
        let count = match words[..] {
            [scenario, step, count] => count.parse().ok().map(|count| (format!("{scenario} {step}"), count)),
            _ => None,
        };
        let (key, count) = count.ok_or(format!("line {}: {line:?} is not `SCENARIO STEP COUNT`", n + 1))?;
        counts.insert(key, count);
    }
    Ok(counts)
}

/// The result of a comparison, as sentences.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Paths that cost more, are new or are missing: the gate fails.
    pub worse: Vec<String>,
    /// Paths that cost less: renew the counts, so that the gain is kept.
    pub better: Vec<String>,
}

/// Compares counted paths with the expected ones.
pub fn compare(expected: &Counts, counted: &Counts) -> Verdict {
    let mut verdict = Verdict::default();
    for (key, &now) in counted {
        let Some(&was) = expected.get(key) else {
            verdict.worse.push(format!("{key}: {now:.1} instructions a message, and no expected count"));
            continue;
        };
        let by = now - was;
        if by.abs() <= (was * TOLERANCE).max(FLOOR) {
            continue;
        }
        let percent = if was > 0.0 { 100.0 * by / was } else { f64::INFINITY };
        let line = format!("{key}: {was:.1} -> {now:.1} instructions a message ({by:+.1}, {percent:+.1} %)");
        if by > 0.0 { verdict.worse.push(line) } else { verdict.better.push(line) }
    }
    for key in expected.keys().filter(|key| !counted.contains_key(*key)) {
        verdict.worse.push(format!("{key}: expected, but not counted"));
    }
    verdict
}

/// The path that grew most, by how many per cent, and the mean growth of all paths.
pub fn most<'a>(was: &'a Counts, now: &Counts) -> Option<(&'a str, f64, f64)> {
    let grown = |(key, was): (&'a String, &f64)| {
        Some((key.as_str(), 100.0 * (now.get(key)? - was) / was)).filter(|_| *was > 0.0)
    };
    let all: Vec<_> = was.iter().filter_map(grown).collect();
    let mean = all.iter().map(|(_, by)| by).sum::<f64>() / all.len() as f64;
    all.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)).map(|(path, by)| (path, by, mean))
}

/// The steps that cost more in `scenario` than in `than`, as sentences. Without polling: a completion queue has a lane for
/// each shard, and a poll checks all of them.
pub fn dearer(counted: &Counts, scenario: &str, than: &str) -> Vec<String> {
    let steps = counted.iter().filter_map(|(key, n)| Some((key.strip_prefix(than)?.strip_prefix(' ')?, n)));
    let more = steps.filter(|(step, _)| !step.ends_with("_poll")).filter_map(|(step, &one)| {
        let n = counted.get(&format!("{scenario} {step}")).copied().unwrap_or(f64::INFINITY);
        let much = n - one > (one * TOLERANCE).max(FLOOR);
        much.then(|| format!("{scenario} {step}: {n:.1} instructions a message, and {one:.1} in {than}"))
    });
    more.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(of: &[(&str, f64)]) -> Counts {
        of.iter().map(|(k, n)| (k.to_string(), *n)).collect()
    }

    #[test]
    fn a_file_of_counts_reads_back() {
        let all = counts(&[("send_64 requester_turn", 512.5), ("read_64 responder_turn", 3.0)]);
        assert_eq!(parse(&render(&all, "valgrind-3.19.0")).unwrap(), all);
        assert!(parse("send_64 many\n").unwrap_err().contains("line 1"));
        assert!(parse("send_64 requester_turn many\n").is_err());
    }

    #[test]
    fn what_grew_is_named_with_how_much() {
        let was = counts(&[("a x", 100.0), ("b x", 500.0), ("c x", 50.0)]);
        let now = counts(&[("a x", 103.9), ("b x", 550.0), ("c x", 40.0)]);
        let verdict = compare(&was, &now);
        assert_eq!(verdict.worse, ["b x: 500.0 -> 550.0 instructions a message (+50.0, +10.0 %)"]);
        assert_eq!(verdict.better, ["c x: 50.0 -> 40.0 instructions a message (-10.0, -20.0 %)"]);
    }

    #[test]
    fn the_tolerance_has_edges() {
        let one = |was, now| compare(&counts(&[("a x", was)]), &counts(&[("a x", now)]));
        assert_eq!(one(1000.0, 1040.0), Verdict::default());
        assert_eq!(one(1000.0, 1040.5).worse.len(), 1);
        assert_eq!(one(10.0, 14.0), Verdict::default(), "a few instructions more are noise of the compiler");
        assert_eq!(one(10.0, 14.5).worse.len(), 1);
    }

    #[test]
    fn the_path_that_grew_most_is_found() {
        let was = counts(&[("a x", 100.0), ("b x", 50.0), ("c x", 10.0)]);
        let now = counts(&[("a x", 110.0), ("b x", 60.0), ("d x", 10.0)]);
        assert_eq!(most(&was, &now), Some(("b x", 20.0, 15.0)));
        assert_eq!(most(&was, &counts(&[("d x", 1.0)])), None);
    }

    #[test]
    fn a_new_or_missing_path_fails() {
        let verdict = compare(&counts(&[("a x", 1.0)]), &counts(&[("b x", 1.0)]));
        assert_eq!(verdict.worse.len(), 2);
    }

    #[test]
    fn a_scenario_may_not_cost_more_than_another() {
        let counts = |text: &str| parse(text).unwrap();
        let alike = counts("a turn 100\na post 10\nb turn 103\nb post 13\nab turn 999\n");
        assert_eq!(dearer(&alike, "b", "a"), [""; 0]);
        let more = dearer(&counts("a turn 100\nb turn 105\n"), "b", "a");
        assert_eq!(more, ["b turn: 105.0 instructions a message, and 100.0 in a"]);
        assert_eq!(dearer(&counts("a turn 100\n"), "b", "a").len(), 1, "what is missing is not cheap");
    }
}
