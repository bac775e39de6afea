//! The orders of a member, as they come: read by a thread, so that a member can look for them between other work.

use super::order::Order;
use apps::error::{AppError, Result};
use apps::out::note;
use std::io::BufRead as _;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::time::Duration;

/// The orders.
pub struct Orders(Receiver<Order>);

impl Orders {
    /// Reads them from standard input, until that is closed.
    pub fn listen() -> Self {
        let (to, orders) = channel();
        std::thread::spawn(move || {
            for line in std::io::stdin().lock().lines().map_while(std::result::Result::ok) {
                let order = match serde_json::from_str(&line) {
                    Ok(order) => order,
                    Err(e) => {
                        return note!("roce-many member: {line:?} is no order ({e}); roce-many gives them");
                    }
                };
                if to.send(order).is_err() {
                    return;
                }
            }
        });
        Self(orders)
    }

    /// The next order; `None` at their end.
    pub fn next(&self) -> Option<Order> {
        self.0.recv().ok()
    }

    /// The same, if one comes within this time.
    ///
    /// # Errors
    /// The end of the orders.
    pub fn next_within(&self, time: Duration) -> std::result::Result<Option<Order>, End> {
        match self.0.recv_timeout(time) {
            Ok(order) => Ok(Some(order)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(End),
        }
    }

    /// Whether it was told to stop.
    ///
    /// # Errors
    /// The parent has ended, or says something else.
    pub fn is_stopped(&self) -> Result<bool> {
        match self.0.try_recv() {
            Ok(Order::Stop) => Ok(true),
            Ok(order) => Err(AppError::Misfit(format!("{order:?} before it was told to stop"))),
            Err(TryRecvError::Empty) => Ok(false),
            Err(TryRecvError::Disconnected) => Err(AppError::Interrupted),
        }
    }
}

/// No more orders come.
pub struct End;
