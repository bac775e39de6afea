//! The commands that a queue has under way.

use crate::admin::Page;
use crate::io::{Deallocate, Running};

/// Names a command under way. It comes with a [`Step`](crate::Step); the program passes it back when it has done the step.
///
/// It can be kept as a number, for example in the identifier of a work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ticket(u32);

impl Ticket {
    fn new(slot: u16, turn: u16) -> Self {
        Self(slot as u32 | (turn as u32) << 16)
    }
    pub(crate) const fn slot(self) -> u16 {
        self.0 as u16
    }
    const fn turn(self) -> u16 {
        (self.0 >> 16) as u16
    }
    /// Its place among the commands of its queue: less than the queue's entries.
    #[inline]
    pub const fn place(self) -> usize {
        self.slot() as usize
    }
    /// As a number.
    pub const fn to_raw(self) -> u32 {
        self.0
    }
    /// From [`to_raw`](Self::to_raw).
    pub const fn from_raw(raw: u32) -> Self {
        Self(raw)
    }
}

/// What a command waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SlotState {
    /// There is no command.
    Free,
    /// It has just come.
    New,
    /// Connect: its data.
    Connect(Connecting),
    /// Connect: the end of what the host sent before.
    Quiesce,
    /// Dataset Management: its ranges.
    Ranges(Deallocate),
    /// The backend.
    Backend(Running),
    /// The program, to take the page.
    Page(Page, u32),
    /// An event.
    Event,
}

/// The fields of a Connect command that are needed once its data have come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Connecting {
    /// Entries of the submission queue.
    pub entries: u16,
    pub no_flow_control: bool,
    pub kato_ms: u32,
}

/// A command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    pub cid: u16,
    /// Changes when the slot is used anew.
    turn: u16,
    /// The key that the response invalidates.
    pub invalidate: Option<u32>,
    pub state: SlotState,
}

// A cache line a command.
const _: () = assert!(size_of::<Slot>() <= 64);

/// The commands of a queue: a slot for each that may be under way.
#[derive(Debug)]
pub(crate) struct Slots {
    slots: Vec<Slot>,
    free: Vec<u16>,
}

impl Slots {
    pub fn new(count: u16) -> Self {
        let slot = Slot { cid: 0, turn: 0, invalidate: None, state: SlotState::Free };
        Self { slots: vec![slot; count as usize], free: (0..count).rev().collect() }
    }
    /// A command has come; none if there are too many.
    pub fn take(&mut self, cid: u16, invalidate: Option<u32>) -> Option<u16> {
        let at = self.free.pop()?;
        let slot = &mut self.slots[at as usize];
        *slot = Slot { cid, turn: slot.turn, invalidate, state: SlotState::New };
        Some(at)
    }
    /// The ticket of a command, which waits for `state`.
    pub fn wait(&mut self, at: u16, state: SlotState) -> Ticket {
        let slot = &mut self.slots[at as usize];
        slot.state = state;
        Ticket::new(at, slot.turn)
    }
    /// The command of a ticket.
    ///
    /// # Panics
    /// If it is not under way: the program gave back the same ticket twice, or that of another queue.
    pub fn get(&self, ticket: Ticket) -> &Slot {
        let slot = self.slots.get(ticket.slot() as usize).expect("the ticket is of this queue");
        assert!(
            slot.turn == ticket.turn() && !matches!(slot.state, SlotState::Free),
            "the command of ticket {:#x} has ended: give each ticket back once",
            ticket.0
        );
        slot
    }
    /// The command is answered: its identifier, the key to invalidate.
    pub fn free(&mut self, at: u16) -> (u16, Option<u32>) {
        let slot = &mut self.slots[at as usize];
        slot.state = SlotState::Free;
        slot.turn = slot.turn.wrapping_add(1);
        self.free.push(at);
        (slot.cid, slot.invalidate)
    }
    /// A command that waits for an event.
    pub fn event(&self, cid: u16) -> Option<u16> {
        let at = self.slots.iter().position(|s| s.cid == cid && matches!(s.state, SlotState::Event))?;
        Some(at as u16)
    }
    /// Commands under way.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}
