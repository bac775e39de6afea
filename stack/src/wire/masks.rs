//! The bits of the headers that a router may change; the invariant CRC counts them as ones (IBA A17).

/// Bytes of IP header, UDP header and BTH that have a mask: whole blocks of 16.
pub(super) const MASK_LEN: usize = 64;

/// Bits outside the ICRC in IPv4 + UDP + BTH: TOS, TTL, header checksum, UDP checksum, BTH byte 4.
pub(super) static MASK_V4: [u8; MASK_LEN] = {
    let mut m = [0; MASK_LEN];
    m[1] = 0xff;
    m[8] = 0xff;
    m[10] = 0xff;
    m[11] = 0xff;
    m[26] = 0xff;
    m[27] = 0xff;
    m[32] = 0xff;
    m
};

/// Bits outside the ICRC in IPv6 + UDP + BTH: traffic class, flow label, hop limit, UDP checksum, BTH byte 4.
pub(super) static MASK_V6: [u8; MASK_LEN] = {
    let mut m = [0; MASK_LEN];
    m[0] = 0x0f;
    m[1] = 0xff;
    m[2] = 0xff;
    m[3] = 0xff;
    m[7] = 0xff;
    m[46] = 0xff;
    m[47] = 0xff;
    m[52] = 0xff;
    m
};
