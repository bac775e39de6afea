//! `roce-manual`: writes the manual pages and shell completions of the programs, from the definitions of their command lines, into
//! a folder that has the layout of `/usr/share`. See `scripts/package`.

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use apps::cli::perf::PerfCli;
use apps::cli::pingpong::PingpongCli;
use apps::cli::run::RunCli;
use apps::cli::stat::StatCli;
use apps::cli::xrcd::XrcdCli;
use clap::{Command, CommandFactory};
use clap_complete::{Shell, generate};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};
use nvmf_target::cli;

/// The programs that are installed.
fn programs() -> [Command; 7] {
    [
        RunCli::command(),
        PerfCli::command(),
        PingpongCli::command(),
        StatCli::command(),
        XrcdCli::command(),
        cli::TargetCli::command(),
        cli::PerfCli::command(),
    ]
}

fn main() -> ExitCode {
    let Some(share) = std::env::args_os().nth(1) else {
        eprintln!("Usage: roce-manual FOLDER");
        return ExitCode::from(2);
    };
    match programs().into_iter().try_for_each(|program| write(program, Path::new(&share))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("roce-manual: {}: {error}", share.display());
            ExitCode::FAILURE
        }
    }
}

fn write(mut program: Command, share: &Path) -> io::Result<()> {
    // `help` needs no page of its own.
    let mut paged = program.clone().disable_help_subcommand(true);
    paged.build();
    let name = program.get_name().to_owned();
    for (shell, file) in [
        (Shell::Bash, format!("bash-completion/completions/{name}")),
        (Shell::Zsh, format!("zsh/vendor-completions/_{name}")),
        (Shell::Fish, format!("fish/vendor_completions.d/{name}.fish")),
    ] {
        generate(shell, &mut program, name.clone(), &mut create(&share.join(file))?);
    }
    pages(&paged, share)
}

/// The page of a command, and those of its subcommands.
fn pages(command: &Command, share: &Path) -> io::Result<()> {
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
        pages(inner, share)?;
    }
    let man = Man::new(command.clone()).manual("Userspace RoCEv2");
    let page = &mut create(&share.join("man/man1").join(man.get_filename()))?;
    man.render_title(page)?;
    man.render_name_section(page)?;
    man.render_synopsis_section(page)?;
    man.render_description_section(page)?;
    if command.get_arguments().any(|arg| !arg.is_hide_set()) {
        man.render_options_section(page)?;
    }
    if command.has_subcommands() {
        man.render_subcommands_section(page)?;
    }
    if let Some(text) = command.get_after_long_help().or_else(|| command.get_after_help()) {
        examples(&text.to_string()).to_writer(page)?;
    }
    page.flush()
}

/// What stands below the options in the help. Lines that are indented there are shown as they are.
fn examples(text: &str) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["EXAMPLES"]);
    for paragraph in text.strip_prefix("Examples:\n").unwrap_or(text).split("\n\n") {
        let verbatim = paragraph.lines().any(|line| line.starts_with(' '));
        roff.control("PP", []);
        if verbatim {
            roff.control("nf", []);
        }
        for line in paragraph.lines() {
            roff.text([roman(line)]);
        }
        if verbatim {
            roff.control("fi", []);
        }
    }
    roff
}

fn create(path: &Path) -> io::Result<io::BufWriter<fs::File>> {
    fs::create_dir_all(path.parent().expect("a file below a folder"))?;
    Ok(io::BufWriter::new(fs::File::create(path)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_stay_on_lines_of_their_own_and_sentences_flow() {
        let text = examples("Examples:\n  a -x\n  .b\n\nA sentence\nof two lines.").render();
        assert!(
            text.ends_with(".SH EXAMPLES\n.PP\n.nf\n  a \\-x\n  .b\n.fi\n.PP\nA sentence\nof two lines.\n"),
            "{text}"
        );
    }

    #[test]
    fn every_program_has_a_name_of_its_own_and_says_examples() {
        let mut names: Vec<_> = programs().iter().map(|program| program.get_name().to_owned()).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), programs().len());
        for program in programs() {
            let help = program.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.starts_with("Examples"), "{}: {help}", program.get_name());
        }
    }
}
