//! NVMe qualified names (NVMe base 4.5): the names of subsystems and hosts.

use core::fmt;
use core::str::FromStr;
use std::sync::Arc;

/// A well-formed NQN: `nqn.YYYY-MM.REVERSE-DOMAIN`, then text that the owner of the domain chooses. Clones share the text.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Nqn(Arc<str>);

/// Why text is not an NQN.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NqnError {
    /// More than 223 bytes.
    #[error("an NQN has at most {max} bytes, this has {0}", max = Nqn::MAX)]
    TooLong(usize),
    /// It does not start with a date and a domain.
    #[error(
        "an NQN starts with `nqn.YYYY-MM.` and a reverse domain name, as in nqn.2014-08.org.example:disks"
    )]
    NoDate,
    /// The name has the prefix for UUIDs, but no UUID follows it.
    #[error(
        "`nqn.2014-08.org.nvmexpress:uuid:` is followed by a UUID, as 11111111-2222-3333-4444-555555555555"
    )]
    NoUuid,
    /// It has control characters, or bytes that are not UTF-8.
    #[error("an NQN is UTF-8 without control characters")]
    NoText,
}

impl Nqn {
    /// The maximum length, in bytes.
    pub const MAX: usize = 223;
    /// The well-known NQN of the discovery subsystem.
    pub const DISCOVERY: &'static str = "nqn.2014-08.org.nvmexpress.discovery";
    const UUID_PREFIX: &'static str = "nqn.2014-08.org.nvmexpress:uuid:";

    /// The NQN in a field of a structure: the bytes before its first zero byte.
    ///
    /// # Errors
    /// If those bytes are not an NQN, or there is no zero byte.
    pub fn of_field(field: &[u8; 256]) -> Result<Self, NqnError> {
        let len = field.iter().position(|&b| b == 0).ok_or(NqnError::TooLong(field.len()))?;
        core::str::from_utf8(&field[..len]).map_err(|_| NqnError::NoText)?.parse()
    }
    /// The NQN as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
    /// Whether this is the NQN of the discovery subsystem.
    pub fn is_discovery(&self) -> bool {
        self.as_str() == Self::DISCOVERY
    }
}

impl FromStr for Nqn {
    type Err = NqnError;

    fn from_str(text: &str) -> Result<Self, NqnError> {
        if text.len() > Self::MAX {
            return Err(NqnError::TooLong(text.len()));
        }
        if text.chars().any(char::is_control) {
            return Err(NqnError::NoText);
        }
        let (date, domain) =
            text.strip_prefix("nqn.").and_then(|rest| rest.split_once('.')).ok_or(NqnError::NoDate)?;
        let is_date = date.len() == 7
            && date.bytes().enumerate().all(|(i, b)| if i == 4 { b == b'-' } else { b.is_ascii_digit() });
        if !is_date || domain.is_empty() || domain.starts_with(':') {
            return Err(NqnError::NoDate);
        }
        match text.strip_prefix(Self::UUID_PREFIX) {
            Some(uuid) if !is_uuid(uuid) => Err(NqnError::NoUuid),
            _ => Ok(Self(text.into())),
        }
    }
}

fn is_uuid(text: &str) -> bool {
    let dash = |i| matches!(i, 8 | 13 | 18 | 23);
    text.len() == 36
        && text.bytes().enumerate().all(|(i, b)| if dash(i) { b == b'-' } else { b.is_ascii_hexdigit() })
}

impl fmt::Display for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_from_other_text() {
        for (text, is) in [
            (Nqn::DISCOVERY, Ok(())),
            ("nqn.2024-01.test.interop:ram0", Ok(())),
            ("nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555", Ok(())),
            ("nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-55555555555", Err(NqnError::NoUuid)),
            ("nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444_555555555555", Err(NqnError::NoUuid)),
            ("", Err(NqnError::NoDate)),
            ("nqn.", Err(NqnError::NoDate)),
            ("iqn.2024-01.test", Err(NqnError::NoDate)),
            ("nqn.202a-01.test", Err(NqnError::NoDate)),
            ("nqn.2024-01.", Err(NqnError::NoDate)),
            ("nqn.2024-01.:x", Err(NqnError::NoDate)),
            ("nqn.2024-01.test\n", Err(NqnError::NoText)),
        ] {
            assert_eq!(text.parse::<Nqn>().map(drop), is, "{text:?}");
        }
    }

    #[test]
    fn a_name_ends_within_223_bytes_and_at_a_zero() {
        let mut field = [b'a'; 256];
        field[..12].copy_from_slice(b"nqn.2024-01.");
        assert_eq!(Nqn::of_field(&field), Err(NqnError::TooLong(256)));
        field[224] = 0;
        assert_eq!(Nqn::of_field(&field), Err(NqnError::TooLong(224)));
        field[223] = 0;
        assert_eq!(Nqn::of_field(&field).map(|n| n.as_str().len()), Ok(223));
        field[100] = 0xff;
        assert_eq!(Nqn::of_field(&field), Err(NqnError::NoText));
    }
}
