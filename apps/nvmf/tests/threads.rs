//! Queues of a controller on threads of their own, while the target changes.

use std::sync::atomic::{AtomicU64, Ordering};

use nvmf::status::Status;
use nvmf::wire::io_opcode;
use nvmf::{End, Op, Queue, Step};
use zerocopy::IntoBytes;

use crate::common::{Program, SUBSYSTEM, blocks, nqn};

/// Serves Reads of one block at the end of the largest namespace until the queue ends. Counts in `served` those that
/// were within it and in `refused` those that were not.
fn serve(mut queue: Queue, served: &AtomicU64, refused: &AtomicU64) -> End {
    let sqe = blocks(io_opcode::READ, 63, 1);
    loop {
        let step = match queue.handle_capsule(Default::default(), sqe.as_bytes(), 64) {
            Ok(step) => step,
            Err(end) => return end,
        };
        match step {
            Step::Run(ticket, request) => {
                assert!(matches!(request.op, Op::Read { offset, .. } if offset == 63 * 512));
                if let Err(end) = queue.handle_done(ticket, Ok(())).map(|r| assert_eq!(r.cqe.status.get(), 0))
                {
                    return end;
                }
                served.fetch_add(1, Ordering::Relaxed);
            }
            Step::Respond(response) => {
                assert_eq!(response.cqe.status.get(), Status::LbaOutOfRange.field());
                refused.fetch_add(1, Ordering::Relaxed);
            }
            other => panic!("{other:?}"),
        }
    }
}

// Goal: each change is seen by every queue, nothing of it is lost, and all end with the admin queue.
#[test]
fn changes_reach_queues_on_other_threads() {
    let mut p = Program::new(64);
    let (mut admin, cntlid) = p.admin();
    let queues = [1, 2, 3].map(|qid| p.io(cntlid, qid));
    let counts: [(AtomicU64, AtomicU64); 3] = Default::default();
    let grew = |count: &AtomicU64| {
        let before = count.load(Ordering::Relaxed);
        // One may have begun before the change: the second has not.
        while count.load(Ordering::Relaxed) < before + 2 {
            std::thread::yield_now();
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = queues
            .into_iter()
            .zip(&counts)
            .map(|(queue, (served, refused))| scope.spawn(move || serve(queue, served, refused)))
            .collect();
        for _ in 0..50 {
            for (served, _) in &counts {
                grew(served);
            }
            p.target.resize_namespace(&nqn(SUBSYSTEM), 1, 63).expect("a size");
            for (_, refused) in &counts {
                grew(refused);
            }
            assert_eq!(admin.poll_response(Default::default()), None);
            p.target.resize_namespace(&nqn(SUBSYSTEM), 1, 64).expect("a size");
        }
        drop(admin);
        for thread in threads {
            assert_eq!(thread.join().expect("no panic"), End::ControllerGone);
        }
    });
    let served: u64 = counts.iter().map(|(served, _)| served.load(Ordering::Relaxed)).sum();
    assert_eq!(p.target.totals(&nqn(SUBSYSTEM)).expect("a subsystem").reads, served);
    assert_eq!(p.target.controllers(), (0, 0));
}
