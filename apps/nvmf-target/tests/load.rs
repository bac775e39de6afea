//! A load with every byte checked.

use std::time::{Duration, Instant};

use nvmf_target::host::{Controller, Host, HostError, Options};
use nvmf_target::perf::{Load, PerfError, Report, run};
use verbs::port::fault::{Fault, Plan};

use crate::common::{SUBSYSTEM, Setup, View, nqn, with_target};

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
            let report = run(&mut host, &mut controller, &namespaces[0], &load).unwrap();
            assert!(report.commands >= 2000, "{report:?}");
            assert!((1000..2000).contains(&report.checked), "sixty of a hundred: {}", report.checked);
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
                Err(PerfError::Host(e @ (HostError::Status { .. } | HostError::Misfit(_)))) => panic!("{e}"),
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
    let report = run(host, &mut controller, &namespaces[0], load)?;
    controller.shutdown(host)?;
    Ok(report)
}
