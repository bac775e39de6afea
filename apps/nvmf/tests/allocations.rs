//! No command on an I/O queue allocates. Its allocator counts, so this is a binary of its own.

#[allow(dead_code, reason = "the other binary uses the rest")]
mod common;

use common::{Program, blocks, command};
use nvmf::wire::io_opcode;
use nvmf::{Step, Ticket};
use zerocopy::IntoBytes;

#[test]
fn commands_do_not_allocate() {
    let mut p = Program::new(4096);
    let (mut admin, cntlid) = p.admin();
    let mut io = p.io(cntlid, 1);
    let capsules = [
        blocks(io_opcode::READ, 0, 8),
        blocks(io_opcode::WRITE, 8, 8),
        blocks(io_opcode::WRITE_ZEROES, 8, 8),
        blocks(io_opcode::COMPARE, 8, 8),
        blocks(io_opcode::READ, 4096, 8),
        command(io_opcode::FLUSH, 1),
        command(0xFF, 1),
    ];
    let now = p.now;
    let counted = allocation_counter::measure(|| {
        for _ in 0..100 {
            let mut waiting = [None::<Ticket>; 7];
            for (capsule, waits) in capsules.iter().zip(&mut waiting) {
                match io.handle_capsule(now, capsule.as_bytes(), 64) {
                    Ok(Step::Run(ticket, _)) => *waits = Some(ticket),
                    Ok(Step::Respond(_)) => {}
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!(waiting.iter().flatten().count(), 5);
            for ticket in waiting.into_iter().flatten() {
                let _response = io.handle_done(ticket, Ok(())).expect("the queue lives");
            }
            assert_eq!(admin.poll_response(Default::default()), None);
        }
    });
    assert_eq!(counted.count_total, 0);
    // It counts.
    let counted = allocation_counter::measure(|| drop(std::hint::black_box(vec![1u8; 9])));
    assert_eq!(counted.count_total, 1);
}
