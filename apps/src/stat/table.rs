//! `--once`: plain tables.

use super::rates::{QpRow, Rates, ShardRow, StackRates, Trouble};
use crate::report::per_second;
use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, TableComponent, presets};
use std::collections::BTreeMap;

/// Titles of the columns of queue pairs.
pub const QP_TITLES: [&str; 14] = [
    "QP", "type", "state", "shard", "peer", "rx/s", "rx Gb/s", "tx/s", "tx Gb/s", "sends/s", "recvs/s",
    "retries", "RNR", "drops",
];
/// Titles of the columns of shards.
pub const SHARD_TITLES: [&str; 9] =
    ["shard", "QPs", "rx/s", "rx Gb/s", "tx/s", "tx Gb/s", "retries", "RNR", "drops"];
/// Columns of words, which are left-aligned.
const QP_WORDS: usize = 5;
/// Cell without a value.
pub(super) const NONE: &str = "-";

pub(super) fn rate(rates: Option<&Rates>, get: impl Fn(&Rates) -> f64) -> String {
    rates.map_or(NONE.into(), |r| per_second(get(r)))
}
pub(super) fn gbit(rates: Option<&Rates>, get: impl Fn(&Rates) -> f64) -> String {
    rates.map_or(NONE.into(), |r| format!("{:.3}", get(r)))
}

/// A queue pair's cells, with errors since its start or of the interval.
pub fn qp_cells(qp: &QpRow, since_start: bool) -> [String; 14] {
    let rates = qp.rates.as_ref();
    let trouble: &Trouble = if since_start { &qp.total } else { &qp.recent };
    [
        qp.qpn_text(),
        qp.qp_type.clone(),
        qp.state.clone(),
        qp.shard.to_string(),
        qp.peer_text(),
        rate(rates, |r| r.rx_frames_per_s),
        gbit(rates, |r| r.rx_gbit_per_s),
        rate(rates, |r| r.tx_frames_per_s),
        gbit(rates, |r| r.tx_gbit_per_s),
        rate(rates, |r| r.send_messages_per_s),
        rate(rates, |r| r.recv_messages_per_s),
        trouble.retries.to_string(),
        trouble.rnr.to_string(),
        trouble.drops.to_string(),
    ]
}

/// A shard's cells, with errors since its start or of the interval.
pub fn shard_cells(shard: &ShardRow, since_start: bool) -> [String; 9] {
    let rates = shard.rates.as_ref();
    let trouble: &Trouble = if since_start { &shard.total } else { &shard.recent };
    [
        if shard.dead { format!("{} dead", shard.id) } else { shard.id.to_string() },
        shard.qps.to_string(),
        rate(rates, |r| r.rx_frames_per_s),
        gbit(rates, |r| r.rx_gbit_per_s),
        rate(rates, |r| r.tx_frames_per_s),
        gbit(rates, |r| r.tx_gbit_per_s),
        trouble.retries.to_string(),
        trouble.rnr.to_string(),
        trouble.drops.to_string(),
    ]
}

/// Reasons and numbers as `bad_icrc 3, ghost_ack 1`; `none` without drops.
pub fn reasons(drops: &BTreeMap<String, u64>) -> String {
    if drops.is_empty() {
        return "none".into();
    }
    drops.iter().map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", ")
}

/// A table whose first `words` columns hold text, which is left-aligned.
pub(super) fn table<T: Into<Cell>>(
    titles: impl IntoIterator<Item = T>,
    words: usize,
    rows: impl Iterator<Item = impl IntoIterator<Item = String>>,
) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table
        .set_style(TableComponent::HeaderLines, '─')
        .set_style(TableComponent::MiddleHeaderIntersections, '─');
    table.set_header(titles.into_iter().map(Into::into).collect::<Vec<Cell>>());
    for row in rows {
        table.add_row(row.into_iter().enumerate().map(|(n, text)| {
            let align = if n < words { CellAlignment::Left } else { CellAlignment::Right };
            Cell::new(text).set_alignment(align)
        }));
    }
    table.trim_fmt()
}

/// The stacks, each with its shards and queue pairs. Retries, RNR NAKs and drops are since the start.
pub fn render(stacks: &[StackRates]) -> String {
    let mut out = String::new();
    for stack in stacks {
        if !out.is_empty() {
            out.push('\n');
        }
        out.push_str(&format!("{}\naddresses: {}\n\n", stack.title(), stack.gids.join(", ")));
        out.push_str(&table(SHARD_TITLES, 0, stack.shards.iter().map(|s| shard_cells(s, true))));
        out.push_str(&format!("\n\ndrops: {}\n\n", reasons(&stack.drops)));
        out.push_str(&table(QP_TITLES, QP_WORDS, stack.qps.iter().map(|q| qp_cells(q, true))));
        out.push_str(&format!("\n{} of {} queue pairs\n", stack.qps.len(), stack.qps_total));
        for rows in stack.tables.iter().filter(|table| !table.rows.is_empty()) {
            let (titles, words) = rows.titles();
            out.push_str(&format!("\n{}\n{}\n", rows.name, table(titles, words, rows.cells().into_iter())));
        }
    }
    out
}
