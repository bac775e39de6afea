//! A load with every byte checked.

use std::sync::Arc;
use std::time::{Duration, Instant};

use nvmf_target::host::{Controller, Host, HostError, Options};
use nvmf_target::perf::{Load, PerfError, Report, run};
use verbs::port::fault::rng::Rng;
use verbs::port::fault::{Fault, Plan};

use crate::common::{BLOCK, SUBSYSTEM, Setup, View, nqn, with_target};
use crate::world::disk::{Disk, Lie, Moods};

#[test]
fn reads_under_load_return_what_was_written() {
    for (size, in_capsule) in [(4096, true), (4096, false), (128 << 10, true)] {
        with_target(&Setup::default(), |view| {
            let mut host = view.host(1);
            let options = Options { queues: 2, ..Options::default() };
            let mut controller = Controller::connect(&mut host, view.at, &nqn(SUBSYSTEM), options).unwrap();
            let namespaces = controller.namespaces(&mut host).unwrap();
            let load = Load {
                queues: 2,
                depth: 16,
                size,
                read_percent: 60,
                count: Some(2000),
                verify: true,
                span: 2 << 20,
                in_capsule,
                ..Load::default()
            };
            let report = run(&mut host, &mut controller, &namespaces[0], &load, &mut |_, _| {}).unwrap();
            assert!(report.commands >= 2000, "{report:?}");
            let under_load = report.checked - (load.span / size as u64);
            assert!((1000..2000).contains(&under_load), "sixty of a hundred: {}", report.checked);
            controller.shutdown(&mut host).unwrap();
            view.until_nothing_is_left(&mut host);
        });
    }
}

// Goal: data are right where one frame in a thousand is lost and the link goes away now and then, for as long as NVMF_SECONDS says.
// A host whose connection does not survive that connects anew.
#[test]
fn data_are_right_over_a_link_that_loses_frames_and_goes_away() {
    let seconds = std::env::var("NVMF_SECONDS").map_or(1, |n| n.parse().expect("NVMF_SECONDS is a number"));
    // The port's time are its calls: some tens of thousands of them without a frame.
    let plan = Plan { hole: Duration::from_millis(30), ..Plan::CLEAN };
    let faults = plan.with(Fault::Loss, 1000).with(Fault::Blackhole, 20);
    with_target(&Setup { faults, ..Setup::default() }, |view| {
        let mut host = view.host(1);
        let since = Instant::now();
        let (mut rounds, mut checked, mut failed, mut in_a_row) = (0, 0, 0, 0);
        let is_enough = |rounds: usize| {
            let flaps = view.met.count(Fault::Blackhole);
            rounds > 0 && flaps > 0 && since.elapsed() >= Duration::from_secs(seconds)
        };
        while !is_enough(rounds) {
            let load = Load {
                depth: 16,
                size: [4096, 512, 128 << 10, 16 << 10][rounds % 4],
                read_percent: 60,
                count: Some(3000),
                verify: true,
                ..Load::default()
            };
            match round(view, &mut host, &load) {
                Ok(report) => {
                    assert!(report.checked > 1000, "sixty of a hundred: {}", report.checked);
                    (rounds, in_a_row) = (rounds + 1, 0);
                    checked += report.checked;
                }
                Err(PerfError::Host(e @ (HostError::Status { .. } | HostError::ProtocolViolation(_)))) => {
                    panic!("{e}")
                }
                // The link was away for too long.
                Err(e @ (PerfError::Host(_) | PerfError::Stuck)) => {
                    println!("a round is cut off: {e}");
                    (failed, in_a_row) = (failed + 1, in_a_row + 1);
                    assert!(in_a_row < 20, "{e}");
                }
                Err(e) => panic!("{e}"),
            }
        }
        view.until_nothing_is_left(&mut host);
        let (stats, flaps) = (view.context.port_stats(), view.met.count(Fault::Blackhole));
        let lost = stats.rx_dropped + stats.tx_dropped;
        let commands = view.count("capsules");
        println!(
            "{commands} commands in {rounds} rounds, {checked} reads checked; {lost} frames lost, the link away {flaps} times, \
             {failed} rounds cut off by that"
        );
        assert!(lost > flaps, "{lost} frames lost");
    });
}

fn round(view: &View, host: &mut Host<'_>, load: &Load) -> Result<Report, PerfError> {
    let options = Options { queues: load.queues, ..Options::default() };
    let mut controller = Controller::connect(host, view.at, &nqn(SUBSYSTEM), options)?;
    let namespaces = controller.namespaces(host)?;
    let report = run(host, &mut controller, &namespaces[0], load, &mut |_, _| {})?;
    controller.shutdown(host)?;
    Ok(report)
}

/// A load with every byte checked, on a disk in these moods.
fn on_a_disk(moods: Moods, seed: u64, load: &Load) -> Result<Report, PerfError> {
    let blocks: Arc<Disk> = Arc::new(Disk::new(BYTES, moods, Rng::new(seed)));
    let setup = Setup { blocks: Some(blocks), bytes: BYTES, ..Setup::default() };
    let mut outcome = None;
    with_target(&setup, |view| outcome = Some(round(view, &mut view.host(1), load)));
    outcome.expect("it ran")
}
/// Bytes of the disk, of a command, and commands that cover the disk.
const BYTES: usize = 512 << 10;
const SIZE: usize = 8 * BLOCK;
const UNITS: u64 = (BYTES / SIZE) as u64;

const PLANTED: [Lie; 7] = [
    Lie::LosesWrites,
    Lie::MisplacesWrites,
    Lie::RepeatsWrites,
    Lie::CutsWrites,
    Lie::TearsBlocks,
    Lie::ServesOldBlocks,
    Lie::FlipsBits,
];
/// What the check says of what it found.
const FOUND: [&str; 4] = ["gave what write ", "gave zeros", "gave what this run has not written", " alone"];

fn seeds() -> u64 {
    std::env::var("PLANTED_SEEDS").map_or(2, |n| n.parse().expect("PLANTED_SEEDS is a number"))
}
fn assert_found(outcome: Result<Report, PerfError>, lie: Lie, seed: u64) {
    match outcome {
        Err(PerfError::Wrong(what)) => {
            let says = FOUND.iter().any(|words| what.contains(words)) && what.contains("is wrong from byte");
            assert!(says, "{lie:?}, seed {seed}: {what}");
        }
        Err(e) => panic!("a disk that {lie:?}, seed {seed}: {e}"),
        Ok(report) => panic!("a disk that {lie:?}, seed {seed}: {} reads were right", report.checked),
    }
}

// Goal: a disk that loses, misplaces, cuts, tears or repeats writes, or serves what was there before, is found out under load, also
// where commands of one block are under way together; and one that does not is not.
#[test]
fn a_load_finds_out_a_disk_that_loses_tears_or_serves_old_blocks() {
    for seed in 0..seeds() {
        let load = Load {
            queues: 2,
            depth: 16,
            size: SIZE,
            read_percent: 50,
            count: Some(2000),
            verify: true,
            ..Load::default()
        };
        let report = on_a_disk(Moods::GOOD, seed, &load).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        assert!(report.checked > 900 + UNITS, "{} reads", report.checked);
        // Few blocks, each often written: there a write that comes once more comes after others of its block.
        let narrow = Load { queues: 1, depth: 2, span: 8 * SIZE as u64, ..load.clone() };
        for lie in PLANTED {
            let moods = Moods { lie: Some(lie), lies_one_in: 20, ..Moods::GOOD };
            let load = if lie == Lie::RepeatsWrites { &narrow } else { &load };
            assert_found(on_a_disk(moods, seed, load), lie, seed);
        }
    }
}

// Goal: a single one is found out too, also when the load itself reads nothing.
#[test]
fn one_write_that_is_lost_or_torn_is_found_out_at_the_end() {
    // A write that comes once more is no mistake here: nobody writes its block in between.
    let planted = || PLANTED.into_iter().filter(|lie| *lie != Lie::RepeatsWrites);
    for seed in 0..seeds() {
        for lie in planted() {
            let sequential = Load {
                queues: 1,
                depth: 4,
                size: SIZE,
                read_percent: 0,
                sequential: true,
                count: Some(2 * UNITS),
                verify: true,
                ..Load::default()
            };
            // In the last round of writes over the disk, and behind what the commands that are under way at its end write again.
            let honest = 2 * UNITS + 16 + seed % (UNITS - 32);
            let moods = Moods { lie: Some(lie), lies_one_in: 1, lies_most: 1, honest, ..Moods::GOOD };
            assert_found(on_a_disk(moods, seed, &sequential), lie, seed);
        }
    }
}
