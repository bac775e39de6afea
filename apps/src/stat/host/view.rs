//! The live view of the processes of a host.

use super::find::{Finder, Found};
use super::rows::{ProcessRow, compare};
use super::table::{TITLES, cells};
use crate::error::Result;
use crate::stat::live::{self, Asked, Screen};
use crate::stat::search::Search;
use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Paragraph, Row, Table, TableState, Wrap};
use std::time::Duration;

const PAGE: u16 = 10;

/// The state of the view.
struct View {
    finder: Finder,
    before: Found,
    now: Found,
    rows: Vec<ProcessRow>,
    /// Show counts since the start, not of the interval.
    since_start: bool,
    /// The view is frozen: no search is started.
    held: bool,
    note: String,
    at: TableState,
}

/// Runs the view until the user ends it.
///
/// # Errors
/// Those of [`live::run`].
pub fn run(interval: Duration, finder: Finder, first: Found) -> Result<()> {
    live::run(&mut View::new(finder, first), interval)
}

impl View {
    fn new(finder: Finder, first: Found) -> Self {
        let before = Found::default();
        let (rows, at) = (compare(&before, &first), TableState::default().with_selected(0));
        Self { finder, before, now: first, rows, since_start: false, held: false, note: String::new(), at }
    }
}

impl Screen for View {
    type Found = Found;

    fn look(&self) -> Search<Found> {
        self.finder.look()
    }

    fn show(&mut self, found: Result<Found>) {
        self.note = match &found {
            Ok(found) => found.notes.join("; "),
            Err(error) => error.to_string(),
        };
        self.before = std::mem::replace(&mut self.now, found.unwrap_or_default());
        self.again();
    }

    fn again(&mut self) {
        self.rows = compare(&self.before, &self.now);
    }

    fn key(&mut self, key: KeyEvent) -> Asked {
        match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Asked::Quit,
            KeyCode::Char('q') => return Asked::Quit,
            KeyCode::Char('t') => self.since_start = !self.since_start,
            KeyCode::Char(' ') => self.held = !self.held,
            KeyCode::Up => self.at.scroll_up_by(1),
            KeyCode::Down => self.at.scroll_down_by(1),
            KeyCode::PageUp => self.at.scroll_up_by(PAGE),
            KeyCode::PageDown => self.at.scroll_down_by(PAGE),
            _ => return Asked::Nothing,
        }
        Asked::Again
    }

    fn is_held(&self) -> bool {
        self.held
    }

    fn draw(&mut self, frame: &mut Frame<'_>) {
        let [main, foot] = Layout::vertical([Constraint::Min(3), Constraint::Length(2)]).areas(frame.area());
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let silent = Style::new().fg(Color::Yellow);
        let cells: Vec<_> = self.rows.iter().map(|row| cells(row, self.since_start)).collect();
        let widths = TITLES.iter().enumerate().map(|(n, title)| {
            let widest = cells.iter().map(|cells| cells[n].chars().count()).max().unwrap_or(0);
            Constraint::Length(widest.max(title.len()) as u16)
        });
        let rows = cells.iter().zip(&self.rows).map(|(cells, row)| {
            Row::new(cells.clone()).style(if row.answers { Style::new() } else { silent })
        });
        let counted = if self.since_start { "since the start" } else { "in the interval" };
        let title = format!("{} processes of this host; resends and passed on {counted}", self.rows.len());
        let table = Table::new(rows, widths)
            .header(Row::new(TITLES).style(bold))
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
            .block(Block::bordered().title(title));
        frame.render_stateful_widget(table, main, &mut self.at);
        let held = if self.held { "HELD  " } else { "" };
        let lines = vec![
            Line::raw("q quit  up/down move  t totals  space hold"),
            Line::raw(format!("{held}{}", self.note)),
        ];
        frame.render_widget(Paragraph::new(lines).wrap(Wrap { trim: true }), foot);
    }
}

#[cfg(test)]
mod tests {
    use super::super::rows::tests::found;
    use super::*;
    use crate::error::AppError;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn text(view: &mut View, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        let cells = terminal.backend().buffer().content().iter();
        cells.map(|cell| cell.symbol()).collect()
    }

    fn view() -> View {
        let mut view = View::new(Finder::new().unwrap(), found(10, 1));
        view.show(Ok(found(12, 5)));
        view
    }

    #[test]
    fn shows_the_processes_and_what_went_wrong() {
        let mut view = view();
        let shown = text(&mut view, 160, 12);
        for part in ["2 processes", "ib_write_bw", "keeper", "7471", "2.00 k", "it is stopped", " 16 "] {
            assert!(shown.contains(part), "{part} is not in\n{shown}");
        }
        view.key(KeyEvent::new(KeyCode::Char('t'), KeyModifiers::NONE));
        assert!(text(&mut view, 160, 12).contains(" 20 "));
        view.show(Err(AppError::Setup("nobody is there".into())));
        let shown = text(&mut view, 160, 12);
        assert!(shown.contains("0 processes") && shown.contains("nobody is there"), "{shown}");
    }

    #[test]
    fn draws_in_any_size_and_moves_nowhere_else() {
        let mut view = view();
        for code in [KeyCode::PageDown, KeyCode::Down, KeyCode::Up, KeyCode::PageUp, KeyCode::PageUp] {
            assert_eq!(view.key(KeyEvent::new(code, KeyModifiers::NONE)), Asked::Again);
            for (width, height) in [(1, 1), (10, 3), (40, 8), (300, 100)] {
                text(&mut view, width, height);
            }
        }
        let key = |view: &mut View, c| view.key(KeyEvent::new(KeyCode::Char(c), KeyModifiers::NONE));
        assert_eq!(key(&mut view, 'x'), Asked::Nothing);
        assert_eq!(key(&mut view, 'q'), Asked::Quit);
        key(&mut view, ' ');
        assert!(view.is_held());
    }
}
