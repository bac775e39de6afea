//! The memory window of a flow: its peer binds the window to the flow's target and invalidates it again, while the flow uses it. The flow
//! stops using a window before that, as real programs must agree on it.

use super::memory::Region;
use super::node::{MrId, Node, SendWr};
use super::rng::Rng;
use stack::mem::{Access, MwType, inc_rkey};
use stack::proto::status::WrOpcode;

#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
enum State {
    /// No window exists.
    #[default]
    None,
    Free,
    Binding,
    Bound,
    /// Bound, but not to be used any more.
    Closing,
    /// An invalidation is in progress.
    Leaving,
}

/// A window of type 2 to the end of a flow's target.
#[derive(Clone, Copy, Default, Debug)]
pub struct Window {
    state: State,
    /// The key with which it was allocated. The low byte changes with each bind.
    made: u32,
    key: u32,
    zero_based: bool,
    /// First byte of the target that it grants.
    pub start: usize,
    /// Number of incomplete requests of the flow that use it.
    pub users: u32,
}

/// The program's next work request for a window, on the queue pair to which the window is bound.
#[derive(Clone, Copy, Debug)]
pub enum WindowRequest {
    /// BIND_MW.
    Bind {
        /// The new key of the window.
        key: u32,
        /// The key of the region.
        region: u32,
        /// Address and length.
        range: (u64, u64),
        /// The access rights.
        access: Access,
    },
    /// LOCAL_INV.
    Invalidate(
        /// The key of the window.
        u32,
    ),
}

impl WindowRequest {
    /// Its text for the trace, without addresses.
    pub fn name(&self) -> String {
        match self {
            Self::Bind { key, .. } => format!("BIND_MW {key:#x}"),
            Self::Invalidate(key) => format!("LOCAL_INV {key:#x}"),
        }
    }

    /// The work request.
    pub fn work_request(&self, wr_id: u64) -> SendWr {
        match *self {
            Self::Bind { key, region, range, access } => SendWr::bind(wr_id, key, region, range, access),
            Self::Invalidate(key) => SendWr::new(wr_id, WrOpcode::LocalInv).remote(0, key),
        }
    }
}

impl Window {
    /// A window that is not bound.
    pub fn alloc(node: &mut Node) -> Self {
        let made = node.alloc_window(MwType::Two);
        Self { state: State::Free, made, key: made, ..Self::default() }
    }

    /// Deallocates the window, in any state.
    pub fn dealloc(self, node: &mut Node) {
        if self.state != State::None {
            node.dealloc_window(self.made);
        }
    }

    /// Whether requests may use it for data of the target that begin at byte `end` or before.
    pub fn usable(&self, end: usize) -> bool {
        self.state == State::Bound && self.start <= end
    }

    /// Address and key that name byte `offset` of the target.
    pub fn name(&self, target: &Region, offset: usize) -> (u64, u32) {
        let va = if self.zero_based { (offset - self.start) as u64 } else { target.va(offset) };
        (va, self.key)
    }

    /// Whether it is bound and no request uses it.
    pub fn idle(&self) -> bool {
        matches!(self.state, State::Bound | State::Closing) && self.users == 0
    }

    /// A SEND of the flow will invalidate it. Returns its key.
    pub fn leave(&mut self) -> u32 {
        self.state = State::Leaving;
        self.key
    }

    /// A SEND of the flow has completed and invalidated it, unless the window ended with its region meanwhile.
    pub fn gone(&mut self) {
        if self.state == State::Leaving {
            self.state = State::Free;
        }
    }

    /// The program's next request for it, and its state once that is posted.
    pub fn next(&self, rng: &mut Rng, target: &Region, len: usize) -> Option<(WindowRequest, Self)> {
        match self.state {
            State::Free => {
                let key = inc_rkey(self.key);
                let start = rng.below(len as u64 / 16) as usize * 8;
                let zero_based = rng.one_in(3);
                let rights = Access::REMOTE_READ | Access::REMOTE_WRITE;
                let access = if zero_based { rights | Access::ZERO_BASED } else { rights };
                let range = (target.addr() + start as u64, (len - start) as u64);
                let request = WindowRequest::Bind { key, region: target.key, range, access };
                Some((request, Self { state: State::Binding, key, zero_based, start, ..*self }))
            }
            State::Bound | State::Closing if self.users == 0 => {
                Some((WindowRequest::Invalidate(self.key), Self { state: State::Leaving, ..*self }))
            }
            _ => None,
        }
    }

    /// Stops its use by the flow, so that it can be invalidated.
    pub fn close(&mut self) {
        if self.state == State::Bound {
            self.state = State::Closing;
        }
    }

    /// The peer's request about it has completed: checks its key. `revive`: binds it again without a request, to test the checker. Returns
    /// whether it did that.
    pub fn request_completed(
        &mut self,
        node: &Node,
        peer: stack::id::Qpn,
        mr: MrId,
        revive: bool,
    ) -> Result<bool, String> {
        let (key, alive) = match self.state {
            State::Binding => {
                self.state = State::Bound;
                (self.key, true)
            }
            State::Leaving => {
                self.state = State::Free;
                (self.key, false)
            }
            State::None => return Ok(false), // the window ended with its region
            other => return Err(format!("a window is {other:?} and its request completes")),
        };
        let revived = revive && !alive;
        if revived {
            node.bind_without_qp(key, peer, mr);
        }
        match (node.key_lives(key), alive) {
            (true, false) => Err(format!("key {key:#x} lives after a LOCAL_INV")),
            (false, true) => Err(format!("key {key:#x} is dead after a BIND_MW")),
            _ => Ok(revived),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Seed 20993: the region was deregistered with its window while a SEND that invalidates the window was in flight. The completion of the
    // SEND must not create a window.
    #[test]
    fn a_window_that_went_with_its_region_stays_gone() {
        let mut window = Window { state: State::Bound, made: 0x100, key: 0x101, ..Window::default() };
        window.leave();
        let deallocated = core::mem::take(&mut window);
        assert_eq!(deallocated.state, State::Leaving);
        window.gone();
        assert_eq!(window.state, State::None);
    }
}
