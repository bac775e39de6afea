//! Why a packet was dropped. The name of a reason is both the index of its counter and its text in logs.

/// Bytes of `camel` in snake case.
const fn snake_len(camel: &str) -> usize {
    let b = camel.as_bytes();
    let mut n = b.len();
    let mut i = 1;
    while i < b.len() {
        n += b[i].is_ascii_uppercase() as usize;
        i += 1;
    }
    n
}

/// `camel` in snake case; `N` is its [`snake_len`].
const fn snake<const N: usize>(camel: &str) -> [u8; N] {
    let b = camel.as_bytes();
    let mut out = [b'_'; N];
    let mut at = 0;
    let mut i = 0;
    while i < b.len() {
        if i > 0 && b[i].is_ascii_uppercase() {
            at += 1;
        }
        out[at] = b[i].to_ascii_lowercase();
        at += 1;
        i += 1;
    }
    out
}

macro_rules! discards {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// Why a packet was dropped without an answer. `as usize` is the index of its counter.
        ///
        /// The first group is found by [`wire`](crate::wire), from the bytes alone, the others by the layers above.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
        #[repr(u8)]
        #[non_exhaustive]
        pub enum Discard {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Discard {
            /// Every reason, in index order.
            pub const ALL: [Self; Self::COUNT] = [$(Self::$name),+];
            /// How many reasons there are.
            pub const COUNT: usize = [$(stringify!($name)),+].len();
            const NAMES: [&'static str; Self::COUNT] = [$({
                const NAME: [u8; snake_len(stringify!($name))] = snake(stringify!($name));
                match core::str::from_utf8(&NAME) {
                    Ok(name) => name,
                    Err(_) => panic!("identifiers are ASCII"),
                }
            }),+];
        }
    };
}

discards! {
    /// The frame ends before the headers or the length they state.
    TooShort,
    /// The IP and UDP lengths contradict each other, or leave no room for the headers, pad and ICRC, or the
    /// UDP length is no multiple of 4.
    BadLength,
    /// A second VLAN tag, RoCEv1, an IP version that the Ethernet type does not announce, or an IPv4 address in an IPv6
    /// header.
    BadEtherType,
    /// An IPv4 header with options; RoCEv2 allows none (IBA A17).
    IpOptions,
    /// A fragment of an IP packet.
    Fragment,
    /// A transport header version other than 0.
    BadTver,
    /// An opcode that is in no table.
    UnknownOpcode,
    /// The invariant CRC is wrong.
    BadIcrc,

    /// The destination address is none of ours.
    NotOurAddress,
    /// The VLAN is none of ours.
    UnknownVlan,
    /// A multicast packet of a group that this host has not joined.
    NotOurMulticast,
    /// A multicast packet of our own that the link sent back; attached queue pairs had their copies when it was sent.
    OwnMulticast,
    /// No queue pair has the destination number, or the number is reserved.
    UnknownQpn,
    /// The opcode's class is not the queue pair's.
    WrongTransport,
    /// The queue pair's state does not take this packet.
    BadState,
    /// The addresses are not those of the connection.
    WrongPeer,
    /// The partition key does not match.
    BadPkey,
    /// The Q_Key does not match.
    BadQkey,

    /// A request beyond the expected sequence number, or a response, that could not be held, or not any longer; or an unreliable message
    /// that lost a packet.
    OutOfSequence,
    /// A request seen before, with nothing to answer.
    Duplicate,
    /// An acknowledgement of a packet not outstanding: older than the oldest, or not sent yet.
    GhostAck,
    /// A response to no request, or of the wrong kind for it.
    UnexpectedResponse,
    /// An AETH syndrome with a reserved class or code.
    ReservedSyndrome,
    /// A bad length, key or order in a message of an unreliable service, which answers nothing.
    BadRequest,
    /// No receive work request for an unreliable message.
    NoReceive,
    /// A message longer than the datagram receive work request.
    ReceiveTooSmall,

    /// An unreliable message to a peer whose Ethernet address cannot be resolved; it counts as lost on the way.
    Unreachable,
    /// A datagram whose source address was removed from the port before it was sent, and has no holder.
    NoSource,
    /// Another shard's inbox had no room.
    InboxFull,
    /// The port refused frames for so long that the backlog was dropped.
    TxStalled,
    /// The port had no buffer for a packet; what can be sent later is tried again.
    NoBuffer,
}

impl Discard {
    /// The reason in snake case, for example `bad_icrc`.
    pub const fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

impl core::fmt::Display for Discard {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}
