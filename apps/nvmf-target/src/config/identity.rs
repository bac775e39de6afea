//! Serial numbers and UUIDs that follow from names, so that they are the same after a restart without being written down.

use core::fmt::Write;

use arrayvec::ArrayString;
use nvmf::Nqn;

/// FNV-1a of 128 bits.
fn hash(parts: &[&[u8]]) -> u128 {
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let bytes = parts.iter().flat_map(|part| part.iter());
    bytes.fold(BASIS, |hash, &byte| (hash ^ byte as u128).wrapping_mul(PRIME))
}

/// A serial number for a subsystem.
pub(super) fn serial(nqn: &Nqn) -> ArrayString<20> {
    let mut serial = ArrayString::new();
    let _ = write!(serial, "{:016x}", hash(&[b"serial:", nqn.as_str().as_bytes()]) as u64);
    serial
}

/// A UUID for a namespace, of version 8 (RFC 9562).
pub(super) fn uuid(nqn: &Nqn, nsid: u32) -> [u8; 16] {
    let mut uuid = hash(&[b"uuid:", nqn.as_str().as_bytes(), b":", &nsid.to_be_bytes()]).to_be_bytes();
    uuid[6] = 0x80 | uuid[6] & 0x0F;
    uuid[8] = 0x80 | uuid[8] & 0x3F;
    uuid
}

/// A NGUID for the namespace of a UUID.
pub(super) fn nguid(uuid: &[u8; 16]) -> [u8; 16] {
    hash(&[b"nguid:", uuid]).to_be_bytes()
}

/// An identifier for a host of a name.
pub fn host_id(nqn: &Nqn) -> [u8; 16] {
    hash(&[b"host:", nqn.as_str().as_bytes()]).to_be_bytes()
}

/// A UUID in its usual form.
pub fn uuid_text(uuid: &[u8; 16]) -> String {
    let digits = format!("{:032x}", u128::from_be_bytes(*uuid));
    let (a, b, c, d, e) = (&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]);
    format!("{a}-{b}-{c}-{d}-{e}")
}

/// The bytes of a UUID in its usual form.
pub fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let groups: Vec<&str> = text.split('-').collect();
    if groups.iter().map(|group| group.len()).ne([8, 4, 4, 4, 12])
        || !text.bytes().all(|b| b == b'-' || b.is_ascii_hexdigit())
    {
        return None;
    }
    let number = u128::from_str_radix(&groups.concat(), 16).ok()?;
    Some(number.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: hosts refuse a namespace whose identity changed, so these never change.
    #[test]
    fn identities_are_the_same_for_ever() {
        let nqn: Nqn = "nqn.2024-01.org.example:disks".parse().unwrap();
        assert_eq!(hash(&[]), 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d);
        assert_eq!(hash(&[b"a"]), 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964);
        assert_eq!(serial(&nqn), serial(&nqn));
        assert_ne!(uuid(&nqn, 1), uuid(&nqn, 2));
        assert_ne!(nguid(&uuid(&nqn, 1)), uuid(&nqn, 1));
        assert_eq!(uuid(&nqn, 1)[6] >> 4, 8);
    }

    #[test]
    fn uuids_have_their_form() {
        let text = "11111111-2222-3333-4444-5555aAbBcCdD";
        let uuid = parse_uuid(text).unwrap();
        assert_eq!(uuid[..5], [0x11, 0x11, 0x11, 0x11, 0x22]);
        assert_eq!(uuid_text(&uuid), text.to_lowercase());
        for wrong in [
            "",
            "1111",
            &text[1..],
            "11111111-2222-3333-44445-555aAbBcCdD",
            "+1111111-2222-3333-4444-5555aAbBcCdD",
        ] {
            assert_eq!(parse_uuid(wrong), None, "{wrong}");
        }
    }
}
