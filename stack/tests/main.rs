//! Tests of the stack through its public modules, in one binary. They share a process: no test changes its environment, counts its
//! threads or file descriptors, or ends it. Tests that do are separate binaries, listed in `Cargo.toml` with the reason.

mod cm_burst;
mod cm_bytes;
mod cm_cases;
mod cm_golden;
mod cm_shares;
mod cm_stacks;
mod cm_swarm;
mod conformance;
mod fuzz_replay;
mod golden;
mod held_numbers;
mod layering;
mod peer_check;
mod rc_bits;
mod rc_gaps;
mod rc_keys;
mod rc_order;
mod rc_regressions;
mod rc_requester;
mod rc_responder;
mod rc_series;
mod rc_states;
mod rc_window;
mod rc_wire;
mod rxe_model;
mod sim_cases;
mod sim_hosts;
mod sim_neighbours;
mod sim_registry;
mod sim_relay;
mod sim_seeds;
mod source_ports;
mod stalled_peers;
