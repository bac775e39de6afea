//! The live view: one stack at a time, in the terminal.

use super::find::{self, Found};
use super::live::{self, Asked, Screen};
use super::rates::{Query, StackRates, compare};
use super::search::Search;
use super::table::{QP_TITLES, SHARD_TITLES, qp_cells, reasons, shard_cells};
use crate::cli::stat::StatCli;
use crate::error::Result;
use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Cell, Paragraph, Row, Table, TableState, Wrap};
use std::path::PathBuf;

const PAGE: usize = 10;
/// Most rows of a program's own tables that are shown.
const OWN_ROWS: usize = 6;

/// The state of the view.
#[derive(Debug)]
pub struct View {
    /// The stacks of the last interval.
    pub stacks: Vec<StackRates>,
    /// Selection and order of the queue pairs.
    pub query: Query,
    /// Index of the stack shown.
    selected: usize,
    /// Show errors since the start, not of the interval.
    since_start: bool,
    /// The view is paused.
    held: bool,
    /// The filter is being typed.
    typing: bool,
    /// The error of the last search.
    note: String,
    rows: TableState,
}

impl View {
    /// A view of stacks, by a query.
    pub fn new(stacks: Vec<StackRates>, query: Query) -> Self {
        Self {
            stacks,
            query,
            selected: 0,
            since_start: false,
            held: false,
            typing: false,
            note: String::new(),
            rows: TableState::default().with_selected(0),
        }
    }

    fn stack(&self) -> Option<&StackRates> {
        self.stacks.get(self.selected)
    }

    fn step(&mut self, by: isize) {
        let count = self.stack().map_or(0, |s| s.qps.len());
        let at = self.rows.selected().unwrap_or(0).saturating_add_signed(by);
        self.rows.select(Some(at.min(count.saturating_sub(1))));
    }

    /// Handles a key.
    pub fn key(&mut self, key: KeyEvent) -> Asked {
        if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) {
            return Asked::Quit;
        }
        if self.typing {
            match key.code {
                KeyCode::Enter => self.typing = false,
                KeyCode::Esc => {
                    self.typing = false;
                    self.query.filter.clear();
                }
                KeyCode::Backspace => {
                    self.query.filter.pop();
                }
                KeyCode::Char(c) => self.query.filter.push(c),
                _ => return Asked::Nothing,
            }
            return Asked::Again;
        }
        match key.code {
            KeyCode::Char('q') => return Asked::Quit,
            KeyCode::Esc => self.query.filter.clear(),
            KeyCode::Tab => self.selected = (self.selected + 1) % self.stacks.len().max(1),
            KeyCode::Up => self.step(-1),
            KeyCode::Down => self.step(1),
            KeyCode::PageUp => self.step(-(PAGE as isize)),
            KeyCode::PageDown => self.step(PAGE as isize),
            KeyCode::Char('s') => self.query.order = self.query.order.next(),
            KeyCode::Char('r') => self.query.reverse = !self.query.reverse,
            KeyCode::Char('/') => self.typing = true,
            KeyCode::Char('t') => self.since_start = !self.since_start,
            KeyCode::Char(' ') => self.held = !self.held,
            _ => return Asked::Nothing,
        }
        Asked::Again
    }

    /// Draws itself.
    pub fn draw(&mut self, frame: &mut Frame<'_>) {
        self.selected = self.selected.min(self.stacks.len().saturating_sub(1));
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let Some(stack) = self.stacks.get(self.selected) else {
            let text = format!("{}\n\nq quits; otherwise this goes on looking", self.note);
            frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }), frame.area());
            return;
        };
        let shards = stack.shards.len() as u16 + 3;
        let own = stack.tables.iter().find(|table| !table.rows.is_empty());
        let own_rows = own.map_or(0, |table| table.rows.len().min(OWN_ROWS) as u16 + 3);
        let [head, shard_area, drop_area, own_area, qp_area, foot] = Layout::vertical([
            Constraint::Length(2),
            Constraint::Length(shards),
            Constraint::Length(4),
            Constraint::Length(own_rows),
            Constraint::Min(3),
            Constraint::Length(2),
        ])
        .areas(frame.area());

        let of = format!("  [{} of {}]", self.selected + 1, self.stacks.len());
        let lines = vec![
            Line::styled(stack.title() + if self.stacks.len() > 1 { &of } else { "" }, bold),
            Line::raw(stack.gids.join(", ")),
        ];
        frame.render_widget(Paragraph::new(lines), head);

        let trouble = if self.since_start { "since the start" } else { "in the interval" };
        let rows = stack.shards.iter().map(|s| Row::new(shard_cells(s, self.since_start)));
        let widths = [7, 7, 9, 8, 9, 8, 8, 8, 8].map(Constraint::Length);
        let table = Table::new(rows, widths)
            .header(Row::new(SHARD_TITLES).style(bold))
            .block(Block::bordered().title("Shards"));
        frame.render_widget(table, shard_area);

        let drops = if self.since_start { &stack.drops } else { &stack.recent_drops };
        let text = Paragraph::new(reasons(drops))
            .wrap(Wrap { trim: true })
            .block(Block::bordered().title(format!("Drops {trouble}")));
        frame.render_widget(text, drop_area);

        if let Some(own) = own {
            let (titles, words) = own.titles();
            let widths = (0..titles.len())
                .map(|n| if n < words { Constraint::Fill(1) } else { Constraint::Length(9) });
            let table = Table::new(own.cells().into_iter().map(Row::new), widths)
                .header(Row::new(titles).style(bold))
                .block(Block::bordered().title(format!("{}, in the interval", own.name)));
            frame.render_widget(table, own_area);
        }

        let rows = stack.qps.iter().map(|qp| {
            let style = match qp.state.as_str() {
                "ERR" | "SQE" => Style::new().fg(Color::Red),
                _ if qp.recent.drops + qp.recent.retries > 0 => Style::new().fg(Color::Yellow),
                _ => Style::new(),
            };
            Row::new(qp_cells(qp, self.since_start).map(Cell::from)).style(style)
        });
        let peer = stack.qps.iter().map(|qp| qp.peer_text().len()).max().unwrap_or(0).clamp(8, 50) as u16;
        let widths = [8, 7, 5, 5, peer, 8, 8, 8, 8, 8, 8, 8, 6, 6].map(Constraint::Length);
        let arrow = if self.query.reverse { ", reversed" } else { "" };
        let title = format!(
            "{} of {} queue pairs, by {}{arrow}; retries, RNR and drops {trouble}",
            stack.qps.len(),
            stack.qps_total,
            self.query.order.name()
        );
        let table = Table::new(rows, widths)
            .header(Row::new(QP_TITLES).style(bold))
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
            .block(Block::bordered().title(title));
        frame.render_stateful_widget(table, qp_area, &mut self.rows);

        let filter = match (self.typing, self.query.filter.as_str()) {
            (true, filter) => format!("filter: {filter}_  (Enter keeps it, Esc drops it)"),
            (false, "") => String::new(),
            (false, filter) => format!("filter: {filter}  (Esc drops it)"),
        };
        let held = if self.held { "HELD  " } else { "" };
        let foot_lines = vec![
            Line::raw("q quit  Tab stack  up/down move  s order  r reverse  / filter  t totals  space hold"),
            Line::raw(format!("{held}{filter}{}", self.note)),
        ];
        frame.render_widget(Paragraph::new(foot_lines), foot);
    }
}

/// The stacks in the live view.
struct Stacks {
    paths: Vec<PathBuf>,
    before: Found,
    now: Found,
    view: View,
}

impl Screen for Stacks {
    type Found = Found;

    fn look(&self) -> Search<Found> {
        find::search(&self.paths)
    }

    fn show(&mut self, found: Result<Found>) {
        self.view.note = match &found {
            Ok(found) => found.notes.join("; "),
            Err(error) => error.to_string(),
        };
        self.before = std::mem::replace(&mut self.now, found.unwrap_or_default());
        self.again();
    }

    fn again(&mut self) {
        self.view.stacks = compare(&self.before, &self.now, &self.view.query);
    }

    fn key(&mut self, key: KeyEvent) -> Asked {
        self.view.key(key)
    }

    fn is_held(&self) -> bool {
        self.view.held
    }

    fn draw(&mut self, frame: &mut Frame<'_>) {
        self.view.draw(frame);
    }
}

/// Runs the view until the user ends it.
///
/// # Errors
/// Those of [`live::run`].
pub fn run(cli: &StatCli, first: Found) -> Result<()> {
    let query = Query { order: cli.sort, reverse: cli.reverse, filter: cli.filter.clone() };
    let before = Found::default();
    let view = View::new(compare(&before, &first, &query), query);
    let mut stacks = Stacks { paths: cli.paths.clone(), before, now: first, view };
    live::run(&mut stacks, cli.interval)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::stat::Order;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use verbs::stats::{PeerStats, QpStats, ShardStats, Snapshot};

    fn stack(pid: u32) -> Found {
        let counters = [("bad_icrc".to_owned(), 7), ("tx_frames".to_owned(), 5)].into();
        let peer = Some(PeerStats { gid: "::ffff:192.0.2.9".into(), qpn: 0x99 });
        let qp = |qpn, state: &str| QpStats {
            qpn,
            qp_type: "RC".into(),
            state: state.into(),
            peer: peer.clone(),
            ..QpStats::default()
        };
        let snapshot = Snapshot {
            pid,
            program: "target".into(),
            port: "tap:roce0".into(),
            shards: vec![
                ShardStats { id: 0, qps: 2, counters, ..ShardStats::default() },
                ShardStats { id: 12, dead: true, ..ShardStats::default() },
            ],
            qps_total: 2,
            qps: vec![qp(0x11, "RTS"), qp(0x22, "ERR")],
            ..Snapshot::default()
        };
        Found { stacks: vec![(format!("/{pid}").into(), snapshot)], notes: Vec::new() }
    }

    fn view(found: &Found) -> View {
        let query = Query { order: Order::Qpn, reverse: false, filter: String::new() };
        View::new(compare(&Found::default(), found, &query), query)
    }

    fn text(view: &mut View, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        let buffer = terminal.backend().buffer();
        let lines: Vec<String> = buffer
            .content()
            .chunks(usize::from(width))
            .map(|line| line.iter().map(|cell| cell.symbol()).collect())
            .collect();
        lines.join("\n")
    }

    fn press(view: &mut View, code: KeyCode) -> Asked {
        view.key(KeyEvent::new(code, KeyModifiers::NONE))
    }

    #[test]
    fn shows_what_there_is() {
        let mut view = view(&stack(1));
        press(&mut view, KeyCode::Char('t'));
        let text = text(&mut view, 160, 30);
        for part in [
            "target (pid 1) on tap:roce0",
            "12 dead",
            "0x000011",
            "0x000022",
            "RTS",
            "ERR",
            "192.0.2.9",
            "bad_icrc 7",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
    }

    #[test]
    fn draws_in_any_size() {
        for (width, height) in [(1, 1), (10, 3), (40, 8), (300, 100)] {
            text(&mut view(&stack(1)), width, height);
            text(&mut view(&Found::default()), width, height);
        }
    }

    #[test]
    fn keys() {
        let found = {
            let (mut both, other) = (stack(1), stack(2));
            both.stacks.extend(other.stacks);
            both
        };
        let mut view = view(&found);
        press(&mut view, KeyCode::Tab);
        assert!(text(&mut view, 160, 30).contains("pid 2"));
        press(&mut view, KeyCode::Tab);
        assert!(text(&mut view, 160, 30).contains("pid 1"));
        for _ in 0..5 {
            press(&mut view, KeyCode::Down);
        }
        assert_eq!(view.rows.selected(), Some(1), "the last row");
        press(&mut view, KeyCode::PageUp);
        assert_eq!(view.rows.selected(), Some(0));
        press(&mut view, KeyCode::Char('/'));
        for c in "err".chars() {
            assert_eq!(press(&mut view, KeyCode::Char(c)), Asked::Again);
        }
        assert_eq!(press(&mut view, KeyCode::Enter), Asked::Again);
        view.stacks = compare(&Found::default(), &found, &view.query);
        let shown = text(&mut view, 160, 30);
        assert!(shown.contains("0x000022") && !shown.contains("0x000011"), "{shown}");
        press(&mut view, KeyCode::Esc);
        assert_eq!(view.query.filter, "");
        press(&mut view, KeyCode::Char('s'));
        assert_ne!(view.query.order, Order::Qpn);
        assert_eq!(press(&mut view, KeyCode::Char('x')), Asked::Nothing);
        assert_eq!(press(&mut view, KeyCode::Char('q')), Asked::Quit);
        assert_eq!(view.key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)), Asked::Quit);
    }
}
