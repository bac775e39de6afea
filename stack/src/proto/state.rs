//! The states of a queue pair as tables: which Modify QP calls are legal, what each state permits, and which events change the state.
//!
//! [`modify`] checks a call on the control path. The data path reads only [`Gates`]. The effects of a transition (clearing queues,
//! flushing, draining) are implemented elsewhere.

use core::fmt::{self, Write as _};

use super::address::AvError;
use super::attr::{AttrMask, PORT_NUM, PathMigState, QpAttr};
use super::tables::{ACK_TIMEOUT_MAX, RETRY_MAX, RNR_TIMER_MAX};
use crate::config::RD_ATOMIC_MAX;
use crate::id::{Gid, Mtu, QpState, QpType};

const STATES: usize = QpState::ALL.len();
const TYPES: usize = QpType::ALL.len();

/// The attributes of a legal transition of one service type, besides [`AttrMask::STATE`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rule {
    /// Attributes that must be given.
    pub required: AttrMask,
    /// Attributes that may be given.
    pub optional: AttrMask,
}

type Table = [[[Option<Rule>; TYPES]; STATES]; STATES]; // [from][to][type]

/// Fills a cell of the table. Filling one twice is a compile error.
const fn cell(mut table: Table, from: QpState, to: QpState, ty: QpType, rule: Rule) -> Table {
    let cell = &mut table[from as usize][to as usize][ty as usize];
    assert!(cell.is_none(), "this transition has a rule for this type already");
    *cell = Some(rule);
    table
}

/// `From => To { Types: [required] [optional]; .. }`, one block per row of the specification's table.
macro_rules! transitions {
    ($($from:ident => $to:ident {
        $($($ty:ident)+: [$($req:ident)*] [$($opt:ident)*];)+
    })+) => {{
        let mut table: Table = [[[None; TYPES]; STATES]; STATES];
        $($({
            let rule = Rule {
                required: AttrMask::empty()$(.union(AttrMask::$req))*,
                optional: AttrMask::empty()$(.union(AttrMask::$opt))*,
            };
            assert!(rule.required.intersection(rule.optional).is_empty(), "required and optional at once");
            $(table = cell(table, QpState::$from, QpState::$to, QpType::$ty, rule);)+
        })+)+
        table
    }};
}

/// The legal transitions (IBA 11.2.4.2 Table 91, with the attributes of Linux verbs). RESET to ERR is legal because the specification
/// allows "any state" to ERR.
#[rustfmt::skip]
static MODIFY: Table = const { transitions! {
    Reset => Reset { Rc Uc Ud XrcIni XrcTgt Gsi: [] []; }
    Init  => Reset { Rc Uc Ud XrcIni XrcTgt Gsi: [] []; }
    Rtr   => Reset { Rc Uc Ud XrcIni XrcTgt Gsi: [] []; }
    Rts   => Reset { Rc Uc Ud XrcIni XrcTgt Gsi: [] []; }
    Sqd   => Reset { Rc Uc Ud XrcIni XrcTgt Gsi: [] []; }
    Sqe   => Reset { Rc Uc Ud XrcIni XrcTgt Gsi: [] []; }
    Err   => Reset { Rc Uc Ud XrcIni XrcTgt Gsi: [] []; }

    Reset => Err   { Rc Uc Ud XrcIni XrcTgt Gsi: [] []; }
    Init  => Err   { Rc Uc Ud XrcIni XrcTgt Gsi: [] []; }
    Rtr   => Err   { Rc Uc Ud XrcIni XrcTgt Gsi: [] []; }
    Rts   => Err   { Rc Uc Ud XrcIni XrcTgt Gsi: [] []; }
    Sqd   => Err   { Rc Uc Ud XrcIni XrcTgt Gsi: [] []; }
    Sqe   => Err   { Rc Uc Ud XrcIni XrcTgt Gsi: [] []; }
    Err   => Err   { Rc Uc Ud XrcIni XrcTgt Gsi: [] []; }

    Reset => Init {
        Rc Uc XrcIni XrcTgt: [PKEY_INDEX PORT ACCESS_FLAGS] [];
        Ud:                  [PKEY_INDEX PORT QKEY]         [];
        Gsi:                 [PKEY_INDEX QKEY]              [];
    }
    Init => Init {
        Rc Uc XrcIni XrcTgt: [] [PKEY_INDEX PORT ACCESS_FLAGS];
        Ud:                  [] [PKEY_INDEX PORT QKEY];
        Gsi:                 [] [PKEY_INDEX QKEY];
    }
    Init => Rtr {
        Rc XrcTgt: [AV PATH_MTU DEST_QPN RQ_PSN MAX_DEST_RD_ATOMIC MIN_RNR_TIMER] [ALT_PATH ACCESS_FLAGS PKEY_INDEX];
        Uc XrcIni: [AV PATH_MTU DEST_QPN RQ_PSN]                                  [ALT_PATH ACCESS_FLAGS PKEY_INDEX];
        Ud Gsi:    []                                                             [PKEY_INDEX QKEY];
    }
    Rtr => Rts {
        Rc:     [TIMEOUT RETRY_CNT RNR_RETRY SQ_PSN MAX_QP_RD_ATOMIC] [CUR_STATE ALT_PATH ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE];
        XrcIni: [TIMEOUT RETRY_CNT RNR_RETRY SQ_PSN MAX_QP_RD_ATOMIC] [CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE];
        XrcTgt: [TIMEOUT SQ_PSN]                                      [CUR_STATE ALT_PATH ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE];
        Uc:     [SQ_PSN]                                              [CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE];
        Ud Gsi: [SQ_PSN]                                              [CUR_STATE QKEY];
    }
    Rts => Rts {
        Rc XrcTgt: [] [CUR_STATE ACCESS_FLAGS ALT_PATH PATH_MIG_STATE MIN_RNR_TIMER];
        Uc XrcIni: [] [CUR_STATE ACCESS_FLAGS ALT_PATH PATH_MIG_STATE];
        Ud Gsi:    [] [CUR_STATE QKEY];
    }
    Rts => Sqd {
        Rc Uc Ud XrcIni XrcTgt Gsi: [] [EN_SQD_ASYNC_NOTIFY];
    }
    Sqd => Rts {
        Rc XrcTgt: [] [CUR_STATE ALT_PATH ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE];
        Uc XrcIni: [] [CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE];
        Ud Gsi:    [] [CUR_STATE QKEY];
    }
    Sqd => Sqd {
        Rc:     [] [PORT AV TIMEOUT RETRY_CNT RNR_RETRY MAX_QP_RD_ATOMIC MAX_DEST_RD_ATOMIC ALT_PATH ACCESS_FLAGS PKEY_INDEX MIN_RNR_TIMER PATH_MIG_STATE];
        XrcIni: [] [PORT AV TIMEOUT RETRY_CNT RNR_RETRY MAX_QP_RD_ATOMIC ALT_PATH ACCESS_FLAGS PKEY_INDEX PATH_MIG_STATE];
        XrcTgt: [] [PORT AV TIMEOUT MAX_DEST_RD_ATOMIC ALT_PATH ACCESS_FLAGS PKEY_INDEX MIN_RNR_TIMER PATH_MIG_STATE];
        Uc:     [] [AV ALT_PATH ACCESS_FLAGS PKEY_INDEX PATH_MIG_STATE];
        Ud Gsi: [] [PKEY_INDEX QKEY];
    }
    // RC and XRC never enter SQE: a send error takes them to ERR.
    Sqe => Rts {
        Uc:     [] [CUR_STATE ACCESS_FLAGS];
        Ud Gsi: [] [CUR_STATE QKEY];
    }
} };

/// The rule for a transition of a service type; `None` if the transition is not legal.
pub fn rule(from: QpState, to: QpState, ty: QpType) -> Option<Rule> {
    MODIFY[from as usize][to as usize][ty as usize]
}

/// The attributes that a transition requires, including `STATE`. Only `STATE` if the transition is not legal.
pub fn required(from: QpState, to: QpState, ty: QpType) -> AttrMask {
    AttrMask::STATE | rule(from, to, ty).map_or(AttrMask::empty(), |rule| rule.required)
}

/// Upper-case name of a state, as in the specification.
pub const fn state_name(state: QpState) -> &'static str {
    match state {
        QpState::Reset => "RESET",
        QpState::Init => "INIT",
        QpState::Rtr => "RTR",
        QpState::Rts => "RTS",
        QpState::Sqd => "SQD",
        QpState::Sqe => "SQE",
        QpState::Err => "ERR",
    }
}

/// Upper-case name of a service type, as in verbs.
pub const fn type_name(ty: QpType) -> &'static str {
    match ty {
        QpType::Rc => "RC",
        QpType::Uc => "UC",
        QpType::Ud => "UD",
        QpType::XrcIni => "XRC_INI",
        QpType::XrcTgt => "XRC_TGT",
        QpType::Gsi => "GSI",
    }
}

/// Why a Modify QP call was refused. A refused call changes nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModifyError {
    /// The mask has bits that name no attribute.
    #[error("attribute mask bits {0:#x} name no attribute")]
    UnknownAttributes(u32),
    /// The transition is not legal for this type.
    #[error("no transition {} -> {} for {}; from {} are legal: {}", state_name(*.from), state_name(*.to),
        type_name(*.ty), state_name(*.from), Successors(*.from, *.ty))]
    Illegal {
        /// Current state.
        from: QpState,
        /// Requested state.
        to: QpState,
        /// Service type.
        ty: QpType,
    },
    /// Required attributes are missing.
    #[error("required attributes are missing: {0}")]
    Missing(AttrMask),
    /// Attributes were given that this transition does not allow.
    #[error("attributes that this transition does not take: {0}")]
    Unexpected(AttrMask),
    /// `cur_qp_state` is not the current state of the queue pair.
    #[error("cur_qp_state is {}, the queue pair is in {}", state_name(*.given), state_name(*.actual))]
    CurState {
        /// The state given.
        given: QpState,
        /// The current state.
        actual: QpState,
    },
    /// In SQD, while requests are outstanding, only RESET and ERR may be entered.
    #[error("the send queue is still draining: until it is drained only RESET and ERR may be entered")]
    Draining,
    /// A value is out of range.
    #[error("{name} is {value}, allowed are {min} to {max}")]
    OutOfRange {
        /// Name of the attribute.
        name: &'static str,
        /// The value given.
        value: u32,
        /// Smallest allowed value.
        min: u32,
        /// Largest allowed value.
        max: u32,
    },
    /// The path MTU is valid, but larger than that of the port.
    #[error("path_mtu is {value} ({} bytes), the port carries up to {} ({} bytes)", 128u32 << value, *.port as u8,
        .port.bytes())]
    PathMtu {
        /// The value given, 1 to 5.
        value: u8,
        /// Path MTU of the port.
        port: Mtu,
    },
    /// The address vector is not valid.
    #[error(transparent)]
    Av(#[from] AvError),
    /// The peer's address is a multicast address.
    #[error("dgid is {0}, a connected queue pair needs a unicast address")]
    Dgid(Gid),
    /// `qp_access_flags` has bits that a queue pair cannot grant.
    #[error(
        "qp_access_flags has bits {unknown:#x} that a queue pair cannot grant, allowed are {QP_ACCESS_FLAGS:#x}"
    )]
    AccessFlags {
        /// Those bits.
        unknown: u32,
    },
    /// The Q_Key has bit 31 set, and the caller is not privileged.
    #[error("qkey is {0:#x}: values with bit 31 set need privilege, allowed are 0 to 0x7fffffff")]
    PrivilegedQkey(u32),
    /// An alternate path was given.
    #[error("an alternate path was given; RoCE has no path migration, ALT_PATH must be absent")]
    AltPath,
    /// A path migration state other than `Migrated` was given.
    #[error("path_mig_state is {0:?}; RoCE has no path migration, allowed is Migrated")]
    PathMigration(PathMigState),
    /// Queue sizes were given: queues are not resized.
    #[error("queues are not resized: CAP must be absent")]
    Cap,
}

/// Displays the states that a queue pair of this type may enter from this state, for an error text.
struct Successors(QpState, QpType);

impl fmt::Display for Successors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for to in QpState::ALL.into_iter().filter(|to| rule(self.0, *to, self.1).is_some()) {
            write!(f, "{separator}{}", state_name(to))?;
            separator = ", ";
        }
        Ok(())
    }
}

/// Checks whether a transition is legal and which attributes are given, not their values.
pub(crate) fn check_modify(
    from: QpState,
    to: QpState,
    ty: QpType,
    given: AttrMask,
) -> Result<(), ModifyError> {
    let Some(rule) = rule(from, to, ty) else {
        return Err(ModifyError::Illegal { from, to, ty });
    };
    let missing = rule.required.difference(given);
    if !missing.is_empty() {
        return Err(ModifyError::Missing(missing));
    }
    let unexpected = given.difference(rule.required.union(rule.optional).union(AttrMask::STATE));
    if !unexpected.is_empty() {
        return Err(ModifyError::Unexpected(unexpected));
    }
    Ok(())
}

/// Allowed bits of `qp_access_flags`: all that a memory region may have, because programs use the same flags for both. Flags that only make
/// sense for a region (zero based, on demand, huge pages, relaxed ordering) have no effect, as on Linux.
pub const QP_ACCESS_FLAGS: u32 = 0x3ff | 1 << 20;
/// Only privileged callers may set a Q_Key with this bit.
pub const QKEY_PRIVILEGED: u32 = 1 << 31;

/// What the check of a Modify QP call depends on, besides its arguments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ModifyContext {
    /// Service type.
    pub ty: QpType,
    /// Current state of the queue pair.
    pub state: QpState,
    /// In SQD: whether requests are still outstanding.
    pub draining: bool,
    /// Largest path MTU of the port.
    pub port_mtu: Mtu,
    /// Entries of the GID table.
    pub gids: usize,
    /// The address at the GID index of the given address vector; `None` if no address vector is given, or the GID table has no address
    /// there.
    pub source: Option<Gid>,
    /// Entries of the partition key table.
    pub pkeys: usize,
    /// Whether the caller may set a Q_Key with bit 31 set.
    pub privileged: bool,
}

/// Checks an `ibv_modify_qp(3)` call. Returns the state to enter, or what is wrong. Changes nothing.
///
/// Without [`AttrMask::STATE`] the state stays. Afterwards [`QpAttr::take`] copies the attributes.
pub fn modify(context: &ModifyContext, attr: &QpAttr, mask: AttrMask) -> Result<QpState, ModifyError> {
    let unknown = mask.difference(AttrMask::all());
    if !unknown.is_empty() {
        return Err(ModifyError::UnknownAttributes(unknown.bits()));
    }
    if mask.contains(AttrMask::CAP) {
        return Err(ModifyError::Cap);
    }
    if mask.contains(AttrMask::ALT_PATH) {
        return Err(ModifyError::AltPath);
    }
    if mask.contains(AttrMask::CUR_STATE) && attr.cur_qp_state != context.state {
        return Err(ModifyError::CurState { given: attr.cur_qp_state, actual: context.state });
    }
    let to = if mask.contains(AttrMask::STATE) { attr.qp_state } else { context.state };
    check_modify(context.state, to, context.ty, mask)?;
    if context.state == QpState::Sqd && context.draining && !matches!(to, QpState::Reset | QpState::Err) {
        return Err(ModifyError::Draining);
    }
    check_values(context, attr, mask)?;
    Ok(to)
}

/// Checks the value of every attribute that `mask` names.
pub(crate) fn check_values(
    context: &ModifyContext,
    attr: &QpAttr,
    mask: AttrMask,
) -> Result<(), ModifyError> {
    const PORT: (u32, u32) = (PORT_NUM as u32, PORT_NUM as u32);
    let given = |bit| mask.contains(bit);
    let range = |bit, name, value: u32, (min, max): (u32, u32)| {
        if given(bit) && !(min..=max).contains(&value) {
            return Err(ModifyError::OutOfRange { name, value, min, max });
        }
        Ok(())
    };
    let last = |entries: usize| (0, u32::try_from(entries.saturating_sub(1)).unwrap_or(u32::MAX));

    range(AttrMask::PORT, "port_num", attr.port_num.into(), PORT)?;
    range(AttrMask::PKEY_INDEX, "pkey_index", attr.pkey_index.into(), last(context.pkeys))?;
    range(AttrMask::TIMEOUT, "timeout", attr.timeout.into(), (0, ACK_TIMEOUT_MAX.into()))?;
    range(AttrMask::RETRY_CNT, "retry_cnt", attr.retry_cnt.into(), (0, RETRY_MAX.into()))?;
    range(AttrMask::RNR_RETRY, "rnr_retry", attr.rnr_retry.into(), (0, RETRY_MAX.into()))?;
    range(AttrMask::MIN_RNR_TIMER, "min_rnr_timer", attr.min_rnr_timer.into(), (0, RNR_TIMER_MAX.into()))?;
    range(AttrMask::MAX_QP_RD_ATOMIC, "max_rd_atomic", attr.max_rd_atomic.into(), (0, RD_ATOMIC_MAX.into()))?;
    let depth = attr.max_dest_rd_atomic.into();
    range(AttrMask::MAX_DEST_RD_ATOMIC, "max_dest_rd_atomic", depth, (0, RD_ATOMIC_MAX.into()))?;
    range(AttrMask::DEST_QPN, "dest_qp_num", attr.dest_qp_num, (0, 0xff_ffff))?;

    let largest = Mtu::Mtu4096 as u32;
    range(AttrMask::PATH_MTU, "path_mtu", attr.path_mtu.into(), (Mtu::Mtu256 as u32, largest))?;
    if given(AttrMask::PATH_MTU) && attr.path_mtu > context.port_mtu as u8 {
        return Err(ModifyError::PathMtu { value: attr.path_mtu, port: context.port_mtu });
    }
    if given(AttrMask::AV) {
        let dgid = attr.ah_attr.check(context.gids, context.source)?.dgid;
        if dgid.is_multicast() {
            return Err(ModifyError::Dgid(dgid));
        }
    }
    if given(AttrMask::ACCESS_FLAGS) && attr.qp_access_flags & !QP_ACCESS_FLAGS != 0 {
        return Err(ModifyError::AccessFlags { unknown: attr.qp_access_flags & !QP_ACCESS_FLAGS });
    }
    if given(AttrMask::QKEY) && attr.qkey & QKEY_PRIVILEGED != 0 && !context.privileged {
        return Err(ModifyError::PrivilegedQkey(attr.qkey));
    }
    if given(AttrMask::PATH_MIG_STATE) && attr.path_mig_state != PathMigState::Migrated {
        return Err(ModifyError::PathMigration(attr.path_mig_state));
    }
    Ok(())
}

/// What a queue pair may do in its state, one bit for each. The data path reads nothing else about states.
#[derive(Clone, Copy, PartialEq, Eq, Default, Hash)]
#[repr(transparent)]
pub struct Gates(u8);

impl Gates {
    /// Receive requests may be posted.
    pub const POST_RECV: Self = Self(1);
    /// Send requests may be posted.
    pub const POST_SEND: Self = Self(1 << 1);
    /// Received request packets are processed (and answered, on reliable types).
    pub const RX_REQ: Self = Self(1 << 2);
    /// Received response packets are processed.
    pub const RX_RESP: Self = Self(1 << 3);
    /// Send requests may start. The packets of one that has started need only [`Gates::TX_RETRY`].
    pub const START_WQE: Self = Self(1 << 4);
    /// Packets of started send requests are sent, and sent again if necessary.
    pub const TX_RETRY: Self = Self(1 << 5);
    /// All requests in the send queue complete with a flush error.
    pub const FLUSH_SQ: Self = Self(1 << 6);
    /// All requests in the receive queue complete with a flush error.
    pub const FLUSH_RQ: Self = Self(1 << 7);

    /// All gates are closed.
    pub const CLOSED: Self = Self(0);
    const ALL: Self = Self(0xff);

    /// What a queue pair of this type may do in this state.
    pub const fn of(state: QpState, ty: QpType) -> Self {
        GATES[state as usize][ty as usize]
    }
    /// Whether every gate of `gates` is open.
    #[inline]
    pub const fn has(self, gates: Self) -> bool {
        self.0 & gates.0 == gates.0
    }
    /// The gates that are open in `self` or in `other`.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
    /// The gates of `self` that are not in `other`. For example, a queue pair with a shared receive queue has no `POST_RECV`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
    /// The gates as a byte, to store in an atomic.
    pub const fn bits(self) -> u8 {
        self.0
    }
    /// The gates that [`Gates::bits`] returned as this byte.
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }
    const fn all_of(gates: &[Self]) -> Self {
        let (mut out, mut i) = (Self::CLOSED, 0);
        while i < gates.len() {
            out = out.union(gates[i]);
            i += 1;
        }
        out
    }
}

const GATE_NAMES: [(Gates, &str); 8] = [
    (Gates::POST_RECV, "POST_RECV"),
    (Gates::POST_SEND, "POST_SEND"),
    (Gates::RX_REQ, "RX_REQ"),
    (Gates::RX_RESP, "RX_RESP"),
    (Gates::START_WQE, "START_WQE"),
    (Gates::TX_RETRY, "TX_RETRY"),
    (Gates::FLUSH_SQ, "FLUSH_SQ"),
    (Gates::FLUSH_RQ, "FLUSH_RQ"),
];

/// Names joined with `|`.
impl fmt::Debug for Gates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (_, name) in GATE_NAMES.into_iter().filter(|(gate, _)| self.has(*gate)) {
            write!(f, "{separator}{name}")?;
            separator = " | ";
        }
        if separator.is_empty() { f.write_str("none") } else { Ok(()) }
    }
}

/// The gates of each state, regardless of the service type (IBA 10.3.1).
#[rustfmt::skip]
const STATE_GATES: [Gates; STATES] = {
    type G = Gates;
    [
        /* Reset */ G::CLOSED,
        /* Init  */ G::all_of(&[G::POST_RECV]),
        /* Rtr   */ G::all_of(&[G::POST_RECV, G::RX_REQ]),
        /* Rts   */ G::all_of(&[G::POST_RECV, G::POST_SEND, G::RX_REQ, G::RX_RESP, G::START_WQE, G::TX_RETRY]),
        /* Sqd   */ G::all_of(&[G::POST_RECV, G::POST_SEND, G::RX_REQ, G::RX_RESP, G::TX_RETRY]),
        /* Sqe   */ G::all_of(&[G::POST_RECV, G::POST_SEND, G::RX_REQ, G::FLUSH_SQ]),
        /* Err   */ G::all_of(&[G::POST_RECV, G::POST_SEND, G::FLUSH_SQ, G::FLUSH_RQ]),
    ]
};

/// The gates that are closed in every state of a service type.
const fn never(ty: QpType) -> Gates {
    match ty {
        QpType::Rc => Gates::CLOSED,
        // Requests of these types are not answered, so there are no responses.
        QpType::Uc | QpType::Ud | QpType::Gsi => Gates::RX_RESP,
        // There is only a send side.
        QpType::XrcIni => Gates::all_of(&[Gates::POST_RECV, Gates::RX_REQ, Gates::FLUSH_RQ]),
        // There is no send queue, and receive requests are posted to the XRC shared receive queue. If a message holds one, it is flushed.
        QpType::XrcTgt => Gates::ALL.without(Gates::RX_REQ).without(Gates::FLUSH_RQ),
    }
}

/// Whether a send error takes this type to SQE. It takes the others to ERR.
const fn has_sqe(ty: QpType) -> bool {
    matches!(ty, QpType::Uc | QpType::Ud | QpType::Gsi)
}

const GATES: [[Gates; TYPES]; STATES] = {
    let mut table = [[Gates::CLOSED; TYPES]; STATES];
    let mut s = 0;
    while s < STATES {
        let mut t = 0;
        while t < TYPES {
            let (state, ty) = (QpState::ALL[s], QpType::ALL[t]);
            if !matches!(state, QpState::Sqe) || has_sqe(ty) {
                table[state as usize][ty as usize] = STATE_GATES[s].without(never(ty));
            }
            t += 1;
        }
        s += 1;
    }
    table
};

/// What makes a queue pair change state without a Modify QP call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum Event {
    /// A send request completed in error.
    SendError,
    /// A receive request completed in error, a completion queue overflowed, or the device failed.
    Fatal,
    /// The last started send request completed.
    SqDrained,
}

impl Event {
    /// Every event, in column order.
    pub const ALL: [Self; 3] = [Self::SendError, Self::Fatal, Self::SqDrained];
}

/// The consequence of an [`Event`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// Nothing changes, or the event cannot happen.
    Stay,
    /// Enter SQE on a type that has it, otherwise ERR.
    SendFailed,
    /// Enter ERR.
    ToErr,
    /// Stay in SQD, which is no longer draining. SQ_DRAINED is raised if it was requested.
    Drained,
}

#[rustfmt::skip]
const INTERNAL: [[Step; 3]; STATES] = {
    use Step::{Drained, SendFailed, Stay, ToErr};
    [
        //          SendError    Fatal   SqDrained
        /* Reset */ [Stay,       Stay,   Stay],
        /* Init  */ [Stay,       ToErr,  Stay],
        /* Rtr   */ [Stay,       ToErr,  Stay],
        /* Rts   */ [SendFailed, ToErr,  Stay],
        /* Sqd   */ [SendFailed, ToErr,  Drained],
        /* Sqe   */ [Stay,       ToErr,  Stay],
        /* Err   */ [Stay,       Stay,   Stay],
    ]
};

/// The state that a queue pair enters when `event` happens; `None` if nothing changes. A drained send queue "enters" SQD, the state in
/// which it is already.
pub const fn internal(state: QpState, ty: QpType, event: Event) -> Option<QpState> {
    match INTERNAL[state as usize][event as usize] {
        Step::Stay => None,
        Step::SendFailed if has_sqe(ty) => Some(QpState::Sqe),
        Step::SendFailed | Step::ToErr => Some(QpState::Err),
        Step::Drained => Some(QpState::Sqd),
    }
}

/// The state diagram in the language of Graphviz. Solid edges: Modify QP, labelled with the types unless it is legal for all. Dashed edges:
/// events. The edges from any state to RESET and to ERR are drawn once.
pub fn dot() -> String {
    let mut out = String::from(
        "digraph qp_states {\n    rankdir=LR;\n    any [shape=plaintext, label=\"any state\"];\n",
    );
    for state in QpState::ALL {
        let _ = writeln!(out, "    {};", state_name(state));
    }
    for to in [QpState::Reset, QpState::Err] {
        let _ = writeln!(out, "    any -> {};", state_name(to));
    }
    for from in QpState::ALL {
        for to in QpState::ALL {
            let types = types_where(|ty| rule(from, to, ty).is_some());
            if matches!(to, QpState::Reset | QpState::Err) || types.is_empty() {
                continue;
            }
            let label = if types.len() == TYPES {
                String::new()
            } else {
                format!(" [label=\"{}\"]", types.join(" "))
            };
            let _ = writeln!(out, "    {} -> {}{label};", state_name(from), state_name(to));
        }
        for event in Event::ALL {
            for to in QpState::ALL {
                let types = types_where(|ty| internal(from, ty, event) == Some(to));
                if !types.is_empty() {
                    let who =
                        if types.len() == TYPES { String::new() } else { format!("\\n{}", types.join(" ")) };
                    let (from, to) = (state_name(from), state_name(to));
                    let _ = writeln!(out, "    {from} -> {to} [style=dashed, label=\"{event:?}{who}\"];");
                }
            }
        }
    }
    out.push_str("}\n");
    out
}

/// Markdown tables of the transitions with their attributes, and of the gates.
pub fn markdown() -> String {
    let mut out = String::from("| transition | types | required | optional |\n|---|---|---|---|\n");
    let list = |mask: AttrMask| mask.iter_names().map(|(name, _)| name).collect::<Vec<_>>().join(" ");
    for from in QpState::ALL {
        for to in QpState::ALL {
            let mut rules = Vec::new();
            for rule in QpType::ALL.into_iter().filter_map(|ty| rule(from, to, ty)) {
                if !rules.contains(&rule) {
                    rules.push(rule);
                }
            }
            for each in rules {
                let types = types_where(|ty| rule(from, to, ty) == Some(each)).join(" ");
                let (from, to) = (state_name(from), state_name(to));
                let (required, optional) = (list(each.required), list(each.optional));
                let _ = writeln!(out, "| {from} -> {to} | {types} | {required} | {optional} |");
            }
        }
    }
    out.push_str("\n| state | types | gates |\n|---|---|---|\n");
    for state in QpState::ALL {
        let mut seen = Vec::new();
        for ty in QpType::ALL {
            let gates = Gates::of(state, ty);
            if !seen.contains(&gates) {
                seen.push(gates);
                let types = types_where(|ty| Gates::of(state, ty) == gates).join(" ");
                let gates = format!("{gates:?}").replace(" |", "");
                let _ = writeln!(out, "| {} | {types} | {gates} |", state_name(state));
            }
        }
    }
    out
}

fn types_where(holds: impl Fn(QpType) -> bool) -> Vec<&'static str> {
    QpType::ALL.into_iter().filter(|ty| holds(*ty)).map(type_name).collect()
}

#[cfg(test)]
mod tests;
