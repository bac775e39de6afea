//! `--host --once`: a plain table.

use super::rows::{ListenerRow, ProcessRow};
use crate::stat::table::{NONE, gbit, rate, table};

/// Titles of the columns.
pub const TITLES: [&str; 13] = [
    "pid",
    "program",
    "answers",
    "QP 1",
    "listens at",
    "QPs",
    "links",
    "sends/s",
    "recvs/s",
    "rx Gb/s",
    "tx Gb/s",
    "resends",
    "passed on",
];
/// Leading columns that hold text, which is left-aligned.
const WORDS: usize = 5;
/// Most listeners in the line of a process.
const LISTENERS: usize = 4;

/// The cells of a process. Packets sent again and passed on are counted since its start, or in the interval.
pub fn cells(row: &ProcessRow, since_start: bool) -> [String; 13] {
    let rates = row.rates.as_ref();
    let [resends, passed_on] = match since_start {
        true => [row.resends, row.passed_on],
        false => [row.recent_resends, row.recent_passed_on],
    };
    let number = |n: Option<u64>| n.map_or(NONE.into(), |n| n.to_string());
    [
        if row.pid == 0 { NONE.into() } else { row.pid.to_string() },
        program(row),
        row.answer.clone(),
        if row.keeper { "keeper".into() } else { NONE.into() },
        listeners(&row.listeners),
        number(row.qps.map(|qps| qps as u64)),
        number(row.links),
        rate(rates, |r| r.send_messages_per_s),
        rate(rates, |r| r.recv_messages_per_s),
        gbit(rates, |r| r.rx_gbit_per_s),
        gbit(rates, |r| r.tx_gbit_per_s),
        number(resends),
        number(passed_on),
    ]
}

/// The program, with its user where that is another one.
fn program(row: &ProcessRow) -> String {
    let name = if row.program.is_empty() { NONE } else { &row.program };
    row.user.map_or_else(|| name.into(), |user| format!("{name} (user {user})"))
}

fn listeners(all: &[ListenerRow]) -> String {
    let mut texts: Vec<String> = all.iter().take(LISTENERS).map(ListenerRow::text).collect();
    if all.len() > LISTENERS {
        texts.push(format!("and {}", all.len() - LISTENERS));
    }
    if texts.is_empty() { NONE.into() } else { texts.join(", ") }
}

/// The table of the processes. Packets sent again and passed on are counted since the start.
pub fn render(rows: &[ProcessRow]) -> String {
    table(TITLES, WORDS, rows.iter().map(|row| cells(row, true)))
}

#[cfg(test)]
mod tests {
    use super::super::rows::compare;
    use super::super::rows::tests::found;
    use super::*;

    #[test]
    fn a_line_has_what_there_is_to_say_of_a_process() {
        let mut rows = compare(&found(10, 1), &found(12, 5));
        let more = vec![rows[0].listeners[0].clone(); 4];
        rows[0].listeners.extend(more);
        let text = render(&rows);
        let line = |word: &str| text.lines().find(|line| line.contains(word)).unwrap().to_owned();
        let working = line("ib_write_bw");
        for part in [
            "7 ",
            "ib_write_bw (user 4294967294)",
            "yes",
            "keeper",
            "7471, udp [::1]:9, 7471, 7471, and 2",
            "2.00 k",
            "2.000",
            " 20",
            "15",
        ] {
            assert!(working.contains(part), "{part}: {working}");
        }
        let stopped = line("rping");
        assert!(stopped.contains("does not answer: it is stopped") && !stopped.contains('0'), "{stopped}");
    }
}
