//! The outcomes of frames that [`Net`](super::Net) handles, by name.

macro_rules! counters {
    ($($(#[$meta:meta])* $variant:ident = $name:literal;)*) => {
        /// The outcome of a frame (or a neighbour). No frame disappears without one of these.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
        #[repr(u8)]
        pub enum NetCounter { $($(#[$meta])* $variant,)* }

        impl NetCounter {
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
    /// We answered an ARP request.
    ArpAnswered = "arp_answered";
    /// We answered a neighbour solicitation.
    SolicitationAnswered = "nd_solicitation_answered";
    /// We answered an echo request.
    EchoAnswered = "echo_answered";
    /// An ARP or neighbour discovery packet set or confirmed the Ethernet address of a neighbour.
    NeighbourLearned = "neighbour_learned";
    /// We sent a request for a neighbour.
    RequestSent = "neighbour_request_sent";
    /// We announced a new address of ours.
    Announced = "address_announced";
    /// A neighbour did not answer any request.
    NeighbourUnreachable = "neighbour_unreachable";
    /// We reported to routers a multicast group that we are in.
    GroupReported = "group_report_sent";
    /// We sent routers a leave message for a multicast group.
    GroupLeft = "group_leave_sent";
    /// A router queried multicast groups that we are in.
    GroupQueried = "group_query_heard";
    /// An entry of the full table was evicted by another.
    NeighbourEvicted = "neighbour_evicted";
    /// Another host claimed the address of a neighbour in use, or of a configured one. A neighbour in use is then checked at its
    /// old Ethernet address.
    NeighbourDisputed = "neighbour_disputed";

    /// Ignored: shorter than its headers.
    TooShort = "ignored_too_short";
    /// Ignored: addressed to another Ethernet address.
    NotOurStation = "ignored_not_our_station";
    /// Ignored: the source is a group address or zero.
    BadSourceStation = "ignored_bad_source_station";
    /// Ignored: we sent it ourselves.
    OwnFrame = "ignored_own_frame";
    /// Ignored: of another VLAN.
    WrongVlan = "ignored_wrong_vlan";
    /// Ignored: neither ARP nor IP.
    OtherEthertype = "ignored_other_ethertype";
    /// Ignored: ARP with lengths, types or an operation that are not Ethernet and IPv4, or an impossible sender.
    BadArp = "ignored_bad_arp";
    /// Ignored: ARP or ND about another Ethernet address than that from which it came.
    StationMismatch = "ignored_station_mismatch";
    /// Ignored: ARP or ND that requests another host's address.
    NotForUs = "ignored_not_for_us";
    /// Ignored: an answer to a request we did not send.
    UnsolicitedAnswer = "ignored_unsolicited_answer";
    /// Ignored: another host claims one of our addresses.
    AddressConflict = "ignored_address_conflict";
    /// Ignored: an IP header that is malformed or has a wrong checksum.
    BadIp = "ignored_bad_ip";
    /// Ignored: an IP fragment.
    Fragment = "ignored_fragment";
    /// Ignored: an IP packet whose destination is not ours, or whose source cannot be answered.
    BadIpAddress = "ignored_bad_ip_address";
    /// Ignored: IP, but not ICMP.
    OtherProtocol = "ignored_other_protocol";
    /// Ignored: ICMP that is malformed or has a wrong checksum.
    BadIcmp = "ignored_bad_icmp";
    /// Ignored: ICMP of a kind that is no request to us.
    OtherIcmp = "ignored_other_icmp";
    /// Ignored: neighbour discovery with a hop limit below 255, so not from this link.
    BadHopLimit = "ignored_bad_hop_limit";
    /// Ignored: a group membership message (IGMP, MLD) that is malformed, has a wrong checksum, or does not come from
    /// this link.
    BadGroupMessage = "ignored_bad_group_message";
    /// Ignored: a group membership message that is no query to us.
    OtherGroupMessage = "ignored_other_group_message";
    /// Ignored: neighbour discovery that breaks one of its rules.
    BadNd = "ignored_bad_nd";
    /// Ignored: an advertisement of another Ethernet address that does not set the override flag.
    NoOverride = "ignored_no_override";
    /// Not answered: the answer does not fit the buffer.
    ReplyTooLong = "reply_too_long";
    /// Not answered: there was no buffer for the answer, or too many frames wait for the link.
    NoReplyBuffer = "no_reply_buffer";
}

/// Number of counters.
pub(super) const COUNTERS: usize = NetCounter::ALL.len();
