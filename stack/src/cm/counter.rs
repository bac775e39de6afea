//! The outcomes of MADs and connections, by name.

macro_rules! counters {
    ($($(#[$meta:meta])* $variant:ident = $name:literal;)*) => {
        /// The outcome of a MAD or a connection. No MAD disappears without one of these.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
        #[repr(u8)]
        pub enum Counter { $($(#[$meta])* $variant,)* }

        impl Counter {
            /// Every counter, in index order.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// Its name in statistics.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

counters! {
    /// MADs received.
    Received = "mad_received";
    /// MADs returned to be sent.
    Sent = "mad_sent";
    /// MADs sent that repeat an earlier one.
    Retransmitted = "mad_retransmitted";
    /// Connections established.
    Established = "established";
    /// Connections that we rejected.
    RejectedByUs = "rejected_by_us";
    /// Connections that the peer rejected.
    RejectedByPeer = "rejected_by_peer";
    /// Connections and SIDR exchanges whose peer did not answer.
    Unreachable = "unreachable";
    /// Connections and SIDR exchanges given up because our program did not decide on the peer's request or answer in time.
    Undecided = "undecided";
    /// Established connections that ended.
    Disconnected = "disconnected";
    /// REQs rejected: no listener (reason 8).
    NoListener = "reject_no_listener";
    /// REQs rejected: a header of rdma_cm that is malformed (reason 28).
    BadIpHeader = "reject_bad_ip_header";
    /// REQs rejected: a transport service that is neither RC nor UC (reason 9).
    BadTransport = "reject_transport";
    /// REQs rejected: an address that is not ours (reason 12), or a sender's address from which the REQ did not come (reason 5).
    BadGid = "reject_gid";
    /// REQs rejected: a path MTU above that of our port or of our route to the peer, or none (reason 26).
    BadMtu = "reject_mtu";
    /// REQs rejected: a partition that we are not in (reason 5).
    BadPkey = "reject_pkey";
    /// REQs rejected: the listener's backlog is full (reason 3).
    BacklogFull = "reject_backlog_full";
    /// REQs rejected: a limit of the machine is reached (reason 3).
    NoResources = "reject_no_resources";
    /// REQs and REPs rejected: the peer's ids or queue pair belong to a connection here (reason 10). An older one that was not
    /// established yet ends with it; one that is established, if its peer does not answer.
    Stale = "reject_stale";
    /// Established connections whose peer was asked whether it still has them, because of such a REQ or REP.
    PeersChecked = "peers_checked";
    /// Of these, those whose peer answered: they stay.
    PeersAnswered = "peers_answered";
    /// Established connections whose peer was asked because nobody had for a while.
    KeepAlives = "keep_alives";
    /// Of these, those that ended because their peer answered nothing several times.
    PeersSilent = "peers_silent";
    /// Ignored: not 256 bytes.
    BadLength = "ignored_length";
    /// Ignored: another base version than 1.
    BadBaseVersion = "ignored_base_version";
    /// Ignored: another management class than communication management.
    BadClass = "ignored_class";
    /// Ignored: another class version than 2.
    BadClassVersion = "ignored_class_version";
    /// Ignored: another method than Send.
    BadMethod = "ignored_method";
    /// Ignored: an attribute that is no message of connection management.
    UnknownAttribute = "ignored_attribute";
    /// Ignored: LAP and APR; RoCE has no alternate paths.
    NoAlternatePaths = "ignored_alternate_path";
    /// Ignored: a field that no correct peer sends (queue pair 0, a length beyond the message).
    BadField = "ignored_field";
    /// Ignored: from an address that cannot be answered, or to one.
    BadAddress = "ignored_address";
    /// Ignored: ids of no connection here.
    UnknownId = "ignored_unknown_id";
    /// Ignored: names a connection or a SIDR exchange, and comes from another address than its peer's.
    NotThePeer = "ignored_not_the_peer";
    /// Ignored: not the transaction that is under way.
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
    /// DREQs for no connection here, answered all the same.
    DreqMirrored = "dreq_mirrored";
    /// Ignored SIDR_REQs: a limit of the machine is reached.
    SidrNoResources = "ignored_sidr_no_resources";
    /// MADs not sent: the queue to the port was full, most of all with those to this host.
    SendQueueFull = "send_queue_full";
    /// Connections and SIDR exchanges that a peer began, given up for those of hosts with fewer of them.
    PushedOut = "pushed_out";
    /// Connections whose queue pair rested for a shorter time than it should: the table of connections was full.
    RestCut = "rest_cut_short";
}

/// A count for each name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Counters([u64; Counter::ALL.len()]);

impl Default for Counters {
    fn default() -> Self {
        Self([0; Counter::ALL.len()])
    }
}

impl Counters {
    /// One of them.
    pub const fn get(&self, counter: Counter) -> u64 {
        self.0[counter as usize]
    }
    /// All of them, with their names.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Counter::ALL.iter().map(|c| (c.name(), self.get(*c)))
    }
    /// One more.
    pub(super) const fn count(&mut self, counter: Counter) {
        self.0[counter as usize] += 1;
    }
}
