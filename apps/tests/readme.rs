//! README.md and the pages for users are true: their code is that of the example, and the programs accept their command
//! lines.

use apps::cli::perf::PerfCli;
use apps::cli::pingpong::PingpongCli;
use apps::cli::run::RunCli;
use clap::Parser;
use tools::many::cli::ManyCli;

/// Pages with code or command lines.
const PAGES: [&str; 7] = [
    include_str!("../../README.md"),
    include_str!("../../docs/run.md"),
    include_str!("../../docs/dropin.md"),
    include_str!("../../docs/programs.md"),
    include_str!("../../docs/ports.md"),
    include_str!("../../docs/embedding.md"),
    include_str!("../../docs/measurements.md"),
];
const STORAGE: &str = include_str!("../examples/storage.rs");

/// Lines of the blocks in this language.
fn blocks(language: &str) -> Vec<Vec<&'static str>> {
    let mut all = Vec::new();
    for page in PAGES {
        let mut lines = page.lines();
        while let Some(line) = lines.next() {
            if let Some(found) = line.strip_prefix("```") {
                let block = lines.by_ref().take_while(|line| *line != "```").collect();
                if found == language {
                    all.push(block);
                }
            }
        }
    }
    all
}

#[test]
fn their_code_is_the_examples() {
    let example: Vec<_> = STORAGE.lines().map(str::trim).collect();
    let excerpts = blocks("rust");
    assert!(!excerpts.is_empty());
    for excerpt in excerpts {
        let excerpt: Vec<_> = excerpt.into_iter().map(str::trim).collect();
        let found = example.windows(excerpt.len()).any(|window| window == excerpt);
        assert!(found, "not in apps/examples/storage.rs:\n{}", excerpt.join("\n"));
    }
}

#[test]
fn nothing_is_left_to_be_filled_in() {
    assert!(PAGES.iter().all(|page| !page.contains("@@") && !page.contains("TODO")));
}

#[test]
fn their_command_lines_are_understood() {
    let mut seen = 0;
    for line in blocks("sh").concat() {
        let words: Vec<_> = line.split(" #").next().unwrap().split_whitespace().collect();
        // Built here, or installed.
        match words.first().map(|word| word.strip_prefix("target/release/").unwrap_or(word)) {
            Some("roce-perf") => {
                PerfCli::try_parse_from(words).unwrap_or_else(|e| panic!("{line}: {e}"));
                seen += 1;
            }
            Some("roce-pingpong") => {
                PingpongCli::try_parse_from(words).unwrap_or_else(|e| panic!("{line}: {e}"));
                seen += 1;
            }
            Some("roce-run") => {
                RunCli::try_parse_from(words).unwrap_or_else(|e| panic!("{line}: {e}"));
                seen += 1;
            }
            Some("roce-many") => {
                ManyCli::try_parse_from(words).unwrap_or_else(|e| panic!("{line}: {e}"));
                seen += 1;
            }
            _ => {}
        }
    }
    assert!(seen > 10, "{seen} command lines");
}
