//! Runs a live view in the terminal: draws it, passes it keys, and starts a search for new data in each interval.

use super::search::{SLICE, Search};
use crate::error::{AppError, Result};
use crate::stop;
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyEvent, KeyEventKind};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::IsTerminal;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// How long the view waits for the result of a search before it checks for keys again. Most searches end within this time.
const LOOK: Duration = Duration::from_millis(5);

/// What a key requests of [`run`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asked {
    /// Nothing.
    Nothing,
    /// Prepare the same data again, because the display changed.
    Again,
    /// End the view.
    Quit,
}

/// A live view.
pub trait Screen {
    /// The result of a search.
    type Found: Send + 'static;

    /// Starts a search.
    fn look(&self) -> Search<Self::Found>;
    /// Replaces the shown data by the result of a search, or notes its error.
    fn show(&mut self, found: Result<Self::Found>);
    /// Prepares the last result again, after a change of the display.
    fn again(&mut self);
    /// Handles a key.
    fn key(&mut self, key: KeyEvent) -> Asked;
    /// Whether the view is frozen: no search is started.
    fn is_held(&self) -> bool;
    /// Draws the view.
    fn draw(&mut self, frame: &mut Frame<'_>);
}

/// Checks that standard input and output are a terminal.
///
/// # Errors
/// [`AppError::Usage`] if they are not.
pub fn needs_terminal() -> Result<()> {
    if std::io::stdout().is_terminal() && std::io::stdin().is_terminal() {
        return Ok(());
    }
    Err(AppError::Usage("the live view needs a terminal; use --once for a table, or --json".into()))
}

/// Runs the view until the user ends it.
///
/// # Errors
/// [`AppError::Setup`] if the terminal cannot be used; [`AppError::Interrupted`] after a signal or when the terminal is closed.
pub fn run(screen: &mut impl Screen, interval: Duration) -> Result<()> {
    let mut terminal = ratatui::try_init().map_err(broken)?;
    let result = watch(screen, interval, &mut terminal);
    // Both calls fail if the terminal is gone. `ratatui::restore` and the drop of `terminal` would then panic, with a message that cannot
    // be shown.
    let _ = ratatui::try_restore();
    if terminal.show_cursor().is_err() {
        std::mem::forget(terminal);
    }
    result
}

/// The error for a failed operation on the terminal.
fn broken(error: std::io::Error) -> AppError {
    if is_gone() {
        return AppError::Interrupted;
    }
    AppError::Setup(format!("the terminal cannot be used ({error})"))
}

/// Whether the terminal is gone: its window or its connection was closed.
fn is_gone() -> bool {
    let stdin = std::io::stdin();
    // No requested events: hang-up, error and a closed descriptor are always reported.
    let mut fds = [PollFd::new(&stdin, PollFlags::empty())];
    poll(&mut fds, Some(&Timespec::default())).is_ok_and(|n| n > 0)
}

/// Starts a thread that reads terminal events. It has to be a separate thread: crossterm's read from a closed terminal never returns.
fn events() -> Receiver<std::io::Result<Event>> {
    let (to, from) = mpsc::channel();
    std::thread::spawn(move || {
        loop {
            let event = event::read();
            let failed = event.is_err();
            if to.send(event).is_err() || failed {
                return;
            }
        }
    });
    from
}

/// The loop of [`run`].
fn watch(
    screen: &mut impl Screen,
    interval: Duration,
    terminal: &mut ratatui::DefaultTerminal,
) -> Result<()> {
    let mut due = Instant::now() + interval;
    let events = events();
    let mut search = None;
    loop {
        stop::check()?;
        if is_gone() {
            return Err(AppError::Interrupted);
        }
        terminal.draw(|frame| screen.draw(frame)).map_err(broken)?;
        let wait = match search {
            Some(_) => SLICE,
            None => due.saturating_duration_since(Instant::now()).min(SLICE),
        };
        match events.recv_timeout(wait) {
            Ok(Ok(Event::Key(key))) if key.kind != KeyEventKind::Release => match screen.key(key) {
                Asked::Quit => return Ok(()),
                Asked::Again => screen.again(),
                Asked::Nothing => {}
            },
            Ok(Ok(_)) | Err(RecvTimeoutError::Timeout) => {}
            Ok(Err(error)) => return Err(broken(error)),
            Err(RecvTimeoutError::Disconnected) => return Err(AppError::Interrupted),
        }
        if search.is_none() && Instant::now() >= due {
            due = Instant::now() + interval;
            search = (!screen.is_held()).then(|| screen.look());
        }
        if let Some(found) = search.as_ref().and_then(|search| search.within(LOOK)) {
            search = None;
            screen.show(found);
        }
    }
}
