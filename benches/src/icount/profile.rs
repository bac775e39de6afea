//! Parser of callgrind's output.
//!
//! The format (valgrind's manual, "Callgrind Format Specification") has lines of two kinds: `key=value`, which give the site
//! of the following costs, and costs, `line count`. A value is `(id) name` at its first occurrence and `(id)` from then on.
//! The cost line after `calls=` is that of the call, including the callee's own.

use std::collections::BTreeMap;

/// Where a cost arises.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CodeSite {
    /// The symbol of the function; inlined code has none of its own.
    pub function: String,
    /// The source file of the code, which differs from the function's for inlined code: the last known one, so that a line of
    /// the standard library is attributed to the code around it. Empty if there is none.
    pub file: String,
}

/// A call: its site, its target, and its cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The calling site.
    pub from: CodeSite,
    /// The symbol of the function that is called.
    pub to: String,
    /// Instructions, those of its callees included.
    pub cost: u64,
}

/// A parsed profile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// Instructions of each site itself, without callees.
    pub own: BTreeMap<CodeSite, u64>,
    /// Instructions of each function including its callees. Wrong for recursive functions.
    pub inclusive: BTreeMap<String, u64>,
    /// Every call.
    pub calls: Vec<Call>,
}

impl Profile {
    /// All instructions.
    pub fn total(&self) -> u64 {
        self.own.values().sum()
    }

    /// Instructions of the functions whose symbol contains `name`, including their callees.
    pub fn of(&self, name: &str) -> u64 {
        self.inclusive.iter().filter(|(symbol, _)| symbol.contains(name)).map(|(_, n)| n).sum()
    }

    /// Parses a profile; `known` selects the source files that costs may be attributed to.
    ///
    /// # Errors
    /// A sentence with the invalid line.
    pub fn parse(text: &str, known: impl Fn(&str) -> bool) -> Result<Self, String> {
        let mut out = Self::default();
        let (mut functions, mut files) = (Names::default(), Names::default());
        let mut at = CodeSite { function: String::new(), file: String::new() };
        let (mut file, mut callee, mut is_call) = (String::new(), String::new(), false);
        for (n, line) in text.lines().enumerate() {
            let bad = || format!("line {} of the profile is not of callgrind's format: {line:?}", n + 1);
            let first = line.bytes().next().unwrap_or(b'#');
            if first.is_ascii_digit() || matches!(first, b'+' | b'-' | b'*') {
                let cost = line.split_ascii_whitespace().nth(1).map_or(Ok(0), str::parse::<u64>);
                let cost = cost.map_err(|_| bad())?;
                *out.inclusive.entry(at.function.clone()).or_default() += cost;
                if std::mem::take(&mut is_call) {
                    out.calls.push(Call { from: at.clone(), to: callee.clone(), cost });
                } else {
                    *out.own.entry(at.clone()).or_default() += cost;
                }
                continue;
            }
            let Some((key, value)) = line.split_once('=') else { continue };
            match key {
                "fl" => file = files.get(value).ok_or_else(bad)?,
                "fn" => {
                    at.function = functions.get(value).ok_or_else(bad)?;
                    at.file = if known(&file) { file.clone() } else { String::new() };
                }
                "fi" | "fe" => {
                    file = files.get(value).ok_or_else(bad)?;
                    if known(&file) {
                        at.file.clone_from(&file);
                    }
                }
                "cfn" => callee = functions.get(value).ok_or_else(bad)?,
                "cfl" | "cfi" => drop(files.get(value).ok_or_else(bad)?),
                "calls" => is_call = true,
                _ => {}
            }
        }
        Ok(out)
    }
}

/// Names by their number.
#[derive(Default)]
struct Names(BTreeMap<u32, String>);

impl Names {
    fn get(&mut self, value: &str) -> Option<String> {
        let Some(rest) = value.strip_prefix('(') else { return Some(value.into()) };
        let (id, name) = rest.split_once(')')?;
        let id = id.parse().ok()?;
        let name = name.trim_start();
        if !name.is_empty() {
            self.0.insert(id, name.into());
        }
        self.0.get(&id).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
version: 1
creator: callgrind-3.19.0
positions: line
events: Ir
summary: 37

fl=(1) /p/stack/src/shard/poll.rs
fn=(1) stack::shard::poll_once
10 5
fi=(2) /p/stack/src/shard/copy.rs
+2 7
fi=(4) /rustc/core/src/slice.rs
* 1
fe=(1)
12 2
cfi=(3) /p/stack/src/shard/rx.rs
cfn=(2) stack::shard::rx
calls=3 20
13 22

fl=(3)
fn=(2)
20 20
-1 2
totals: 37
";

    fn parse(text: &str) -> Result<Profile, String> {
        Profile::parse(text, |file| file.contains("/stack/src/"))
    }

    #[test]
    fn own_costs_stand_under_function_and_file() {
        let profile = parse(TEXT).unwrap();
        let own = |function: &str, file: &str| {
            let is = |p: &&CodeSite| p.function.ends_with(function) && p.file.ends_with(file);
            profile.own.iter().filter(|(p, _)| is(p)).map(|(_, n)| *n).collect::<Vec<_>>()
        };
        assert_eq!(own("poll_once", "poll.rs"), [7]);
        assert_eq!(
            own("poll_once", "copy.rs"),
            [8],
            "inlined code stands under its own file, core under that"
        );
        assert_eq!(own("rx", "rx.rs"), [22]);
        assert_eq!(profile.total(), 37, "a call's cost is counted once");
    }

    #[test]
    fn inclusive_costs_have_the_callees() {
        let profile = parse(TEXT).unwrap();
        assert_eq!((profile.of("poll_once"), profile.of("shard::rx")), (37, 22));
        assert_eq!(profile.of("nobody"), 0);
        let [call] = &profile.calls[..] else { panic!("{:?}", profile.calls) };
        assert!(call.from.file.ends_with("poll.rs") && call.to == "stack::shard::rx" && call.cost == 22);
    }

    #[test]
    fn what_is_no_profile_is_refused() {
        let error = parse("fn=(7)\n1 2\n").unwrap_err();
        assert!(error.contains("line 1"), "{error}");
        assert!(parse("fn=(1) f\n1 many\n").is_err());
    }
}
