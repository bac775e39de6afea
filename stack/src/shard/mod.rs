//! One poll-mode core: turns frames of a port's queue into work for its queue pairs and back.
//!
//! A shard owns its queue pairs, its timers and its port queue; nothing else writes them. A shard reads no clock, waits for no peer and for
//! no other shard, and takes short locks only: of the IP host, of the key table when keys are registered or revoked, of events and their
//! channels, and of the address table. The thread that holds the claim on a shard (see `device`) calls [`Shard::poll_once`] and, between
//! two turns, the control calls.
//!
//! The files from the bottom up, where each imports only from those before it: `shared`, the state that all shards share; `qp`, the
//! state of a queue pair; the parts that a turn works with; `env`, which holds the parts; operations on a queue pair and several parts
//! (`complete`, `life`, and with packets `rx` and `tx`); `state`, the shard; `poll`, its turn, and `control`, the calls between two turns.

mod agenda;
pub(crate) mod blocks;
mod complete;
mod completions;
mod congestion;
mod control;
mod copy;
mod corrections;
pub mod counters;
mod cq;
mod deferred;
mod drain;
mod due;
mod ended_peers;
mod env;
mod events;
mod gids;
mod held;
mod held_gid;
mod hops;
mod host;
mod identification;
mod idle;
mod inspect;
mod keys;
mod life;
mod listed;
mod local;
mod lookahead;
mod mcast;
mod outbox;
mod paths;
mod peer_check;
mod peer_hosts;
mod peers;
mod poll;
mod posts;
mod qp;
mod qp_table;
mod qps;
mod relaying;
mod relays;
mod routes;
mod rq;
mod rx;
#[cfg(test)]
mod scale;
mod segments;
mod shared;
mod slab;
mod source_port;
mod stalled;
mod state;
mod timing;
mod tx;
mod unrouted;
mod unsent;
mod wheel;
mod window;

pub use cq::{CqState, EventChannel, LaneId};
pub use drain::{DrainKind, DrainMark};
pub use events::{Event, EventElement};
pub use gids::GidRefused;
pub use mcast::{AttachError, McastTable, Member};
pub use peer_check::check::{CheckOutcome, PeerState};
pub use poll::Turn;
pub use qp::QpSpec;
pub use rq::{RecvSource, SrqEnd, XrcSrq, srq_words};
pub use shared::{Shared, SharedConfig};
pub use state::Shard;
