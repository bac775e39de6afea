//! What a measuring loop must not forget: signals, the peer's life, the clock. All of it rarely.

use crate::error::{AppError, Result};
use crate::oob::{Channel, OobError};
use crate::protocol::Message;
use crate::stop;
use std::time::{Duration, Instant};

/// Turns of a loop between two looks at the clock.
const STRIDE: u32 = 256;
/// Time between two looks at the channel.
const LOOK: Duration = Duration::from_millis(5);

/// Watches over a measurement.
#[derive(Debug)]
pub struct Watch<'a> {
    channel: &'a mut Channel,
    countdown: u32,
    next_look: Instant,
    /// Since when the other end's process is known to be gone.
    gone_since: Option<Instant>,
    /// How long requests may take to fail after that.
    retry_span: Duration,
    /// When the measurement has to be over, and how long that was from its start.
    until: Option<(Instant, Duration)>,
}

impl<'a> Watch<'a> {
    /// Watches `channel`; requests fail at most `retry_span` after the peer is gone. The measurement takes at most
    /// `patience`: a peer that is there, and does nothing, ends it.
    pub fn new(channel: &'a mut Channel, retry_span: Duration, patience: Option<Duration>) -> Self {
        let now = Instant::now();
        let until = patience.and_then(|patience| Some((now.checked_add(patience)?, patience)));
        Self { channel, countdown: STRIDE, next_look: now, gone_since: None, retry_span, until }
    }

    /// Whether it is time for [`look`](Self::look). To be asked once a turn.
    #[inline]
    pub fn due(&mut self) -> bool {
        self.countdown -= 1;
        if self.countdown == 0 {
            self.countdown = STRIDE;
            return true;
        }
        false
    }

    /// Looks at signals and at the channel; the peer's message if there is one.
    ///
    /// When the peer is gone and `outstanding` requests wait for it, their completion errors are given the time
    /// to arrive: they say more than the end of a TCP connection.
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

    /// Tells the peer something.
    ///
    /// # Errors
    /// When the connection is broken in another way than by the peer's death, which [`look`](Self::look) handles.
    pub fn tell(&mut self, message: &Message) -> Result<()> {
        match self.channel.send(message) {
            Err(OobError::Closed) => Ok(()),
            other => Ok(other?),
        }
    }
}

/// The error for a message that does not belong here.
pub fn out_of_turn(message: &Message) -> AppError {
    let name = serde_json::to_value(message).ok();
    let name = name.as_ref().and_then(|v| v["type"].as_str()).unwrap_or("something").to_owned();
    AppError::Misfit(format!("it said {name:?} out of turn"))
}
