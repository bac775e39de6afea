//! A namespace as a host understands it, against the one that it gets: random commands, every byte compared.

use nvmf::BackendError;
use nvmf::status::Status;
use nvmf::wire::io::DsmRange;
use nvmf::wire::{Sgl, Sqe, io_opcode};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromZeros, IntoBytes};

use crate::common::random::Random;
use crate::common::{KEY, MEMORY, Program, blocks, command, nqn};

/// What the host believes: whole blocks, and how many there are.
struct Model {
    blocks: Vec<[u8; 512]>,
}

impl Model {
    fn has(&self, slba: u64, count: u64) -> bool {
        (slba as u128 + count as u128) <= self.blocks.len() as u128
    }
    fn range(&mut self, slba: u64, count: u64) -> &mut [[u8; 512]] {
        &mut self.blocks[slba as usize..(slba + count) as usize]
    }
}

fn data(count: u64, random: &mut Random<'_>) -> Vec<u8> {
    let mut data = vec![0; count as usize * 512];
    data.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&random.next().to_le_bytes()));
    data
}

/// Some commands of one host on two queues.
fn run(seed: u64, seen: &mut [u32; 8]) {
    let mut random = Random::of_seed(seed);
    let random = &mut random;
    let size = 1 + random.below(200);
    let mut p = Program::new(size);
    let mut model = Model { blocks: vec![[0; 512]; size as usize] };
    let (_admin, cntlid) = p.admin();
    let mut queues = [p.io(cntlid, 1), p.io(cntlid, 2)];
    for _ in 0..200 {
        let io = &mut queues[random.below(2) as usize];
        let slba = random.below(size + 2);
        let count = 1 + random.below(24.min(size));
        let fails = random.once_in(10).then_some(BackendError::NotReady);
        let inside = model.has(slba, count);
        let status = match (inside, fails) {
            (false, _) => Status::LbaOutOfRange,
            (true, Some(_)) => Status::NamespaceNotReady,
            (true, None) => Status::Success,
        };
        p.disk.fails = fails.filter(|_| inside);
        let done = status == Status::Success;
        let what = random.below(8);
        seen[what as usize] += done as u32;
        match what {
            0 | 1 => {
                let data = data(count, random);
                let sqe = blocks(io_opcode::WRITE, slba, count as u32);
                if random.once_in(2) && count <= 8 {
                    let sqe = Sqe { sgl: Sgl::in_capsule(0, data.len() as u32), ..sqe };
                    let response = p.capsule(io, &[sqe.as_bytes(), &data].concat()).unwrap().unwrap();
                    assert_eq!(response.cqe.status.get(), status.field());
                } else {
                    p.expect(io, &sqe, &data, status);
                }
                if done {
                    model.range(slba, count).as_flattened_mut().copy_from_slice(&data);
                }
            }
            2 | 3 => {
                let len = count as usize * 512;
                p.memory[..len].fill(0xa5);
                p.expect(io, &blocks(io_opcode::READ, slba, count as u32), &[], status);
                if done {
                    assert_eq!(p.memory[..len], *model.range(slba, count).as_flattened(), "seed {seed}");
                }
            }
            4 => {
                p.expect(io, &blocks(io_opcode::WRITE_ZEROES, slba, count as u32), &[], status);
                if done {
                    model.range(slba, count).fill([0; 512]);
                }
            }
            5 => {
                let mut data = if inside {
                    model.range(slba, count).as_flattened().to_vec()
                } else {
                    data(count, random)
                };
                let differs = random.once_in(2);
                let at = random.below(data.len() as u64) as usize;
                data[at] ^= differs as u8;
                let status = if done && differs { Status::CompareFailure } else { status };
                p.expect(io, &blocks(io_opcode::COMPARE, slba, count as u32), &data, status);
            }
            6 => {
                let second = (random.below(size), 1);
                let ranges = [(slba, count), second].map(|(slba, blocks)| DsmRange {
                    slba: U64::new(slba),
                    blocks: U32::new(blocks as u32),
                    ..DsmRange::new_zeroed()
                });
                let sqe = Sqe {
                    sgl: Sgl::keyed(MEMORY, 4096, KEY, true),
                    cdw10: U32::new(1),
                    cdw11: U32::new(4),
                    ..command(io_opcode::DATASET_MANAGEMENT, 1)
                };
                // The second range may be beyond the end too, of a namespace that was made smaller.
                let inside = inside && model.has(second.0, second.1);
                let status = if inside { status } else { Status::LbaOutOfRange };
                p.disk.fails = p.disk.fails.filter(|_| inside);
                p.expect(io, &sqe, ranges.as_bytes(), status);
                if status == Status::Success {
                    model.range(slba, count).fill([0; 512]);
                    model.range(second.0, second.1).fill([0; 512]);
                }
            }
            _ => {
                // It shrinks and grows; what was cut off is gone.
                p.disk.fails = None;
                let blocks = 1 + random.below(size);
                p.target.resize_namespace(&nqn(crate::common::SUBSYSTEM), 1, blocks).unwrap();
                p.disk.bytes[blocks as usize * 512..].fill(0);
                model.blocks.resize(blocks as usize, [0; 512]);
            }
        }
        let now = model.blocks.as_flattened();
        assert_eq!(p.disk.bytes[..now.len()], *now, "seed {seed}");
        assert!(p.disk.bytes[now.len()..].iter().all(|&b| b == 0), "seed {seed}: beyond the end");
    }
}

#[test]
fn what_is_read_is_what_was_written() {
    let mut seen = [0; 8];
    for seed in 0..100 {
        run(seed, &mut seen);
    }
    assert!(seen.iter().all(|&n| n > 100), "each command succeeded often: {seen:?}");
}
