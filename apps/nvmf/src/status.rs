//! Status codes of completions: their values on the wire, and whether the host may retry.

use core::fmt;

/// Each row is a status: the name, the status code type (SCT), the status code (SC), whether DNR (do not retry) is set.
macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident $sct:literal $sc:literal $dnr:literal;)*) => {
        /// The status of a command (NVMe base 3.3.3.2.1). DNR is set if the same command would fail again.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[non_exhaustive]
        pub enum Status { $($(#[$doc])* $name,)* }

        impl Status {
            /// Every status that this crate sends.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            const fn row(self) -> (u16, u16, bool) {
                match self { $(Self::$name => ($sct, $sc, $dnr),)* }
            }
            /// The name of the variant.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* }
            }
        }
    };
}

#[rustfmt::skip]
statuses! {
    /// No error.
    Success                 0 0x00 false;
    /// The controller does not support the opcode.
    InvalidOpcode           0 0x01 true;
    /// A field has a value that the controller does not support.
    InvalidField            0 0x02 true;
    /// An internal error of the target; the command is valid.
    InternalError           0 0x06 false;
    /// The command was aborted by an Abort command, or by a reset or shutdown.
    AbortRequested          0 0x07 false;
    /// No such namespace.
    InvalidNamespace        0 0x0B true;
    /// The command is not allowed at this point: before Connect, before the controller is enabled, or for a queue that exists already.
    CommandSequenceError    0 0x0C true;
    /// The length of the SGL descriptor does not match the length of the command's data.
    SglLengthInvalid        0 0x0F true;
    /// The controller does not support the type of the SGL descriptor.
    SglTypeInvalid          0 0x11 true;
    /// The in-capsule data are not within the capsule.
    SglOffsetInvalid        0 0x16 true;
    /// The namespace is write protected.
    WriteProtected          0 0x20 true;
    /// Blocks are beyond the end of the namespace.
    LbaOutOfRange           0 0x80 true;
    /// The storage is full.
    CapacityExceeded        0 0x81 true;
    /// The storage of the namespace is not available now, but may be later.
    NamespaceNotReady       0 0x82 false;
    /// More Asynchronous Event Requests than the controller announces (AERL).
    EventLimitExceeded      1 0x05 true;
    /// The controller does not have the log page.
    InvalidLogPage          1 0x09 true;
    /// The controller cannot save features over resets.
    FeatureNotSaveable      1 0x0D true;
    /// The value of the feature is fixed.
    FeatureNotChangeable    1 0x0E true;
    /// Connect: the format of the command's data is not 0.
    ConnectFormat           1 0x80 true;
    /// Connect: no controller is available for this host now.
    ControllerBusy          1 0x81 false;
    /// Connect: a parameter is wrong; the result says which.
    ConnectInvalid          1 0x82 true;
    /// Connect of an I/O queue: there is no such controller. It may have ended when its connection failed, and the host gets a new one when
    /// it connects again. So DNR is not set: with DNR, a Linux host would remove its disk.
    ControllerUnknown       1 0x82 false;
    /// Connect: this host may not use this subsystem.
    InvalidHost             1 0x84 true;
    /// The data could not be written to the storage.
    WriteFault              2 0x80 true;
    /// The data could not be read from the storage.
    UnrecoveredReadError    2 0x81 true;
    /// Compare found different data.
    CompareFailure          2 0x85 true;
}

impl Status {
    /// The status field of a completion: the phase tag (zero) in bit 0, SC in bits 8:1, SCT in bits 11:9, DNR in bit 15.
    pub const fn field(self) -> u16 {
        let (sct, sc, dnr) = self.row();
        (sct << 8 | sc) << 1 | (dnr as u16) << 15
    }
    /// SCT in bits 10:8 and SC in bits 7:0, as tools print it (`0x182`).
    pub const fn code(self) -> u16 {
        let (sct, sc, _) = self.row();
        sct << 8 | sc
    }
    /// The status with this [`code`](Self::code), or `None`. Of two that differ only in DNR, it is the first.
    pub fn of_code(code: u16) -> Option<Self> {
        Self::ALL.iter().copied().find(|status| status.code() == code)
    }
    /// Whether the host is told not to retry.
    pub const fn do_not_retry(self) -> bool {
        self.row().2
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:#05x})", self.name(), self.code())
    }
}

/// The failure of a command: its status, and the result field of the completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fault {
    pub status: Status,
    pub result: u64,
}

impl From<Status> for Fault {
    fn from(status: Status) -> Self {
        Self { status, result: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::Status;

    // Goal: the fields are shifted right. The values are those of the Linux host's headers, which are shifted by one bit less.
    #[test]
    fn status_fields_are_those_of_the_specification() {
        for (status, shifted) in [
            (Status::Success, 0x0000),
            (Status::InvalidOpcode, 0x4001),
            (Status::InternalError, 0x0006),
            (Status::InvalidNamespace, 0x400B),
            (Status::LbaOutOfRange, 0x4080),
            (Status::ConnectInvalid, 0x4182),
            (Status::ControllerBusy, 0x0181),
            (Status::CompareFailure, 0x4285),
        ] {
            assert_eq!(status.field(), shifted << 1, "{status}");
        }
    }

    #[test]
    fn no_two_statuses_are_one_on_the_wire() {
        for (i, a) in Status::ALL.iter().enumerate() {
            assert!(Status::ALL[..i].iter().all(|b| a.field() != b.field()), "{a}");
        }
    }
}
