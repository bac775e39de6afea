//! An NVMe over Fabrics target over RDMA, and a host for tests and figures.
//!
//! [`target`] binds the controllers of the `nvmf` library to queue pairs: it accepts connections, moves data, and asks the
//! storage ([`store`]). [`host`] is the other end: it connects, identifies, reads and writes.

#![forbid(unsafe_code)]

pub mod host;
pub mod store;
pub mod target;
