//! RDMA verbs in Rust.
