//! The command line of `roce-xrcd`.

use super::device::DEFAULT_PORT;
use super::parse;
use clap::Parser;
use std::time::Duration;
use verbs::DomainFile;
use verbs::port::PortSpec;

/// The environment variable with the meaning of `--linger`, for a program that starts `roce-xrcd` itself.
pub const LINGER: &str = "ROCE_XRCD_LINGER";

const EXAMPLES: &str = "\
Examples:
  roce-xrcd $(stat -c %d:%i /var/tmp/jobs)    in a terminal; ends 10 s after the last program has closed the domain

You need not start it: the library does, when a program makes the first target or shared receive queue in an XRC domain that
it has opened by a file (ibv_open_xrcd with a descriptor) over the port host. It is found beside the library, or named in
the variable ROCE_XRCD_PROGRAM. Each such file has one, for each user and network namespace; it ends by itself, or with the
systemd unit, job step or PID namespace of the program that started it.

It is worth starting by hand when programs say that the owner of their domain does not answer: then it says why.";

/// Own the targets of an XRC domain that processes of one user share
///
/// One process makes a target, others have shared receive queues, and whoever is connected to the target names any of these. The
/// target outlives the process that made it. So this program has it, and passes its messages on.
#[derive(Parser, Clone, Debug)]
#[command(name = "roce-xrcd", version, after_help = EXAMPLES, max_term_width = 100)]
pub struct XrcdCli {
    /// The file of the domain: the numbers of its device and its inode
    #[arg(value_name = "DEVICE:INODE", value_parser = |text: &str| text.parse::<DomainFile>())]
    pub domain: DomainFile,
    /// Port of the programs that share the domain: host, or host:ADDR,...
    #[arg(long, value_name = "SPEC", default_value = DEFAULT_PORT, value_parser = parse::port)]
    pub port: PortSpec,
    /// Seconds until it ends when no program has the domain open [default: the variable ROCE_XRCD_LINGER, or 10]
    #[arg(long, value_name = "SECONDS", value_parser = linger)]
    pub linger: Option<Duration>,
}

/// A number of seconds, with decimals.
///
/// # Errors
/// One sentence that says what is valid.
pub fn linger(text: &str) -> Result<Duration, String> {
    let seconds: Option<f64> = text.parse().ok().filter(|seconds| (0.0..=86_400.0).contains(seconds));
    seconds
        .map(Duration::from_secs_f64)
        .ok_or_else(|| format!("{text:?} is no number of seconds from 0 to 86400"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_and_a_port_are_read_or_refused_with_a_sentence() {
        let parse = |args: &[&str]| XrcdCli::try_parse_from([&["roce-xrcd"], args].concat());
        let cli = parse(&["7:9", "--port", "host:10.0.0.1", "--linger", "0.5"]).unwrap();
        assert_eq!((cli.domain.to_string(), cli.linger), ("7:9".into(), Some(Duration::from_millis(500))));
        for wrong in [
            &["jobs"][..],
            &[],
            &["7:9", "--linger", "-1"],
            &["7:9", "--linger", "NaN"],
            &["7:9", "--port", "x"],
        ] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
        assert!(linger("1e9").unwrap_err().contains("0 to 86400"));
    }
}
