//! Time codes of connection management. A code t is 4.096 µs · 2^t in the specification, and here, as in Linux, 2^(t - 8) ms.

use core::time::Duration;

/// The time of a time code: 2^(t - 8) ms, at least 1 ms. Linux rounds 4.096 µs · 2^t in this way, and both ends of an exchange
/// should have the same times.
pub fn time(code: u8) -> Duration {
    Duration::from_millis(1 << code.clamp(8, 31).saturating_sub(8))
}

/// How long a request waits for its answer: there, back, and the peer's time to respond.
pub fn request_interval(packet_lifetime: u8, response: u8) -> Duration {
    2 * time(packet_lifetime) + time(response)
}

/// Time code of the ACK timeout of a path with this packet lifetime and this ACK delay at its end (IBA 12.7.34): the sum of
/// twice the lifetime and the delay. It is rounded as in Linux: up to the next code where the smaller of the two is at least half
/// of the larger one, and else down to the larger one's code.
pub fn ack_timeout(packet_lifetime: u8, ack_delay: u8) -> u8 {
    let there_and_back = packet_lifetime.saturating_add(1);
    let code = if there_and_back >= ack_delay {
        there_and_back.saturating_add(u8::from(ack_delay >= there_and_back - 1))
    } else {
        ack_delay.saturating_add(u8::from(there_and_back >= ack_delay - 1))
    };
    code.min(31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_milliseconds() {
        for (code, ms) in
            [(0, 1), (7, 1), (8, 1), (9, 2), (16, 256), (20, 4096), (31, 1 << 23), (255, 1 << 23)]
        {
            assert_eq!(time(code), Duration::from_millis(ms), "code {code}");
        }
        assert_eq!(request_interval(16, 20), Duration::from_millis(512 + 4096));
    }

    // A code c is enough for codes a and b if 2^c >= 2^a + 2^b, or nearly: 17 is taken for 17 and 15, as in Linux.
    #[test]
    fn ack_timeouts_hold_there_and_back_and_the_delay() {
        for (lifetime, delay, code) in
            [(16, 15, 17), (16, 16, 18), (16, 17, 18), (16, 18, 19), (16, 19, 19), (31, 31, 31), (0, 0, 2)]
        {
            assert_eq!(ack_timeout(lifetime, delay), code, "lifetime {lifetime}, delay {delay}");
        }
    }
}
