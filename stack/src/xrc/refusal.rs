//! Why the owner of a domain refused a call, or a member an order.

use core::fmt;

use crate::device::{DeviceError, ModifyError};

/// Length of a text in bytes, at most; longer texts are cut.
pub const TEXT_MAX: usize = 300;

/// The kind of a refusal, for programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Reason {
    /// An argument is invalid.
    Invalid = 1,
    /// No number or no memory is left.
    NoRoom,
    /// The number of a shared receive queue is in use.
    Taken,
    /// An attribute is not supported.
    Unsupported,
    /// The port cannot be opened.
    NoDevice,
    /// The device has failed.
    Failed,
}

impl Reason {
    /// Every reason.
    pub const ALL: [Self; 6] =
        [Self::Invalid, Self::NoRoom, Self::Taken, Self::Unsupported, Self::NoDevice, Self::Failed];
}

/// A refusal of a call or an order: nothing has changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// Its kind.
    pub reason: Reason,
    /// One sentence that says what to do, of at most `TEXT_MAX` bytes.
    pub text: String,
}

impl Refusal {
    /// A refusal with this text.
    pub fn new(reason: Reason, text: impl Into<String>) -> Self {
        let mut text = text.into();
        let end = (0..=TEXT_MAX.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
        text.truncate(end.unwrap_or(0));
        Self { reason, text }
    }
}

impl From<DeviceError> for Refusal {
    fn from(error: DeviceError) -> Self {
        let reason = match &error {
            DeviceError::Exhausted { .. } => Reason::NoRoom,
            DeviceError::Port(_) => Reason::NoDevice,
            DeviceError::Modify(ModifyError::UnknownAttributes(_)) => Reason::Unsupported,
            DeviceError::ShardDied { .. } | DeviceError::Random => Reason::Failed,
            _ => Reason::Invalid,
        };
        Self::new(reason, error.to_string())
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_between_characters() {
        for text in ["a".repeat(TEXT_MAX), "ä".repeat(TEXT_MAX), format!("x{}", "ä".repeat(TEXT_MAX))] {
            let cut = Refusal::new(Reason::Invalid, text.clone()).text;
            assert!(cut.len() <= TEXT_MAX && cut.len() + 2 > TEXT_MAX && text.starts_with(&cut));
        }
    }
}
