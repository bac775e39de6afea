//! What a port is and counts, and the options to open one.

use super::error::PortError;
use super::spec::PortSpec;
use crate::config;
use crate::id::Mac;

/// Bytes of an Ethernet header with one VLAN tag: the most that a frame has besides its L3 packet.
pub const L2_OVERHEAD: usize = 18;

/// What a port is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortInfo {
    /// The specification it was opened with, for messages.
    pub name: String,
    /// Its Ethernet address.
    pub mac: Mac,
    /// Largest L3 packet that it was opened for, in bytes. What it carries now may differ: [`Port::mtu`](super::Port::mtu).
    pub mtu: usize,
    /// Number of queues.
    pub queues: usize,
    /// Largest message in bytes, of consecutive frames to one peer, that the port gives to the kernel at once and the kernel segments
    /// (GSO). 0 if each frame is sent by itself.
    pub message: usize,
}

impl PortInfo {
    /// The description of a port with exactly these options; its address is random if they name none.
    pub(super) fn of(spec: &PortSpec, options: &PortOptions) -> Self {
        let mac = options.mac.unwrap_or_else(Mac::random);
        Self { name: spec.to_string(), mac, mtu: options.mtu, queues: options.queues, message: 0 }
    }

    /// Bytes of the longest frame: Ethernet header, VLAN tag and an L3 packet of [`mtu`](Self::mtu) bytes.
    pub fn max_frame(&self) -> usize {
        self.mtu + L2_OVERHEAD
    }
}

/// Counters of a port since it was opened, summed over its queues. A port of your own starts with the default and sets what it counts.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortStats {
    /// Frames received.
    pub rx_frames: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Frames sent.
    pub tx_frames: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Received frames that were lost: no buffer, no room in a queue, or too long.
    pub rx_dropped: u64,
    /// Frames that could not be sent: too long for the port, to a network interface that is down or gone, or to a peer that is not
    /// there or has no usable buffer for them.
    pub tx_dropped: u64,
    /// Received frames for queue pairs of other processes with the same addresses that could not be passed on: no process has the number,
    /// or the processes are changing at that moment.
    pub rx_strayed: u64,
    /// Received frames that were passed on to other processes with the same addresses.
    pub passed_on: u64,
    /// Times the link was lost because its peer went away.
    pub restarts: u64,
    /// Peers that were refused, or violated the protocol of the link (memif); datagrams from or to other users (unix); packets of our own
    /// that came back (UDP).
    pub refused: u64,
}

/// Sums the counters of two parts of a port.
impl core::ops::Add for PortStats {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            rx_frames: self.rx_frames + other.rx_frames,
            rx_bytes: self.rx_bytes + other.rx_bytes,
            tx_frames: self.tx_frames + other.tx_frames,
            tx_bytes: self.tx_bytes + other.tx_bytes,
            rx_dropped: self.rx_dropped + other.rx_dropped,
            tx_dropped: self.tx_dropped + other.tx_dropped,
            rx_strayed: self.rx_strayed + other.rx_strayed,
            passed_on: self.passed_on + other.passed_on,
            restarts: self.restarts + other.restarts,
            refused: self.refused + other.refused,
        }
    }
}

/// How to open a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortOptions {
    /// Number of queues, at least 1: one for each shard.
    pub queues: usize,
    /// Largest L3 packet in bytes. The default, 4200, carries the path MTU 4096.
    pub mtu: usize,
    /// The Ethernet address. `None`: the device's own, or a random, locally administered one.
    pub mac: Option<Mac>,
    /// Buffers for each queue, in addition to those in the device's own rings.
    pub frames: usize,
}

impl Default for PortOptions {
    fn default() -> Self {
        Self { queues: 1, mtu: 4200, mac: None, frames: 4096 }
    }
}

impl PortOptions {
    /// Checks the limits that are the same for every kind of port.
    pub(super) fn check(&self) -> Result<(), PortError> {
        let fail = |reason: String| Err(PortError::Options(reason));
        if !(1..=config::SHARDS_MAX).contains(&self.queues) {
            return fail(format!("a port has 1 to {} queues, not {}", config::SHARDS_MAX, self.queues));
        }
        if !(MTU_MIN..=MTU_MAX).contains(&self.mtu) {
            return fail(format!("an MTU is {MTU_MIN} to {MTU_MAX} bytes, not {}", self.mtu));
        }
        if !(FRAMES_MIN..=FRAMES_MAX).contains(&self.frames) {
            return fail(format!("a queue has {FRAMES_MIN} to {FRAMES_MAX} buffers, not {}", self.frames));
        }
        match self.mac {
            Some(mac) if !mac.is_unicast() => {
                fail(format!("{mac} is no address of one station: use one like 02:00:00:00:00:01"))
            }
            _ => Ok(()),
        }
    }
}

/// Smallest and largest MTU of a port: IPv4's minimum, and jumbo frames.
const MTU_MIN: usize = 576;
const MTU_MAX: usize = 9600;
/// Least and most buffers of a queue.
const FRAMES_MIN: usize = 256;
const FRAMES_MAX: usize = 1 << 18;
const _: () = assert!(crate::config::HELD_PER_SHARD as usize <= FRAMES_MIN / 2);

impl Mac {
    /// Whether it can be the address of one host: unicast, and not zero.
    pub(crate) fn is_unicast(&self) -> bool {
        self.0[0] & 1 == 0 && *self != Self::default()
    }

    /// Another address, which is unicast if this one is.
    pub(crate) fn beside(mut self) -> Self {
        self.0[5] ^= 1;
        self
    }

    /// A random unicast address, locally administered.
    pub(crate) fn random() -> Self {
        let mut bytes = [0; 6];
        // Without randomness two ports could get the same address.
        getrandom::fill(&mut bytes).expect("the operating system has randomness");
        bytes[0] = bytes[0] & 0xfc | 0x02;
        Self(bytes)
    }
}
