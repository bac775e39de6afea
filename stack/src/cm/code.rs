//! Time codes of connection management. A code t stands for 4.096 µs · 2^t in the specification; here, as in Linux, for 2^(t - 8) ms.

use core::time::Duration;

/// The duration of a time code: 2^(t - 8) ms, at least 1 ms; codes above 31 count as 31. Linux rounds 4.096 µs · 2^t in this way, and both
/// ends of an exchange should use the same times.
pub fn time(code: u8) -> Duration {
    Duration::from_millis(1 << code.clamp(8, 31).saturating_sub(8))
}

/// How long to wait for the answer to a request: twice the packet lifetime plus the peer's response time. Both arguments are time codes.
pub fn request_interval(packet_lifetime: u8, response: u8) -> Duration {
    2 * time(packet_lifetime) + time(response)
}

/// Time code of the local ACK timeout for a path (IBA 12.7.34): twice the packet lifetime plus the peer's ACK delay, all as time codes. The
/// sum is rounded as in Linux: to one above the larger code if the smaller term is at least half of the larger one, otherwise to the larger
/// code.
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

    // A code c covers codes a and b if 2^c >= 2^a + 2^b, or nearly so: as in Linux, 17 covers 17 and 15.
    #[test]
    fn ack_timeouts_hold_there_and_back_and_the_delay() {
        for (lifetime, delay, code) in
            [(16, 15, 17), (16, 16, 18), (16, 17, 18), (16, 18, 19), (16, 19, 19), (31, 31, 31), (0, 0, 2)]
        {
            assert_eq!(ack_timeout(lifetime, delay), code, "lifetime {lifetime}, delay {delay}");
        }
    }
}
