//! Output of the programs: results to standard output, remarks to standard error.
//!
//! Either may fail while the program runs: a pipe whose reader has closed it, a terminal that was closed, a full disk. A
//! result that cannot be written ends the program with an error. A remark that cannot be written is lost, and the program
//! continues.

use crate::error::{AppError, Result};
use std::fmt::Arguments;
use std::io::{self, Write};
use std::process::ExitCode;

/// Writes a line of the result.
///
/// # Errors
/// [`AppError::Output`] when it cannot be written.
pub fn result(line: Arguments<'_>) -> Result<()> {
    write(&mut io::stdout().lock(), line).map_err(AppError::Output)
}

/// Writes a remark, if that is possible.
pub fn remark(line: Arguments<'_>) {
    let _ = write(&mut io::stderr().lock(), line);
}

/// Writes a line by a single write, so that the lines of two programs on one terminal do not mix.
fn write(to: &mut impl Write, line: Arguments<'_>) -> io::Result<()> {
    to.write_all(format!("{line}\n").as_bytes())?;
    to.flush()
}

/// [`println!`] without the panic when the output cannot be written: evaluates to a [`Result`].
#[macro_export]
macro_rules! say {
    ($($arg:tt)*) => { $crate::out::result(::core::format_args!($($arg)*)) };
}

/// [`eprintln!`] without the panic when the output cannot be written.
#[macro_export]
macro_rules! note {
    ($($arg:tt)*) => { $crate::out::remark(::core::format_args!($($arg)*)) };
}

pub use {note, say};

/// Ends a program: prints the error, if any, in one line and returns the exit code.
pub fn finish(program: &str, result: Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of the pipe has closed it: no error.
        Err(AppError::Output(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            note!("{program}: {error}");
            ExitCode::from(error.code())
        }
    }
}
