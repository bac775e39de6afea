//! The target and the host, against each other.

mod blocks;
mod common;
mod configuration;
mod connections;
mod control;
mod documentation;
mod load;
mod meters;
