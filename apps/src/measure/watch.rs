//! The duties of a measuring loop that are rarely due: signals, the peer's life, the clock.

use crate::error::{AppError, OobError, Result};
use crate::oob::Channel;
use crate::protocol::Message;
use crate::stop;
use std::time::{Duration, Instant};

/// Iterations of a loop between two readings of the clock.
const STRIDE: u32 = 256;
/// Time between two polls of the channel.
const LOOK: Duration = Duration::from_millis(5);

/// Performs these duties for a measurement.
#[derive(Debug)]
pub struct Watch<'a> {
    channel: &'a mut Channel,
    countdown: u32,
    next_look: Instant,
    /// Since when the other end's process is known to have ended.
    gone_since: Option<Instant>,
    /// How long requests may take to fail after that.
    retry_span: Duration,
    /// When the measurement has to be over, and its limit.
    until: Option<(Instant, Duration)>,
}

impl<'a> Watch<'a> {
    /// Watches `channel`; requests fail at most `retry_span` after the peer's end. The measurement takes at most `patience`,
    /// which ends it if the peer is alive but makes no progress.
    pub fn new(channel: &'a mut Channel, retry_span: Duration, patience: Option<Duration>) -> Self {
        let now = Instant::now();
        let until = patience.and_then(|patience| Some((now.checked_add(patience)?, patience)));
        Self { channel, countdown: STRIDE, next_look: now, gone_since: None, retry_span, until }
    }

    /// Whether [`look`](Self::look) is due. To be called once per iteration.
    #[inline]
    pub fn due(&mut self) -> bool {
        self.countdown -= 1;
        if self.countdown == 0 {
            self.countdown = STRIDE;
            return true;
        }
        false
    }

    /// Checks for signals and polls the channel; returns a message of the peer, if any.
    ///
    /// When the peer has ended and `outstanding` requests wait for it, their completion errors get time to arrive: they are more
    /// informative than the end of a TCP connection.
    ///
    /// # Errors
    /// A signal, the peer's failure, its disappearance.
    #[cold]
    pub fn look(&mut self, now: Instant, outstanding: bool) -> Result<Option<Message>> {
        stop::check()?;
        if now < self.next_look {
            return Ok(None);
        }
        self.next_look = now + LOOK;
        if let Some(since) = self.gone_since {
            if outstanding && now.duration_since(since) < self.retry_span {
                return Ok(None);
            }
            return Err(OobError::Closed.into());
        }
        if let Some((until, patience)) = self.until
            && now >= until
        {
            return Err(OobError::Silent(patience, "the end of the measurement").into());
        }
        match self.channel.try_recv() {
            Ok(Some(Message::Failed { reason })) => Err(AppError::Peer(reason)),
            Ok(message) => Ok(message),
            Err(OobError::Closed) => {
                self.gone_since = Some(now);
                Ok(None)
            }
            Err(e) => Err(e.into()),
        }
    }

    /// Sends a message to the peer.
    ///
    /// # Errors
    /// When the connection fails for another reason than the peer's end, which [`look`](Self::look) handles.
    pub fn send(&mut self, message: &Message) -> Result<()> {
        match self.channel.send(message) {
            Err(OobError::Closed) => Ok(()),
            other => Ok(other?),
        }
    }
}

/// The error for a message that is out of order.
pub fn out_of_turn(message: &Message) -> AppError {
    let name = serde_json::to_value(message).ok();
    let name = name.as_ref().and_then(|v| v["type"].as_str()).unwrap_or("something").to_owned();
    AppError::ProtocolViolation(format!("it said {name:?} out of turn"))
}
