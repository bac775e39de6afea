//! Counters of the outcomes of MADs and connections.

macro_rules! counters {
    ($($(#[$meta:meta])* $variant:ident = $name:literal;)*) => {
        /// The outcome of a MAD or a connection. Every MAD that is dropped is counted under one of these.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
        #[repr(u8)]
        pub enum Counter { $($(#[$meta])* $variant,)* }

        impl Counter {
            /// Every counter, in index order.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The name of the counter in statistics.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

counters! {
    /// MADs received.
    Received = "mad_received";
    /// MADs that [`poll_send`](super::Machine::poll_send) returned.
    Sent = "mad_sent";
    /// MADs retransmitted.
    Retransmitted = "mad_retransmitted";
    /// Connections established.
    Established = "established";
    /// Connections that we rejected.
    RejectedByUs = "rejected_by_us";
    /// Connections that the peer rejected.
    RejectedByPeer = "rejected_by_peer";
    /// Connections and SIDR exchanges whose peer did not answer.
    Unreachable = "unreachable";
    /// Connections and SIDR exchanges given up because our program did not act on the peer's request or answer in time.
    Undecided = "undecided";
    /// Established connections that ended.
    Disconnected = "disconnected";
    /// REQs rejected: no listener (reason 8).
    NoListener = "reject_no_listener";
    /// REQs rejected: the IP header of `rdma_cm` is malformed (reason 28).
    BadIpHeader = "reject_bad_ip_header";
    /// REQs rejected: a transport service that is neither RC nor UC (reason 9).
    BadTransport = "reject_transport";
    /// REQs rejected: the destination address is not ours (reason 12), or the REQ did not come from the source address that it names
    /// (reason 5).
    BadGid = "reject_gid";
    /// REQs rejected: the path MTU is invalid, or above that of our port or of our route to the peer (reason 26).
    BadMtu = "reject_mtu";
    /// REQs rejected: we are not in the partition (reason 5).
    BadPkey = "reject_pkey";
    /// REQs rejected: the listener's backlog is full (reason 3).
    BacklogFull = "reject_backlog_full";
    /// REQs rejected: a limit of the machine is reached (reason 3).
    NoResources = "reject_no_resources";
    /// REQs and REPs rejected: the peer's IDs or queue pair already belong to a connection here (reason 10). If that connection is not
    /// established, it ends; if it is, it ends only if its peer does not answer a check.
    Stale = "reject_stale";
    /// Established connections that were checked because of such a REQ or REP.
    PeersChecked = "peers_checked";
    /// Of these, those whose peer answered: the connection stays.
    PeersAnswered = "peers_answered";
    /// Established connections that were checked because the keep-alive interval was over.
    KeepAlives = "keep_alives";
    /// Of these, those that ended because their peer did not answer several checks in a row.
    PeersSilent = "peers_silent";
    /// Ignored: not 256 bytes.
    BadLength = "ignored_length";
    /// Ignored: the base version is not 1.
    BadBaseVersion = "ignored_base_version";
    /// Ignored: the management class is not communication management.
    BadClass = "ignored_class";
    /// Ignored: the class version is not 2.
    BadClassVersion = "ignored_class_version";
    /// Ignored: the method is not Send.
    BadMethod = "ignored_method";
    /// Ignored: the attribute is not a message of connection management.
    UnknownAttribute = "ignored_attribute";
    /// Ignored: LAP and APR; RoCE has no alternate paths.
    NoAlternatePaths = "ignored_alternate_path";
    /// Ignored: a field has a value that no correct peer sends (such as queue pair 0, or a length beyond the message).
    BadField = "ignored_field";
    /// Ignored: the source or destination address is not that of a host.
    BadAddress = "ignored_address";
    /// Ignored: no connection here has these IDs.
    UnknownId = "ignored_unknown_id";
    /// Ignored: names a connection or SIDR exchange, but does not come from the address of its peer.
    NotThePeer = "ignored_not_the_peer";
    /// Ignored: the transaction ID is not the current one.
    WrongTransaction = "ignored_transaction";
    /// Ignored: a DREQ for another queue pair.
    WrongQpn = "ignored_dreq_qpn";
    /// Ignored: not expected in the connection's state.
    WrongState = "ignored_state";
    /// Duplicates of a REQ.
    DuplicateReq = "duplicate_req";
    /// Duplicates of a REP.
    DuplicateRep = "duplicate_rep";
    /// Duplicates of an RTU.
    DuplicateRtu = "duplicate_rtu";
    /// Duplicates of a DREQ.
    DuplicateDreq = "duplicate_dreq";
    /// Duplicates of a SIDR_REQ.
    DuplicateSidr = "duplicate_sidr";
    /// DREQs for which there is no connection here. They are answered nevertheless.
    DreqMirrored = "dreq_mirrored";
    /// SIDR_REQs ignored: a limit of the machine is reached.
    SidrNoResources = "ignored_sidr_no_resources";
    /// MADs dropped because a send queue was full.
    SendQueueFull = "send_queue_full";
    /// Connections and SIDR exchanges begun by a peer that were given up to make room for a host with fewer of them.
    PushedOut = "pushed_out";
    /// Connections whose TIMEWAIT was cut short because the table of connections was full.
    RestCut = "rest_cut_short";
}

/// The value of each [`Counter`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Counters([u64; Counter::ALL.len()]);

impl Default for Counters {
    fn default() -> Self {
        Self([0; Counter::ALL.len()])
    }
}

impl Counters {
    /// The value of one counter.
    pub const fn get(&self, counter: Counter) -> u64 {
        self.0[counter as usize]
    }
    /// All counters, as names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Counter::ALL.iter().map(|c| (c.name(), self.get(*c)))
    }
    /// Adds one to a counter.
    pub(super) const fn count(&mut self, counter: Counter) {
        self.0[counter as usize] += 1;
    }
}
