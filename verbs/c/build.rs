//! Types of the installed headers, and the private symbols of libibverbs as functions that only refuse.
//!
//! Where the headers or libclang are missing the crate is empty, so that the rest of the workspace builds.

use std::env;
use std::fmt::Write;
use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

/// Private symbols that the crate defines itself: those that are more than a refusal.
const OWN: &[&str] = &["ibv_query_gid_type", "ibv_wr_opcode_str", "verbs_allow_disassociate_destroy"];
/// Private functions that return a pointer.
const POINTERS: &[&str] = &[
    "_verbs_init_and_alloc_context",
    "ibv_dmabuf_heap_alloc",
    "ibv_dmabuf_heap_cc_shared_init",
    "verbs_open_device",
];
/// Private functions that return a count or a descriptor, and -1 where they fail.
const COUNTS: &[&str] = &["ibv_cmd_export_dmabuf_fd", "ibv_cmd_poll_cq", "ibv_read_ibdev_sysfs_file"];
/// The number of the private node, unless the environment says otherwise.
const PRIVATE: &str = "34";

fn main() {
    println!("cargo::rustc-check-cfg=cfg(headers, flush_in_headers)");
    for name in ["ROCE_RDMA_INCLUDE", "ROCE_PRIVATE_NODE"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    for file in ["build.rs", "abi/symbols"] {
        println!("cargo::rerun-if-changed={file}");
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let include = env::var_os("ROCE_RDMA_INCLUDE").map_or_else(|| "/usr/include".into(), PathBuf::from);
    let headers = ["infiniband/verbs.h", "rdma/rdma_cma.h"];
    if let Some(missing) = headers.iter().find(|header| !include.join(header).is_file()) {
        println!(
            "cargo::warning=no C face of the stack: {} is missing; install libibverbs-dev and librdmacm-dev",
            include.join(missing).display()
        );
        return;
    }
    // Without libclang bindgen panics.
    let Ok(()) = catch_unwind(|| bindings(&include, &headers, &out.join("bindings.rs"))) else {
        println!("cargo::warning=no C face of the stack: bindgen failed; install libclang-dev");
        return;
    };
    fs::write(out.join("private.rs"), private()).expect("OUT_DIR can be written");
    fs::write(out.join("private.h"), private_header()).expect("OUT_DIR can be written");
    println!("cargo::rustc-cfg=headers");
    // Later releases have one more function at the end of `struct ibv_qp_ex`.
    if fs::read_to_string(include.join(headers[0])).is_ok_and(|text| text.contains("wr_flush")) {
        println!("cargo::rustc-cfg=flush_in_headers");
    }
}

fn bindings(include: &Path, headers: &[&str], to: &Path) {
    let text: String = headers.iter().map(|header| format!("#include <{header}>\n")).collect();
    let bindings = bindgen::Builder::default()
        .header_contents("headers.h", &text)
        .clang_arg(format!("-I{}", include.display()))
        .allowlist_type("(_?ibv|verbs|rdma)_.*")
        .allowlist_var("(IBV|RDMA|RAI)_.*")
        .allowlist_recursively(true)
        .ignore_functions()
        .default_enum_style(bindgen::EnumVariation::Consts)
        .prepend_enum_name(false)
        .derive_default(false)
        .derive_debug(false)
        .layout_tests(true)
        .use_core()
        .generate()
        .expect("the headers are C");
    bindings.write_to_file(to).expect("OUT_DIR can be written");
}

/// The private functions that only refuse: the name, and what it returns.
fn refusing() -> Vec<(String, Refusal)> {
    let symbols = fs::read_to_string("abi/symbols").expect("the list is in the crate");
    let names = symbols.lines().filter_map(|line| line.strip_prefix("PRIVATE "));
    let refusal = |name: &str| match name {
        _ if POINTERS.contains(&name) => Refusal::Null,
        _ if COUNTS.contains(&name) => Refusal::MinusOne,
        _ => Refusal::Number,
    };
    names.filter(|name| !OWN.contains(name)).map(|name| (name.to_string(), refusal(name))).collect()
}

/// What a function returns to say that it is not supported; `errno` is set too.
enum Refusal {
    Number,
    MinusOne,
    Null,
}

/// A function for each private symbol that no program calls: libraries of other devices are linked to them, and load only if they
/// exist.
fn private() -> String {
    let number = env::var("ROCE_PRIVATE_NODE").unwrap_or(PRIVATE.into());
    let mut text = String::new();
    for (name, refusal) in refusing() {
        let symbol = name.replace("_PRIVATE", &format!("_{number}"));
        let (result, value) = match refusal {
            Refusal::Number => ("c_int", "EOPNOTSUPP.0"),
            Refusal::MinusOne => ("c_int", "-1"),
            Refusal::Null => ("*mut c_void", "core::ptr::null_mut()"),
        };
        writeln!(
            text,
            "#[unsafe(no_mangle)]\nextern \"C\" fn {symbol}() -> {result} {{\n    errno::set(EOPNOTSUPP);\n    {value}\n}}"
        )
        .expect("a String takes everything");
    }
    text
}

/// The same list for the tests' programs: a macro a line, with the number of the node left open.
fn private_header() -> String {
    let line = |(name, refusal): (String, Refusal)| match refusal {
        Refusal::Number => format!("REFUSES({name})\n"),
        Refusal::MinusOne => format!("GIVES_MINUS_ONE({name})\n"),
        Refusal::Null => format!("GIVES_NULL({name})\n"),
    };
    refusing().into_iter().map(line).collect()
}
