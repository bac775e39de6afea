//! Controllers as a host sees them, and what any bytes do to them.

mod admin;
mod capsules;
mod common;
mod connect;
mod fuzz;
mod golden;
mod io;
mod model;
mod threads;
