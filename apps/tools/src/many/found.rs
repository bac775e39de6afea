//! The result of a measurement.

use crate::bench::row::Row;

/// One figure, or several related ones.
pub struct Found {
    /// A line for people.
    pub text: String,
    /// A row for programs.
    pub row: Row,
}
