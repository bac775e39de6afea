//! Queues between threads. Rings, completion lanes, doorbells and published words: who may write what is in
//! the type. Called by `shard` on one side and by the objects of `device` on the other.

pub mod words;
