//! What the parent and its members tell each other: a line of JSON each, orders by the member's standard input, reports by its
//! standard output. A member answers each order with one report.

use serde::{Deserialize, Serialize};

/// What a member is told to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Make queue pairs; [`Report::Made`] names them.
    Make(Make),
    /// Connect each queue pair with that of a peer, in their order.
    Connect(Vec<Far>),
    /// Connect a queue pair, and tell the process of its peer, which waits for that.
    Join {
        /// Which.
        queue: usize,
        /// Its peer.
        far: Far,
        /// The peer's process.
        tell: u32,
    },
    /// Wait until a peer has joined, connect with it, and send it a message. [`Report::Times`] has how long that took: from the post to
    /// the completion, and from the time at which the peer began to connect.
    Meet {
        /// Which queue pair.
        queue: usize,
        /// Its peer.
        far: Far,
    },
    /// Send a message on each of these queue pairs, one after the other, each when the one before is complete.
    Greet {
        /// The first one.
        from: usize,
        /// The one behind the last one.
        to: usize,
    },
    /// Send messages to and fro with the peer of the first queue pair: whoever begins for so long, with [`Report::Curve`]; the other
    /// one until it is told to stop.
    PingPong {
        /// Who begins.
        begins: bool,
        /// Milliseconds.
        duration_ms: u64,
    },
    /// Send a short message on the first queue pair each time so many microseconds are over, until it is told to stop;
    /// [`Report::Counts`] has how many were sent.
    Beat {
        /// From one to the next one.
        every_us: u64,
    },
    /// Keep WRITEs outstanding on all queue pairs until a time; [`Report::Counts`] has those of each queue pair that were completed
    /// within the window.
    Flood {
        /// Requests outstanding, each queue pair.
        depth: u32,
        /// When the window begins and ends: nanoseconds of the system's time.
        window_ns: [u64; 2],
    },
    /// Keep WRITEs outstanding on the first queue pair, and send the peer's process a signal meanwhile; [`Report::Times`] has how long
    /// after that a request failed.
    Kill {
        /// The process.
        pid: u32,
        /// The signal.
        signal: End,
        /// Milliseconds before that.
        after_ms: u64,
        /// Post nothing before the signal, and one request so many milliseconds behind it: the time is from that post.
        late_ms: Option<u64>,
    },
    /// Make so many turns in which nothing happens, after as many as it takes until links count as idle.
    Turn {
        /// Turns that are counted.
        turns: u32,
    },
    /// Do nothing more of what lasts until this is said. It has no report of its own.
    Stop,
}

/// What queue pairs a member makes.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Make {
    /// How many.
    pub count: usize,
    /// Bytes of a message.
    pub size: u32,
    /// Requests outstanding of each, at most.
    pub depth: u32,
    /// Bytes of registered memory, all of which is touched; at least as many as the messages take.
    pub memory: usize,
}

/// A signal that ends a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// SIGKILL: the process can say nothing.
    Kill,
    /// SIGINT: it tells its peers.
    Int,
}

/// A queue pair, and memory that its peer may write to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Far {
    /// As [`verbs::RcEndpoint`] is written.
    pub endpoint: String,
    /// Where the peer writes.
    pub addr: u64,
    /// With this key.
    pub rkey: u32,
}

/// What a member answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Report {
    /// Its device is open.
    Ready,
    /// Its queue pairs.
    Made(Vec<Far>),
    /// It is done.
    Done,
    /// Nanoseconds.
    Times(Vec<u64>),
    /// A distribution of nanoseconds: quantile and value; and of how many.
    Curve {
        /// From 0 to 1.
        quantiles: Vec<(f64, u64)>,
        /// Values.
        count: u64,
    },
    /// Numbers.
    Counts(Vec<u64>),
    /// It could not do it, for this reason, and ends.
    Failed(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_one_line() {
        let orders = [
            Order::Make(Make { count: 3, size: 64, depth: 8, memory: 0 }),
            Order::Connect(vec![Far { endpoint: "10.0.0.1,0x1,0x2".into(), addr: u64::MAX, rkey: 7 }]),
            Order::Kill { pid: 1, signal: End::Int, after_ms: 50, late_ms: Some(0) },
            Order::Stop,
        ];
        for order in orders {
            let line = serde_json::to_string(&order).unwrap();
            assert!(!line.contains('\n'));
            let again: Order = serde_json::from_str(&line).unwrap();
            assert_eq!(format!("{order:?}"), format!("{again:?}"));
        }
    }
}
