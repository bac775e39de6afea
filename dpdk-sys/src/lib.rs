//! Raw bindings to DPDK (filled by the build script).
