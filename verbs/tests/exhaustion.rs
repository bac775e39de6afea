//! Exhausted resources of the process: each test runs in a process of its own, with a limit.

use std::fs::File;
use std::process::Command;

use verbs::errno::{EMFILE, ENOMEM};
use verbs::{Context, DeviceConfig, DeviceError, Drive, OpenError, VerbsError};

/// Marks the child process.
const CHILD: &str = "VERBS_TEST_CHILD";
const DONE: &str = "the child came to its end";

/// Runs `body` in a child process: the same test again, with `ulimit` and one more environment variable.
fn in_a_child(test: &str, ulimit: &str, variable: (&str, &str), body: impl FnOnce()) {
    if std::env::var_os(CHILD).is_some() {
        body();
        println!("{DONE}");
        return;
    }
    let out = Command::new("sh")
        .arg("-c")
        .arg(format!("ulimit {ulimit}; exec \"$0\" \"$@\""))
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--test-threads=1", "--nocapture"])
        .env(CHILD, "1")
        .env(variable.0, variable.1)
        .output()
        .unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success() && stdout.contains(DONE), "{stdout}\n{stderr}");
}

#[track_caller]
fn no_descriptor<T>(result: Result<T, VerbsError>) {
    let e = result.err().expect("there is no descriptor left");
    assert!(matches!(e, VerbsError::Device(DeviceError::Descriptor(_))), "{e:?}");
    assert_eq!(e.errno(), EMFILE, "{e}");
}

#[test]
fn no_file_descriptor() {
    in_a_child("no_file_descriptor", "-n 64", ("LC_ALL", "C"), || {
        let context = Context::open(DeviceConfig::loopback().drive(Drive::Embedded)).unwrap();
        let mut files: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
        assert!(files.len() < 64);
        no_descriptor(context.create_comp_channel());
        no_descriptor(context.async_fd());
        no_descriptor(verbs::rdma_cm::EventChannel::new());
        assert_eq!(verbs::XrcdOwner::new(&"0:1".parse().unwrap()).unwrap_err().errno(), EMFILE);
        // One descriptor is enough for each call: the failed calls kept none.
        files.pop();
        let channel = context.create_comp_channel().unwrap();
        no_descriptor(context.create_comp_channel());
        channel.destroy().unwrap();
        context.async_fd().unwrap();
        context.async_fd().expect("made once");
        files.clear();
        drop(verbs::rdma_cm::EventChannel::new().unwrap());
        context.close().unwrap();
    });
}

#[test]
fn no_thread() {
    // No address space can hold a stack of this size.
    in_a_child("no_thread", "-c 0", ("RUST_MIN_STACK", "140737488355328"), || {
        for drive in [Drive::Caller, Drive::Dedicated { cores: vec![] }] {
            let e = Context::open(DeviceConfig::loopback().drive(drive)).unwrap_err();
            assert!(matches!(e, VerbsError::Open(OpenError::Thread { .. })), "{e:?}");
            assert_eq!(e.errno(), ENOMEM, "{e}");
        }
        // A device without threads works.
        Context::open(DeviceConfig::loopback().drive(Drive::Embedded)).unwrap().close().unwrap();
    });
}
