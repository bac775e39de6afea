//! `--host`: all processes of the host, one a line.
//!
//! `find` fetches their snapshots, `rows` turns two snapshots into rows, and `table`, `json` and `view` show the rows.

pub mod find;
pub mod json;
pub mod rows;
pub mod table;
pub mod view;

use super::live;
use super::search::sleep;
use crate::cli::stat::StatCli;
use crate::error::Result;
use crate::out::say;
use find::Finder;
use rows::compare;

/// Shows the processes.
///
/// # Errors
/// When no processes are found, or the output cannot be written.
pub fn run(cli: &StatCli) -> Result<()> {
    let finder = Finder::new()?;
    let mut before = finder.look().wait()?;
    before.print_notes();
    if !cli.once && !cli.json {
        live::needs_terminal()?;
        return view::run(cli.interval, finder, before);
    }
    let rounds = if cli.once { 1 } else { cli.count.unwrap_or(u64::MAX) };
    for _ in 0..rounds {
        sleep(cli.interval)?;
        let now = finder.look().wait()?;
        let rows = compare(&before, &now);
        let text = if cli.json { json::line(&rows) } else { table::render(&rows) };
        say!("{}", text.trim_end())?;
        before = now;
    }
    Ok(())
}
