//! What a program says: results on standard output, remarks on standard error.
//!
//! Either may go away while the program runs: a pipe whose reader has seen enough, a terminal that was closed, a disk that
//! is full. A result that cannot be written ends the program with an error. A remark that nobody can read is no reason to
//! end; it is lost.

use crate::error::{AppError, Result};
use std::fmt::Arguments;
use std::io::{self, Write};

/// Writes a line of the result.
///
/// # Errors
/// [`AppError::Output`] when it cannot be written.
pub fn result(line: Arguments<'_>) -> Result<()> {
    write(&mut io::stdout().lock(), line).map_err(AppError::Output)
}

/// Writes a remark, as far as somebody can read it.
pub fn remark(line: Arguments<'_>) {
    let _ = write(&mut io::stderr().lock(), line);
}

/// In one piece, so that the lines of two programs on one terminal do not mix.
fn write(to: &mut impl Write, line: Arguments<'_>) -> io::Result<()> {
    to.write_all(format!("{line}\n").as_bytes())?;
    to.flush()
}

/// [`println!`], but for its panic when nobody can read it: evaluates to a [`Result`].
macro_rules! say {
    ($($arg:tt)*) => { $crate::out::result(::core::format_args!($($arg)*)) };
}

/// [`eprintln!`], but for its panic when nobody can read it.
macro_rules! note {
    ($($arg:tt)*) => { $crate::out::remark(::core::format_args!($($arg)*)) };
}

pub(crate) use {note, say};
