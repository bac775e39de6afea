//! An NVMe over Fabrics target over RDMA, and a host for tests and measurements.
//!
//! [`target`] runs the controllers of the `nvmf` library on queue pairs: it accepts connections, moves data, and does I/O on the storage
//! ([`store`]). [`config`] reads the configuration of a target from a file, and [`control`] changes it while the target runs. [`host`] is
//! an NVMe host: it connects, identifies, reads and writes. [`perf`] puts a load on a namespace, and [`overhead`] measures what NVMe adds
//! to RDMA. [`program`], [`manage`] and [`cli`] make up the programs `roce-nvmf` and `roce-nvmf-perf`. [`wake`] lets other threads wake a
//! sleeping core.

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
