//! docs/programs.md is true: the programs accept its command lines, and its file.

use clap::Parser;
use nvmf_target::cli::{PerfCli, TargetCli};
use nvmf_target::config::parse;

const PAGE: &str = include_str!("../../../docs/programs.md");

/// The blocks in this language.
fn blocks(language: &str) -> Vec<String> {
    let opening = format!("```{language}\n");
    let parts = PAGE.split(&opening).skip(1);
    parts.filter_map(|part| part.split_once("\n```")).map(|(block, _)| block.into()).collect()
}

#[test]
fn its_command_lines_are_understood() {
    let mut seen = 0;
    for line in blocks("sh").iter().flat_map(|block| block.lines()) {
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
    assert!(seen >= 6, "{seen} command lines");
}

#[test]
fn its_file_is_taken() {
    let [file] = &blocks("toml")[..] else { panic!("one file") };
    let offer = parse(file).unwrap_or_else(|e| panic!("{}", e.at("docs/programs.md", file)));
    assert_eq!(offer.subsystems[0].namespaces.len(), 2);
}
