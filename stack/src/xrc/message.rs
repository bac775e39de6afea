//! The messages between a member of a domain and its owner: each is one packet of a packet socket.
//!
//! A message is checked once, on receipt: a value of these types has numbers of 24 bits, states that exist, and no trailing bytes. The
//! receiver checks whether a number belongs to the sender. The first message of a member begins alike in every version, so that
//! processes of different versions can report it.

use super::attributes::Attributes;
use super::bytes::{Field, Reader};
use super::refusal::{Reason, Refusal, TEXT_MAX};
use crate::device::{AsyncEvent, AttrMask, Qpn};

/// The protocol version: of everything here except [`FromMember::Hello`] and [`FromOwner::VersionMismatch`].
pub const VERSION: u32 = 1;
/// Length of a message in bytes, at most.
pub const MESSAGE_MAX: usize = 512;

/// `ROCEXRCD`.
const MAGIC: u64 = u64::from_ne_bytes(*b"ROCEXRCD");
/// Numbers of shared receive queues have 24 bits, and are not 0.
const SRQN_MAX: u32 = 0xff_ffff;

/// A message from a member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FromMember {
    /// The first message: the member's protocol version. The member has the domain open from now on.
    Hello(u32),
    /// A call, with its number; the answer carries the same number.
    Call(u32, Call),
    /// The result of the order with this number.
    Outcome(u32, Result<Outcome, Refusal>),
}

/// A call of a member to the owner.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Call {
    /// Adds a shared receive queue with this number; answered once every target that receives has a leg to the member.
    NewSrq(u32),
    /// Removes the shared receive queue with this number.
    RemoveSrq(u32),
    /// Creates a target, and returns a handle of it.
    Create,
    /// Takes one more handle of a target.
    Open(Qpn),
    /// Releases a handle; releasing the last one destroys the target.
    Close(Qpn),
    /// Modifies a target of which the member has a handle.
    Modify(Qpn, Attributes, AttrMask),
    /// Returns the attributes of a target of which the member has a handle.
    Query(Qpn),
    /// Creates a receive-only target and moves it to RTR; the open with this number is registered with it.
    CreateReceiver(u32, Attributes),
    /// Modifies a receive-only target.
    ModifyReceiver(Qpn, Attributes, AttrMask),
    /// Returns the attributes of a receive-only target.
    QueryReceiver(Qpn),
    /// Registers the open with this number with a receive-only target.
    Register(u32, Qpn),
    /// Ends a registration; ending the last one destroys the target.
    Unregister(u32, Qpn),
}

/// The result of an order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The order is executed.
    Done,
    /// The shadow has this number.
    Shadow(Qpn),
}

/// A message from the owner.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FromOwner {
    /// The answer to a hello of the same version: the number of other members that have the domain open.
    Welcome(u32),
    /// The answer to a hello of another version: the owner's version.
    VersionMismatch(u32),
    /// The answer to the call with this number.
    Answer(u32, Result<Answer, Refusal>),
    /// An order, with its number; the outcome carries the same number. Orders are executed one after the other.
    Order(u32, Order),
    /// An event of a target of which the member has a handle.
    Event(Qpn, AsyncEvent),
}

/// The answer to a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The call is done.
    Done,
    /// The target has this number.
    Target(Qpn),
    /// The attributes of the target.
    Attributes(Attributes),
}

/// An order to a member, for a target of the domain. The member's part of a target is a queue pair called a shadow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// Create a shadow of this target, and move it to RTR with these attributes.
    Make(Qpn, Attributes),
    /// Modify the shadow of this target.
    Modify(Qpn, Attributes, AttrMask),
    /// Destroy the shadow of this target.
    End(Qpn),
}

impl FromMember {
    /// Encodes the message.
    pub fn encode(&self) -> Vec<u8> {
        let mut to = Vec::new();
        match self {
            Self::Hello(version) => {
                to.push(0);
                MAGIC.write(&mut to);
                version.write(&mut to);
            }
            Self::Call(number, call) => {
                to.push(1);
                number.write(&mut to);
                call.write(&mut to);
            }
            Self::Outcome(number, outcome) => {
                to.push(2);
                number.write(&mut to);
                outcome.write(&mut to);
            }
        }
        to
    }

    /// Decodes a message from arbitrary bytes; `None` if they are no valid message.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        whole(bytes, |from| {
            Some(match from.get::<u8>()? {
                0 if from.get::<u64>()? == MAGIC => {
                    let version = from.get()?;
                    if version != VERSION {
                        // The rest of another version's hello is ignored.
                        from.0 = &[];
                    }
                    Self::Hello(version)
                }
                1 => Self::Call(from.get()?, from.get()?),
                2 => Self::Outcome(from.get()?, from.get()?),
                _ => return None,
            })
        })
    }
}

impl FromOwner {
    /// Encodes the message.
    pub fn encode(&self) -> Vec<u8> {
        let mut to = Vec::new();
        match self {
            Self::VersionMismatch(version) => {
                to.push(0);
                MAGIC.write(&mut to);
                version.write(&mut to);
            }
            Self::Welcome(others) => {
                to.push(1);
                others.write(&mut to);
            }
            Self::Answer(number, answer) => {
                to.push(2);
                number.write(&mut to);
                answer.write(&mut to);
            }
            Self::Order(number, order) => {
                to.push(3);
                number.write(&mut to);
                order.write(&mut to);
            }
            Self::Event(target, event) => {
                to.push(4);
                target.write(&mut to);
                u32::from(event.number()).write(&mut to);
            }
        }
        to
    }

    /// Decodes a message from arbitrary bytes; `None` if they are no valid message.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        whole(bytes, |from| {
            Some(match from.get::<u8>()? {
                0 if from.get::<u64>()? == MAGIC => {
                    let version = from.get()?;
                    from.0 = &[];
                    Self::VersionMismatch(version)
                }
                1 => Self::Welcome(from.get()?),
                2 => Self::Answer(from.get()?, from.get()?),
                3 => Self::Order(from.get()?, from.get()?),
                4 => Self::Event(from.get()?, AsyncEvent::from_number(from.get()?)?),
                _ => return None,
            })
        })
    }
}

/// Decodes bytes that must be used up completely.
fn whole<T>(bytes: &[u8], read: impl FnOnce(&mut Reader<'_>) -> Option<T>) -> Option<T> {
    let mut from = Reader(bytes);
    read(&mut from).filter(|_| from.0.is_empty())
}

/// Decodes the number of a shared receive queue.
fn srqn(from: &mut Reader<'_>) -> Option<u32> {
    from.get().filter(|number| (1..=SRQN_MAX).contains(number))
}

impl Field for Call {
    fn write(&self, to: &mut Vec<u8>) {
        match self {
            Self::NewSrq(number) => (1_u8, *number).write(to),
            Self::RemoveSrq(number) => (2_u8, *number).write(to),
            Self::Create => 3_u8.write(to),
            Self::Open(qpn) => (4_u8, *qpn).write(to),
            Self::Close(qpn) => (5_u8, *qpn).write(to),
            Self::Modify(qpn, attr, mask) => (6_u8, *qpn, *attr, *mask).write(to),
            Self::Query(qpn) => (7_u8, *qpn).write(to),
            Self::CreateReceiver(open, attr) => (8_u8, *open, *attr).write(to),
            Self::ModifyReceiver(qpn, attr, mask) => (9_u8, *qpn, *attr, *mask).write(to),
            Self::QueryReceiver(qpn) => (10_u8, *qpn).write(to),
            Self::Register(open, qpn) => (11_u8, *open, *qpn).write(to),
            Self::Unregister(open, qpn) => (12_u8, *open, *qpn).write(to),
        }
    }
    fn read(from: &mut Reader<'_>) -> Option<Self> {
        Some(match from.get::<u8>()? {
            1 => Self::NewSrq(srqn(from)?),
            2 => Self::RemoveSrq(srqn(from)?),
            3 => Self::Create,
            4 => Self::Open(from.get()?),
            5 => Self::Close(from.get()?),
            6 => Self::Modify(from.get()?, from.get()?, from.get()?),
            7 => Self::Query(from.get()?),
            8 => Self::CreateReceiver(from.get()?, from.get()?),
            9 => Self::ModifyReceiver(from.get()?, from.get()?, from.get()?),
            10 => Self::QueryReceiver(from.get()?),
            11 => Self::Register(from.get()?, from.get()?),
            12 => Self::Unregister(from.get()?, from.get()?),
            _ => return None,
        })
    }
}

impl Field for Outcome {
    fn write(&self, to: &mut Vec<u8>) {
        match self {
            Self::Done => 1_u8.write(to),
            Self::Shadow(qpn) => (2_u8, *qpn).write(to),
        }
    }
    fn read(from: &mut Reader<'_>) -> Option<Self> {
        Some(match from.get::<u8>()? {
            1 => Self::Done,
            2 => Self::Shadow(from.get()?),
            _ => return None,
        })
    }
}

impl Field for Answer {
    fn write(&self, to: &mut Vec<u8>) {
        match self {
            Self::Done => 1_u8.write(to),
            Self::Target(qpn) => (2_u8, *qpn).write(to),
            Self::Attributes(attr) => (3_u8, *attr).write(to),
        }
    }
    fn read(from: &mut Reader<'_>) -> Option<Self> {
        Some(match from.get::<u8>()? {
            1 => Self::Done,
            2 => Self::Target(from.get()?),
            3 => Self::Attributes(from.get()?),
            _ => return None,
        })
    }
}

impl Field for Order {
    fn write(&self, to: &mut Vec<u8>) {
        match self {
            Self::Make(target, attr) => (1_u8, *target, *attr).write(to),
            Self::Modify(target, attr, mask) => (2_u8, *target, *attr, *mask).write(to),
            Self::End(target) => (3_u8, *target).write(to),
        }
    }
    fn read(from: &mut Reader<'_>) -> Option<Self> {
        Some(match from.get::<u8>()? {
            1 => Self::Make(from.get()?, from.get()?),
            2 => Self::Modify(from.get()?, from.get()?, from.get()?),
            3 => Self::End(from.get()?),
            _ => return None,
        })
    }
}

/// Only as the last field of a message: the text has no length field.
impl Field for Refusal {
    fn write(&self, to: &mut Vec<u8>) {
        to.push(self.reason as u8);
        to.extend(self.text.as_bytes());
    }
    fn read(from: &mut Reader<'_>) -> Option<Self> {
        let number: u8 = from.get()?;
        let reason = Reason::ALL.into_iter().find(|reason| *reason as u8 == number)?;
        from.text().filter(|text| text.len() <= TEXT_MAX).map(|text| Self { reason, text })
    }
}

impl<T: Field> Field for Result<T, Refusal> {
    fn write(&self, to: &mut Vec<u8>) {
        self.is_ok().write(to);
        match self {
            Ok(value) => value.write(to),
            Err(refusal) => refusal.write(to),
        }
    }
    fn read(from: &mut Reader<'_>) -> Option<Self> {
        Some(if from.get()? { Ok(from.get()?) } else { Err(from.get()?) })
    }
}

macro_rules! tuples {
    ($(($($field:ident)*))*) => {$(
        #[allow(non_snake_case, reason = "a field has the name of its type")]
        impl<$($field: Field),*> Field for ($($field,)*) {
            fn write(&self, to: &mut Vec<u8>) {
                let ($($field,)*) = self;
                $($field.write(to);)*
            }
            fn read(from: &mut Reader<'_>) -> Option<Self> {
                Some(($(from.get::<$field>()?,)*))
            }
        }
    )*};
}
tuples!((A B)(A B C)(A B C D));

#[cfg(test)]
mod tests {
    use super::super::bytes::tests::all_attributes;
    use super::*;
    use crate::device::Gid;

    fn said_attributes() -> Attributes {
        Attributes { attr: all_attributes(), source: Gid::v4([10, 0, 0, 1]) }
    }

    fn calls() -> Vec<Call> {
        let (attr, mask, qpn) =
            (said_attributes(), AttrMask::from_bits_retain(u32::MAX), Qpn::new(0xff_ffff));
        vec![
            Call::NewSrq(1),
            Call::RemoveSrq(SRQN_MAX),
            Call::Create,
            Call::Open(qpn),
            Call::Close(qpn),
            Call::Modify(qpn, attr, mask),
            Call::Query(qpn),
            Call::CreateReceiver(7, attr),
            Call::ModifyReceiver(qpn, attr, mask),
            Call::QueryReceiver(qpn),
            Call::Register(u32::MAX, qpn),
            Call::Unregister(u32::MAX, qpn),
        ]
    }

    fn refusals() -> Vec<Refusal> {
        let long = "ä".repeat(TEXT_MAX / 2);
        let texts = ["", "one sentence", &long].map(String::from);
        Reason::ALL
            .into_iter()
            .flat_map(|reason| texts.clone().map(|text| Refusal { reason, text }))
            .collect()
    }

    fn of_members() -> Vec<FromMember> {
        let mut all: Vec<_> = calls().into_iter().map(|call| FromMember::Call(u32::MAX, call)).collect();
        all.extend(refusals().into_iter().map(|refusal| FromMember::Outcome(3, Err(refusal))));
        all.extend([
            FromMember::Hello(VERSION),
            FromMember::Outcome(1, Ok(Outcome::Done)),
            FromMember::Outcome(2, Ok(Outcome::Shadow(Qpn::new(9)))),
        ]);
        all
    }

    fn of_owners() -> Vec<FromOwner> {
        let (attr, mask, qpn) = (said_attributes(), AttrMask::ACCESS_FLAGS, Qpn::new(5));
        let answers = [Answer::Done, Answer::Target(qpn), Answer::Attributes(attr)];
        let orders = [Order::Make(qpn, attr), Order::Modify(qpn, attr, mask), Order::End(qpn)];
        let mut all = vec![FromOwner::Welcome(u32::MAX), FromOwner::VersionMismatch(77)];
        all.extend(answers.into_iter().map(|answer| FromOwner::Answer(4, Ok(answer))));
        all.extend(refusals().into_iter().map(|refusal| FromOwner::Answer(5, Err(refusal))));
        all.extend(orders.into_iter().map(|order| FromOwner::Order(6, order)));
        all.extend(AsyncEvent::ALL.iter().map(|event| FromOwner::Event(qpn, *event)));
        all
    }

    /// Whether a message that is cut at its end may still be valid: its last field is a text.
    fn ends_with_text(message: &str) -> bool {
        message.contains("Refusal")
    }

    #[test]
    fn what_is_said_is_understood_and_fits() {
        for message in of_members() {
            let bytes = message.encode();
            assert!(bytes.len() <= MESSAGE_MAX, "{message:?}");
            assert_eq!(FromMember::parse(&bytes), Some(message));
        }
        for message in of_owners() {
            let bytes = message.encode();
            assert!(bytes.len() <= MESSAGE_MAX, "{message:?}");
            assert_eq!(FromOwner::parse(&bytes), Some(message));
        }
    }

    #[test]
    fn what_is_cut_or_too_long_is_no_message() {
        for message in of_members() {
            if ends_with_text(&format!("{message:?}")) {
                continue;
            }
            let bytes = message.encode();
            for len in 0..bytes.len() {
                assert_eq!(FromMember::parse(&bytes[..len]), None, "{len} bytes of {message:?}");
            }
            assert_eq!(FromMember::parse(&[&bytes[..], &[0]].concat()), None, "{message:?} and a byte");
        }
        for message in of_owners() {
            if ends_with_text(&format!("{message:?}")) || matches!(message, FromOwner::VersionMismatch(_)) {
                continue;
            }
            let bytes = message.encode();
            for len in 0..bytes.len() {
                assert_eq!(FromOwner::parse(&bytes[..len]), None, "{len} bytes of {message:?}");
            }
            assert_eq!(FromOwner::parse(&[&bytes[..], &[0]].concat()), None, "{message:?} and a byte");
        }
    }

    #[test]
    fn kinds_that_do_not_exist_are_none() {
        for kind in 0..=u8::MAX {
            let bytes = [&[kind][..], &[0; 4]].concat();
            assert_eq!(FromMember::parse(&bytes), None, "{kind}");
            assert_eq!(FromOwner::parse(&bytes).is_some(), kind == 1, "{kind}: only a welcome is so short");
        }
        let call = |kind: u8, number: u32| {
            let mut bytes = FromMember::Call(1, Call::Create).encode();
            *bytes.last_mut().unwrap() = kind;
            number.write(&mut bytes);
            FromMember::parse(&bytes)
        };
        for kind in (0..=u8::MAX).filter(|kind| ![1, 2, 4, 5, 7, 10].contains(kind)) {
            assert_eq!(call(kind, 1), None, "{kind}");
        }
        // Invalid numbers of shared receive queues and of queue pairs.
        for number in [0, SRQN_MAX + 1, u32::MAX] {
            assert_eq!((call(1, number), call(2, number)), (None, None), "{number}");
        }
        for kind in [4, 5, 7, 10] {
            assert!(call(kind, 0).is_some() && call(kind, 1 << 24).is_none(), "{kind}");
        }
    }

    #[test]
    fn refusals_and_events_that_do_not_exist_are_none() {
        let refused = |reason: u8, text: &[u8]| {
            FromMember::parse(&[&[2][..], &1_u32.to_ne_bytes(), &[0, reason], text].concat())
        };
        assert!(refused(1, b"why").is_some());
        assert_eq!((refused(0, b""), refused(7, b"")), (None, None), "the reason");
        assert_eq!(refused(1, &[0xff]), None, "no UTF-8");
        assert_eq!(refused(1, &[b'a'; TEXT_MAX + 1]), None, "too long");
        let bytes = FromOwner::Event(Qpn::new(1), AsyncEvent::CommEst).encode();
        let other = [&bytes[..bytes.len() - 4], &99_u32.to_ne_bytes()].concat();
        assert_eq!(FromOwner::parse(&other), None);
    }

    #[test]
    fn another_version_is_told_whatever_else_it_says() {
        let hello = FromMember::Hello(VERSION + 1).encode();
        let unlike = FromOwner::VersionMismatch(9).encode();
        for more in [&[][..], &[1, 2, 3]] {
            let longer = |bytes: &[u8]| [bytes, more].concat();
            assert_eq!(FromMember::parse(&longer(&hello)), Some(FromMember::Hello(VERSION + 1)));
            assert_eq!(FromOwner::parse(&longer(&unlike)), Some(FromOwner::VersionMismatch(9)));
        }
        let mut other = hello;
        other[1] ^= 1;
        assert_eq!(FromMember::parse(&other), None, "the magic");
    }
}
