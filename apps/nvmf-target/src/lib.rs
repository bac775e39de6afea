//! An NVMe over Fabrics target over RDMA, and a host for tests and figures.
//!
//! [`target`] binds the controllers of the `nvmf` library to queue pairs: it accepts connections, moves data, and asks the
//! storage ([`store`]). [`control`] changes it while it runs. [`host`] is the other end: it connects, identifies, reads and
//! writes, and [`perf`] puts a load on a namespace; [`overhead`] measures what NVMe adds to RDMA. [`config`] reads what a target
//! offers from a file; [`program`], [`manage`] and [`cli`] are `roce-nvmf` and `roce-nvmf-perf`. [`wake`] ends the sleep of a core when
//! another thread has something for it.

#![deny(unsafe_code)]

pub mod cli;
pub mod config;
pub mod control;
pub mod host;
pub mod manage;
pub mod overhead;
pub mod perf;
pub mod program;
pub mod store;
pub mod target;
pub mod wake;
