//! Instructions of a turn in which nothing happens, counted by valgrind: with many idle links compared with one.
//!
//! Each turn is counted separately, and the median taken: now and then a turn reads the clock, polls the sockets, or visits all links.
//! How often depends on time, and in an emulator far more time passes during a turn.

use crate::bench::row::Row;
use crate::many::cli::TurnArgs;
use crate::many::found::Found;
use crate::many::marks::proc;
use crate::many::order::{Make, Order};
use crate::many::team::{MemberOptions, Team, star};
use crate::many::work::turns::{COUNTED, OVER};
use apps::error::{AppError, Result};
use apps::report::median;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Runs both measurements.
///
/// # Errors
/// The failure of a member; a missing valgrind.
pub fn measure(args: &TurnArgs) -> Result<Vec<Found>> {
    let mut trial = Command::new("valgrind");
    trial.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    if !trial.status().is_ok_and(|status| status.success()) {
        return Err(AppError::Setup("valgrind is not installed: apt-get install valgrind".into()));
    }
    let links = usize::from(args.links);
    let [one, many] = [1, links].map(|links| counted(links, args.turns));
    let (one, many) = (one?, many?);
    let added = many - one;
    let text = format!(
        "a turn in which nothing happens: {many} instructions with {links} links, {one} with one ({added:+})"
    );
    let row = Row::new("turn", "instructions").with("links", links).with("instructions", many);
    Ok(vec![Found { text, row: row.with("limit", one).with("added", added) }])
}

/// A directory that is removed when the value is dropped.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The median number of instructions of a turn, with this many links.
fn counted(links: usize, turns: u32) -> Result<f64> {
    let dir = std::env::temp_dir().join(format!("roce-many-{}-{links}", std::process::id()));
    std::fs::create_dir_all(&dir).map_err(|e| AppError::Setup(format!("{}: {e}", dir.display())))?;
    let dir = Scratch(dir);
    let mut hub = MemberOptions::embedded();
    hub.by = valgrind(&dir.0.join("turn"), &dir.0.join("log"));
    let members: Vec<MemberOptions> =
        std::iter::once(hub).chain((0..links).map(|_| MemberOptions::usual())).collect();
    let mut team = Team::start(&members)?;
    let remote = team.make(&star(members.len()), Make { count: 0, size: 64, depth: 16, memory: 0 })?;
    // One link after the other: a process in an emulator answers slowly.
    for link in 0..links {
        team.meet((0, link, &remote[0][link]), (link + 1, 0, &remote[link + 1][0]))?;
    }
    let found = proc::links(team.pid(0))?;
    if found != links {
        return Err(AppError::Setup(format!("{found} of {links} links were made")));
    }
    team.run_order(0, &Order::Turn { turns }, Duration::ZERO)?;
    team.end()?;
    let mut counts = Vec::new();
    for file in std::fs::read_dir(&dir.0).into_iter().flatten().flatten() {
        counts.extend(std::fs::read_to_string(file.path()).ok().and_then(|text| total(&text)));
    }
    if counts.len() < turns as usize {
        let found = counts.len();
        return Err(AppError::Setup(format!(
            "valgrind counted {found} of {turns} turns; was {COUNTED} inlined?"
        )));
    }
    Ok(median(counts).unwrap_or(0.0))
}

/// A command prefix under which each counted turn leaves a file.
fn valgrind(out: &Path, log: &Path) -> Vec<OsString> {
    let options = [
        "valgrind".into(),
        "--tool=callgrind".into(),
        "--collect-atstart=no".into(),
        format!("--toggle-collect={COUNTED}*"),
        format!("--dump-after={OVER}*"),
        // Otherwise a thread that polls would keep all others from running.
        "--fair-sched=yes".into(),
        format!("--callgrind-out-file={}", out.display()),
        format!("--log-file={}", log.display()),
    ];
    options.into_iter().map(OsString::from).collect()
}

/// The number of instructions in a file of callgrind; `None` if nothing was counted.
fn total(text: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix("summary:"))?;
    line.trim().parse().ok().filter(|n| *n > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_is_in_the_summary() {
        assert_eq!(total("version: 1\nevents: Ir\nsummary: 412\n\nfn=(1)\n"), Some(412.0));
        assert_eq!(total("events: Ir\nsummary: 0\n"), None);
        assert_eq!(total(""), None);
    }
}
