//! The C face of the stack: `libibverbs.so.1` and `librdmacm.so.1`, for programs as they come from the distribution.
//!
//! Takes what C passes (pointers, lists, masks), checks it and turns it, once and at the edge, into calls of [`verbs`]; turns the
//! results back into error numbers and C structures. It has no rule of its own: what a call means is decided in `verbs` or below.
//! The structures are those of the installed headers, by bindgen.
//!
//! A file uses those of its own row and of the rows above it:
//!
//! | what | where |
//! |---|---|
//! | types of the headers | `abi` |
//! | lines on standard error; errors; the border that no panic crosses; calls that wait, where a thread may be cancelled | `log`, `errno`, `guard`, `wait` |
//! | what each process has of its own; signals and descriptors | `process`, `signals`, `fd` |
//! | the one device of the process: names that it claims, its configuration, when it opens, what a fork finds | `claims`, `config`, `event_thread`, `engine` |
//! | objects: the public structure, and behind it what it stands for; who gets which event | `object`, `delivery` |
//! | the device as a program has opened it | `context` |
//! | attributes and completions, from and to C | `attr`, `wc` |
//! | the objects, each with the calls on it; lists of requests, walked in place | `pd`, `buf`, `mr`, `mw`, `ah`, `xrcd`, `channel`, `cq`, `wr`, `srq`, `qp` |
//! | calls that the structures of completion queues and queue pairs carry, and making those | `cq_ex`, `wr_ex`, `create_cq`, `create_qp` |
//! | events; queries; the list of devices; opening one, with the calls that a context carries | `event`, `query`, `device`, `ops` |
//! | names and numbers that belong to no object; calls that refuse | `text`, `unsupported`, `private` |
//! | connection management | `cm` |
//!
//! # Safety
//!
//! Functions here are called from C. What C promises by calling them is what libibverbs asks for: pointers are NULL or point to
//! the structures that the prototype names, alive and, where they are objects, made by this library. NULL, objects of another kind
//! and destroyed ones are detected (see `object`) and refused with an error number; nothing else can be checked.

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
