//! Instruction counts: the same on a busy machine as on a quiet one.
//!
//! A small program runs a scenario of [`path`](crate::path) under `valgrind --tool=callgrind`, which counts the instructions
//! of the six steps only. [`gate`] compares the counts with committed ones; [`budget`] splits them into stages. Valgrind
//! emulates a processor with AVX2 and without AVX-512, so the code paths for such a processor are counted, on every machine
//! with at least these features.

pub mod budget;
pub mod gate;
pub mod profile;
pub mod stages;
pub mod valgrind;
