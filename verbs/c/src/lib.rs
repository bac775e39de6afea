//! The C libraries of the stack, `libibverbs.so.1` and `librdmacm.so.1`: drop-in replacements for those of the distribution.
//!
//! Checks the arguments of each C function (pointers, lists, masks), converts them once, here, to calls of [`verbs`], and converts the
//! results back to error numbers and C structures. It contains no logic of its own: the meaning of a call is defined in `verbs` or below.
//! The C structures are generated from the installed headers by bindgen.
//!
//! A file uses only files of its own row and of the rows above it:
//!
//! | what | where |
//! |---|---|
//! | types of the headers | `abi` |
//! | standard error; error numbers; the boundary for panics; waiting with cancellation | `log`, `errno`, `guard`, `wait` |
//! | state that each process has for itself; signals and file descriptors | `process`, `signals`, `fd` |
//! | the device: claimed names, configuration, opening, forks | `claims`, `config`, `event_thread`, `engine` |
//! | objects: the public structure and the private part; which context gets which event | `object`, `delivery` |
//! | the context, one for each time that a program opens the device | `context` |
//! | conversion of attributes and completions | `attr`, `wc` |
//! | objects and their functions; lists of requests | `pd`, `buf`, `mr`, `mw`, `ah`, `xrcd`, `channel`, `cq`, `wr`, `srq`, `qp` |
//! | creation of completion queues and queue pairs, and the functions in their structures | `cq_ex`, `wr_ex`, `create_cq`, `create_qp` |
//! | events; queries; the list of devices; opening one, and the function tables of a context | `event`, `query`, `device`, `ops` |
//! | names and numbers that belong to no object; functions that always fail | `text`, `unsupported`, `private` |
//! | connection management | `cm` |
//!
//! # Safety
//!
//! The functions here are called from C. Each has the contract of the function of that name in libibverbs or librdmacm. The C caller must
//! guarantee that a pointer is NULL or points to the structure that the prototype names, that the structure is alive during the call, and
//! that objects were created by this library. NULL, objects of another kind and destroyed objects are detected (see `object`) and refused
//! with an error number. Nothing else can be checked.

#![cfg(headers)]
#![allow(clippy::missing_safety_doc, reason = "what C promises is said once, above")]
#![allow(missing_docs, reason = "manual pages document the functions: their names are those of libibverbs")]

mod abi;
mod ah;
mod attr;
mod buf;
mod channel;
mod claims;
mod cm;
mod config;
mod context;
mod cq;
mod cq_ex;
mod create_cq;
mod create_qp;
mod delivery;
mod device;
mod engine;
mod errno;
mod event;
mod event_thread;
mod fd;
mod guard;
mod log;
mod mr;
mod mw;
mod object;
mod ops;
mod pd;
mod private;
mod process;
mod qp;
mod query;
mod signals;
mod srq;
mod text;
mod unsupported;
mod wait;
mod wc;
mod wr;
mod wr_ex;
mod xrcd;
