//! Instruction counts: the same on a busy machine as on a quiet one.
//!
//! A small program runs a scenario of [`path`](crate::path) under `valgrind --tool=callgrind`, which counts the
//! instructions of the six steps and of nothing else. [`gate`] compares the counts with committed ones; [`budget`]
//! splits them into stages. Valgrind emulates a processor with AVX2 and without AVX-512, so what is counted are the
//! code paths for such a one, on every machine that has at least that.

pub mod budget;
pub mod gate;
pub mod profile;
pub mod stages;
pub mod valgrind;
