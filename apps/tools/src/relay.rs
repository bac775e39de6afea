//! A network that limits each flow to a rate of its own, as clouds do. Frames that arrive on one interface leave by the other. A flow is
//! identified by its addresses and UDP ports; its frames queue up when they arrive faster than the rate. Other frames pass at once.

use apps::error::{AppError, Result};
use apps::stop;
use clap::Parser;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};
use verbs::port::{Port, PortOptions, PortQueue, PortSpec, Route, RxBurst, TxBurst};

/// Joins two network interfaces, and caps the rate of each UDP flow
///
/// For measurements: what comes in at one interface leaves by the other, each flow (addresses and UDP ports) at no more than the rate. As
/// frames pass whole, interfaces that send to these two must leave nothing to their devices: ethtool -K IFACE tx off.
#[derive(Parser, Clone, Debug)]
#[command(name = "roce-relay", version, max_term_width = 100)]
pub struct RelayCli {
    /// Megabits a second of each flow
    #[arg(long, value_name = "MBIT", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub rate: u32,
    /// Two interfaces
    #[arg(num_args = 2, value_name = "IFACE", required = true)]
    pub ifaces: Vec<String>,
}

/// Longest queue of a flow; frames beyond are dropped, as in a switch.
const WAITING: usize = 4096;
/// Most unused time of a flow that is credited: about as long as this process may get no core.
const BURST: Duration = Duration::from_millis(20);
/// Frames that an interface buffers: several windows, because this process may get no core for a while.
const RING: u32 = 8192;
/// Sleep after a pass in which nothing moved.
const PAUSE: Duration = Duration::from_micros(50);

/// Relays until a signal comes.
///
/// # Errors
/// When an interface cannot be opened.
pub fn run(cli: &RelayCli) -> Result<()> {
    let open = |iface: &String| -> Result<Box<dyn Port>> {
        let spec: PortSpec = format!("af_packet:{iface},framecnt={RING}")
            .parse()
            .map_err(|e| AppError::Usage(format!("{iface}: {e}")))?;
        let port = spec.open(&PortOptions::default()).map_err(|e| AppError::Setup(e.to_string()))?;
        port.start().map_err(|e| AppError::Setup(e.to_string()))?;
        Ok(port)
    };
    let ports: Vec<_> = cli.ifaces.iter().map(open).collect::<Result<_>>()?;
    let mut queues: Vec<_> = ports.iter().filter_map(|port| port.take_queue(0)).collect();
    let [a, b] = &mut queues[..] else { return Err(AppError::Setup("an interface has no queue".into())) };
    let mut ways = [Caps::new(cli.rate), Caps::new(cli.rate)];
    loop {
        stop::check()?;
        let now = Instant::now();
        let came = ways[0].pass(&mut **a, &mut **b, now) + ways[1].pass(&mut **b, &mut **a, now);
        if came == 0 {
            std::thread::sleep(PAUSE);
        }
    }
}

/// One direction of the relay.
struct Caps {
    ns_a_bit: f64,
    flows: BTreeMap<Vec<u8>, Flow>,
}

#[derive(Default)]
struct Flow {
    /// When the next frame may leave.
    next: Option<Instant>,
    waiting: VecDeque<Vec<u8>>,
}

impl Caps {
    fn new(mbit: u32) -> Self {
        Self { ns_a_bit: 1000.0 / f64::from(mbit), flows: BTreeMap::new() }
    }

    /// Takes arrived frames, and sends those that may leave. Returns the number of both.
    fn pass(&mut self, from: &mut dyn PortQueue, to: &mut dyn PortQueue, now: Instant) -> usize {
        let mut came = RxBurst::new();
        from.rx_burst(&mut came);
        let mut out = Vec::new();
        for frame in &came {
            match key(frame.data()) {
                Some(key) => self.come(key, frame.data()),
                None => out.push(frame.data().to_vec()),
            }
        }
        let moved = came.len();
        from.recycle(&mut came);
        self.leave(now, &mut out);
        let moved = moved + out.len();
        send(to, &out);
        moved
    }

    fn come(&mut self, key: Vec<u8>, frame: &[u8]) {
        let flow = self.flows.entry(key).or_default();
        if flow.waiting.len() < WAITING {
            flow.waiting.push_back(frame.to_vec());
        }
    }

    /// Moves the frames that may leave by now to `out`.
    fn leave(&mut self, now: Instant, out: &mut Vec<Vec<u8>>) {
        for flow in self.flows.values_mut() {
            while let Some(len) = flow.waiting.front().map(Vec::len)
                && flow.next.is_none_or(|next| next <= now)
            {
                let earliest = now.checked_sub(BURST).unwrap_or(now);
                let from = flow.next.map_or(now, |next| next.max(earliest));
                flow.next = Some(from + Duration::from_nanos((len as f64 * 8.0 * self.ns_a_bit) as u64));
                out.extend(flow.waiting.pop_front());
            }
        }
    }
}

/// Sends frames in bursts. A frame that finds no buffer or no room is lost, as in a switch.
fn send(to: &mut dyn PortQueue, frames: &[Vec<u8>]) {
    let mut burst = TxBurst::new();
    for some in frames.chunks(burst.capacity()) {
        to.alloc_burst(&mut burst, some.len());
        let fits = burst.iter_mut().zip(some).map(|(buffer, frame)| buffer.fill(frame));
        let n = fits.take_while(|fits| *fits).count();
        burst.truncate(n);
        to.tx_burst(Route::default(), &mut burst);
        burst.clear();
    }
}

/// The identity of a flow: protocol, addresses and ports of a UDP packet without IP options or extension headers; `None` for others.
fn key(frame: &[u8]) -> Option<Vec<u8>> {
    const UDP: u8 = 17;
    let (addrs, ports) = match frame.get(12..14)? {
        [0x08, 0x00] if frame.get(23) == Some(&UDP) => (26..34, 34..38),
        [0x86, 0xdd] if frame.get(20) == Some(&UDP) => (22..54, 54..58),
        _ => return None,
    };
    Some([frame.get(addrs)?, frame.get(ports)?].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(port: u16, len: usize) -> Vec<u8> {
        let mut frame = vec![0; len];
        (frame[12], frame[23]) = (8, 17);
        frame[34..36].copy_from_slice(&port.to_be_bytes());
        frame
    }

    // Goal: one flow gets the rate, and sixteen flows get sixteen times the rate, in order; other frames do not wait.
    #[test]
    fn each_flow_has_the_rate_for_itself() {
        let began = Instant::now();
        for flows in [1u16, 16] {
            let mut caps = Caps::new(8); // a byte takes a microsecond
            for n in 0..1000 {
                for port in 0..flows {
                    let mut frame = packet(port, 1000);
                    frame[40..44].copy_from_slice(&u32::to_be_bytes(n));
                    caps.come(key(&frame).unwrap(), &frame);
                }
            }
            let mut left = Vec::new();
            for ms in 0..100 {
                caps.leave(began + Duration::from_millis(ms), &mut left);
            }
            // A hundred milliseconds are a hundred frames, and one frame may leave at once.
            assert!(left.len().abs_diff(usize::from(flows) * 101) <= usize::from(flows), "{}", left.len());
            let of_first: Vec<u32> = left
                .iter()
                .filter(|frame| frame[34..36] == [0, 0])
                .map(|frame| u32::from_be_bytes(frame[40..44].try_into().unwrap()))
                .collect();
            assert!(of_first.is_sorted(), "{of_first:?}");
        }
        let arp = [vec![0; 12], vec![8, 6], vec![0; 40]].concat();
        assert_eq!(key(&arp), None);
        assert_eq!(key(&packet(1, 40)[..36]), None, "cut");
    }

    #[test]
    fn the_definition_is_consistent() {
        use clap::CommandFactory;
        RelayCli::command().debug_assert();
    }
}
