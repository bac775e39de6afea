//! The target and the host, against each other.

mod blocks;
mod common;
mod connections;
