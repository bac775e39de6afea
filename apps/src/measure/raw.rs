//! The port without RDMA: bare frames between the two ends, by the same calls and of the same length as the stack's. Its
//! figures are the limits of those of the stack.

use super::watch::{Watch, out_of_turn};
use super::{Latency, histogram};
use crate::error::{AppError, Result};
use crate::plan::RawSpec;
use crate::protocol::Message;
use std::hint::spin_loop;
use std::time::{Duration, Instant};
use verbs::Mac;
use verbs::port::{Frame, Port, PortQueue, Route, RxBurst, TxBurst};

/// IEEE 802 local experimental EtherType 1.
const ETHERTYPE: [u8; 2] = [0x88, 0xb5];
/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;
/// Ethernet header, one byte of kind, a sequence number.
const HEADER: usize = ETHERNET + 1 + 8;
/// Time after which a frame of a bounce counts as lost.
const LOST: Duration = Duration::from_millis(100);
/// How long the receiver continues after the sender's final count, and after the last frame.
const QUIET: Duration = Duration::from_millis(20);
/// Bounces before the recorded ones.
const WARM_UP: u64 = 200;
/// Lost frames after which a bounce gives up.
const LOST_MAX: u64 = 20;

/// A frame of a stream, or of a bounce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Stream = 1,
    Ping = 2,
    Pong = 3,
}

/// Writes a frame of `len` bytes.
fn put(frame: &mut Frame, len: usize, dst: Mac, src: Mac, kind: Kind, seq: u64) {
    frame.set_len(len);
    let data = frame.data_mut();
    data[..6].copy_from_slice(&dst.0);
    data[6..12].copy_from_slice(&src.0);
    data[12..ETHERNET].copy_from_slice(&ETHERTYPE);
    data[ETHERNET] = kind as u8;
    data[ETHERNET + 1..HEADER].copy_from_slice(&seq.to_be_bytes());
}

/// The sequence number of a frame of this program and kind.
fn seq_of(data: &[u8], kind: Kind) -> Option<u64> {
    if data.len() < HEADER || data[12..ETHERNET] != ETHERTYPE || data[ETHERNET] != kind as u8 {
        return None;
    }
    data[ETHERNET + 1..HEADER].try_into().ok().map(u64::from_be_bytes)
}

/// The counts of a stream's receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Frames.
    pub frames: u64,
    /// Frames after the first burst.
    pub timed: u64,
    /// The time that the timed frames took.
    pub elapsed_ns: u64,
}

/// One end of a raw measurement.
pub struct Raw<'a> {
    port: &'a dyn Port,
    queue: Box<dyn PortQueue>,
    rx: RxBurst,
    tx: TxBurst,
    /// Kept for the next bounce.
    spare: Option<Frame>,
    /// Addresses of this end and of the other end.
    ours: Mac,
    theirs: Mac,
}

impl<'a> Raw<'a> {
    /// Takes the queue; [`Drop`] returns it.
    pub fn new(port: &'a dyn Port, queue: Box<dyn PortQueue>, theirs: Mac) -> Self {
        let ours = port.info().mac;
        Self { port, queue, rx: RxBurst::new(), tx: TxBurst::new(), spare: None, ours, theirs }
    }

    /// Sends frames as fast as the port takes them; returns their number.
    ///
    /// # Errors
    /// A signal, the peer's failure.
    pub fn stream(&mut self, spec: &RawSpec, watch: &mut Watch<'_>) -> Result<u64> {
        let end = Instant::now() + Duration::from_millis(spec.duration_ms);
        let mut sent = 0u64;
        let mut next = 0u64;
        loop {
            while !self.tx.is_full() {
                let Some(mut frame) = self.queue.alloc() else { break };
                put(&mut frame, spec.frame as usize, self.theirs, self.ours, Kind::Stream, next);
                next += 1;
                self.tx.push(frame);
            }
            sent += self.queue.tx_burst(Route::default(), &mut self.tx) as u64;
            if watch.due() {
                let now = Instant::now();
                self.port.maintain();
                self.rx_burst(); // received frames are discarded
                if let Some(message) = watch.look(now, false)? {
                    return Err(out_of_turn(&message));
                }
                if now >= end {
                    self.tx.clear();
                    return Ok(sent);
                }
            }
        }
    }

    /// Receives until the sender has reported that it is done and no more frames arrive.
    ///
    /// # Errors
    /// A signal, the peer's failure.
    pub fn receive(&mut self, spec: &RawSpec, watch: &mut Watch<'_>) -> Result<Received> {
        let mut seen = Received::default();
        let (mut first, mut last) = (None, Instant::now());
        let mut fresh = false;
        let mut finished = None;
        loop {
            self.rx_burst();
            let n = self.rx.iter().filter(|f| f.len() == spec.frame as usize);
            let n = n.filter(|f| seq_of(f.data(), Kind::Stream).is_some()).count() as u64;
            if n > 0 {
                seen.frames += n;
                if first.is_none() {
                    first = Some(Instant::now());
                } else {
                    seen.timed += n;
                    fresh = true;
                }
            } else if fresh {
                (last, fresh) = (Instant::now(), false);
            }
            if watch.due() {
                let now = Instant::now();
                self.port.maintain();
                match watch.look(now, false)? {
                    Some(Message::RawFinish { .. }) => finished = Some(now),
                    Some(message) => return Err(out_of_turn(&message)),
                    None => {}
                }
                let quiet = |since: Instant| now.saturating_duration_since(since) > QUIET;
                if finished.is_some_and(quiet) && !fresh && quiet(last) {
                    break;
                }
            }
        }
        seen.elapsed_ns = first.map_or(0, |first| last.saturating_duration_since(first).as_nanos() as u64);
        Ok(seen)
    }

    /// Bounces one frame at a time; latencies are half of each round trip. Also returns how many were sent and lost.
    ///
    /// # Errors
    /// A signal, the peer's failure, a link that loses every frame.
    pub fn ping(&mut self, spec: &RawSpec, watch: &mut Watch<'_>) -> Result<(Latency, u64, u64)> {
        let mut hist = histogram();
        let (mut seq, mut lost) = (0u64, 0u64);
        let mut end = None;
        let mut before = Instant::now();
        loop {
            self.bounce(Kind::Ping, spec.frame as usize, seq, watch)?;
            let came = self.wait_for(seq, watch)?;
            let after = Instant::now();
            if !came {
                lost += 1;
                if lost > LOST_MAX {
                    return Err(AppError::Timeout(format!(
                        "port {}: frames of {} bytes do not come back; is the other end's MTU as large as ours?",
                        self.port.info().name,
                        spec.frame
                    )));
                }
            } else if seq >= WARM_UP {
                hist.saturating_record((after - before).as_nanos() as u64 / 2);
            }
            seq += 1;
            if seq > WARM_UP && after >= *end.get_or_insert(after + Duration::from_millis(spec.duration_ms)) {
                return Ok((Latency::from(&hist), seq, lost));
            }
            before = after;
        }
    }

    /// Sends received frames back, until the client is done.
    ///
    /// # Errors
    /// A signal, the peer's failure.
    pub fn pong(&mut self, spec: &RawSpec, watch: &mut Watch<'_>) -> Result<u64> {
        let mut bounced = 0;
        loop {
            self.rx_burst();
            let seq = self.rx.iter().filter_map(|f| seq_of(f.data(), Kind::Ping)).next_back();
            if let Some(seq) = seq {
                self.bounce(Kind::Pong, spec.frame as usize, seq, watch)?;
                bounced += 1;
            }
            if watch.due() {
                self.port.maintain();
                match watch.look(Instant::now(), false)? {
                    Some(Message::RawFinish { .. }) => return Ok(bounced),
                    Some(message) => return Err(out_of_turn(&message)),
                    None => {}
                }
            }
            spin_loop();
        }
    }

    /// Sends one frame.
    #[inline]
    fn bounce(&mut self, kind: Kind, len: usize, seq: u64, watch: &mut Watch<'_>) -> Result<()> {
        self.tx.clear();
        loop {
            if self.tx.is_empty()
                && let Some(mut frame) = self.spare.take().or_else(|| self.queue.alloc())
            {
                put(&mut frame, len, self.theirs, self.ours, kind, seq);
                self.tx.push(frame);
            }
            if self.queue.tx_burst(Route::default(), &mut self.tx) == 1 {
                self.spare = self.queue.alloc();
                return Ok(());
            }
            if watch.due() {
                self.port.maintain();
                if let Some(message) = watch.look(Instant::now(), false)? {
                    return Err(out_of_turn(&message));
                }
            }
        }
    }

    /// Waits for the answer to frame `seq`; returns whether it arrived.
    #[inline]
    fn wait_for(&mut self, seq: u64, watch: &mut Watch<'_>) -> Result<bool> {
        let mut since = None;
        loop {
            if self.rx_burst() > 0 && self.rx.iter().any(|f| seq_of(f.data(), Kind::Pong) == Some(seq)) {
                return Ok(true);
            }
            if watch.due() {
                let now = Instant::now();
                self.port.maintain();
                if let Some(message) = watch.look(now, false)? {
                    return Err(out_of_turn(&message));
                }
                if now.duration_since(*since.get_or_insert(now)) > LOST {
                    return Ok(false);
                }
            }
            spin_loop();
        }
    }

    /// Receives frames, after recycling those received before; not sooner, since answering has priority.
    #[inline]
    fn rx_burst(&mut self) -> usize {
        if !self.rx.is_empty() {
            self.queue.recycle(&mut self.rx);
        }
        self.queue.rx_burst(&mut self.rx)
    }
}

impl Drop for Raw<'_> {
    fn drop(&mut self) {
        self.rx.clear();
        self.tx.clear();
        self.spare = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_told_apart() {
        let mut frame = Frame::from_vec(vec![0; 128]);
        put(&mut frame, 64, Mac([1; 6]), Mac([2; 6]), Kind::Ping, 0x0102_0304_0506);
        assert_eq!(frame.len(), 64);
        assert_eq!(seq_of(frame.data(), Kind::Ping), Some(0x0102_0304_0506));
        assert_eq!(seq_of(frame.data(), Kind::Pong), None);
        assert_eq!(seq_of(&frame.data()[..HEADER - 1], Kind::Ping), None);
        frame.data_mut()[12] = 0x08;
        assert_eq!(seq_of(frame.data(), Kind::Ping), None);
    }
}
