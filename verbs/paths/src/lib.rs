//! `libroce-paths.so`, preloaded by `roce-run` alone: calls that name a file below `/sys/class/infiniband`,
//! `/sys/class/infiniband_verbs`, `/sys/class/infiniband_mad` or `/dev/infiniband` get the file of the same name in a tree that
//! `roce-run` made (`ROCE_PATHS`). So programs that look there before they use libibverbs (UCX, libfabric, the tests of pyverbs) find
//! the device.
//!
//! Each function here has the name of one of the C library. It looks at the path, and calls the C library's function with the
//! same arguments but for that. All other paths go there as they are, and nothing is changed where `ROCE_PATHS` is not set, nor for
//! another libibverbs that a program has beside `roce-run`'s (`caller`).
//! `getenv` is the one that names no file: see `defaults`.
//! Of its own no function here allocates, takes a lock or starts a thread; the first call of each asks the loader where the C library
//! has it, and the first unwinding of the stack prepares that, which may do the first two. `errno` is the C library's.

mod caller;
mod calls;
mod defaults;
mod redirect;
