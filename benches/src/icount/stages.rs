//! The stages of a packet's path, by functions and files: the only place that knows their names.

use std::collections::BTreeMap;

use super::profile::{CodeSite, Profile};

/// A stage of a packet's path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// `post_send` and `post_recv`.
    Post,
    /// Choosing the next packet, and its headers.
    Build,
    /// The checksum, computed and checked.
    Icrc,
    /// Payload from registered memory into a packet.
    Copy,
    /// A frame from the pool, and frames to the port.
    PortTx,
    /// Frames from the port, and back to the pool.
    PortRx,
    /// From bytes to a packet of a queue pair.
    Parse,
    /// The specification's checks of a packet, at either end.
    Verify,
    /// Payload from a packet into registered memory.
    Place,
    /// Writing completions.
    Complete,
    /// Polling completions, in the program.
    Poll,
    /// The cost of a turn that does not depend on its packets: each packet's share in a burst.
    Loop,
    /// Code that this table does not list.
    Other,
}

impl Stage {
    /// Every stage, in the order of a packet's path.
    pub const ALL: [Self; 13] = [
        Self::Post,
        Self::Build,
        Self::Icrc,
        Self::Copy,
        Self::PortTx,
        Self::PortRx,
        Self::Parse,
        Self::Verify,
        Self::Place,
        Self::Complete,
        Self::Poll,
        Self::Loop,
        Self::Other,
    ];

    /// Its name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Post => "post",
            Self::Build => "build",
            Self::Icrc => "ICRC",
            Self::Copy => "copy",
            Self::PortTx => "port tx",
            Self::PortRx => "port rx",
            Self::Parse => "parse",
            Self::Verify => "verify",
            Self::Place => "place",
            Self::Complete => "complete",
            Self::Poll => "poll",
            Self::Loop => "loop",
            Self::Other => "other",
        }
    }
}

/// Functions, by a part of their symbol. These rules come first.
#[rustfmt::skip]
const FUNCTIONS: &[(&str, Stage)] = &[
    ("crc32fast",    Stage::Icrc),
    ("icrc::",       Stage::Icrc),
    ("clmul::",      Stage::Icrc),
    ("crc::",        Stage::Icrc),
    ("::tx_burst",   Stage::PortTx),
    ("Pool::alloc",  Stage::PortTx),
    ("Queue as stack::port::PortQueue>::alloc", Stage::PortTx),
    ("Outbox::flush", Stage::PortTx),
    ("::rx_burst",   Stage::PortRx),
    ("::recycle",    Stage::PortRx),
    ("frame::free",  Stage::PortRx),
];

/// Files, by the end of their path or by their folder. A line of a file that is not listed is attributed to the file around
/// it.
#[rustfmt::skip]
const FILES: &[(&str, Stage)] = &[
    ("proto/requester.rs",   Stage::Build),
    ("proto/requester/",     Stage::Build),
    ("shard/tx.rs",          Stage::Build),
    ("shard/tx/",            Stage::Build),
    ("wire/template.rs",     Stage::Build),
    ("wire/icrc.rs",         Stage::Icrc),
    ("wire/clmul.rs",        Stage::Icrc),
    ("src/crc.rs",           Stage::Icrc),
    ("src/port/",            Stage::PortTx),
    ("shard/rx.rs",          Stage::Parse),
    ("shard/rx/burst.rs",    Stage::Loop),
    ("shard/rx/",            Stage::Verify),
    ("shard/qps.rs",         Stage::Parse),
    ("wire/locate.rs",       Stage::Parse),
    ("wire/packet.rs",       Stage::Parse),
    ("wire/flow.rs",         Stage::Parse),
    ("shard/qp_table.rs",    Stage::Parse),
    ("proto/responder.rs",   Stage::Verify),
    ("proto/responder/",     Stage::Verify),
    ("proto/completer.rs",   Stage::Verify),
    ("shard/rq.rs",          Stage::Verify),
    ("shard/completions.rs", Stage::Complete),
    ("shard/deferred.rs",    Stage::Complete),
    ("shard/complete.rs",    Stage::Complete),
    ("shard/cq.rs",          Stage::Complete),
    ("sync/lanes.rs",        Stage::Complete),
    ("shard/poll.rs",        Stage::Loop),
    ("shard/posts.rs",       Stage::Loop),
    ("shard/lookahead.rs",   Stage::Loop),
    ("shard/agenda.rs",      Stage::Loop),
    ("shard/corrections.rs", Stage::Loop),
    ("shard/wheel.rs",       Stage::Loop),
    ("sync/doorbell.rs",     Stage::Loop),
    ("sync/claim.rs",        Stage::Loop),
    ("src/device/",          Stage::Loop),
    ("src/net/",             Stage::Loop),
    ("verbs/src/reactor.rs", Stage::Loop),
    ("benches/src/path.rs",  Stage::Loop),
];

/// The code that accesses registered memory, and the library functions that do it. Whether that is a copy into a packet or a
/// placement depends on the end.
const COPY: &str = "shard/copy.rs";
const COPIES: &[&str] = &["memcpy", "memmove"];

/// Levels of callers that are searched for one of this project.
const DEPTH: usize = 6;

/// Whether costs may be attributed to this file.
pub fn known(file: &str) -> bool {
    file.ends_with(COPY) || FILES.iter().any(|(part, _)| file.contains(part))
}

/// The stage of a site by the tables, where copying payload means `copying`; `None` for code of other projects.
fn of(site: &CodeSite, copying: Stage) -> Option<Stage> {
    if let Some((_, stage)) = FUNCTIONS.iter().find(|(part, _)| site.function.contains(part)) {
        return Some(*stage);
    }
    if site.file.ends_with(COPY) {
        return Some(copying);
    }
    FILES.iter().find(|(part, _)| site.file.contains(part)).map(|(_, stage)| *stage)
}

/// Instructions of each stage. The cost of a library function (a copy, a queue) is attributed to the stages that call it, in
/// proportion. `copying` is the stage of payload copies at this end: [`Stage::Copy`] or [`Stage::Place`].
pub fn split(profile: &Profile, copying: Stage) -> BTreeMap<Stage, f64> {
    let mut out = BTreeMap::new();
    for (site, &cost) in &profile.own {
        for (stage, share) in shares(profile, site, copying, DEPTH) {
            *out.entry(stage).or_default() += share * cost as f64;
        }
    }
    out
}

/// The stages of a site, with the share of each; the shares sum up to 1.
fn shares(profile: &Profile, site: &CodeSite, copying: Stage, depth: usize) -> Vec<(Stage, f64)> {
    if let Some(stage) = of(site, copying) {
        return vec![(stage, 1.0)];
    }
    let callers = || profile.calls.iter().filter(|call| call.to == site.function && call.cost > 0);
    let total: u64 = callers().map(|call| call.cost).sum();
    if total == 0 || depth == 0 {
        return vec![(Stage::Other, 1.0)];
    }
    let each = callers().flat_map(|call| {
        let weight = call.cost as f64 / total as f64;
        let copies = COPIES.iter().any(|part| site.function.contains(part));
        let caller = match copies && call.from.function.contains("stack::") {
            true => vec![(copying, 1.0)],
            false => shares(profile, &call.from, copying, depth - 1),
        };
        caller.into_iter().map(move |(stage, share)| (stage, share * weight))
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::super::profile::Call;
    use super::*;

    fn site(function: &str, file: &str) -> CodeSite {
        CodeSite { function: function.into(), file: file.into() }
    }

    #[test]
    fn a_function_goes_before_its_file() {
        let of = |function, file| of(&site(function, file), Stage::Copy);
        assert_eq!(of("stack::port::pair::Q::rx_burst", "stack/src/port/pair.rs"), Some(Stage::PortRx));
        assert_eq!(of("crc32fast::x::calculate", ""), Some(Stage::Icrc));
        assert_eq!(of("stack::shard::turn", "stack/src/proto/requester.rs"), Some(Stage::Build));
        assert_eq!(of("memcpy", ""), None);
    }

    #[test]
    fn what_a_library_costs_belongs_to_its_callers() {
        let mut profile = Profile::default();
        profile.own.insert(site("queue::push", ""), 100);
        profile.own.insert(site("stack::shard::poll::turn", "stack/src/shard/poll.rs"), 10);
        for (file, cost) in [("stack/src/shard/tx.rs", 75), ("stack/src/shard/rx.rs", 25)] {
            profile.calls.push(Call { from: site("stack::f", file), to: "queue::push".into(), cost });
        }
        let stages = split(&profile, Stage::Copy);
        assert_eq!((stages[&Stage::Build], stages[&Stage::Parse], stages[&Stage::Loop]), (75.0, 25.0, 10.0));
        assert_eq!(stages.values().sum::<f64>(), profile.total() as f64, "nothing is lost");
    }

    #[test]
    fn payload_is_copied_or_placed_by_the_end_wherever_that_was_inlined() {
        let mut profile = Profile::default();
        profile.own.insert(site("memcpy", ""), 60);
        profile.own.insert(site("stack::shard::poll::turn", "stack/src/shard/copy.rs"), 4);
        let from = site("stack::shard::poll::turn", "stack/src/shard/poll.rs");
        profile.calls.push(Call { from, to: "memcpy".into(), cost: 60 });
        for end in [Stage::Copy, Stage::Place] {
            assert_eq!(split(&profile, end), BTreeMap::from([(end, 64.0)]));
        }
    }

    #[test]
    fn unlisted_code_counts_as_other() {
        let mut profile = Profile::default();
        profile.own.insert(site("unlisted", ""), 7);
        assert_eq!(split(&profile, Stage::Copy)[&Stage::Other], 7.0);
    }
}
