//! The command line of `roce-run`.

use super::parse;
use clap::{Parser, ValueEnum};
use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  roce-run ibv_devinfo                        what the program sees: one device, roce0

  roce-run ib_write_bw                        here
  roce-run ib_write_bw HOST                   there, or on this machine: over shared memory here,
                                              over UDP packets between hosts; without root

  roce-run rping -s -v                        HOST is an address of this host
  roce-run rping -c -a HOST -v

  roce-run mpirun -np 2 ./program             every process that the program starts, too
  roce-run --stats ib_send_bw                 with counters for roce-stat
  roce-run --pcap /tmp/a.pcap ib_send_bw      with a capture of all packets
  roce-run --check HOST                       what this host and the way to another one let RoCE over UDP do
  eval \"$(roce-run --print)\"                  this shell, and all that is started from it

Each option sets a variable, for those who cannot use the wrapper: ROCE_PORT, ROCE_ADDR, ROCE_MTU, ROCE_DRIVE, ROCE_STATS,
ROCE_PCAP, ROCE_MEMORY. An option wins over a variable. More variables: ROCE_ADDRS (addresses for the port host), ROCE_ADMIT
(users who may be part of this user's host), ROCE_HOST_USER (the user whose host this is to be part of), ROCE_GATEWAY,
ROCE_VLAN, ROCE_MAC, ROCE_SHARDS, ROCE_KEEPALIVE, ROCE_LOG (off, error, warn, info or debug: what the library says). The loader finds the library by LD_LIBRARY_PATH and
LD_PRELOAD; --print shows them. Programs that are setuid or linked statically cannot be run this way.";

/// Run an RDMA program, as the distribution has it, on the userspace RoCEv2 stack
///
/// The program uses libibverbs and librdmacm as always. It gets this stack in their place: no RDMA hardware, no kernel
/// module and no root are needed.
#[derive(Parser, Clone, Debug)]
#[command(name = "roce-run", version, after_help = EXAMPLES, max_term_width = 120)]
pub struct RunCli {
    /// Port to send and receive frames on [default: host]
    ///
    /// host (the addresses and the network of this host, shared by all processes of this user, which reach each other over shared
    /// memory; host:ADDR,...: with these addresses alone), udp or udp:ADDR (UDP sockets on the host's addresses for one process
    /// alone), memif or memif:PATH (a private link of shared memory with one other process), unix:LOCAL,peer=REMOTE, loopback; with a library that was built with DPDK tap:IFACE,
    /// af_packet:IFACE, dpdk:DEVARGS.
    #[arg(long, value_name = "SPEC", value_parser = port)]
    pub port: Option<String>,

    /// Address of the device, with its prefix length; may be given several times
    #[arg(long, value_name = "ADDR/PREFIX", value_parser = parse::ip_prefix)]
    pub ip: Vec<(IpAddr, u8)>,

    /// Largest IP packet of the port, in bytes
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(576..=9600))]
    pub link_mtu: Option<u16>,

    /// Which threads drive the stack [default: caller]
    #[arg(long, value_enum)]
    pub drive: Option<RunDrive>,

    /// Cores of those threads, with --drive dedicated
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub cores: Vec<usize>,

    /// Let memory be unmapped while it is registered: accesses to it then fail, and the program lives on
    ///
    /// Slower: the kernel makes every access. Atomics are atomic with each other alone.
    #[arg(long)]
    pub on_demand: bool,

    /// Show counters to roce-stat on this unix socket
    ///
    /// In a directory the socket is named after the process; without a path it is where roce-stat looks by default.
    #[arg(long, value_name = "PATH", num_args = 0..=1, require_equals = true)]
    pub stats: Option<Option<PathBuf>>,

    /// Capture everything that goes over the port into this file
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,

    /// Directory of the library [default: ../lib/roce beside the directory of roce-run, then ../dropin]
    #[arg(long = "library", value_name = "DIR")]
    pub libraries: Option<PathBuf>,

    /// Print the variables, as commands of a shell, instead of running a program
    #[arg(long)]
    pub print: bool,

    /// Look at this host instead of running a program, and at the way to each HOST that is named: what keeps RoCE over UDP
    /// from working or makes it slow, and what to do
    #[arg(long, conflicts_with = "print")]
    pub check: bool,

    /// With --check: print an array of JSON objects
    #[arg(long, requires = "check")]
    pub json: bool,

    /// The program, and its arguments
    #[arg(
        value_name = "PROGRAM",
        required_unless_present_any = ["print", "check"],
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub command: Vec<OsString>,
}

/// Which threads drive the stack below a program that does not know of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RunDrive {
    /// The program's threads while they poll, and a helper thread while none does
    Caller,
    /// One pinned thread a shard, which never sleeps: for machines with cores to spare
    Dedicated,
}

/// A port, as it was written.
fn port(text: &str) -> Result<String, String> {
    parse::port(text).map(|_| text.to_owned())
}
