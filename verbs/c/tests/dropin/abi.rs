//! The binary interface: what programs of each distribution, and of our last release, have compiled into them, by the lists in `abi`
//! that `scripts/abi` makes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use crate::symbols::{others, symbols};
use crate::{Dir, library, sources, text};

const LISTS: &[&str] = &["released", "debian-12", "debian-13", "ubuntu-24.04", "rdma-core-65"];
/// Structures that are larger in some release, and what becomes of programs that know the other size.
const GROWN: &[(&str, &str)] = &[
    ("ibv_port_attr", "a program says how much room it has"),
    (FROM_THE_END, "it says its size, by which programs know which of its functions there are"),
    ("ibv_qp_ex", "its last function is there for those who know of it, whatever the headers at hand"),
];

/// The structure that grows at its beginning: programs have a pointer to what is last in it.
const FROM_THE_END: &str = "verbs_context";

/// A structure: its size, and where its members are.
#[derive(PartialEq, Eq, Debug)]
struct Layout {
    size: usize,
    members: BTreeMap<String, usize>,
}

type Layouts = BTreeMap<String, Layout>;

/// The lines of a list that begin with a word, without it.
fn lines(list: &str, word: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("abi").join(list);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let lines = text.lines().filter_map(|line| line.strip_prefix(word)?.strip_prefix(' '));
    lines.map(str::to_string).collect()
}

fn layouts(list: &str) -> Layouts {
    let layout = |line: &String| {
        let mut words = line.split(' ');
        let (name, size) = (words.next()?.to_string(), words.next()?.parse().ok()?);
        let members = words.filter_map(|word| word.split_once(':'));
        let members = members.map(|(name, at)| (name.to_string(), at.parse().expect("an offset"))).collect();
        Some((name, Layout { size, members }))
    };
    lines(list, "layout").iter().filter_map(layout).collect()
}

/// The structures of the headers at hand, by what the compiler asserts of the bindings.
fn layouts_here() -> Layouts {
    let text = std::fs::read_to_string(Path::new(env!("OUT_DIR")).join("bindings.rs")).unwrap();
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut found = Layouts::new();
    for assertion in text.split("];") {
        let Some((_, number)) = assertion.rsplit_once(" - ") else { continue };
        let Some(number) = number.strip_suffix("usize").and_then(|number| number.parse().ok()) else {
            continue;
        };
        if let Some((_, rest)) = assertion.split_once("[\"Size of ") {
            let name = rest.split('"').next().unwrap_or_default();
            found.insert(name.into(), Layout { size: number, members: BTreeMap::new() });
        } else if let Some((_, rest)) = assertion.split_once("[\"Offset of field: ") {
            let Some((name, member)) = rest.split('"').next().unwrap_or_default().split_once("::") else {
                continue;
            };
            // bindgen appends an underscore to keywords of Rust.
            let member = member.trim_end_matches('_').to_string();
            found.get_mut(name).expect("its size stands before").members.insert(member, number);
        }
    }
    found
}

#[test]
fn every_symbol_of_every_release_is_there() {
    let Some(library) = library() else { return };
    let library = library.join("libibverbs.so.1");
    let (ours, others) = (symbols(&library), others(&library));
    for list in LISTS {
        let symbols = lines(list, "symbol");
        assert!(symbols.len() > 200, "{list} has {} symbols", symbols.len());
        let missing: Vec<_> = symbols
            .iter()
            .filter(|line| {
                let (node, name) = line.split_once(' ').expect("a node and a name");
                ours.get(name).is_none_or(|ours| ours != node)
                    && !others.contains(&(node.to_string(), name.to_string()))
            })
            .collect();
        assert!(missing.is_empty(), "{list} has what the library does not have: {missing:?}");
    }
}

#[test]
fn every_structure_is_as_in_every_release() {
    let here = layouts_here();
    let mut grown = BTreeSet::new();
    for list in LISTS {
        let listed = layouts(list);
        for (name, Layout { size, members }) in &listed {
            let here = here.get(name).unwrap_or_else(|| panic!("{list}: the headers at hand have no {name}"));
            let shift = if name == FROM_THE_END { size.wrapping_sub(here.size) } else { 0 };
            for (member, at) in members {
                if let Some(here) = here.members.get(member) {
                    assert_eq!(here.wrapping_add(shift), *at, "{list}: {name}.{member}");
                }
            }
            if *size != here.size {
                assert!(
                    GROWN.iter().any(|(known, _)| known == name),
                    "{list}: {name} has {size} bytes, and {} here: say in GROWN what becomes of programs",
                    here.size
                );
                grown.insert(name.clone());
            }
        }
    }
    assert!(layouts("released").len() > 80, "the list of our release has every structure");
    println!("of another size somewhere: {grown:?}");
}

#[test]
fn a_structure_that_moved_is_seen() {
    let here = layouts_here();
    let qp = &here["ibv_qp"];
    assert_eq!((qp.size, qp.members["qp_num"]), (160, 52));
    assert_eq!(layouts("released")["ibv_qp"].members["qp_num"], 52);
    assert_eq!(here["ibv_context"].members["ops"], 8);
}

/// Compiles the file of the tests for programs of later releases.
fn cc(dir: &Dir, args: &[&str]) {
    let mut cc = Command::new("cc");
    cc.current_dir(&dir.0).args(["-Wall", "-Wextra", "-Werror"]).arg(sources().join("later.c")).args(args);
    let compiled = cc.output().expect("cc is there");
    assert!(compiled.status.success(), "{args:?}: {}", text(&compiled));
}

// A program that was linked against a later release names its nodes, and the loader wants all of them before it starts.
#[test]
fn programs_of_later_releases_load() {
    let Some(library) = library() else { return };
    let dir = Dir::new("later");
    cc(&dir, &["-DPROGRAM", "-o", "program", "-ldl"]);
    for (node, loads) in [
        ("IBVERBS_1.15", true),
        ("IBVERBS_1.16", true),
        ("IBVERBS_1.17", true),
        ("IBVERBS_1.18", true),
        ("RDMACM_1.4", true),
        ("RDMACM_1.5", true),
        ("IBVERBS_PRIVATE_34", true),
        ("IBVERBS_PRIVATE_65", true),
        ("IBVERBS_9.9", false),
    ] {
        // A library that has something in this node, to link against, and an object that asks for it.
        std::fs::write(dir.0.join("map"), format!("{node} {{ global: ibv_later; }};\n")).unwrap();
        cc(
            &dir,
            &[
                "-DLIBRARY",
                "-shared",
                "-fPIC",
                "-o",
                "libibverbs.so.1",
                "-Wl,-soname,libibverbs.so.1,--version-script=map",
            ],
        );
        let plugin = format!("{node}.so");
        cc(&dir, &["-DPLUGIN", "-shared", "-fPIC", "-o", &plugin, "-Wl,-z,lazy", "libibverbs.so.1"]);
        let needs = Command::new("readelf").arg("-V").arg(dir.0.join(&plugin)).output().unwrap();
        assert!(String::from_utf8_lossy(&needs.stdout).contains(node), "the object asks for {node}");
        let run = Command::new(dir.0.join("program"))
            .arg(dir.0.join(&plugin))
            .env("LD_LIBRARY_PATH", library)
            .output()
            .unwrap();
        assert_eq!(run.status.success(), loads, "{node}: {}", text(&run));
    }
}
