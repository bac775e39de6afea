//! The library in a program's process: a C program that looks at paths in every way, with the tree and without it.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The library that this test was built with.
fn library() -> PathBuf {
    let library = std::env::current_exe().unwrap().with_file_name("libroce_paths.so");
    assert!(library.is_file(), "{}", library.display());
    library
}

fn write(tree: &Path, name: &str, text: &str) {
    let path = tree.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

#[test]
fn a_program_sees_the_tree_below_its_prefixes_and_nowhere_else() {
    let dir = std::env::temp_dir().join(format!("roce-paths-{}", std::process::id()));
    let (program, tree) = (dir.join("looks"), dir.join("tree"));
    std::fs::create_dir_all(&tree).unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/looks.c");
    match Command::new("cc")
        .args(["-O1", "-D_FORTIFY_SOURCE=2", "-Wall", "-o"])
        .args([&program, &source])
        .status()
    {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let _ = writeln!(std::io::stderr(), "SKIPPED paths: it needs a C compiler, cc (package gcc)");
            return;
        }
        compiled => assert!(compiled.unwrap().success()),
    }
    write(&tree, "sys/class/infiniband/roce0/node_type", "1: CA\n");
    write(&tree, "sys/class/infiniband/roce0/ports/1/gid_attrs/types/0", "RoCE v2\n");
    write(&tree, "sys/class/infiniband_verbs/uverbs0/ibdev", "roce0\n");
    write(&tree, "sys/class/infiniband_mad/abi_version", "5\n");
    write(&tree, "sys/class/infiniband/roce0/device/net/other", "");
    let net = tree.join("sys/class/infiniband/roce0/device/net");
    std::os::unix::fs::symlink("/sys/class/net/lo", net.join("lo")).unwrap();
    write(&tree, "dev/infiniband/other", "");
    write(&tree, "etc/passwd", "");
    std::os::unix::fs::symlink("/dev/null", tree.join("dev/infiniband/uverbs0")).unwrap();
    let run = |preload: bool, tree: Option<&Path>, there: &str| {
        let mut command = Command::new(&program);
        command.arg(there).env_remove("ROCE_PATHS").env_remove("LD_PRELOAD");
        if preload {
            command.env("LD_PRELOAD", library());
        }
        if let Some(tree) = tree {
            command.env("ROCE_PATHS", tree);
        }
        let output = command.output().unwrap();
        let said =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        (output.status.code(), said)
    };
    assert_eq!(run(true, Some(&tree), "there"), (Some(0), String::new()));
    if Path::new("/sys/class/infiniband/roce0").exists() || Path::new("/dev/infiniband/uverbs0").exists() {
        let _ = writeln!(std::io::stderr(), "SKIPPED paths without a tree: this machine has RDMA devices");
    } else {
        assert_eq!(run(true, None, "-"), (Some(0), String::new()));
        assert_eq!(run(true, Some(Path::new("")), "-"), (Some(0), String::new()));
        // The program sees what is missing.
        let (wrong, said) = run(false, Some(&tree), "there");
        assert!(wrong.is_some_and(|n| n > 40), "{wrong:?} {said}");
    }
    // A path that is too long is an error of the C library's.
    let long = Path::new("/").join("x".repeat(4090));
    assert!(run(true, Some(&long), "there").0.is_some_and(|n| n > 40));
    std::fs::remove_dir_all(&dir).unwrap();
}

/// Compiles tests/foreign.c; `false` where there is no compiler.
fn cc(to: &Path, args: &[&str]) -> bool {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/foreign.c");
    match Command::new("cc").args(["-Wall", "-Wextra", "-o"]).args([to, &source]).args(args).status() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => false,
        compiled => {
            assert!(compiled.unwrap().success());
            true
        }
    }
}

// A libibverbs for hardware crashes on a device that it has no driver for.
#[test]
fn another_libibverbs_is_shown_no_device_and_one_line_says_so() {
    let dir = std::env::temp_dir().join(format!("roce-foreign-{}", std::process::id()));
    let (ours, theirs, tree) = (dir.join("ours"), dir.join("theirs"), dir.join("tree"));
    for dir in [&ours, &theirs] {
        std::fs::create_dir_all(dir).unwrap();
    }
    write(&tree, "sys/class/infiniband/roce0/node_type", "1: CA\n");
    // As roce-run has it: beside the library that it puts in the place of others.
    let paths = ours.join("libroce-paths.so");
    std::fs::copy(library(), &paths).unwrap();
    let program = dir.join("program");
    if !cc(&program, &["-ldl"]) {
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED another libibverbs: it needs a C compiler, cc (package gcc)"
        );
        return;
    }
    if Path::new("/sys/class/infiniband/roce0").exists() {
        let _ = writeln!(std::io::stderr(), "SKIPPED another libibverbs: this machine has such a device");
        return;
    }
    let names = [
        "libibverbs.so.1",
        "libibverbs-1a2b3c4d.so.1.14.44.0",
        "librdmacm.so.1",
        "libx-rdmav34.so",
        "libibumad.so.3",
    ];
    let run = |library: &Path, deep: bool| {
        let mut command = Command::new(&program);
        command.arg(library).args(deep.then_some("deep")).env("ROCE_PATHS", &tree).env("LD_PRELOAD", &paths);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap())
    };
    for name in names {
        for (dir, foreign) in [(&ours, false), (&theirs, name != "libibumad.so.3")] {
            let library = dir.join(name);
            assert!(cc(&library, &["-DLIBRARY", "-shared", "-fPIC"]));
            let [seen, said] = run(&library, false);
            assert_eq!(
                seen,
                format!("program 1, library {}\n", if foreign { 0 } else { 3 }),
                "{}",
                library.display()
            );
            let lines: Vec<&str> = said.lines().collect();
            assert_eq!(lines.len(), usize::from(foreign), "{}: {said}", library.display());
            assert!(lines.iter().all(|line| line.contains(library.to_str().unwrap())), "{said}");
        }
    }
    // It asks the C library past us; the line comes at the end.
    let [seen, said] = run(&theirs.join("libibverbs.so.1"), true);
    assert_eq!(seen, "program 1, library 0\n");
    assert!(said.lines().count() == 1 && said.contains("libibverbs.so.1 was loaded beside"), "{said}");
    std::fs::remove_dir_all(&dir).unwrap();
}
