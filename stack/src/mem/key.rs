//! The parts of a key: the index of a slot in the table, and a tag. The low bits of the tag of a variable key belong to its user.

/// Bits of the tag.
pub(super) const TAG_BITS: u32 = 16;
/// No key: marks a slot in which nothing is registered.
pub(super) const NO_KEY: u32 = 0;
/// Bits of a variable key that belong to its user.
pub(super) const USER_BITS: u32 = 8;
pub(super) const USER_MASK: u32 = (1 << USER_BITS) - 1;

/// The types of memory window (`enum ibv_mw_type`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
#[doc(alias = "ibv_mw_type")]
pub enum MwType {
    /// Bound by [`ibv_bind_mw(3)`](https://man7.org/linux/man-pages/man3/ibv_bind_mw.3.html), which chooses the key; usable through every
    /// queue pair of the protection domain, until it is bound again.
    One = 1,
    /// Bound by a work request with a key that the user chooses; usable only through the queue pair that bound it (type 2B), until it is
    /// invalidated.
    Two = 2,
}

/// The same key with the next variant byte (`ibv_inc_rkey(3)`): the low 8 bits count up and wrap.
#[doc(alias = "ibv_inc_rkey")]
pub const fn inc_rkey(rkey: u32) -> u32 {
    rkey & !USER_MASK | rkey.wrapping_add(1) & USER_MASK
}
