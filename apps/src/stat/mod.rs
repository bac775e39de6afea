//! `roce-stat`: shows running stacks from outside.
//!
//! `find` fetches snapshots from sockets, `rates` and `programs` turn two snapshots into rows, and `table`, `json` and `view` show
//! the rows. `host` does the same for all processes of the host, which need no socket for it. `live` runs a view in the terminal.
//! `system` adds the facts of the machine to bug reports.

pub mod find;
pub mod host;
mod increments;
pub mod json;
pub mod live;
pub mod programs;
pub mod rates;
pub mod search;
mod system;
pub mod table;
pub mod view;

use crate::cli::stat::StatCli;
use crate::error::{AppError, Result};
use crate::out::say;
use rates::{Query, compare};
use search::sleep;
use std::path::Path;

/// Runs the program.
///
/// # Errors
/// When no stack runs, or the output cannot be written.
pub fn run(cli: &StatCli) -> Result<()> {
    if cli.report {
        return report(cli);
    }
    if cli.host {
        return host::run(cli);
    }
    let first = find::look(&cli.paths)?;
    first.print_notes();
    if !cli.once && !cli.json {
        live::needs_terminal()?;
        return view::run(cli, first);
    }
    let query = query(cli);
    let rounds = if cli.once { 1 } else { cli.count.unwrap_or(u64::MAX) };
    let mut before = first;
    for _ in 0..rounds {
        sleep(cli.interval)?;
        let now = find::look(&cli.paths)?;
        now.print_notes();
        let stacks = compare(&before, &now, &query);
        let text = if cli.json { json::line(&stacks) } else { table::render(&stacks) };
        say!("{}", text.trim_end())?;
        before = now;
    }
    Ok(())
}

/// Prints a bug report: the machine, and the stacks that run on it.
fn report(cli: &StatCli) -> Result<()> {
    let variables =
        std::env::vars_os().filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)));
    say!("{}\n## Stacks\n", system::machine(Path::new("/"), variables))?;
    let found = match find::look(&cli.paths) {
        Err(AppError::Interrupted) => return Err(AppError::Interrupted),
        Err(none) => return say!("{none}"),
        Ok(found) => found,
    };
    sleep(cli.interval)?;
    let stacks = compare(&found, &find::look(&cli.paths)?, &query(cli));
    found.notes.iter().try_for_each(|note| say!("{note}"))?;
    say!("{}\n\n```json\n{}\n```", table::render(&stacks).trim_end(), json::line(&stacks))
}

fn query(cli: &StatCli) -> Query {
    Query { order: cli.sort, reverse: cli.reverse, filter: cli.filter.clone() }
}
