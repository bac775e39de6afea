//! The orders that a member of `roce-many` receives. A thread reads them, so that the member can check for them between other work.

use super::order::Order;
use apps::error::{AppError, Result};
use apps::out::note;
use std::io::BufRead as _;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::time::Duration;

/// The queue of received orders.
pub struct Orders(Receiver<Order>);

impl Orders {
    /// Starts a thread that reads orders from standard input until it is closed.
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

    /// Waits for the next order; `None` if no more come.
    pub fn next(&self) -> Option<Order> {
        self.0.recv().ok()
    }

    /// Waits for the next order, at most `time`; `None` if none came.
    ///
    /// # Errors
    /// [`End`] if no more orders come.
    pub fn next_within(&self, time: Duration) -> std::result::Result<Option<Order>, End> {
        match self.0.recv_timeout(time) {
            Ok(order) => Ok(Some(order)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(End),
        }
    }

    /// Whether [`Order::Stop`] has come. Does not wait.
    ///
    /// # Errors
    /// If the parent has ended, or another order has come.
    pub fn is_stopped(&self) -> Result<bool> {
        match self.0.try_recv() {
            Ok(Order::Stop) => Ok(true),
            Ok(order) => Err(AppError::ProtocolViolation(format!("{order:?} before it was told to stop"))),
            Err(TryRecvError::Empty) => Ok(false),
            Err(TryRecvError::Disconnected) => Err(AppError::Interrupted),
        }
    }
}

/// The end of the orders: the parent has closed standard input or ended, or has sent something else.
pub struct End;
