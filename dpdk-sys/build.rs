//! Finds the distribution's DPDK, compiles the shim and generates its bindings.
//!
//! DPDK is linked statically by default. A static build contains only the drivers listed here, which need no libraries except DPDK's own.
//! `DPDK_SYS_DRIVERS=net_mlx5,net_af_xdp` adds drivers to it. `DPDK_SYS_LINK=shared` links the distribution's shared libraries instead.
//! Their `librte_eal` loads all driver plugins of the distribution at start, more than a hundred, and with them libraries such as
//! libibverbs. In a shared build, programs that the process starts inherit DPDK's descriptors (see `CLOSED_ON_EXEC`).

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// DPDK libraries of the static build, as far as the distribution has them (names differ between releases).
const LIBRARIES: &[&str] = &[
    "eal",
    "log",
    "argparse",
    "kvargs",
    "telemetry",
    "ring",
    "mempool",
    "mbuf",
    "net",
    "meter",
    "ethdev",
    "pci",
    "rcu",
    "hash",
    "timer",
    "cryptodev",
    "dmadev",
    "security",
    "vhost",
    "gso",
    "ip_frag",
    "eventdev",
    "stack",
    "bus_vdev",
    "bus_pci",
    "bus_auxiliary",
    "bus_vmbus",
    "mempool_ring",
];

/// Drivers of the static build, as far as the distribution has them: software devices, and NICs of x86-64 hosts. docs/ports.md has the
/// same list.
const DRIVERS: &[&str] = &[
    // Software devices.
    "net_memif",
    "net_tap",
    "net_af_packet",
    "net_vhost",
    "net_ring",
    "net_null",
    "net_bond",
    "net_failsafe",
    "net_vdev_netvsc",
    // Virtual machines.
    "net_virtio",
    "net_vmxnet3",
    "net_netvsc",
    "net_ena",
    "net_gve",
    "net_avp",
    // NICs.
    "net_ark",
    "net_atlantic",
    "net_axgbe",
    "net_bnxt",
    "net_cxgbe",
    "net_e1000",
    "net_enic",
    "net_fm10k",
    "net_hinic",
    "net_hns3",
    "net_i40e",
    "net_iavf",
    "net_ice",
    "net_idpf",
    "net_igc",
    "net_ionic",
    "net_ixgbe",
    "net_liquidio",
    "net_nfp",
    "net_ngbe",
    "net_ntnic",
    "net_octeon_ep",
    "net_qede",
    "net_r8169",
    "net_txgbe",
    "net_zxdh",
];

/// For a driver, what it needs besides [`LIBRARIES`]: libraries of DPDK, as far as the release has them, and libraries of the system.
const NEEDS: &[(&str, &[&str], &[&str])] = &[
    ("net_iavf", &["common_iavf"], &[]),
    ("net_ice", &["common_iavf"], &[]),
    ("net_idpf", &["common_idpf"], &[]),
    ("net_ionic", &["common_ionic"], &[]),
    ("net_nfp", &["common_nfp"], &[]),
    // Only with DPDK_SYS_DRIVERS, because they need libraries of the system.
    ("net_af_xdp", &[], &["xdp", "bpf"]),
    ("net_bnx2x", &[], &["z"]),
    ("net_cpfl", &["common_idpf"], &["jansson"]),
    ("net_mana", &[], &["ibverbs", "mana"]),
    ("net_mlx4", &[], &["ibverbs", "mlx4"]),
    ("net_mlx5", &["common_mlx5"], &["ibverbs", "mlx5"]),
    ("net_pcap", &[], &["pcap"]),
    ("net_sfc", &["common_sfc_efx"], &["atomic"]),
];

fn main() {
    for name in ["DPDK_SYS_LINK", "DPDK_SYS_DRIVERS", "LD", "OBJCOPY", "AR"] {
        println!("cargo:rerun-if-env-changed={name}");
    }
    for file in ["build.rs", "src/shim.c", "src/shim.h", "src/cloexec.c"] {
        println!("cargo:rerun-if-changed={file}");
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    // docs.rs has libclang but not DPDK. Only the shim's header is documented, and it needs no DPDK.
    if env::var_os("DOCS_RS").is_some() {
        return bindings(&out);
    }
    let shared = match env::var("DPDK_SYS_LINK").as_deref() {
        Ok("shared") => true,
        Ok("static") | Err(_) => false,
        Ok(other) => fail(&format!("DPDK_SYS_LINK={other} is unknown: it is static or shared")),
    };
    let dpdk = pkg_config::Config::new()
        .atleast_version("22.11")
        .cargo_metadata(shared)
        .probe("libdpdk")
        .unwrap_or_else(|error| {
            fail(&format!("libdpdk 22.11 or later was not found.\n{INSTALL}\n\n{error}"))
        });
    let drivers = if shared { Vec::new() } else { link_static(&out) };
    println!("cargo:rustc-env=DPDK_SYS_BUILT_IN={}", drivers.join(","));
    // DPDK's headers need the other flags of pkg-config (-march, -include rte_config.h).
    let flags = cflags();

    let mut shim = cc::Build::new();
    shim.file("src/shim.c").include("src").opt_level(3).warnings(true).flag("-Wno-deprecated-declarations");
    for path in &dpdk.include_paths {
        shim.flag("-isystem").flag(path.to_str().expect("include paths are UTF-8"));
    }
    for flag in &flags {
        shim.flag(flag);
    }
    if !shared {
        shim.file("src/cloexec.c");
    }
    shim.compile("dpdk_sys_shim");
    if !shared {
        // The shim needs it, so it comes after the shim.
        println!("cargo:rustc-link-search=native={}", out.display());
        println!("cargo:rustc-link-lib=static:+whole-archive,-bundle=dpdk_sys_all");
    }
    println!("cargo:rustc-link-lib=dylib=numa");
    if has_library("bsd") {
        println!("cargo:rustc-link-lib=dylib=bsd");
    }
    for name in ["dl", "pthread", "m"] {
        println!("cargo:rustc-link-lib=dylib={name}");
    }

    bindings(&out);
}

/// Hint for error messages: how to install what the build needs.
const INSTALL: &str = "On Debian and Ubuntu:  apt-get install libdpdk-dev libclang-dev pkg-config libnuma-dev binutils\n\
     (Without DPDK, build with --no-default-features: everything but the DPDK ports works.)";

/// Prints an error message and ends the build.
fn fail(message: &str) -> ! {
    eprintln!("\ndpdk-sys: {message}\n");
    std::process::exit(1)
}

/// Compiler flags of DPDK's headers, without include paths.
fn cflags() -> Vec<String> {
    let pkg_config = env::var("PKG_CONFIG").unwrap_or_else(|_| "pkg-config".into());
    let output = Command::new(pkg_config)
        .args(["--cflags-only-other", "libdpdk"])
        .output()
        .unwrap_or_else(|error| fail(&format!("pkg-config does not run ({error}).\n{INSTALL}")));
    String::from_utf8_lossy(&output.stdout).split_whitespace().map(str::to_owned).collect()
}

/// Directories in which libraries are searched.
fn library_dirs() -> Vec<PathBuf> {
    let mut dirs = Vec::new();
    if let Ok(dir) = pkg_config::get_variable("libdpdk", "libdir") {
        dirs.push(PathBuf::from(dir));
    }
    if let Ok(target) = env::var("TARGET") {
        let multiarch = target.replace("-unknown-", "-");
        dirs.push(Path::new("/usr/lib").join(&multiarch));
        dirs.push(Path::new("/lib").join(multiarch));
    }
    dirs.push("/usr/lib64".into());
    dirs.push("/usr/lib".into());
    dirs
}

/// Whether the shared library `lib{name}.so` exists.
fn has_library(name: &str) -> bool {
    library_dirs().iter().any(|dir| dir.join(format!("lib{name}.so")).exists())
}

/// Merges the archives of libraries and drivers into one object in one archive. So their order and their mutual dependencies do not
/// matter, and every constructor is linked (drivers register themselves in one). Returns the names of the drivers.
fn link_static(out: &Path) -> Vec<String> {
    let dirs = library_dirs();
    let find = |name: &str| {
        let file = format!("librte_{name}.a");
        dirs.iter().map(|dir| dir.join(&file)).find(|path| path.exists())
    };
    let extra = env::var("DPDK_SYS_DRIVERS").unwrap_or_default();
    let extra: Vec<&str> = extra.split([',', ' ']).filter(|name| !name.is_empty()).collect();
    // The default drivers differ between releases, so missing ones are left out. Drivers that were requested by name must exist.
    let mut drivers: Vec<&str> = DRIVERS.iter().copied().filter(|name| find(name).is_some()).collect();
    for name in &extra {
        if find(name).is_none() {
            fail(&format!(
                "DPDK_SYS_DRIVERS: librte_{name}.a was not found beside libdpdk.\n{INSTALL}\n(or set DPDK_SYS_LINK=shared)"
            ));
        }
        if !drivers.contains(name) {
            drivers.push(name);
        }
    }
    if find("eal").is_none() {
        fail(&format!(
            "librte_eal.a was not found beside libdpdk.\n{INSTALL}\n(or set DPDK_SYS_LINK=shared)"
        ));
    }
    let mut names: Vec<&str> = LIBRARIES.iter().chain(&drivers).copied().collect();
    for (_, libraries, system) in NEEDS.iter().filter(|(driver, ..)| drivers.contains(driver)) {
        names.extend(*libraries);
        for library in *system {
            println!("cargo:rustc-link-lib=dylib={library}");
        }
    }
    names.sort_unstable();
    names.dedup();
    let archives: Vec<PathBuf> = names.iter().filter_map(|name| find(name)).collect();
    let object = out.join("dpdk_sys_all.o");
    run(Command::new(tool("LD", "ld"))
        .arg("-r")
        .args(["--whole-archive", "-o"])
        .arg(&object)
        .args(&archives));
    let mut objcopy = Command::new(tool("OBJCOPY", "objcopy"));
    for name in CLOSED_ON_EXEC {
        objcopy.arg("--redefine-sym").arg(format!("{name}=dpdk_sys_cloexec_{name}"));
    }
    run(objcopy.arg(&object));
    let archive = out.join("libdpdk_sys_all.a");
    let _ = std::fs::remove_file(&archive);
    run(Command::new(tool("AR", "ar")).arg("rcs").arg(&archive).arg(&object));
    let _ = std::fs::remove_file(&object);
    drivers.into_iter().map(str::to_owned).collect()
}

/// Functions that create descriptors. In the static build DPDK calls the replacements in `cloexec.c`, which set close-on-exec. (opendir
/// sets it already, and so does the kernel for descriptors of vfio and bpf.)
const CLOSED_ON_EXEC: &[&str] = &[
    "open",
    "open64",
    "openat",
    "openat64",
    "fopen",
    "fopen64",
    "socket",
    "accept",
    "recvmsg",
    "eventfd",
    "epoll_create",
    "epoll_create1",
    "pipe",
    "memfd_create",
    "mkstemp",
    "mkstemp64",
    "timerfd_create",
    "dup",
];

/// The program that an environment variable names, else `default`.
fn tool(variable: &str, default: &str) -> String {
    env::var(variable).unwrap_or_else(|_| default.into())
}

/// Runs a command; ends the build if it fails.
fn run(command: &mut Command) {
    match command.status() {
        Ok(status) if status.success() => {}
        Ok(status) => fail(&format!("{command:?} failed: {status}")),
        Err(error) => fail(&format!("{command:?} does not run ({error}).\n{INSTALL}")),
    }
}

/// Generates the bindings. The shim's header includes no header of DPDK, so they have only the shim's functions and constants.
fn bindings(out: &Path) {
    let result = std::panic::catch_unwind(|| {
        bindgen::Builder::default()
            .header("src/shim.h")
            .allowlist_function("dpdk_sys_.*")
            .allowlist_type("dpdk_sys_.*")
            .allowlist_var("DPDK_SYS_.*")
            .use_core()
            .merge_extern_blocks(true)
            .generate()
    });
    let bindings = match result {
        Ok(Ok(bindings)) => bindings,
        Ok(Err(error)) => fail(&format!("the bindings could not be made: {error}\n{INSTALL}")),
        Err(_) => fail(&format!("libclang, which makes the bindings, was not found.\n{INSTALL}")),
    };
    bindings.write_to_file(out.join("bindings.rs")).expect("OUT_DIR can be written");
}
