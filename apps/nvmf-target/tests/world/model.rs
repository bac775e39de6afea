//! What each block of a namespace may hold: the judge of every read.

use std::ops::Range;

use crate::common::BLOCK;

/// The content that a command writes: the number of the command; zeros are 0.
pub type Version = u32;

/// A content that a loss of power may leave.
#[derive(Clone, Copy, Debug)]
struct Left {
    version: Version,
    /// When its command was over; none while it is under way.
    over: Option<u64>,
    /// It succeeded.
    sure: bool,
}

#[derive(Clone, Debug)]
struct Block {
    /// What a read may give now.
    may: Vec<Version>,
    /// What it may be after a loss of power, in the order in which it was written.
    left: Vec<Left>,
}

impl Block {
    /// A command is over that had begun.
    fn over(&mut self, version: Version, at: u64, sure: bool) {
        self.left.retain(|left| left.over.is_some() || left.version != version);
        self.left.push(Left { version, over: Some(at), sure });
    }
}

/// The blocks. No two commands that write a block are under way at once.
pub struct Model {
    blocks: Vec<Block>,
    /// Commands that are over, by which all else is ordered.
    overs: u64,
}

impl Model {
    /// Zeros.
    pub fn new(blocks: usize) -> Self {
        let zeros = Block { may: vec![0], left: vec![Left { version: 0, over: Some(0), sure: true }] };
        Self { blocks: vec![zeros; blocks], overs: 0 }
    }
    /// A moment: what was over before it, and what was not.
    pub fn now(&self) -> u64 {
        self.overs
    }
    /// A command that writes begins: a loss of power from here on may leave what it writes.
    pub fn begun(&mut self, range: Range<usize>, version: Version) {
        for block in &mut self.blocks[range] {
            block.left.push(Left { version, over: None, sure: false });
        }
    }
    /// It succeeded; with `fua` it is stable.
    pub fn written(&mut self, range: Range<usize>, version: Version, fua: bool) {
        self.overs += 1;
        for block in &mut self.blocks[range] {
            block.may = vec![version];
            block.over(version, self.overs, true);
            if fua {
                block.left.drain(..block.left.len() - 1);
            }
        }
    }
    /// It failed, or nobody knows how it ended: it may be there.
    pub fn may_be_written(&mut self, range: Range<usize>, version: Version) {
        self.overs += 1;
        for block in &mut self.blocks[range] {
            if !block.may.contains(&version) {
                block.may.push(version);
            }
            block.over(version, self.overs, false);
        }
    }
    /// A flush succeeded that was sent at that moment: what was certain then is stable.
    pub fn flushed(&mut self, sent: u64) {
        for block in &mut self.blocks {
            let certain = |left: &Left| left.sure && left.over.is_some_and(|over| over <= sent);
            if let Some(last) = block.left.iter().rposition(certain) {
                block.left.drain(..last);
            }
        }
    }
    /// Power was lost.
    pub fn lost_power(&mut self) {
        for block in &mut self.blocks {
            block.may = block.left.iter().map(|left| left.version).collect();
            block.left.iter_mut().for_each(|left| (left.over, left.sure) = (Some(0), false));
        }
    }
    /// A read gave these bytes. What was uncertain is known now.
    ///
    /// # Errors
    /// The first block that holds what it may not.
    pub fn read(&mut self, first: usize, bytes: &[u8]) -> Result<(), String> {
        for (n, content) in (first..).zip(bytes.chunks_exact(BLOCK)) {
            let block = &mut self.blocks[n];
            let Some(&version) = block.may.iter().find(|&&version| content == fill(n, version)) else {
                let seen = u32::from_le_bytes(content[4..8].try_into().expect("four bytes"));
                return Err(format!("block {n} may hold {:?}, and holds {seen}", block.may));
            };
            block.may = vec![version];
            // Nothing was written since the last loss: what is there is stable.
            if block.left.iter().all(|left| left.over == Some(0)) {
                block.left = vec![Left { version, over: Some(0), sure: true }];
            }
        }
        Ok(())
    }
    /// Whether what the blocks hold is certain.
    pub fn is_certain(&self, range: Range<usize>) -> bool {
        self.blocks[range].iter().all(|block| block.may.len() == 1)
    }
    /// The bytes of blocks that are certain.
    pub fn bytes(&self, range: Range<usize>) -> Vec<u8> {
        range.flat_map(|n| fill(n, self.blocks[n].may[0])).collect()
    }
}

/// The content of a block: its own in each byte, so that nothing can be in another's place.
pub fn fill(block: usize, version: Version) -> [u8; BLOCK] {
    let mut bytes = [0; BLOCK];
    if version > 0 {
        for (n, word) in bytes.chunks_exact_mut(8).enumerate() {
            word[..4].copy_from_slice(&((block as u32) << 8 | n as u32).to_le_bytes());
            word[4..].copy_from_slice(&version.to_le_bytes());
        }
    }
    bytes
}

// Goal: the judge says no to what is wrong.
#[test]
fn the_model_knows_what_is_lost() {
    let mut model = Model::new(4);
    model.begun(1..3, 7);
    model.written(1..3, 7, false);
    let sevens = [fill(1, 7), fill(2, 7)].concat();
    assert_eq!(model.read(1, &sevens), Ok(()));
    assert!(model.read(1, &[fill(2, 7), fill(1, 7)].concat()).is_err(), "blocks are in their places");
    assert!(model.read(1, &[0; BLOCK]).is_err(), "an acknowledged write is there");
    model.lost_power();
    assert!(!model.is_certain(1..2), "it was not flushed");
    assert_eq!(model.read(1, &fill(1, 0)), Ok(()));
    let mut model = Model::new(4);
    model.begun(0..1, 8);
    model.written(0..1, 8, false);
    model.flushed(model.now());
    model.begun(1..2, 9);
    model.written(1..2, 9, true);
    model.lost_power();
    assert_eq!(model.bytes(0..2), [fill(0, 8), fill(1, 9)].concat());
    assert!(model.read(0, &fill(0, 0)).is_err(), "a flushed write is there");
}
