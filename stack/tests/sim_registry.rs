//! Random lives of a host's processes, one seed each: no run is leased twice, all living members are in one registry, and runs rest
//! before they are reused. `REGISTRY_SEEDS=<n>` runs n seeds, from `REGISTRY_FIRST` on.

use sim::registry::host::Plant;
use sim::registry::{Report, Weather, run};
use std::collections::BTreeMap;

const CALM: Weather = Weather {
    starts: 200,
    runs: 24,
    stops: false,
    forks: false,
    madness: false,
    squatters: false,
    plant: None,
};

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a number, not {text:?}")))
}

fn weather(seed: u64) -> Weather {
    let bit = |n: u64| seed >> n & 1 == 1;
    let runs = if bit(4) { 14 } else { 24 };
    Weather { runs, stops: bit(0), forks: bit(1), madness: bit(2), squatters: bit(3), ..CALM }
}

fn add(all: &mut Report, one: &Report) {
    all.starts += one.starts;
    all.joins += one.joins;
    all.leases += one.leases;
    all.unrested += one.unrested;
    all.births += one.births;
    all.kills += one.kills;
    one.errors.iter().for_each(|(error, n)| *all.errors.entry(error.clone()).or_default() += n);
}

#[test]
fn processes_that_come_and_go_have_one_registry_and_runs_of_their_own() {
    let first = number("REGISTRY_FIRST").unwrap_or(0);
    let seeds = number("REGISTRY_SEEDS").unwrap_or(32);
    let mut all = Report::default();
    for seed in first..first + seeds {
        let weather = weather(seed);
        let report = run(seed, weather).unwrap_or_else(|why| {
            panic!("{why}\nREGISTRY_SEEDS=1 REGISTRY_FIRST={seed} repeats it: {weather:?}")
        });
        // Only stopped or misbehaving members keep others out.
        if !weather.stops && !weather.madness {
            let kept_out =
                report.errors.keys().find(|error| ["NoAnswer", "Unfinished"].contains(&error.as_str()));
            assert_eq!(kept_out, None, "seed {seed}: {report:?}");
        }
        add(&mut all, &report);
    }
    println!("{all:?}");
    if seeds >= 32 {
        assert!(all.starts >= 6000 && all.joins > 2000 && all.births > 100 && all.kills > 1000, "{all:?}");
        assert!(all.unrested > 10 && all.leases > all.joins, "{all:?}");
    }
}

#[test]
fn a_seed_that_runs_again_does_the_same() {
    let runs = [(); 2].map(|()| format!("{:?}", run(7, weather(7)).unwrap()));
    assert_eq!(runs[0], runs[1]);
}

// Goal: the checkers detect the violations that they check for.
#[test]
fn each_planted_mistake_is_seen() {
    let plants = BTreeMap::from([
        ("have run", Plant::NamesAreShared),
        ("are in two registries", Plant::BirthsAreUnseen),
        ("which rests", Plant::NoRest),
    ]);
    for (what, plant) in plants {
        let mut seen =
            (0..200).filter_map(|seed| run(seed, Weather { plant: Some(plant), runs: 14, ..CALM }).err());
        assert!(seen.any(|seen| seen.contains(what)), "{plant:?} is not seen");
    }
}
