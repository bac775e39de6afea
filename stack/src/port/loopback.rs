//! A port that receives the frames it sends.

use super::info::PortOptions;
use super::pair::{Wire, WirePort};
use crate::id::Mac;
use std::sync::Arc;

/// Makes a port with both ends of a wire. A frame arrives on the queue that sent it.
pub(super) fn loopback(options: &PortOptions) -> WirePort {
    let wire = Wire::new(options.queues, None);
    let mac = options.mac.unwrap_or_else(Mac::random);
    WirePort::new("loopback".into(), mac, options, Arc::clone(&wire), wire)
}

#[cfg(test)]
mod tests {
    use super::super::{PortSpec, Route, RxBurst, TxBurst};
    use super::*;

    #[test]
    fn what_is_sent_is_received() {
        let spec: PortSpec = "loopback".parse().unwrap();
        let port = spec.open(&PortOptions { queues: 2, frames: 256, ..PortOptions::default() }).unwrap();
        assert!(port.link_up());
        let mut queues = [port.take_queue(0).unwrap(), port.take_queue(1).unwrap()];
        let mut burst = TxBurst::new();
        let mut frame = queues[1].alloc().unwrap();
        assert!(frame.capacity() >= port.info().max_frame());
        frame.fill(b"round and round");
        burst.push(frame);
        assert_eq!(queues[1].tx_burst(Route::default(), &mut burst), 1);
        let mut got = RxBurst::new();
        assert_eq!(queues[0].rx_burst(&mut got), 0);
        assert_eq!(queues[1].rx_burst(&mut got), 1);
        assert_eq!(got[0].data(), b"round and round");
    }

    #[test]
    fn options_are_checked() {
        let open =
            |options: PortOptions| PortSpec::Loopback.open(&options).err().map(|error| error.to_string());
        let good = PortOptions::default();
        assert_eq!(open(good.clone()), None);
        for (options, part) in [
            (PortOptions { queues: 0, ..good.clone() }, "1 to 16 queues, not 0"),
            (PortOptions { mtu: 100_000, ..good.clone() }, "576 to 9600 bytes"),
            (PortOptions { frames: 1, ..good.clone() }, "buffers, not 1"),
            (PortOptions { mac: Some(Mac::BROADCAST), ..good }, "no address of one station"),
        ] {
            let error = open(options).unwrap();
            assert!(error.contains(part), "{error}");
        }
    }
}
