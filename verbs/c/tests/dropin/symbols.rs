//! Symbols: each has its version, none is missing or too many, and every one is called by a program of the tests.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use crate::{Dir, HELPERS, PROGRAMS, compile, library, sources};

/// Rows of a file's table of dynamic symbols: type, section, and name with version.
fn table(file: &Path) -> Vec<(String, String, String)> {
    let output =
        Command::new("readelf").args(["-W", "--dyn-syms"]).arg(file).output().expect("readelf is there");
    let text = String::from_utf8(output.stdout).expect("readelf writes text");
    let rows = text.lines().filter_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        // Num: Value Size Type Bind Vis Ndx Name
        Some((fields.get(3)?.to_string(), fields.get(6)?.to_string(), fields.get(7)?.to_string()))
    });
    rows.collect()
}

/// The number of the private node of the library.
pub(crate) fn private_node(library: &Path) -> String {
    let ours = symbols(&library.join("libibverbs.so.1"));
    let node = ours.get("ibv_query_gid_type").expect("the private node has it");
    node.rsplit('_').next().expect("a node has a number").to_string()
}

/// Symbols that a library defines, with their versions; those that only old programs have (`@`, not `@@`) aside.
pub(crate) fn symbols(library: &Path) -> BTreeMap<String, String> {
    let defined = table(library).into_iter().filter(|(kind, section, _)| {
        matches!(kind.as_str(), "FUNC" | "OBJECT" | "TLS" | "IFUNC") && section != "UND" && section != "ABS"
    });
    defined
        .filter_map(|(_, _, name)| match name.split_once("@@") {
            Some((name, version)) => Some((name.to_string(), version.to_string())),
            None if name.contains('@') => None,
            None => Some((name, "none".into())),
        })
        .collect()
}

/// Symbols that a library has for programs of other releases (`@`, not `@@`): the version, and the name.
pub(crate) fn others(library: &Path) -> BTreeSet<(String, String)> {
    let names =
        table(library).into_iter().filter(|(_, section, _)| section != "UND").map(|(_, _, name)| name);
    let other = |name: String| match name.split_once('@') {
        Some((name, version)) if !version.starts_with('@') => Some((version.to_string(), name.to_string())),
        _ => None,
    };
    names.filter_map(other).collect()
}

#[test]
fn every_symbol_has_its_version_and_there_are_no_others() {
    let Some(library) = library() else { return };
    let ours = symbols(&library.join("libibverbs.so.1"));
    let list = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("abi/symbols")).unwrap();
    let number = private_node(library);
    let private = format!("IBVERBS_PRIVATE_{number}");
    let listed: BTreeMap<String, String> = list
        .lines()
        .filter(|line| !line.starts_with('#') && !line.starts_with("OTHER"))
        .filter_map(|line| line.split_once(' '))
        .map(|(node, name)| match node {
            "PRIVATE" => (name.replace("_PRIVATE", &format!("_{number}")), private.clone()),
            node => (name.to_string(), node.to_string()),
        })
        .collect();
    assert!(listed.len() > 200);
    let beyond: Vec<_> = ours.iter().filter(|(name, node)| listed.get(*name) != Some(*node)).collect();
    let missing: Vec<_> = listed.iter().filter(|(name, node)| ours.get(*name) != Some(*node)).collect();
    assert!(beyond.is_empty() && missing.is_empty(), "not in the list: {beyond:?}; not there: {missing:?}");
}

// Goal: whatever cancellation point of libc the library comes to call, it is wrapped: also where no test gets to.
#[test]
fn every_cancellation_point_that_is_called_is_wrapped() {
    let Some(library) = library() else { return };
    let called: BTreeSet<String> = table(&library.join("libibverbs.so.1"))
        .into_iter()
        .filter(|(_, section, _)| section == "UND")
        .map(|(_, _, name)| name.split('@').next().unwrap_or_default().to_string())
        .collect();
    let points = std::fs::read_to_string(sources().join("points.c")).unwrap();
    let points: BTreeSet<_> =
        points.split("POINT(").skip(2).filter_map(|rest| rest.split(')').next()).collect();
    assert!(points.len() > 70 && points.contains("close"));
    let wrapped = Path::new(env!("CARGO_MANIFEST_DIR")).join("abi/cancellation-points");
    let wrapped = std::fs::read_to_string(wrapped).unwrap();
    let wrapped: BTreeSet<_> = wrapped.lines().collect();
    let bare: Vec<_> =
        points.iter().filter(|name| called.contains(**name) && !wrapped.contains(**name)).collect();
    // Calls that wait may be cancelled there.
    assert_eq!(bare, [&"epoll_pwait", &"ppoll"]);
}

#[test]
fn the_installed_libraries_have_no_symbol_that_is_not_here() {
    let Some(library) = library() else { return };
    let ours = symbols(&library.join("libibverbs.so.1"));
    let mut compared = 0;
    for name in ["libibverbs.so.1", "librdmacm.so.1"] {
        let places = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"];
        let Some(path) = places.iter().map(|dir| Path::new(dir).join(name)).find(|path| path.exists()) else {
            println!("SKIPPED comparing symbols: {name} is not installed");
            continue;
        };
        for (symbol, version) in symbols(&path) {
            compared += 1;
            assert_eq!(ours.get(&symbol), Some(&version), "{symbol} of {}", path.display());
        }
    }
    println!("{compared} symbols compared");
}

// A program of an older system finds everything that the library needs of it.
#[test]
fn the_library_needs_no_newer_libc_than_that_of_debian_12() {
    let Some(library) = library() else { return };
    let output =
        Command::new("readelf").args(["-W", "-V"]).arg(library.join("libibverbs.so.1")).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let versions = text.split_whitespace().filter_map(|word| word.strip_prefix("GLIBC_2."));
    let newest = versions.filter_map(|minor| minor.split('.').next()?.parse::<u32>().ok()).max();
    assert!(newest.is_some_and(|minor| minor <= 36), "GLIBC_2.{newest:?}");
}

/// Functions of the headers that no program has to call, and why.
const NEVER_CALLED: &[&str] = &[
    "ibv_static_providers", // for programs that are linked statically with drivers
    "ibv_memcpy_to_dm",     // needs device memory, of which there is none to be had
    "ibv_memcpy_from_dm",
    "ibv_post_wq_recv",  // needs a work queue, of which there is none to be had
    "ibv_wr_send_tso",   // needs a queue pair with segmentation offload, which is refused
    "ibv_wc_read_cvlan", // need fields of completions that are refused
    "ibv_wc_read_flow_tag",
    "ibv_wc_read_tm_info",
    "ibv_flow_label_to_udp_sport", // arithmetic of the header
    "rdma_seterrno",
    "ibv_wr_flush", // services.c calls what this calls: the headers of earlier releases have no such function
];

// A call that is not tried may do anything.
#[test]
fn every_symbol_is_called_by_a_program() {
    let Some(library) = library() else { return };
    let dir = Dir::new("called");
    let mut called = BTreeSet::new();
    for source in PROGRAMS {
        // By version, because a program has a copy of a variable that it reads.
        let names = table(&compile(&dir, library, source)).into_iter().map(|(_, _, name)| name);
        called.extend(names.filter_map(|name| {
            let (name, version) = name.split_once('@')?;
            (version.contains("IBVERBS_") || version.contains("RDMACM_")).then(|| name.to_string())
        }));
    }
    let ours = symbols(&library.join("libibverbs.so.1"));
    let untried: Vec<_> = ours.keys().filter(|name| !called.contains(*name)).collect();
    assert!(untried.is_empty(), "no program of tests/c calls {untried:?}");
}

// Most calls are functions of the headers, which reach the library through tables.
#[test]
fn every_function_of_the_headers_is_called_by_a_program() {
    let include = std::env::var("ROCE_RDMA_INCLUDE").unwrap_or("/usr/include".into());
    let headers = ["infiniband/verbs.h", "rdma/rdma_cma.h", "rdma/rdma_verbs.h", "rdma/rsocket.h"];
    let mut functions = BTreeSet::new();
    for header in headers {
        let text = std::fs::read_to_string(Path::new(&include).join(header)).expect("the headers are there");
        functions.extend(called_names(&text).filter(|name| is_ours(name)).map(str::to_string));
    }
    assert!(functions.len() > 200, "only {} functions were found", functions.len());
    let programs: String =
        PROGRAMS.iter().map(|source| std::fs::read_to_string(sources().join(source)).unwrap()).collect();
    let helpers: String =
        HELPERS.iter().map(|header| std::fs::read_to_string(sources().join(header)).unwrap()).collect();
    let called: BTreeSet<_> = called_names(&programs).chain(called_names(&helpers)).collect();
    let untried: Vec<_> = functions
        .iter()
        .filter(|name| !called.contains(name.as_str()) && !NEVER_CALLED.contains(&name.as_str()))
        .collect();
    assert!(untried.is_empty(), "no program of tests/c calls {untried:?}");
    let stale: Vec<_> = NEVER_CALLED.iter().filter(|name| called.contains(**name)).collect();
    assert!(stale.is_empty(), "called after all: {stale:?}");
}

/// Names that a parenthesis follows.
fn called_names(text: &str) -> impl Iterator<Item = &str> {
    let inside = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.match_indices('(').filter_map(move |(at, _)| {
        let before = &text[..at];
        let name = before.rsplit(|c| !inside(c)).next()?;
        (!name.is_empty()).then_some(name)
    })
}

fn is_ours(name: &str) -> bool {
    let r = |name: &str| {
        let sockets = [
            "socket", "bind", "listen", "accept", "connect", "shutdown", "close", "recv", "send", "read",
            "write", "poll", "select",
        ];
        name.strip_prefix('r').is_some_and(|rest| sockets.iter().any(|call| rest.starts_with(call)))
    };
    let known = [
        "ibv_",
        "rdma_",
        "mult_to_ibv",
        "mbps_to_ibv",
        "riomap",
        "riounmap",
        "riowrite",
        "rget",
        "rset",
        "rfcntl",
    ];
    known.iter().any(|start| name.starts_with(start)) || r(name)
}
