//! docs/programs.md and docs/storage-target.md are true: the programs accept their command lines, and their files.

use std::process::Command;

use clap::Parser;
use nvmf_target::cli::{PerfCli, TargetCli};
use nvmf_target::config::parse;

use crate::common::{Scratch, skipped};

const PAGES: [(&str, &str); 2] = [
    ("docs/programs.md", include_str!("../../../docs/programs.md")),
    ("docs/storage-target.md", include_str!("../../../docs/storage-target.md")),
];

/// The blocks of a page in this language.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let opening = format!("```{language}\n");
    let parts = page.split(&opening).skip(1);
    parts.filter_map(|part| part.split_once("\n```")).map(|(block, _)| block.into()).collect()
}

#[test]
fn their_command_lines_are_understood() {
    let mut seen = 0;
    let blocks: Vec<_> = PAGES.iter().flat_map(|(_, page)| blocks(page, "sh")).collect();
    for line in blocks.iter().flat_map(|block| block.lines()) {
        let words: Vec<_> = line.split(" #").next().unwrap().split_whitespace().collect();
        match words.first().and_then(|word| word.strip_prefix("target/release/")) {
            Some("roce-nvmf") => {
                drop(TargetCli::try_parse_from(words).unwrap_or_else(|e| panic!("{line}: {e}")))
            }
            Some("roce-nvmf-perf") => {
                drop(PerfCli::try_parse_from(words).unwrap_or_else(|e| panic!("{line}: {e}")))
            }
            _ => continue,
        }
        seen += 1;
    }
    assert!(seen >= 15, "{seen} command lines");
}

#[test]
fn their_files_are_taken() {
    for (name, page) in PAGES {
        let [file] = &blocks(page, "toml")[..] else { panic!("{name}: one file") };
        let offer = parse(file).unwrap_or_else(|e| panic!("{}", e.at(name, file)));
        assert_eq!(offer.subsystems[0].namespaces.len(), 2);
    }
}

// Goal: the unit's command lines are such that the program takes them, and the unit such that systemd does.
#[test]
fn the_unit_starts_what_there_is() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/roce-nvmf.service");
    let unit = std::fs::read_to_string(path).unwrap();
    let value =
        |key: &str| unit.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_else(|| panic!("{key}"));
    let options = value("Environment=OPTIONS=").trim_matches('"');
    for (key, program) in [("ExecStartPre=", "/usr/bin/roce-nvmf"), ("ExecStart=", "/usr/bin/roce-nvmf")] {
        let line = value(key).replace("$OPTIONS", options);
        assert!(line.starts_with(program), "{line}");
        TargetCli::try_parse_from(line.split(' ')).unwrap_or_else(|e| panic!("{line}: {e}"));
    }
    // It is ready when it listens: tests/start.rs.
    assert_eq!(value("Type="), "notify");
    // What roce-nvmf list looks for.
    assert!(value("ExecStart=").contains(&format!("--control {}", nvmf_target::control::SERVICE)));
    let scratch = Scratch::new("unit");
    let here = scratch.path().with_file_name("roce-nvmf.service");
    std::fs::write(&here, unit.replace("/usr/bin/roce-nvmf", env!("CARGO_BIN_EXE_roce-nvmf"))).unwrap();
    match Command::new("systemd-analyze").arg("verify").arg(&here).output() {
        Ok(run) => assert!(run.status.success() && run.stderr.is_empty(), "{run:?}"),
        Err(e) => skipped("systemd's opinion of the unit", &format!("systemd-analyze cannot be run ({e})")),
    }
}
