//! The outstanding commands of a queue.

use crate::admin::Page;
use crate::io::{Deallocate, Running};

/// A handle to an outstanding command. It comes with a [`Step`](crate::Step), and the program passes it back when it has done the step.
///
/// It can be converted to a number, for example for the `wr_id` of a work request.
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
    /// The index of the command among the outstanding commands of its queue: less than [`Accepted::receives`](crate::Accepted::receives).
    #[inline]
    pub const fn place(self) -> usize {
        self.slot() as usize
    }
    /// The ticket as a number.
    pub const fn to_raw(self) -> u32 {
        self.0
    }
    /// Makes a ticket from a number that [`to_raw`](Self::to_raw) returned.
    pub const fn from_raw(raw: u32) -> Self {
        Self(raw)
    }
}

/// What a command waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SlotState {
    /// Nothing: the slot has no command.
    Free,
    /// Nothing: it has just arrived.
    New,
    /// Connect: for its data.
    Connect(Connecting),
    /// Connect: for the end of the host's earlier commands at the storage.
    Quiesce,
    /// Dataset Management: for its ranges.
    Ranges(Deallocate),
    /// For the backend.
    Backend(Running),
    /// For the program to take the page, which has this length in bytes.
    Page(Page, u32),
    /// For an asynchronous event.
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

/// A slot and its command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    pub cid: u16,
    /// Changes each time the slot is freed, so that old tickets are detected.
    turn: u16,
    /// The key that the response invalidates.
    pub invalidate: Option<u32>,
    pub state: SlotState,
}

// One cache line per command.
const _: () = assert!(size_of::<Slot>() <= 64);

/// The commands of a queue: a slot for each that may be outstanding.
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
    /// Takes a free slot for a new command; `None` if there is none.
    pub fn take(&mut self, cid: u16, invalidate: Option<u32>) -> Option<u16> {
        let at = self.free.pop()?;
        let slot = &mut self.slots[at as usize];
        *slot = Slot { cid, turn: slot.turn, invalidate, state: SlotState::New };
        Some(at)
    }
    /// Sets what a command waits for, and returns its ticket.
    pub fn wait(&mut self, at: u16, state: SlotState) -> Ticket {
        let slot = &mut self.slots[at as usize];
        slot.state = state;
        Ticket::new(at, slot.turn)
    }
    /// The command of a ticket.
    ///
    /// # Panics
    /// If there is no such command: the program passed the same ticket twice, or one of another queue.
    pub fn get(&self, ticket: Ticket) -> &Slot {
        let slot = self.slots.get(ticket.slot() as usize).expect("the ticket is of this queue");
        assert!(
            slot.turn == ticket.turn() && !matches!(slot.state, SlotState::Free),
            "the command of ticket {:#x} has ended: give each ticket back once",
            ticket.0
        );
        slot
    }
    /// Frees the slot of a command that is answered. Returns its identifier and the key to invalidate.
    pub fn free(&mut self, at: u16) -> (u16, Option<u32>) {
        let slot = &mut self.slots[at as usize];
        slot.state = SlotState::Free;
        slot.turn = slot.turn.wrapping_add(1);
        self.free.push(at);
        (slot.cid, slot.invalidate)
    }
    /// The slot of the command with this identifier, if it waits for an asynchronous event.
    pub fn event(&self, cid: u16) -> Option<u16> {
        let at = self.slots.iter().position(|s| s.cid == cid && matches!(s.state, SlotState::Event))?;
        Some(at as u16)
    }
    /// How many commands are outstanding.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}
