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
