//! Every short sequence of operations, for tests that go through all of them.

/// Every sequence of `len` numbers below `base`.
pub fn sequences(base: usize, len: u32) -> impl Iterator<Item = impl Iterator<Item = usize> + Clone> {
    (0..base.pow(len)).map(move |n| (0..len).map(move |at| n / base.pow(at) % base))
}

#[test]
fn each_sequence_comes_once() {
    let all: Vec<Vec<usize>> = sequences(2, 3).map(Iterator::collect).collect();
    assert_eq!(all.len(), 8);
    assert!((0..8).all(|n| all.contains(&vec![n / 4, n / 2 % 2, n % 2])));
}
