//! Checks the list of conformance cases against the existing tests: no case may disappear silently.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Number of cases in each group, so that a row lost from the list is noticed.
const GROUPS: &[(char, usize)] = &[
    ('P', 37),
    ('S', 39),
    ('Q', 63),
    ('R', 61),
    ('U', 20),
    ('X', 3),
    ('L', 8),
    ('C', 13),
    ('M', 27),
    ('I', 6),
];

/// The reason of a case that has no test yet; ignored once a test exists.
const DEBT: &str = "no test yet";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_path_buf()
}

/// Id, title and reason of each row.
fn rows() -> Vec<(String, String, Option<String>)> {
    let text = fs::read_to_string(root().join("stack/tests/conformance.txt")).expect("the list is there");
    let lines = text.lines().filter(|l| !l.trim().is_empty() && !l.starts_with('#'));
    let row = |l: &str| {
        let mut parts = l.split(" | ").map(|p| p.trim().to_string());
        let id = parts.next().expect("a line has a first part");
        let title = parts.next().unwrap_or_else(|| panic!("{id} has no title"));
        (id, title, parts.next())
    };
    lines.map(row).collect()
}

fn sources(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display())) {
        let path = entry.expect("a directory entry").path();
        if path.is_dir() {
            sources(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
}

/// The ids at the beginning of a test's name: `q13_q14_silent` has two.
fn ids_of(name: &str) -> Vec<String> {
    let is_id = |p: &&str| {
        let mut c = p.chars();
        let group = c.next().is_some_and(|g| GROUPS.iter().any(|(known, _)| known.to_ascii_lowercase() == g));
        group && p.len() == 3 && c.all(|d| d.is_ascii_digit())
    };
    name.split('_').take_while(is_id).map(str::to_uppercase).collect()
}

/// Every function with `#[test]` in the sources of the libraries, by conformance id.
fn tests() -> BTreeMap<String, Vec<String>> {
    let mut files = Vec::new();
    for dir in
        ["stack/src", "stack/sim/src", "stack/tests", "verbs/src", "verbs/tests", "apps/src", "apps/tests"]
    {
        sources(&root().join(dir), &mut files);
    }
    let mut out: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in files {
        let mut marked = false;
        for line in fs::read_to_string(&file).expect("a source file is UTF-8").lines().map(str::trim) {
            if line.starts_with("#[test]") {
                marked = true;
            }
            let Some((_, rest)) = line.split_once("fn ").filter(|_| marked && !line.starts_with("//")) else {
                continue;
            };
            marked = false;
            let name = rest.split(['(', '<']).next().expect("a split has a first part");
            for id in ids_of(name) {
                out.entry(id).or_default().push(name.to_string());
            }
        }
    }
    out
}

#[test]
fn the_list_is_whole() {
    let rows = rows();
    let ids: BTreeSet<&str> = rows.iter().map(|(id, _, _)| id.as_str()).collect();
    assert_eq!(ids.len(), rows.len(), "an id is listed twice");
    for (group, n) in GROUPS {
        for i in 1..=*n {
            let id = format!("{group}{i:02}");
            assert!(ids.contains(id.as_str()), "{id} is missing from conformance.txt");
        }
    }
    assert_eq!(rows.len(), GROUPS.iter().map(|(_, n)| n).sum::<usize>(), "an id that no group has");
    for (id, title, reason) in &rows {
        assert!(
            !title.is_empty() && reason.as_ref().is_none_or(|r| !r.is_empty()),
            "{id} has an empty column"
        );
    }
}

#[test]
fn every_case_has_a_test_or_a_reason() {
    let tests = tests();
    let rows = rows();
    for (id, title, reason) in &rows {
        match (tests.get(id), reason) {
            (None, None) => {
                panic!("{id} ({title}) has no test; write one, or say why not in conformance.txt")
            }
            (Some(t), Some(why)) if why != DEBT => {
                panic!("{id} has a test, {t:?}, and a reason to have none")
            }
            _ => {}
        }
    }
    for (id, names) in &tests {
        let known = rows.iter().any(|(row, _, _)| row == id);
        assert!(known, "{names:?}: there is no case {id}");
    }
}

#[test]
fn ids_are_what_a_name_starts_with() {
    assert_eq!(ids_of("q13_q14_q15_silent_peer"), ["Q13", "Q14", "Q15"]);
    assert_eq!(ids_of("s01_every_pair_rc"), ["S01"]);
    assert!(ids_of("qp_states").is_empty() && ids_of("n01_x").is_empty() && ids_of("a_q13").is_empty());
}

// Goal: the script's table shows the results in a log: a success does not hide a failure of the same name, a test that is listed but did
// not run has no result, and cases without a test are counted.
#[test]
fn the_table_tells_the_results() {
    let dir = std::env::temp_dir().join(format!("conformance-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    let (log, table) = (dir.join("log"), dir.join("table.md"));
    fs::write(
        &log,
        "     Running unittests src/lib.rs (target/debug/deps/stack-0123456789abcdef)\n\
         test wire::tests::vectors::p01_worked_packet_a ... ok\n\
         \u{20}    Running tests/main.rs (target/debug/deps/all-0123456789abcdef)\n\
         test rc_requester::q13_q14_q15_silent_peer ... ok\n\
         test rc_requester::q16_no_timer ... FAILED\n\
         test rc_requester::q16_no_timer ... ok\n\
         test rc_requester::q17_progress ... ignored\n\
         test nothing_of_ours ... ok\n",
    )
    .unwrap();
    let run = std::process::Command::new(root().join("scripts/conformance"))
        .args(["--log".as_ref(), log.as_os_str(), "--out".as_ref(), table.as_os_str()])
        .output()
        .expect("bash runs the script");
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    let text = fs::read_to_string(&table).unwrap_or_default();
    fs::remove_dir_all(&dir).unwrap();
    assert_eq!(run.status.code(), Some(1), "a case that fails is an error: {said}");
    let row = |id: &str| text.lines().find(|l| l.starts_with(&format!("| {id} "))).map(str::to_string);
    for (id, what) in [("P01", "| pass |"), ("Q13", "| pass |"), ("Q15", "| pass |"), ("Q16", "| **FAIL** |")]
    {
        assert!(row(id).is_some_and(|r| r.ends_with(what)), "{id}: {:?}", row(id));
    }
    assert!(row("P01").unwrap().contains("stack: `wire::tests::vectors::p01_worked_packet_a`"));
    assert!(row("Q14").unwrap().contains("all: `rc_requester::q13_q14_q15_silent_peer`"));
    assert!(row("Q17").unwrap().ends_with("| not run |"), "{:?}", row("Q17"));
    assert!(row("Q18").unwrap().ends_with("| not run |"), "{:?}", row("Q18"));
    assert!(row("I01").unwrap().ends_with("| left out |"), "{:?}", row("I01"));
}
