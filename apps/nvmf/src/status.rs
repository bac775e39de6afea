//! Status codes of completions: what they are on the wire, and whether the host may try again.

use core::fmt;

/// One row a status: the name, the status code type (SCT), the status code (SC), whether DNR (do not retry) is set.
macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident $sct:literal $sc:literal $dnr:literal;)*) => {
        /// How a command ended (NVMe base 3.3.3.2.1). DNR is set where the same command would fail again.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[non_exhaustive]
        pub enum Status { $($(#[$doc])* $name,)* }

        impl Status {
            /// Every status that this crate sends.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            const fn row(self) -> (u16, u16, bool) {
                match self { $(Self::$name => ($sct, $sc, $dnr),)* }
            }
            /// The name, as in this enumeration.
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
    /// An opcode that the controller does not have.
    InvalidOpcode           0 0x01 true;
    /// A field with a value that the controller does not have.
    InvalidField            0 0x02 true;
    /// The target failed, for no fault of the command.
    InternalError           0 0x06 false;
    /// The command was aborted on request, or by a reset.
    AbortRequested          0 0x07 false;
    /// No such namespace.
    InvalidNamespace        0 0x0B true;
    /// Not at this point: before Connect, before the controller is enabled, a queue that exists.
    CommandSequenceError    0 0x0C true;
    /// The length of the data descriptor is not that of the command's data.
    SglLengthInvalid        0 0x0F true;
    /// A data descriptor of a type that is not served.
    SglTypeInvalid          0 0x11 true;
    /// In-capsule data that lie outside of the capsule.
    SglOffsetInvalid        0 0x16 true;
    /// The namespace may not be written.
    WriteProtected          0 0x20 true;
    /// Blocks beyond the end of the namespace.
    LbaOutOfRange           0 0x80 true;
    /// The disk is full.
    CapacityExceeded        0 0x81 true;
    /// The namespace cannot serve now, but may later.
    NamespaceNotReady       0 0x82 false;
    /// More asynchronous event requests than announced.
    EventLimitExceeded      1 0x05 true;
    /// A log page that the controller does not have.
    InvalidLogPage          1 0x09 true;
    /// Features are not kept over resets here.
    FeatureNotSaveable      1 0x0D true;
    /// A feature whose value is fixed.
    FeatureNotChangeable    1 0x0E true;
    /// Connect: a record format that is not 0.
    ConnectFormat           1 0x80 true;
    /// Connect: no controller is free.
    ControllerBusy          1 0x81 false;
    /// Connect: a parameter is wrong; the result says which.
    ConnectInvalid          1 0x82 true;
    /// Connect of an I/O queue: there is no such controller. It may have just ended with a failed connection, and a host that
    /// connects again gets a new one. DNR is not set: a Linux host would give up its disk.
    ControllerUnknown       1 0x82 false;
    /// Connect: this host may not use this subsystem.
    InvalidHost             1 0x84 true;
    /// The disk did not take the data.
    WriteFault              2 0x80 true;
    /// The disk could not read the data.
    UnrecoveredReadError    2 0x81 true;
    /// Compare found different data.
    CompareFailure          2 0x85 true;
}

impl Status {
    /// The status field of a completion: the phase bit 0, SC in 8:1, SCT in 11:9, DNR in 15.
    pub const fn field(self) -> u16 {
        let (sct, sc, dnr) = self.row();
        (sct << 8 | sc) << 1 | (dnr as u16) << 15
    }
    /// SCT and SC as one number, as tools print it (`0x182`).
    pub const fn code(self) -> u16 {
        let (sct, sc, _) = self.row();
        sct << 8 | sc
    }
    /// The status with this [`code`](Self::code); the first of two that differ in DNR alone.
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

/// Why a command fails: the status, and the result that goes with it.
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

    // Goal: the shifts are right, against values that the Linux host's headers print shifted by one bit.
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
