//! The target and the host, against each other.

mod blocks;
mod common;
mod configuration;
mod connections;
mod control;
mod documentation;
mod faults;
mod load;
mod meters;
mod protocol;
mod signals;
mod start;
mod world;
