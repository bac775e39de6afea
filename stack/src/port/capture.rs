//! A port that writes every frame, both ways, to a pcap file.

use super::error::PortError;
use super::frame::{RxBurst, TxBurst};
use super::layer::{PortLayer, QueueLayer};
use super::traits::{Build, Port, PortQueue, Route};
use crate::runtime;
use crate::sync::process::Process;
use core::time::Duration;
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use pcap_file::{DataLink, TsResolution};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Instant, SystemTime};

/// Packets are written to the file at least this often while frames flow or the port is maintained.
const FLUSH_EVERY: Duration = Duration::from_secs(1);

/// Wraps `port` so that every frame it receives and sends is also written to the file at `path`.
///
/// The file has the pcap format, with timestamps in nanoseconds and link type Ethernet, and can be read while it grows. All queues write to
/// it, in the order of their bursts. A frame is written once the port has accepted it.
///
/// # Errors
/// When the file cannot be created or written.
pub fn capture(port: Box<dyn Port>, path: &Path) -> Result<Box<dyn Port>, PortError> {
    let fail = |reason: String| PortError::Open { port: port.info().name.clone(), reason };
    let file = make(path)
        .map_err(|why| fail(format!("the capture file {} cannot be made: {why}", path.display())))?;
    let file = Output(Arc::new(Mutex::new(BufWriter::with_capacity(1 << 16, Disk(file)))));
    let header = PcapHeader {
        datalink: DataLink::ETHERNET,
        ts_resolution: TsResolution::NanoSecond,
        ..PcapHeader::default()
    };
    let writer = PcapWriter::with_header(file.clone(), header)
        .map_err(|error| fail(format!("the capture file {} cannot be written: {error}", path.display())))?;
    let made_by = Process::this();
    let inner = Inner { writer, file, made_by, flushed: Instant::now(), failed: false, path: path.into() };
    let log = Log(Arc::new(Mutex::new(inner)));
    log.lock().flush();
    Ok(Box::new(CapturePort { port, log }))
}

/// Creates the file, or truncates an existing one.
///
/// In a directory where other users may create files, it follows no symbolic link and accepts no file of another user, except the
/// directory's owner: the user could otherwise redirect the capture, or read it.
fn make(path: &Path) -> Result<File, String> {
    let text = |error: std::io::Error| error.to_string();
    let dir = runtime::without_foreign_links(runtime::dir_of(path))?;
    let dir = std::fs::metadata(dir).map_err(text)?;
    let uid = rustix::process::geteuid().as_raw();
    let shared = runtime::is_shared(&dir) || ![0, uid].contains(&dir.uid());
    let no_link = if shared { libc::O_NOFOLLOW } else { 0 };
    // The file holds payloads and keys, so other users must not read it. An existing file keeps its mode.
    let mut options = File::options();
    let file = options.write(true).create(true).truncate(false).mode(0o600).custom_flags(no_link).open(path);
    let file = file.map_err(|error| match error.raw_os_error() {
        Some(libc::ELOOP) if shared => "it is a symbolic link, and others may put one there".into(),
        _ => text(error),
    })?;
    let there = file.metadata().map_err(text)?;
    if shared {
        let ours = [uid, dir.uid()].contains(&there.uid()) && there.nlink() == 1;
        if !there.is_file() || !ours {
            return Err(format!(
                "user {} has put something there, where others may put files; name another",
                there.uid()
            ));
        }
    }
    if there.is_file() {
        file.set_len(0).map_err(text)?;
    }
    Ok(file)
}

/// The file, shared by the writer and the threads that flush.
#[derive(Clone)]
struct Output(Arc<Mutex<BufWriter<Disk>>>);

/// The file itself. It avoids write(2) of libc, which the standard library calls: that is a cancellation point (pthreads(7)), and a thread
/// of a C program that is cancelled while it polls cannot be unwound from here.
struct Disk(File);

impl Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        Ok(rustix::io::write(&self.0, bytes)?)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).write(bytes)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).flush()
    }
}

struct Inner {
    writer: PcapWriter<Output>,
    file: Output,
    made_by: Process,
    flushed: Instant,
    failed: bool,
    path: PathBuf,
}

#[derive(Clone)]
struct Log(Arc<Mutex<Inner>>);

impl Log {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Inner {
    fn write(&mut self, at: Duration, bytes: &[u8]) {
        // A full disk must not stop the traffic.
        let packet = PcapPacket::new(at, bytes.len() as u32, bytes);
        let result = self.writer.write_packet(&packet).map(drop).map_err(|error| error.to_string());
        self.note(result);
    }

    fn flush(&mut self) {
        let result = self.file.flush().map_err(|error| error.to_string());
        self.note(result);
        self.flushed = Instant::now();
    }

    fn flush_if_due(&mut self) {
        if self.flushed.elapsed() >= FLUSH_EVERY {
            self.flush();
        }
    }

    fn note(&mut self, result: Result<(), String>) {
        let Err(error) = result else { return };
        if !core::mem::replace(&mut self.failed, true) {
            tracing::warn!("the capture {} is incomplete: {error}", self.path.display());
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.made_by.is_this() {
            self.flush();
        } else {
            // A forked child has a copy of the buffer. Only the parent writes it out; the leaked clone keeps the child from doing so.
            core::mem::forget(self.file.clone());
        }
    }
}

fn now() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

struct CapturePort {
    port: Box<dyn Port>,
    log: Log,
}

impl PortLayer for CapturePort {
    fn inner(&self) -> &dyn Port {
        &*self.port
    }

    fn take_queue(&self, index: usize) -> Option<Box<dyn PortQueue>> {
        let queue = self.port.take_queue(index)?;
        Some(Box::new(CaptureQueue { queue, log: self.log.clone(), bytes: Vec::new(), ends: Vec::new() }))
    }

    fn maintain(&self) {
        self.log.lock().flush_if_due();
        self.port.maintain();
    }
}

struct CaptureQueue {
    queue: Box<dyn PortQueue>,
    log: Log,
    /// Copies of the frames that are being sent, and where each ends.
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl QueueLayer for CaptureQueue {
    fn inner(&mut self) -> &mut dyn PortQueue {
        &mut *self.queue
    }

    fn rx_burst(&mut self, out: &mut RxBurst) -> usize {
        let before = out.len();
        let n = self.queue.rx_burst(out);
        if n > 0 {
            let at = now();
            let mut log = self.log.lock();
            for frame in &out[before..] {
                log.write(at, frame.data());
            }
            log.flush_if_due();
        }
        n
    }

    fn tx_burst(&mut self, route: Route, frames: &mut TxBurst) -> usize {
        if frames.is_empty() {
            return self.queue.tx_burst(route, frames);
        }
        // The port keeps the frames that it accepts, so they are copied first.
        self.bytes.clear();
        self.ends.clear();
        for frame in &*frames {
            self.bytes.extend_from_slice(frame.data());
            self.ends.push(self.bytes.len());
        }
        let at = now();
        let n = self.queue.tx_burst(route, frames);
        if n > 0 {
            let mut log = self.log.lock();
            let mut start = 0;
            for &end in &self.ends[..n] {
                log.write(at, &self.bytes[start..end]);
                start = end;
            }
            log.flush_if_due();
        }
        n
    }

    /// Returns `None`, so that everything is sent as frames: what is built in the port's own memory is sent before it can be copied.
    fn build_burst(&mut self, _: Route, _: usize, _: &mut dyn Build) -> Option<usize> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::pair;
    use super::*;
    use pcap_file::pcap::PcapReader;

    #[test]
    fn both_directions_of_all_queues_are_in_the_file() {
        let path = std::env::temp_dir().join(format!("roce-capture-{}.pcap", std::process::id()));
        let (a, b) = pair(2);
        let a = capture(a, &path).unwrap();
        let mut qa = [a.take_queue(0).unwrap(), a.take_queue(1).unwrap()];
        let mut qb = [b.take_queue(0).unwrap(), b.take_queue(1).unwrap()];
        let mut burst = TxBurst::new();
        let mut got = RxBurst::new();
        let mut expected = Vec::new();
        for i in 0..100u8 {
            let queue = usize::from(i % 2);
            let (from, to) = if i % 3 == 0 { (&mut qb, &mut qa) } else { (&mut qa, &mut qb) };
            let bytes = vec![i; 20 + usize::from(i)];
            let mut frame = from[queue].alloc().unwrap();
            frame.fill(&bytes);
            expected.push(bytes);
            burst.push(frame);
            assert_eq!(from[queue].tx_burst(Route::default(), &mut burst), 1);
            assert_eq!(to[queue].rx_burst(&mut got), 1);
            to[queue].recycle(&mut got);
        }
        drop((a, qa));
        let mut reader = PcapReader::new(File::open(&path).unwrap()).unwrap();
        assert_eq!(reader.header().datalink, DataLink::ETHERNET);
        let mut packets = Vec::new();
        let mut last = Duration::ZERO;
        while let Some(packet) = reader.next_packet() {
            let packet = packet.unwrap();
            assert!(packet.timestamp >= last && packet.orig_len as usize == packet.data.len());
            last = packet.timestamp;
            packets.push(packet.data.into_owned());
        }
        assert_eq!(packets, expected);
        assert!(now().abs_diff(last) < Duration::from_secs(60));
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn other_users_do_not_read_a_capture() {
        use std::os::unix::fs::PermissionsExt;
        let path = std::env::temp_dir().join(format!("roce-capture-mode-{}.pcap", std::process::id()));
        drop(capture(pair(1).0, &path).unwrap());
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{mode:o}");
        std::fs::remove_file(&path).unwrap();
    }

    // Goal: in /tmp and the like no other user can redirect a capture, which may be root's, into a file of theirs, or of ours.
    #[test]
    fn a_capture_follows_no_link_and_takes_no_file_of_others_where_others_may_put_one() {
        use std::os::unix::fs::{PermissionsExt, chown, symlink};
        let dir = std::env::temp_dir().join(format!("roce-capture-links-{}", std::process::id()));
        let (open, own) = (dir.join("open"), dir.join("own"));
        for (dir, mode) in [(&open, 0o1777), (&own, 0o700)] {
            std::fs::create_dir_all(dir).unwrap();
            std::fs::set_permissions(dir, PermissionsExt::from_mode(mode)).unwrap();
        }
        let precious = dir.join("precious");
        std::fs::write(&precious, "precious").unwrap();
        let refused = |path: &Path| capture(pair(1).0, path).err().map(|error| error.to_string());
        let link = open.join("link.pcap");
        symlink(&precious, &link).unwrap();
        let why = refused(&link).expect("a link");
        assert!(why.contains("it is a symbolic link"), "{why}");
        std::fs::hard_link(&precious, open.join("hard.pcap")).unwrap();
        let why = refused(&open.join("hard.pcap")).expect("another name of a file");
        assert!(why.contains("has put something there"), "{why}");
        assert_eq!(std::fs::read(&precious).unwrap(), b"precious", "it was not emptied");
        std::fs::remove_file(open.join("hard.pcap")).unwrap();
        if rustix::process::geteuid().is_root() {
            let theirs = open.join("theirs.pcap");
            std::fs::write(&theirs, "").unwrap();
            chown(&theirs, Some(54321), None).unwrap();
            let why = refused(&theirs).expect("a file of another user");
            assert!(why.contains("user 54321 has put something there"), "{why}");
        } else {
            eprintln!("SKIPPED files of other users: only root makes them");
        }
        // Our own file is emptied and written, and links in our own directories are followed.
        let again = open.join("again.pcap");
        assert_eq!((refused(&again), refused(&again)), (None, None));
        symlink(&precious, own.join("link.pcap")).unwrap();
        assert_eq!(refused(&own.join("link.pcap")), None);
        assert_ne!(std::fs::read(&precious).unwrap(), b"precious");
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_file_that_cannot_be_made_is_an_error() {
        let error = capture(pair(1).0, Path::new("/no/such/dir/x.pcap")).err().unwrap().to_string();
        assert!(error.contains("/no/such/dir/x.pcap cannot be made"), "{error}");
    }
}
