//! The configuration file of a target: TOML, read into an [`Offer`].

use std::net::SocketAddr;
use std::ops::Range;
use std::path::PathBuf;

use apps::cli::parse::memory_size;
use nvmf::Nqn;
use nvmf::config::Settings;
use serde::Deserialize;
use toml::Spanned;

use super::identity::parse_uuid;
use super::offer::{Mistake, Offer, OfferedNamespace, OfferedSubsystem, Storage, check_block, check_size};
use crate::store::Direct;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    target: Option<TargetTable>,
    #[serde(default)]
    port: Vec<PortTable>,
    #[serde(default)]
    subsystem: Vec<Spanned<SubsystemTable>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TargetTable {
    queue_entries: Option<u16>,
    io_queues: Option<u16>,
    in_capsule: Option<Spanned<String>>,
    largest_transfer: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PortTable {
    address: Spanned<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SubsystemTable {
    nqn: Spanned<String>,
    serial: Option<Spanned<String>>,
    hosts: Option<Vec<Spanned<String>>>,
    #[serde(default)]
    namespace: Vec<Spanned<NamespaceTable>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NamespaceTable {
    id: Option<u32>,
    memory: Option<Spanned<String>>,
    file: Option<PathBuf>,
    size: Option<Spanned<String>>,
    direct: Option<Spanned<DirectValue>>,
    block: Option<Spanned<u32>>,
    uuid: Option<Spanned<String>>,
    #[serde(default)]
    read_only: bool,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum DirectValue {
    Is(bool),
    Word(String),
}

fn direct(value: &Spanned<DirectValue>) -> Result<Direct, Mistake> {
    match value.get_ref() {
        DirectValue::Is(false) => Ok(Direct::No),
        DirectValue::Is(true) => Ok(Direct::Yes),
        DirectValue::Word(word) if word == "try" => Ok(Direct::Try),
        DirectValue::Word(word) => {
            mistake(value.span(), format!("direct is true, false or \"try\", not {word:?}"))
        }
    }
}

fn mistake<T>(span: Range<usize>, what: impl Into<String>) -> Result<T, Mistake> {
    Err(Mistake { what: what.into(), span: Some(span) })
}
/// Converts text by `f`. An error becomes a mistake at the place of the text.
fn value<T>(text: &Spanned<String>, f: impl FnOnce(&str) -> Result<T, String>) -> Result<T, Mistake> {
    f(text.get_ref()).or_else(|what| mistake(text.span(), what))
}
fn nqn(text: &str) -> Result<Nqn, String> {
    text.parse().map_err(|e| format!("{text:?} is no name of a host or subsystem: {e}"))
}

/// Parses the text of a configuration file.
///
/// # Errors
/// The first mistake in the text.
pub fn parse(text: &str) -> Result<Offer, Mistake> {
    let file: File = toml::from_str(text).map_err(|e| Mistake {
        // Only the first line: the others list the keys again.
        what: e.message().lines().next().unwrap_or_default().into(),
        span: e.span(),
    })?;
    let settings = settings(file.target)?;
    let ports = file.port.iter().map(|port| value(&port.address, address)).collect::<Result<_, _>>()?;
    let subsystems = file.subsystem.into_iter().map(subsystem).collect::<Result<_, _>>()?;
    Ok(Offer { settings, ports, subsystems })
}

fn settings(table: Option<TargetTable>) -> Result<Settings, Mistake> {
    let mut settings = Settings::default();
    let Some(table) = table else { return Ok(settings) };
    settings.queue_entries = table.queue_entries.unwrap_or(settings.queue_entries);
    settings.io_queues = table.io_queues.unwrap_or(settings.io_queues);
    if let Some(text) = table.in_capsule {
        settings.in_capsule = value(&text, |text| {
            memory_size(text)?.try_into().map_err(|_| format!("{text:?} is more than a capsule can have"))
        })?;
    }
    if let Some(text) = table.largest_transfer {
        settings.mdts = value(&text, |text| match memory_size(text)? {
            n if n.is_power_of_two() && n >= 8192 => Ok((n / 4096).trailing_zeros() as u8),
            _ => Err(format!("the largest transfer is 8k, 16k, 32k and so on to 8m, not {text:?}")),
        })?;
    }
    Ok(settings)
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse()
        .map_err(|_| format!("{text:?} is no address with a port, as 10.77.0.1:4420 or [fd00::1]:4420"))
}

fn subsystem(table: Spanned<SubsystemTable>) -> Result<OfferedSubsystem, Mistake> {
    let span = table.span();
    let table = table.into_inner();
    let serial = table.serial.as_ref().map(|text| {
        value(text, |text| {
            text.try_into().map_err(|_| format!("a serial number has 20 characters at most, not {text:?}"))
        })
    });
    let hosts = table.hosts.map(|hosts| hosts.iter().map(|host| value(host, nqn)).collect());
    let mut namespaces: Vec<OfferedNamespace> = Vec::new();
    for table in table.namespace {
        let next = namespaces.last().map_or(1, |last| last.nsid.saturating_add(1));
        namespaces.push(namespace(table, next)?);
    }
    Ok(OfferedSubsystem {
        nqn: value(&table.nqn, nqn)?,
        serial: serial.transpose()?,
        hosts: hosts.transpose()?,
        namespaces,
        span,
    })
}

fn namespace(table: Spanned<NamespaceTable>, next: u32) -> Result<OfferedNamespace, Mistake> {
    let span = table.span();
    let table = table.into_inner();
    let block = table.block.as_ref().map_or(512, |block| *block.get_ref());
    if let (Some(given), Err(why)) = (&table.block, check_block(block)) {
        return mistake(given.span(), why);
    }
    let bytes = |text: &Spanned<String>| {
        value(text, |text| {
            let bytes = memory_size(text)?;
            check_size(bytes, block).map(|()| bytes)
        })
    };
    let size = table.size.as_ref().map(&bytes).transpose()?;
    let storage = match (table.memory, table.file) {
        (Some(memory), None) => {
            if let Some(size) = table.size {
                return mistake(size.span(), "size belongs to a file; memory has its own");
            }
            if let Some(direct) = table.direct {
                return mistake(direct.span(), "direct belongs to a file; memory has no page cache");
            }
            Storage::Memory(bytes(&memory)?)
        }
        (None, Some(path)) => {
            Storage::File { path, size, direct: table.direct.as_ref().map(direct).transpose()? }
        }
        _ => return mistake(span, "a namespace has one of memory and file"),
    };
    let uuid = table.uuid.as_ref().map(|text| {
        value(text, |text| {
            parse_uuid(text)
                .ok_or_else(|| format!("{text:?} is no UUID, as 11111111-2222-3333-4444-555555555555"))
        })
    });
    Ok(OfferedNamespace {
        nsid: table.id.unwrap_or(next),
        storage,
        block,
        uuid: uuid.transpose()?,
        read_only: table.read_only,
        span,
    })
}
