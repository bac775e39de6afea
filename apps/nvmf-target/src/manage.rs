//! The commands `roce-nvmf namespace`, `host` and `list`, for a running target.

use std::path::PathBuf;

use apps::cli::parse;
use apps::error::{AppError, Result};
use apps::out::say;
use clap::{ArgGroup, Args, Subcommand};
use nvmf::Nqn;

use crate::config::{OfferedNamespace, Storage, parse_uuid};
use crate::control::{self, Answer, AskError, List, Request};
use crate::store::Direct;

/// Which target, and which of its subsystems.
#[derive(Args, Clone, Debug)]
pub struct WhichArgs {
    /// Control socket of the target [default: that of the only target that runs]
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// The subsystem [default: the only one that the target has]
    #[arg(long, value_name = "NQN")]
    pub nqn: Option<Nqn>,
}

/// `roce-nvmf namespace`.
#[derive(Subcommand, Clone, Debug)]
pub enum NamespaceCommand {
    /// Add a namespace; its hosts see it at once
    Add(AddArgs),
    /// Remove a namespace; its file is closed
    Remove {
        /// Its identifier
        id: u32,
        /// Which target.
        #[command(flatten)]
        which: WhichArgs,
    },
    /// Serve a namespace again that has failed: you say that its data are as they should be
    Online {
        /// Its identifier
        id: u32,
        /// Which target.
        #[command(flatten)]
        which: WhichArgs,
    },
    /// Give a namespace another size
    Resize {
        /// Its identifier
        id: u32,
        /// Its size; a file that is smaller grows, and none is cut off [default: that of the file or the device]
        #[arg(value_parser = parse::memory_size)]
        size: Option<u64>,
        /// Which target.
        #[command(flatten)]
        which: WhichArgs,
    },
}

/// Options of `roce-nvmf namespace add`.
#[derive(Args, Clone, Debug)]
#[command(group = ArgGroup::new("storage").required(true).args(["file", "memory"]))]
pub struct AddArgs {
    /// A file or a block device
    #[arg(long, value_name = "PATH")]
    pub file: Option<PathBuf>,
    /// So much memory, gone when the target ends
    #[arg(long, value_name = "SIZE", value_parser = parse::memory_size)]
    pub memory: Option<u64>,
    /// Make the file, or let it grow, where it is smaller
    #[arg(long, value_name = "SIZE", value_parser = parse::memory_size, conflicts_with = "memory")]
    pub size: Option<u64>,
    /// Go past the page cache: true, false or try [default: true for block devices, false for files]
    #[arg(long, value_name = "HOW", value_parser = direct, conflicts_with = "memory")]
    pub direct: Option<Direct>,
    /// Its identifier [default: the next that is free]
    #[arg(long, value_name = "ID", value_parser = clap::value_parser!(u32).range(1..))]
    pub id: Option<u32>,
    /// Bytes of a block
    #[arg(long, value_name = "BYTES", default_value_t = 512)]
    pub block: u32,
    /// Its UUID [default: one that follows from the file's name; a new one for memory]
    #[arg(long, value_parser = uuid)]
    pub uuid: Option<Uuid>,
    /// Hosts may not write
    #[arg(long)]
    pub read_only: bool,
    /// Which target.
    #[command(flatten)]
    pub which: WhichArgs,
}

/// The bytes of a UUID.
pub type Uuid = [u8; 16];

fn uuid(text: &str) -> std::result::Result<Uuid, String> {
    parse_uuid(text).ok_or_else(|| format!("{text:?} is no UUID, as 11111111-2222-3333-4444-555555555555"))
}
fn direct(text: &str) -> std::result::Result<Direct, String> {
    match text {
        "true" => Ok(Direct::Yes),
        "false" => Ok(Direct::No),
        "try" => Ok(Direct::Try),
        _ => Err(format!("it is true, false or try, not {text:?}")),
    }
}

/// `roce-nvmf host`.
#[derive(Subcommand, Clone, Debug)]
pub enum HostCommand {
    /// Allow a host to use a subsystem
    Allow(HostArgs),
    /// Deny a host a subsystem; its controllers end
    Deny(HostArgs),
}

/// Which host.
#[derive(Args, Clone, Debug)]
pub struct HostArgs {
    /// Name of the host
    #[arg(value_name = "NQN")]
    pub host: Nqn,
    /// Which target.
    #[command(flatten)]
    pub which: WhichArgs,
}

/// Options of `roce-nvmf list`.
#[derive(Args, Clone, Debug)]
pub struct ListArgs {
    /// Control socket of the target [default: that of the only target that runs]
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// Print an object of JSON
    #[arg(long)]
    pub json: bool,
}

impl From<AskError> for AppError {
    fn from(e: AskError) -> Self {
        Self::Setup(e.to_string())
    }
}

/// The control socket of the target: `named`, or that of the only running target.
fn socket(named: Option<&PathBuf>) -> Result<PathBuf> {
    match named {
        Some(path) => Ok(path.clone()),
        None => {
            let dir = verbs::stats::runtime_dir().map_err(|e| AppError::Setup(e.to_string()))?;
            Ok(control::find(&dir)?)
        }
    }
}

/// Sends a request for the chosen subsystem, and prints what was done.
fn change(which: &WhichArgs, request: impl FnOnce(String) -> Request) -> Result<()> {
    let socket = socket(which.control.as_ref())?;
    let nqn = match &which.nqn {
        Some(nqn) => nqn.to_string(),
        None => {
            let list = listed(control::ask(&socket, &Request::List)?)?;
            let names: Vec<_> = list.subsystems.into_iter().map(|subsystem| subsystem.nqn).collect();
            match &names[..] {
                [only] => only.clone(),
                names => {
                    let names = names.join(", ");
                    return Err(AppError::Usage(format!("choose a subsystem by --nqn, of these: {names}")));
                }
            }
        }
    };
    match control::ask(&socket, &request(nqn))? {
        Answer::Done(done) => say!("{done}"),
        other => Err(refused(other)),
    }
}
fn refused(answer: Answer) -> AppError {
    match answer {
        Answer::Refused(why) => AppError::Setup(why),
        _ => AppError::ProtocolViolation("the target answered something else than it was asked".into()),
    }
}
fn listed(answer: Answer) -> Result<List> {
    match answer {
        Answer::List(list) => Ok(list),
        other => Err(refused(other)),
    }
}

/// `roce-nvmf namespace`: changes the namespaces of a running target.
///
/// # Errors
/// If the target does not answer, or refuses.
pub fn namespace(command: &NamespaceCommand) -> Result<()> {
    match command {
        NamespaceCommand::Add(args) => {
            let namespace = offered(args)?;
            namespace.check().map_err(AppError::Usage)?;
            change(&args.which, |nqn| Request::AddNamespace { nqn, namespace })
        }
        &NamespaceCommand::Remove { id, ref which } => {
            change(which, |nqn| Request::RemoveNamespace { nqn, id })
        }
        &NamespaceCommand::Online { id, ref which } => {
            change(which, |nqn| Request::OnlineNamespace { nqn, id })
        }
        &NamespaceCommand::Resize { id, size, ref which } => {
            change(which, |nqn| Request::ResizeNamespace { nqn, id, size })
        }
    }
}

fn offered(args: &AddArgs) -> Result<OfferedNamespace> {
    let storage = match (&args.file, args.memory) {
        (Some(file), _) => {
            // The target may have another working directory.
            let path = std::path::absolute(file);
            let path = path.map_err(|e| AppError::Usage(format!("{}: {e}", file.display())))?;
            Storage::File { path, size: args.size, direct: args.direct }
        }
        (None, bytes) => Storage::Memory(bytes.unwrap_or(0)),
    };
    let AddArgs { block, uuid, read_only, .. } = *args;
    Ok(OfferedNamespace { nsid: args.id.unwrap_or(0), storage, block, uuid, read_only, span: 0..0 })
}

/// `roce-nvmf host`: changes the hosts that may use a subsystem of a running target.
///
/// # Errors
/// If the target does not answer, or refuses.
pub fn host(command: &HostCommand) -> Result<()> {
    match command {
        HostCommand::Allow(args) => {
            change(&args.which, |nqn| Request::AllowHost { nqn, host: args.host.to_string() })
        }
        HostCommand::Deny(args) => {
            change(&args.which, |nqn| Request::DenyHost { nqn, host: args.host.to_string() })
        }
    }
}

/// `roce-nvmf list`: prints the subsystems of a running target and the connected hosts.
///
/// # Errors
/// If the target does not answer.
pub fn list(args: &ListArgs) -> Result<()> {
    let list = listed(control::ask(&socket(args.control.as_ref())?, &Request::List)?)?;
    if args.json {
        let text = serde_json::to_string(&list).map_err(|e| AppError::Setup(e.to_string()))?;
        return say!("{text}");
    }
    for subsystem in &list.subsystems {
        say!("{} (serial {})", subsystem.nqn, subsystem.serial)?;
        for namespace in &subsystem.namespaces {
            let file = namespace.file.as_ref().map_or("memory".into(), |file| file.display().to_string());
            let blocks = namespace.size / u64::from(namespace.block);
            let read_only = if namespace.read_only { ", read only" } else { "" };
            say!(
                "  namespace {}: {blocks} blocks of {} bytes, {file}{read_only}",
                namespace.id,
                namespace.block
            )?;
            if let Some(why) = &namespace.failed {
                say!("    FAILED: {why}; see roce-nvmf namespace online --help")?;
            }
        }
        match &subsystem.hosts {
            None => say!("  every host may use it")?,
            Some(hosts) => hosts.iter().try_for_each(|host| say!("  may be used by {host}"))?,
        }
        let of_it = |listed: &&control::ListedController| listed.subsystem.as_ref() == Some(&subsystem.nqn);
        for listed in list.controllers.iter().filter(of_it) {
            say!("  connected: {} (controller {:#x})", listed.nqn, listed.controller)?;
        }
    }
    if !list.differs.is_empty() {
        say!("until the target ends:")?;
        list.differs.iter().try_for_each(|differs| say!("  {differs}"))?;
    }
    Ok(())
}
