//! Checks the architecture: imports point down, and `unsafe` stays in the files that are listed here.

use std::fmt::Debug;
use std::fs;
use std::path::{Path, PathBuf};

use stack::net::NetCounter;
use stack::proto::fault::Fault;
use stack::wire::Discard;

/// Each module of the stack, and the modules that it may import in addition to `id`, `time`, `config` and `mark`.
const LAYERS: &[(&str, &[&str])] = &[
    ("id", &[]),
    ("mark", &[]),
    ("time", &[]),
    ("config", &[]),
    ("runtime", &[]),
    ("racy", &[]),
    ("crc", &["racy"]),
    ("wire", &["crc"]),
    ("sync", &[]),
    ("ipc", &[]),
    ("registry", &["sync", "ipc"]),
    ("mem", &["racy"]),
    ("proto", &["wire", "mem"]),
    ("cm", &["wire", "mem"]),
    ("net", &["wire"]),
    ("port", &["racy", "crc", "wire", "sync", "ipc", "registry"]),
    ("shard", &["racy", "crc", "wire", "sync", "mem", "proto", "net", "port"]),
    ("device", &["racy", "cm", "wire", "sync", "mem", "proto", "net", "port", "shard", "registry"]),
    ("xrc", &["sync", "registry", "device"]),
];
const COMMON: &[&str] = &["id", "time", "config", "mark", "runtime"];

/// The files and folders that may contain `unsafe`.
const UNSAFE: &[&str] = &[
    // The bindings of DPDK, and the port on them.
    "dpdk-sys/src/",
    "stack/src/port/dpdk/",
    // Shared between threads: the ring, the claim and its fence.
    "stack/src/sync/spsc.rs",
    "stack/src/sync/claim.rs",
    "stack/src/sync/asymmetric.rs",
    // Event file descriptors, huge pages, prefetches.
    "stack/src/sync/eventfd.rs",
    "stack/src/sync/huge.rs",
    "stack/src/sync/prefetch.rs",
    // Threads that handle no signals.
    "stack/src/sync/apart.rs",
    // Fork handlers.
    "stack/src/sync/process.rs",
    "stack/src/sync/scheduling.rs",
    "stack/src/sync/unforked.rs",
    // Which process is the peer of a socket, and whether it lives; memory that the processes of a host share.
    "stack/src/port/share.rs",
    "stack/src/registry/sys.rs",
    "stack/src/registry/memory.rs",
    // Frames; the shared memory of a memif, and the event of its peer; requests about network interfaces; system calls of UDP sockets.
    "stack/src/port/frame.rs",
    "stack/src/port/memif/ring.rs",
    "stack/src/port/memif/shm.rs",
    "stack/src/port/memif/wake.rs",
    "stack/src/port/netdevice.rs",
    "stack/src/port/udp/sys.rs",
    // Memory that others write: accesses by this process and by the kernel, the promise that it stays valid, the copies of a shard.
    "stack/src/racy.rs",
    "stack/src/racy/kernel.rs",
    "stack/src/mem/range.rs",
    "stack/src/shard/copy.rs",
    // The turn boundary after which a revoked key is no longer used; scheduling requests of the helper thread.
    "stack/src/device/claim.rs",
    // A process that starts the owner of an XRC domain and exits.
    "stack/src/xrc/spawn.rs",
    // The CRC.
    "stack/src/crc.rs",
    "stack/src/crc/",
    "stack/src/wire/clmul.rs",
    // Registration of memory; program memory that a post copies.
    "verbs/src/local_bytes.rs",
    "verbs/src/memory.rs",
    "verbs/src/populate.rs",
    "verbs/src/mr.rs",
    // Buffers registered with an io_uring.
    "apps/nvmf-target/src/store/ring.rs",
    // The C face, whose callers pass pointers; functions of the C library that take file names.
    "verbs/c/src/",
    "verbs/paths/src/",
    // Registration in the simulator, in tests and in benchmarks; epoll and fork in tests.
    "stack/sim/src/memory.rs",
    "stack/tests/process/",
    "verbs/tests/mapped.rs",
    "verbs/tests/nowhere.rs",
    "verbs/tests/epoll.rs",
    "verbs/tests/fork.rs",
    "benches/src/lib.rs",
];

/// Crates, and the crates of this workspace that each may use; `sim` and `tools` also in tests.
const CRATES: &[(&str, &[&str])] = &[
    ("dpdk-sys", &[]),
    ("stack", &["dpdk_sys"]),
    ("stack/sim", &["stack"]),
    ("verbs", &["stack"]),
    ("verbs/c", &["verbs"]),
    ("verbs/paths", &[]),
    ("apps", &["verbs"]),
    ("apps/manual", &["apps", "nvmf_target"]),
    ("apps/nvmf", &[]),
    ("apps/nvmf-target", &["apps", "nvmf", "verbs"]),
    // What the scripts measure and test with.
    ("apps/tools", &["apps", "verbs"]),
    // The fuzz targets of all crates, in a separate workspace.
    ("stack/fuzz", &["stack", "sim", "verbs", "apps", "nvmf"]),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_path_buf()
}

fn sources(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display())) {
        let path = entry.expect("a directory entry").path();
        if path.is_dir() {
            sources(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
}

/// The lines of a file that are code: no comments, no doc comments.
fn code(path: &Path) -> Vec<(usize, String)> {
    let text = fs::read_to_string(path).expect("a source file is UTF-8");
    let lines =
        text.lines().enumerate().map(|(i, l)| (i + 1, l.split("//").next().unwrap_or("").to_string()));
    lines.filter(|(_, l)| !l.trim().is_empty()).collect()
}

/// Whether `word` stands in `line` as a whole word.
fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let edge = |c: Option<char>| !c.is_some_and(|c| c.is_alphanumeric() || c == '_');
        edge(line[..at].chars().next_back()) && edge(line[at + word.len()..].chars().next())
    })
}

/// The items of a list, from the text after its opening brace.
fn items(list: &str) -> Vec<&str> {
    let (mut items, mut from, mut depth) = (Vec::new(), 0, 0);
    for (at, c) in list.char_indices() {
        depth += i32::from(c == '{') - i32::from(c == '}');
        if depth < 0 || (depth == 0 && c == ',') {
            items.push(list[from..at].trim());
            from = at + 1;
        }
        if depth < 0 {
            break;
        }
    }
    items
}

/// The paths at the beginning of a text: `a::{b, c::D};` begins with `a::b` and `a::c::D`.
fn paths(text: &str) -> Vec<String> {
    if let Some(list) = text.strip_prefix('{') {
        return items(list).into_iter().filter(|item| !item.is_empty()).flat_map(paths).collect();
    }
    let name: String = text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    match text[name.len()..].strip_prefix("::") {
        Some(rest) => paths(rest).into_iter().map(|path| format!("{name}::{path}")).collect(),
        None => vec![name],
    }
}

/// The modules from which `crate::{a, b::c}` and `crate::a::b` on one line of code import.
fn imported(line: &str) -> Vec<String> {
    let all = line.match_indices("crate::").flat_map(|(at, start)| paths(&line[at + start.len()..]));
    all.filter_map(|path| path.split("::").next().map(str::to_string)).collect()
}

#[test]
fn imports_point_down() {
    let src = root().join("stack/src");
    let mut wrong = Vec::new();
    let mut seen = 0;
    for (module, below) in LAYERS {
        let mut files = Vec::new();
        let (dir, file) = (src.join(module), src.join(format!("{module}.rs")));
        if dir.is_dir() {
            sources(&dir, &mut files);
        }
        if file.is_file() {
            files.push(file);
        }
        for path in files {
            seen += 1;
            for (n, line) in code(&path) {
                for name in imported(&line) {
                    let known = LAYERS.iter().any(|(m, _)| *m == name);
                    let allowed =
                        name == *module || COMMON.contains(&name.as_str()) || below.contains(&name.as_str());
                    if known && !allowed {
                        wrong.push(format!("{}:{n}: {module} may not use {name}", path.display()));
                    }
                }
            }
        }
    }
    assert!(seen > 30, "found only {seen} files");
    assert!(wrong.is_empty(), "imports that point up:\n{}", wrong.join("\n"));
}

/// The file that declares an item, from a path that begins in a folder.
fn file_of(folder: &Path, path: &str) -> PathBuf {
    let own = |folder: &Path| match folder.with_extension("rs") {
        file if file.is_file() => file,
        _ => folder.join("mod.rs"),
    };
    let mut place = folder.to_path_buf();
    let mut found = own(&place);
    for part in path.split("::") {
        if part == "super" {
            place.pop();
            found = own(&place);
            continue;
        }
        place.push(part);
        let files = [place.with_extension("rs"), place.join("mod.rs")];
        let Some(file) = files.into_iter().find(|file| file.is_file()) else { break };
        found = file;
    }
    found
}

/// The code of a file without its tests, which come last, and without other items that only tests compile.
fn without_tests(lines: impl Iterator<Item = String>) -> String {
    let (mut text, mut lines) = (String::new(), lines);
    while let Some(line) = lines.next() {
        if !["#[cfg(test)]", "#[cfg(all(test"].iter().any(|only| line.trim_start().starts_with(only)) {
            text += &(line + "\n");
            continue;
        }
        // The item ends with its first line, or with a closing brace in the same column.
        let ends = format!("{}}}", " ".repeat(line.len() - line.trim_start().len()));
        let first = lines.find(|line| !line.trim_start().starts_with('#')).unwrap_or_default();
        if !first.ends_with([';', ',']) && !first.ends_with("}") {
            lines.find(|line| line.starts_with(&ends));
        }
    }
    text
}

/// The files below `src` from which a file imports, its tests aside: by `crate::a::b`, by `super::b`, and from its child modules by `b::`.
/// Fails if the file imports an item through the `lib.rs` that re-exports it, because that would hide the file of the item.
fn files_named(src: &Path, file: &Path) -> Vec<PathBuf> {
    let text = without_tests(code(file).into_iter().map(|(_, line)| line));
    let dir = file.parent().expect("a folder");
    // The folders of the file's child modules and of its siblings.
    let (own, above) = match file.ends_with("mod.rs") {
        true => (dir.to_path_buf(), dir.parent().expect("it is below `src`")),
        false => (file.with_extension(""), dir),
    };
    let mut named = Vec::new();
    for (start, base) in [("crate::", src), ("super::", above)] {
        // Neither the second of `super::super::` nor a visibility such as `pub(in crate::a)`.
        let no_import = |at: usize| text[..at].ends_with("::") || text[..at].ends_with("(in ");
        for (at, _) in text.match_indices(start).filter(|(at, _)| !no_import(*at)) {
            for path in paths(&text[at + start.len()..]) {
                let other = file_of(base, &path);
                assert!(
                    other.is_file() || path.starts_with(char::is_lowercase),
                    "{}: {start}{path}: import it from the file that has it",
                    file.display()
                );
                named.push(other);
            }
        }
    }
    for child in text.lines().filter_map(|line| Some(line.strip_suffix(';')?.rsplit_once("mod ")?.1)) {
        let uses = text.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'));
        let uses = uses.filter(|path| path.split_once("::").is_some_and(|(first, _)| first == child));
        named.extend(uses.map(|path| file_of(&own, path)));
    }
    named.retain(|other| other != file && other.is_file());
    named
}

/// The files of a folder, each with the files from which it imports.
fn imports_of(folder: &Path) -> Vec<(PathBuf, Vec<PathBuf>)> {
    let src =
        folder.ancestors().find(|dir| dir.ends_with("src")).expect("it is below the sources of a crate");
    let mut files = Vec::new();
    sources(folder, &mut files);
    files.retain(|file| *file != src.join("lib.rs"));
    files.into_iter().map(|file| (file.clone(), files_named(src, &file))).collect()
}

/// Folders whose files do not import each other in circles.
const NO_CIRCLE: &[&str] = &[
    // An object's constructors are in its own file, and parents do not name their children.
    "verbs/src",
    "stack/src/device",
    "stack/src/mem",
    "stack/src/wire",
    "stack/src/net",
    "stack/src/registry",
    "stack/src/xrc",
    "stack/src/port",
    // A part of a shard names neither the shard nor code that works with several parts.
    "stack/src/shard",
    // The functions that a C program calls are above the objects that they work on; the layers are below.
    "verbs/c/src",
    "apps/src",
    "apps/tools/src",
    // Parts of a core name neither the core nor code that works with several parts.
    "apps/nvmf-target/src",
    "apps/nvmf/src",
];

/// Folders whose modules do not import each other in circles, where a file and the folder of the same name count as one module: the
/// methods of a requester, for example, are in several files.
const NO_CIRCLE_OF_MODULES: &[&str] = &["stack/src/proto"];

/// The entries that are in a circle of imports, or between two circles.
fn in_circles<T: Clone + PartialEq>(mut left: Vec<(T, Vec<T>)>) -> Vec<T> {
    loop {
        let before = left.len();
        let all: Vec<T> = left.iter().map(|(one, _)| one.clone()).collect();
        left.retain(|(_, named)| named.iter().any(|other| all.contains(other)));
        let named: Vec<T> = left.iter().flat_map(|(_, named)| named.clone()).collect();
        left.retain(|(one, _)| named.contains(one));
        if left.len() == before {
            return left.into_iter().map(|(one, _)| one).collect();
        }
    }
}

#[test]
fn files_import_each_other_in_no_circle() {
    for folder in NO_CIRCLE {
        let src = root().join(folder);
        let imports = imports_of(&src);
        assert!(imports.iter().map(|(_, named)| named.len()).sum::<usize>() > 20, "it sees the imports");
        let circle = in_circles(imports);
        let circle: Vec<_> = circle.iter().map(|file| file.strip_prefix(&src).expect("below")).collect();
        assert!(circle.is_empty(), "files of {folder} that import each other in a circle: {circle:?}");
    }
}

#[test]
fn modules_import_each_other_in_no_circle() {
    for folder in NO_CIRCLE_OF_MODULES {
        let src = root().join(folder);
        let module = |file: &PathBuf| module_in(&src, file);
        let mut imports: Vec<(String, Vec<String>)> = Vec::new();
        for (file, named) in imports_of(&src).iter().filter(|(file, _)| !file.ends_with("tests.rs")) {
            let Some(of) = module(file) else { continue };
            let named = named.iter().filter_map(module).filter(|other| *other != of).collect();
            imports.push((of, named));
        }
        assert!(imports.iter().map(|(_, named)| named.len()).sum::<usize>() > 20, "it sees the imports");
        // Each module once, with the imports of all of its files.
        let mut modules: Vec<(String, Vec<String>)> = Vec::new();
        for (of, named) in imports {
            match modules.iter_mut().find(|(module, _)| *module == of) {
                Some((_, all)) => all.extend(named),
                None => modules.push((of, named)),
            }
        }
        let circle = in_circles(modules);
        assert!(circle.is_empty(), "modules of {folder} that import each other in a circle: {circle:?}");
    }
}

/// The modules in the table of a folder's `lib.rs` or `mod.rs`, whose rows are the layers from bottom to top; each with its row.
fn layers(dir: &Path) -> Vec<(String, usize)> {
    let file = ["lib.rs", "mod.rs"].into_iter().map(|name| dir.join(name)).find(|file| file.is_file());
    let text = fs::read_to_string(file.expect("a folder has its own file")).expect("a source file is UTF-8");
    let rows = text.lines().filter_map(|line| line.strip_prefix("//! |")?.rsplit('|').nth(1));
    let modules = |(layer, row): (usize, &str)| {
        let names: Vec<_> = row.split('`').skip(1).step_by(2).map(str::to_string).collect();
        names.into_iter().map(move |name| (name, layer))
    };
    rows.enumerate().flat_map(modules).collect()
}

/// The module of a folder that a file belongs to; `None` for the folder's own file.
fn module_in(dir: &Path, file: &Path) -> Option<String> {
    let first = file.strip_prefix(dir).ok()?.components().next()?;
    let module = Path::new(first.as_os_str()).with_extension("").display().to_string();
    (module != "lib" && module != "mod").then_some(module)
}

// The tables show a reader the layers: no file may import from a row above its own, or be missing.
#[test]
fn files_of_the_c_face_import_from_their_own_layer_and_those_below() {
    let src = root().join("verbs/c/src");
    let mut wrong = Vec::new();
    for dir in [src.clone(), src.join("cm")] {
        let layers = layers(&dir);
        let layer_of = |module: &str| layers.iter().find(|(name, _)| name == module).map(|(_, layer)| *layer);
        let mut seen = Vec::new();
        for (file, named) in imports_of(&src) {
            let Some(module) = module_in(&dir, &file) else { continue };
            let Some(layer) = layer_of(&module) else {
                wrong.push(format!("{module} is in no row"));
                continue;
            };
            for other in named.iter().filter_map(|other| module_in(&dir, other)) {
                if layer_of(&other) > Some(layer) {
                    wrong.push(format!("{module} may not use {other}, which is above it"));
                }
            }
            seen.push(module);
        }
        wrong.extend(
            layers
                .iter()
                .filter(|(name, _)| !seen.contains(name))
                .map(|(name, _)| format!("{name} is no module")),
        );
    }
    assert!(wrong.is_empty(), "the layers of the C face:\n{}", wrong.join("\n"));
}

/// The name of a folder's crate in sources.
fn in_code(folder: &str) -> String {
    if folder == "verbs/c" {
        return "roce_ibverbs".into();
    }
    folder.rsplit('/').next().expect("a split has a last part").replace('-', "_")
}

#[test]
fn crates_point_down() {
    let mut wrong = Vec::new();
    for (name, below) in CRATES {
        let mut files = Vec::new();
        sources(&root().join(name), &mut files);
        // Folders below it that are crates of their own.
        let inner = |path: &PathBuf| {
            CRATES.iter().any(|(other, _)| {
                other.len() > name.len() && other.starts_with(name) && path.starts_with(root().join(other))
            })
        };
        files.retain(|path| !inner(path));
        let tests = root().join(name).join("tests");
        for path in files {
            for (n, line) in code(&path) {
                for (other, _) in CRATES {
                    let ident = in_code(other);
                    let used = line.contains(&format!("{ident}::")) && has_word(&line, &ident);
                    let inside =
                        line.contains(&format!("crate::{ident}")) || line.contains(&format!("::{ident}::"));
                    let test = ["sim", "tools"].contains(&ident.as_str()) && path.starts_with(&tests);
                    let allowed = test || below.contains(&ident.as_str());
                    if used && !inside && ident != in_code(name) && !allowed {
                        wrong.push(format!("{}:{n}: {name} may not use {ident}", path.display()));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "crates that point up:\n{}", wrong.join("\n"));
}

/// The body of a trait in a file.
fn body_of(file: &Path, name: &str) -> String {
    let text: String = code(file).into_iter().map(|(_, line)| line + "\n").collect();
    let after = |end| text.split_once(&format!("pub trait {name}{end}"));
    let (_, from) = after(":").or_else(|| after(" {")).expect("the file has the trait");
    from.split("\n}\n").next().expect("a split has a first part").to_string()
}

// A default method in a port that wraps another port would hide the other port's answer. So a port implements every method itself, or is
// a layer, whose methods call the port below; the compiler checks that a layer implements all of them.
#[test]
fn ports_inherit_no_answers() {
    let dir = root().join("stack/src/port");
    for (of_port, of_layer) in [("Port", "PortLayer"), ("PortQueue", "QueueLayer")] {
        let (port, layer) =
            (body_of(&dir.join("traits.rs"), of_port), body_of(&dir.join("layer.rs"), of_layer));
        let methods: Vec<&str> = port.lines().filter_map(|line| line.trim().strip_prefix("fn ")).collect();
        assert!(methods.len() > 6, "it sees the methods: {methods:?}");
        for method in methods {
            assert!(method.ends_with(';'), "{of_port} has a default for a method: fn {method}");
            let name = method.split('(').next().expect("a split has a first part");
            let forwards = format!("self.inner().{name}(");
            assert!(layer.contains(&forwards), "{of_layer}::{name} is not that of the port below");
        }
    }
    // The traits that a port calls or wraps.
    for name in ["Build", "Host"] {
        let body = body_of(&dir.join("traits.rs"), name);
        let methods: Vec<&str> = body.lines().filter_map(|line| line.trim().strip_prefix("fn ")).collect();
        assert!(methods.len() > 1, "it sees the methods: {methods:?}");
        for method in methods {
            assert!(method.ends_with(';'), "{name} has a default for a method: fn {method}");
        }
    }
}

#[test]
fn unsafe_is_fenced() {
    let mut wrong = Vec::new();
    let mut fenced = 0;
    for name in ["dpdk-sys", "stack", "verbs", "apps", "benches"] {
        let mut files = Vec::new();
        sources(&root().join(name), &mut files);
        for path in files {
            let shown = path.strip_prefix(root()).expect("below the root").display().to_string();
            if shown.starts_with("dpdk-sys/build") || shown.ends_with("tests/layering.rs") {
                continue;
            }
            let listed = UNSAFE.iter().any(|u| shown.starts_with(u));
            // The word inside a string is no `unsafe` block.
            let uses = |l: &str| has_word(l, "unsafe") && !l.contains('"');
            for (n, line) in code(&path).iter().filter(|(_, l)| uses(l)) {
                if listed {
                    fenced += 1;
                } else {
                    wrong.push(format!("{shown}:{n}: {}", line.trim()));
                }
            }
        }
    }
    assert!(fenced > 0, "the listed files have no unsafe code: the test looks in the wrong place");
    assert!(wrong.is_empty(), "unsafe outside the listed files:\n{}", wrong.join("\n"));
}

// Goal: every test file is part of a binary. A file that neither `mod` nor `[[test]]` names would silently not run.
#[test]
fn every_test_file_is_part_of_a_binary() {
    for name in ["stack", "verbs", "apps", "apps/nvmf", "apps/nvmf-target", "apps/tools"] {
        let (dir, tests) = (root().join(name), root().join(name).join("tests"));
        let entries = fs::read_dir(&tests).expect("a crate with tests has the folder");
        let paths: Vec<PathBuf> = entries.map(|entry| entry.expect("a directory entry").path()).collect();
        let files = paths.iter().filter(|path| path.extension().is_some_and(|e| e == "rs"));
        let mut text = fs::read_to_string(dir.join("Cargo.toml")).expect("a crate has a manifest");
        for file in files.clone() {
            text += &fs::read_to_string(file).expect("a source file is UTF-8");
        }
        for path in files.chain(paths.iter().filter(|path| path.is_dir())) {
            let stem = path.file_stem().expect("an entry has a name").display().to_string();
            let named = [format!("\nmod {stem};\n"), format!("\nname = \"{stem}\"\n")];
            assert!(
                stem == "main" || named.iter().any(|line| text.contains(line)),
                "{}: name it in main.rs",
                path.display()
            );
        }
    }
}

/// The names that no code below a folder of the stack uses, apart from tests and the declaring file.
fn not_given(declared_in: &str, folder: &str, mut names: Vec<String>) -> Vec<String> {
    let mut files = Vec::new();
    sources(&root().join("stack/src").join(folder), &mut files);
    let is_test =
        |path: &Path| path.ends_with("tests.rs") || path.components().any(|c| c.as_os_str() == "tests");
    for path in files.iter().filter(|path| !path.ends_with(declared_in) && !is_test(path)) {
        let text: String = code(path).into_iter().map(|(_, line)| line + "\n").collect();
        let text = text.split("\nmod tests {").next().unwrap_or_default();
        names.retain(|name| !has_word(text, name));
    }
    names
}

// Goal: every reason is used. A reason that no code uses would promise a check that does not exist.
#[test]
fn every_reason_is_given_somewhere() {
    fn names(of: &str, all: impl IntoIterator<Item = impl Debug>) -> Vec<String> {
        all.into_iter().map(|name| format!("{of}::{name:?}")).collect()
    }
    for (declared_in, folder, names) in [
        ("wire/discard.rs", "", names("Discard", Discard::ALL)),
        ("proto/fault.rs", "", names("Fault", Fault::all())),
        ("net/counter.rs", "net", names("NetCounter", NetCounter::ALL)),
        ("cm/counter.rs", "cm", names("Counter", stack::cm::Counter::ALL)),
    ] {
        assert_eq!(not_given(declared_in, folder, names), [""; 0], "{declared_in}");
    }
}

#[test]
fn the_test_sees_what_it_should() {
    assert_eq!(imported("use crate::{id, wire::Psn};"), ["id", "wire"]);
    assert_eq!(imported("let x = crate::shard::Turn::default();"), ["shard"]);
    let file = [
        "use a::B;",
        "#[cfg(test)]",
        "mod c;",
        "mod d;",
        "#[cfg(test)]",
        "mod tests {",
        "    use e::F;",
        "}",
    ];
    assert_eq!(without_tests(file.map(String::from).into_iter()), "use a::B;\nmod d;\n");
    assert_eq!(paths("a::{b, c::{self, D}, e::*}; f::{g}"), ["a::b", "a::c::self", "a::c::D", "a::e::"]);
    assert!(has_word("unsafe { x }", "unsafe") && !has_word("unsafely()", "unsafe"));
    let names = ["Discard::BadIcrc", "Discard::BadIcr"].map(String::from);
    assert_eq!(not_given("wire/discard.rs", "", names.into()), ["Discard::BadIcr"]);
}
