//! Synchronisation of threads: lock-free rings, completion lanes and doorbells; claims and sleepers.
//!
//! Defines which thread may access which slot when, so that one thread may read what another wrote. Rings, lanes and doorbells
//! never block, and allocate only when they are made or resized; claims, exclusive ends and sleepers wait. Nothing here reads a
//! clock or knows of packets or verbs. Called by posters and pollers on one side and by the shard that owns the other end.
//!
//! `unsafe` is in [`apart`], [`spsc`], [`claim`], [`asymmetric`], [`eventfd`], [`huge`], [`prefetch`], [`process`],
//! [`scheduling`] and [`unforked`]; [`lanes`] is built on rings, [`doorbell`], [`news`] and [`srq`] on atomics alone.

pub mod alarm;
pub mod apart;
pub mod asymmetric;
pub mod claim;
pub mod doorbell;
pub mod eventfd;
pub mod exclusive;
pub mod huge;
pub mod lanes;
pub mod lock;
pub mod news;
pub mod prefetch;
pub(crate) mod primitive;
pub mod process;
pub mod scheduling;
#[cfg(all(test, not(loom)))]
pub(crate) mod sequences;
pub mod sleeper;
pub mod spsc;
pub mod srq;
pub mod unforked;
pub mod words;
pub mod worker;
