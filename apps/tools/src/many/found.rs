//! What a measurement has found.

use crate::bench::row::Row;

/// A figure, or some that belong together.
pub struct Found {
    /// For a person: a line.
    pub text: String,
    /// For programs.
    pub row: Row,
}
