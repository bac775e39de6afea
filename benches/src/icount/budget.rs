//! `benches/BUDGET.md`: instructions per packet and side, by stage.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::stages::{Stage, split};
use super::valgrind::{count, messages, per_message};
use crate::path::{Calls, Link, Op, Scenario};

/// Instructions per message of one side, by stage.
pub type Side = BTreeMap<Stage, f64>;

/// Counts one side (`requester` or `responder`) of a scenario.
///
/// # Errors
/// As [`count`].
pub fn side(work: &[String], scenario: &Scenario, side: &str) -> Result<Side, String> {
    let (post, turn, poll) = (format!("{side}_post"), format!("{side}_turn"), format!("{side}_poll"));
    let calls = count(work, scenario, &[&post, &poll])?;
    let turns = count(work, scenario, &[&turn])?;
    // The end that sends the payload copies it into packets; the other one places it.
    let leaves = if scenario.op == Op::Read { "responder" } else { "requester" };
    let answered = scenario.op == Op::FetchAdd;
    let copying = if side == leaves && !answered { Stage::Copy } else { Stage::Place };
    let mut out: Side =
        split(&turns, copying).into_iter().map(|(stage, cost)| (stage, cost / messages(scenario))).collect();
    out.insert(Stage::Post, per_message(&calls, scenario, &post));
    out.insert(Stage::Poll, per_message(&calls, scenario, &poll));
    Ok(out)
}

/// Renders the page.
pub fn render(rows: &[(Scenario, &'static str, Side)], made_with: &str, port: &str) -> String {
    let mut out = String::from(INTRODUCTION);
    let _ = writeln!(out, "\nMade with {made_with}, over {port}.\n");
    let _ = write!(out, "| message | list | side |");
    for stage in Stage::ALL {
        let _ = write!(out, " {} |", stage.name());
    }
    let _ = write!(out, " **sum** |\n|---|--:|---|{}--:|\n", "--:|".repeat(Stage::ALL.len()));
    for (scenario, side, stages) in rows {
        let _ = write!(out, "| {} | {} | {side} |", title(scenario), scenario.batch);
        for stage in Stage::ALL {
            let cost = stages.get(&stage).copied().unwrap_or(0.0).round();
            let _ = if cost > 0.0 { write!(out, " {cost} |") } else { write!(out, " |") };
        }
        let _ = writeln!(out, " **{:.0}** |", stages.values().sum::<f64>());
    }
    out.push_str(STAGES);
    out
}

fn title(scenario: &Scenario) -> String {
    let op = match scenario.op {
        Op::Send => "SEND",
        Op::Write => "WRITE",
        Op::Read => "READ",
        Op::FetchAdd => "FETCH&ADD",
    };
    let by = if scenario.link == Link::Ethdev { ", ethdev" } else { "" };
    let calls = if scenario.calls == Calls::Objects { ", no handles" } else { "" };
    format!("{op} {} B{by}{calls}", scenario.len)
}

const INTRODUCTION: &str = "\
# Where the instructions go

Instructions a message at each end, counted by callgrind: a message of one packet, its acknowledgement or response, and
its share of what a burst costs once. `scripts/bench --budget` writes this page; do not edit it.

Two whole devices exchange messages through the public verbs on one thread; lists of requests as long as the column
*list* says are posted in one call, the last request of a list is signalled, and the path MTU is 4096. The *requester*
is the end that posts; for READ and FETCH&ADD the data come back to it. Valgrind emulates a processor that
multiplies 128 bits without carries: one with 256 or 512 needs less for ICRC. Instructions are no nanoseconds (a
cache line from the other core costs one instruction and some fifty nanoseconds), but they are the same in every run.
";

const STAGES: &str = "
| stage | is |
|---|---|
| post | `post_send` at the requester, `post_recv` at the responder; with *no handles*, those of the queue pair, which any thread may call |
| build | choosing the next packet, its headers |
| ICRC | the checksum over everything sent, and over everything received |
| copy | payload from registered memory into a packet |
| port tx | a frame from the pool, frames to the port |
| port rx | frames from the port, and back to the pool |
| parse | from bytes to a packet of a queue pair |
| verify | the checks of responder and completer, taking a receive |
| place | payload from a packet into registered memory |
| complete | completions, written |
| poll | completions, read by the program |
| loop | the cost of a turn that does not depend on its packets |
| other | code that `src/icount/stages.rs`, which groups functions and files into stages, does not list |
";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::SCENARIOS;

    #[test]
    fn a_row_has_a_cell_for_each_stage_and_their_sum() {
        let side = Side::from([(Stage::Post, 50.4), (Stage::Icrc, 100.2), (Stage::Other, 0.2)]);
        let page = render(&[(SCENARIOS[0], "requester", side)], "valgrind-3.19.0", "the in-process port");
        let row = page.lines().find(|l| l.starts_with("| SEND 64 B")).unwrap();
        assert_eq!(row, "| SEND 64 B | 32 | requester | 50 | | 100 | | | | | | | | | | | **151** |");
        let head = page.lines().find(|l| l.starts_with("| message")).unwrap();
        assert_eq!(head.matches('|').count(), row.matches('|').count());
    }
}
