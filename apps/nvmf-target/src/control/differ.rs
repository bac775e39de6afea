//! Finds how a running target differs from its configuration file. Changes by control requests are not in the file, so they are lost when
//! the target ends.

use nvmf::config::{Hosts, Namespace, Subsystem};

use crate::store::Table;

/// The differences between the subsystems as `file` configured them (`gave`) and as they are `now`, a sentence each.
pub fn differences(file: &str, gave: &[Subsystem], now: &[Subsystem], table: &Table) -> Vec<String> {
    let mut differs = Vec::new();
    for subsystem in now {
        let nqn = &subsystem.nqn;
        let Some(before) = gave.iter().find(|before| before.nqn == *nqn) else {
            differs.push(format!("{file} does not have subsystem {nqn}"));
            continue;
        };
        let of = |all: &Subsystem, id: u32| all.namespaces.iter().find(|n| n.nsid == id).cloned();
        for namespace in &subsystem.namespaces {
            let id = namespace.nsid;
            match of(before, id) {
                Some(before) if before.backend == namespace.backend => {
                    if let Some(again) = blocks_after_restart(namespace, table) {
                        let blocks = namespace.blocks;
                        differs.push(format!(
                            "namespace {id} of {nqn} has {blocks} blocks, and will have {again} by {file}"
                        ));
                    }
                }
                Some(_) => differs.push(format!("namespace {id} of {nqn} is another one in {file}")),
                None => differs.push(format!("{file} does not have namespace {id} of {nqn}")),
            }
        }
        for gone in before.namespaces.iter().filter(|before| of(subsystem, before.nsid).is_none()) {
            differs.push(format!("{file} has namespace {} of {nqn}, which was removed", gone.nsid));
        }
        if let (Hosts::Listed(before), Hosts::Listed(now)) = (&before.hosts, &subsystem.hosts) {
            let allowed = now.iter().filter(|host| !before.contains(host));
            differs.extend(allowed.map(|host| format!("{file} does not allow {host} to use {nqn}")));
            let denied = before.iter().filter(|host| !now.contains(host));
            differs.extend(denied.map(|host| format!("{file} allows {host} to use {nqn}, which was denied")));
        }
    }
    differs
}

/// How many blocks a namespace will have after a restart, if that differs from now. After a restart it has as many as its storage. A file
/// that was grown keeps its size, so a namespace that was resized together with its file does not differ.
fn blocks_after_restart(namespace: &Namespace, table: &Table) -> Option<u64> {
    let size = table.get(namespace.backend)?.size().ok()?;
    let again = size >> namespace.block_shift;
    (again != namespace.blocks).then_some(again)
}
