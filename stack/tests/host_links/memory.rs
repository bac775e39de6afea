//! The memory of links: little at first, as much as is in flight, and little again when nothing was sent for a while.

use crate::member::{Other, config};

fn memory(of: &mut Other) -> usize {
    of.order("memory").strip_prefix("memory ").unwrap().parse().unwrap()
}

#[test]
fn a_link_has_the_memory_that_it_uses() {
    let config = config();
    let [mut here, mut there] = [(); 2].map(|()| Other::new(&config));
    here.tell(&format!("send {} 4", there.run));
    assert_eq!((there.order("receive 4"), here.hear()), ("received".into(), "sent".into()));
    let first = [memory(&mut here), memory(&mut there)];
    assert!(first.iter().all(|bytes| *bytes <= 48 << 10), "{first:?}");

    // The receiver polls nothing: all buffers are in flight.
    let filled = here.order(&format!("fill {}", there.run));
    let frames: usize = filled.strip_prefix("filled ").unwrap().parse().unwrap();
    assert!(frames > 256, "{frames}");
    // A frame of this test spans two pages at most, and touches at least one.
    let full = memory(&mut here);
    assert!(full >= frames * 4096 && full <= 2 * frames * 4288 + first[0], "{full} bytes, {frames} frames");
    assert_eq!(there.order(&format!("receive {}", 4 + frames)), "received");
    assert!(memory(&mut there) >= frames * 64);

    // The member sleeps, and is woken to release memory.
    let least = first[0] + (16 << 10);
    assert_eq!(here.order(&format!("rest {least}")), "rested");
    assert!(memory(&mut there) <= least, "the memory is the same");

    // The memory grows again, as often as the link is used.
    let filled = here.order(&format!("fill {}", there.run));
    let again: usize = filled.strip_prefix("filled ").unwrap().parse().unwrap();
    assert!(again > 256, "{again}");
    assert_eq!(there.order(&format!("receive {}", 4 + frames + again)), "received");
}
