//! Programs of development, run as a person would, with little to do.

mod many;
