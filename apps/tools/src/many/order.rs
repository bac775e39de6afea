//! The messages between the parent and its members, one line of JSON each: orders on the member's standard input, reports on its standard
//! output. A member answers each order with one report, except [`Order::Stop`].

use serde::{Deserialize, Serialize};

/// An order to a member.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Make queue pairs; [`Report::Made`] names them.
    Make(Make),
    /// Connect each queue pair with that of a peer, in their order.
    Connect(Vec<RemoteEnd>),
    /// Connect a queue pair, and notify its peer's process, which waits for that.
    Join {
        /// The queue pair.
        queue: usize,
        /// The queue pair's peer.
        remote: RemoteEnd,
        /// The process to notify.
        notify: u32,
    },
    /// Wait until a peer has joined, connect to it, and send it a message. [`Report::Times`] has the time to the completion: from the post,
    /// and from when the peer began to connect.
    Meet {
        /// The queue pair.
        queue: usize,
        /// The queue pair's peer.
        remote: RemoteEnd,
    },
    /// Send a message on each of these queue pairs, each after the completion of the one before.
    Greet {
        /// Index of the first queue pair.
        from: usize,
        /// Index after the last queue pair.
        to: usize,
    },
    /// Bounce messages with the peer of the first queue pair. The member that begins does so for `duration_ms`, and sends [`Report::Curve`];
    /// its peer answers until [`Order::Stop`].
    PingPong {
        /// Whether this member begins.
        begins: bool,
        /// Duration in milliseconds.
        duration_ms: u64,
    },
    /// Send a short message on the first queue pair every `every_us` microseconds until [`Order::Stop`]. [`Report::Counts`] has the number
    /// of messages sent.
    Beat {
        /// Microseconds from one message to the next.
        every_us: u64,
    },
    /// Keep WRITEs outstanding on all queue pairs until the window ends. [`Report::Counts`] has, for each queue pair, the WRITEs that
    /// completed within the window.
    Flood {
        /// Requests outstanding on each queue pair.
        depth: u32,
        /// Begin and end of the window, in nanoseconds of the system's clock.
        window_ns: [u64; 2],
    },
    /// Keep WRITEs outstanding on the first queue pair, and send the peer's process a signal meanwhile. [`Report::Times`] has the time from
    /// the signal to the failure of a request.
    Kill {
        /// The process to signal.
        pid: u32,
        /// The signal.
        signal: End,
        /// Milliseconds until the signal.
        after_ms: u64,
        /// Post nothing before the signal, and one request this many milliseconds after it. The time is then measured from that post.
        late_ms: Option<u64>,
    },
    /// Make `turns` turns in which nothing happens, after as many as it takes until links count as idle.
    Turn {
        /// Number of counted turns.
        turns: u32,
    },
    /// End the work that continues until this order. It has no report of its own.
    Stop,
}

/// The queue pairs that a member creates.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Make {
    /// Number of queue pairs.
    pub count: usize,
    /// Bytes of a message.
    pub size: u32,
    /// Most requests outstanding of each queue pair.
    pub depth: u32,
    /// Bytes of registered memory, all of which is touched; at least as many as the messages need.
    pub memory: usize,
}

/// A signal that ends a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// SIGKILL: the process cannot notify its peers.
    Kill,
    /// SIGINT: the process notifies its peers.
    Int,
}

/// A queue pair, and memory that its peer may write to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteEnd {
    /// The endpoint in the text form of [`verbs::RcEndpoint`].
    pub endpoint: String,
    /// Address of the memory to which the peer writes.
    pub addr: u64,
    /// Key of that memory.
    pub rkey: u32,
}

/// A member's report.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Report {
    /// The member's device is open.
    Ready,
    /// The member's queue pairs.
    Made(Vec<RemoteEnd>),
    /// The order was executed.
    Done,
    /// Times in nanoseconds.
    Times(Vec<u64>),
    /// A distribution of times.
    Curve {
        /// Quantiles from 0 to 1, each with its nanoseconds.
        quantiles: Vec<(f64, u64)>,
        /// Number of times in the distribution.
        count: u64,
    },
    /// Counts.
    Counts(Vec<u64>),
    /// The order failed, for this reason, and the member ends.
    Failed(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_one_line() {
        let orders = [
            Order::Make(Make { count: 3, size: 64, depth: 8, memory: 0 }),
            Order::Connect(vec![RemoteEnd { endpoint: "10.0.0.1,0x1,0x2".into(), addr: u64::MAX, rkey: 7 }]),
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
