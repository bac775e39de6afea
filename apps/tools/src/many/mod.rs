//! `roce-many`: measures what many processes of a host cost each other.
//!
//! A measurement (`marks`) starts members, which are copies of this program (`team`), sends them orders (`order`), and makes rows of their
//! reports. A member (`member`) has a device (`objects`) and executes the orders (`work`). Members share only the host, like any other
//! programs; the parent itself has no device.

pub mod cli;
pub mod found;
pub mod marks;
pub mod member;
pub mod objects;
pub mod order;
pub mod orders;
pub mod team;
pub mod work;

use apps::error::{AppError, Result};
use apps::out::say;
use apps::stop;
use cli::{ManyCli, ManyCommand};
use serde_json::Value;

/// Measures; or acts as a member.
///
/// # Errors
/// The failure of a member; a file that cannot be written; a signal.
pub fn run(cli: &ManyCli) -> Result<()> {
    if let ManyCommand::Member(args) = &cli.command {
        return member::run(args);
    }
    stop::install()?;
    let found = match &cli.command {
        ManyCommand::Latency(args) => marks::latency::measure(args)?,
        ManyCommand::Turn(args) => marks::turn::measure(args)?,
        ManyCommand::Memory(args) => marks::memory::measure(args)?,
        ManyCommand::First(args) => marks::first::measure(args)?,
        ManyCommand::Fair(args) => marks::fair::measure(args)?,
        ManyCommand::Killed(args) => marks::killed::measure(args)?,
        ManyCommand::Idle(args) => marks::idle::measure(args)?,
        ManyCommand::Member(_) => Vec::new(),
    };
    for found in &found {
        say!("{}", found.text)?;
    }
    let Some(path) = &cli.json else { return Ok(()) };
    let rows: Vec<String> = found.into_iter().map(|found| Value::Object(found.row.0).to_string()).collect();
    let text = format!("[\n  {}\n]\n", rows.join(",\n  "));
    std::fs::write(path, text)
        .map_err(|e| AppError::Setup(format!("--json {}: the file cannot be written ({e})", path.display())))
}
