//! Configuration files: what is right is taken, and what is wrong is one sentence with file and line.

use std::path::Path;

use nvmf_target::config::{Mistake, Offer, Storage, build_dry, parse};

use crate::common::Scratch;

/// Reads a file's text, and makes every check that changes nothing.
fn check(text: &str) -> Result<Offer, Mistake> {
    let offer = parse(text)?;
    build_dry(&offer, &[]).map(|()| offer)
}

const RIGHT: &str = r#"
[target]
in_capsule = "8k"
largest_transfer = "128k"

[[port]]
address = "10.77.0.1:4420"

[[subsystem]]
nqn = "nqn.2024-01.org.example:disks"
serial = "one"
hosts = ["nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555"]

[[subsystem.namespace]]
memory = "1m"

[[subsystem.namespace]]
id = 7
memory = "64k"
block = 4096
uuid = "11111111-2222-3333-4444-555555555556"
read_only = true

[[subsystem.namespace]]
memory = "4k"
"#;

#[test]
fn a_file_says_what_is_offered() {
    let offer = check(RIGHT).unwrap();
    assert_eq!((offer.settings.in_capsule, offer.settings.mdts), (8192, 5));
    assert_eq!(offer.ports, ["10.77.0.1:4420".parse().unwrap()]);
    let [subsystem] = &offer.subsystems[..] else { panic!("{offer:?}") };
    assert_eq!(subsystem.hosts.as_ref().map(Vec::len), Some(1));
    let of = |n: usize| (subsystem.namespaces[n].nsid, subsystem.namespaces[n].storage.clone());
    let memory = |bytes| Storage::Memory(bytes);
    assert_eq!([of(0), of(1), of(2)], [(1, memory(1 << 20)), (7, memory(64 << 10)), (8, memory(4096))]);
    assert!(subsystem.namespaces[1].read_only && !subsystem.namespaces[0].read_only);
}

#[test]
fn a_mistake_is_one_sentence_with_file_and_line() {
    for (right, wrong, line, says) in [
        ("[target]", "[target", 2, "unclosed table"),
        ("serial = \"one\"", "serail = \"one\"", 11, "unknown field `serail`"),
        ("serial = \"one\"", "serial = \"123456789012345678901\"", 11, "20 characters"),
        ("serial = \"one\"", "serial = 1", 11, "invalid type"),
        ("nqn = \"nqn.2024-01.org.example:disks\"", "nqn = \"disks\"", 10, "no name of a host or subsystem"),
        ("nqn = \"nqn.2024-01.org.example:disks\"", "", 9, "missing field `nqn`"),
        ("\"nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555\"", "\"me\"", 12, "\"me\""),
        ("memory = \"1m\"", "memory = \"1000\"", 15, "no multiple of a block"),
        ("memory = \"1m\"", "memory = \"0\"", 15, "at least one block"),
        ("memory = \"1m\"", "memory = \"much\"", 15, "not a size"),
        ("memory = \"1m\"", "file = \"/nowhere/at/all\"", 14, "/nowhere/at/all: No such file"),
        ("memory = \"1m\"", "size = \"1m\"", 14, "one of memory and file"),
        ("memory = \"1m\"", "memory = \"1m\"\nsize = \"1m\"", 16, "size belongs to a file"),
        ("memory = \"1m\"", "memory = \"1m\"\ndirect = true", 16, "direct belongs to a file"),
        ("memory = \"1m\"", "file = \"/etc/passwd\"\ndirect = \"yes\"", 16, "true, false or \"try\""),
        ("memory = \"1m\"", "file = \"/dev/null\"", 14, "/dev/null is no file and no block device"),
        ("block = 4096", "block = 520", 20, "not 520"),
        ("id = 7", "id = 1", 17, "a namespace 1 already"),
        ("id = 7", "id = 0", 17, "not 0"),
        ("555555555556", "55555555555", 21, "no UUID"),
        ("in_capsule = \"8k\"", "in_capsule = \"1g\"", 0, "at most 1048576"),
        ("largest_transfer = \"128k\"", "largest_transfer = \"100k\"", 4, "not \"100k\""),
        ("10.77.0.1:4420", "10.77.0.1", 7, "no address with a port"),
    ] {
        assert!(RIGHT.contains(right), "{right}");
        let text = RIGHT.replacen(right, wrong, 1);
        let said = check(&text).unwrap_err().at("disks.toml", &text);
        let place = if line == 0 { "disks.toml: ".into() } else { format!("disks.toml:{line}: ") };
        assert!(said.starts_with(&place) && said.contains(says), "{wrong:?} gives {said:?}");
        assert!(!said.contains('\n'), "{said:?}");
    }
}

// Goal: two namespaces in one file would overwrite each other, by whatever names the file goes.
#[test]
fn two_namespaces_in_one_file_are_a_mistake() {
    let scratch = Scratch::new("twice");
    let (disk, link) = (scratch.path(), scratch.path().with_extension("link"));
    let dir = disk.parent().unwrap().join("..").join(disk.parent().unwrap().file_name().unwrap());
    let of = |file: &Path| {
        let file = file.display();
        format!("[[subsystem.namespace]]\nfile = \"{file}\"\nsize = \"8k\"\n")
    };
    let both = |other: &Path| {
        format!("[[subsystem]]\nnqn = \"nqn.2024-01.org.example:disks\"\n{}{}", of(&disk), of(other))
    };
    let mistake = |other: &Path| {
        let text = both(other);
        check(&text).unwrap_err().at("disks.toml", &text)
    };
    // It is not there yet.
    assert!(check(&both(&link)).is_ok());
    let said = mistake(&dir.join("disk"));
    assert!(said.starts_with("disks.toml:6: namespace 2: ") && said.contains("is namespace 1 of"), "{said}");
    std::fs::write(&disk, [0; 8192]).unwrap();
    std::os::unix::fs::symlink(&disk, &link).unwrap();
    let said = mistake(&link);
    assert!(said.starts_with("disks.toml:6: namespace 2: ") && said.contains("is namespace 1 of"), "{said}");
}
