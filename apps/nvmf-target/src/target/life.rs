//! The life of a connection apart from its commands: timeouts, asynchronous events, and its end.

use std::fmt::Display;
use std::time::Duration;

use nvmf::Queue;
use tracing::{debug, info};
use verbs::DrainKind;

use super::connection::{Connection, Ending};
use super::env::Env;
use super::network::Network;
use super::pace::Pace;

impl Env<'_> {
    /// Moves the connection's resources to the share of its host by name, once Connect has told the name.
    pub fn note_who(&mut self, connection: &mut Connection) {
        // A host tells its name once.
        if connection.share.who().is_named() {
            return;
        }
        let Some(queue) = &connection.queue else { return };
        let who = queue.who();
        if who.is_named() {
            self.shared.rename(&mut connection.share, who, queue.is_named());
        }
    }

    /// Does the regular work of a connection: checks its timeouts, sends due responses, closes it if the host has acknowledged nothing for
    /// `patience` although requests were outstanding, or if the host was silent for `silence` and is gone.
    pub fn look_after(&mut self, connection: &mut Connection, patience: Duration, silence: Duration) {
        let now = self.now;
        let Some(queue) = &mut connection.queue else { return };
        let due = queue.poll_timeout().is_some_and(|due| now >= due);
        let end = if due { queue.handle_timeout(now).err() } else { queue.poll_end() };
        if let Some(end) = end {
            return self.close(connection, &end);
        }
        announce(connection);
        while let Some(response) = connection.queue.as_mut().and_then(|queue| queue.poll_response(now)) {
            self.note_who(connection);
            self.answer(connection, response, None, None);
        }
        let [patience, silence] = [patience, silence].map(|time| time.as_nanos() as u64);
        if connection.is_open() && connection.is_stuck(now.as_nanos(), patience) {
            self.close(connection, &"the host takes no responses");
        }
        if connection.is_open() && connection.is_gone(now.as_nanos(), silence) {
            self.close(connection, &"the host does not answer");
        }
    }

    /// Begins to end a connection. Does nothing if it is ending already.
    #[cold]
    pub fn close(&mut self, connection: &mut Connection, why: &dyn Display) {
        if !connection.is_open() {
            return;
        }
        connection.ending = Ending::Flushing;
        let queue = connection.queue.take();
        match queue.as_ref().and_then(Queue::host) {
            Some(host) if connection.announced => {
                info!(%host, connection = connection.id.0, %why, "a host's queue ends");
            }
            _ => debug!(connection = connection.id.0, %why, "a connection ends"),
        }
        // The queue is dropped at once, so the host may connect again before this queue pair is flushed. But its new Connect waits until
        // the storage has finished the commands of this connection.
        connection.in_flight = queue.as_ref().and_then(Queue::in_flight);
        drop(queue);
        // Fails if the connection was never established: then only the queue pair has to be drained.
        if connection.cm_id.disconnect().is_err() {
            let _ = connection.qp.begin_drain(DrainKind::Qp);
        }
        for command in connection.outbox.take_waiting().iter().filter_map(|outgoing| outgoing.command()) {
            self.finish(connection, command);
        }
        for command in self.shared.forget_wants(&mut connection.share) {
            self.finish(connection, command);
        }
        if connection.commands == 0 {
            connection.in_flight = None;
        }
        self.statistics.counters.ended.add(1);
    }
    /// Continues the end of a connection, if it is ending. Returns whether it can be dropped.
    pub fn is_over(&mut self, connection: &mut Connection, network: &mut Network, pace: &Pace) -> bool {
        match connection.ending {
            Ending::No => false,
            Ending::Flushing => {
                if network.is_flushed(&connection.qp) {
                    connection.ending = Ending::Flushed(pace.turns());
                }
                false
            }
            // All completions of the flushed queue pair have been handled.
            Ending::Flushed(since) if pace.emptied_since(since) && connection.commands == 0 => {
                self.release(connection, network);
                true
            }
            Ending::Flushed(_) => false,
        }
    }
    /// Frees the shared resources of a connection.
    pub fn release(&mut self, connection: &mut Connection, network: &mut Network) {
        network.forget(&connection.qp);
        self.shared.receives.remove(connection.receives);
        self.shared.leave(&mut connection.share);
    }
}

/// Logs, once, which host has connected, as soon as it is known.
fn announce(connection: &mut Connection) {
    let Some(queue) = connection.queue.as_ref().filter(|_| !connection.announced) else { return };
    let Some(host) = queue.host() else { return };
    connection.announced = true;
    let (qid, controller) = (queue.qid(), queue.cntlid());
    let subsystem = queue.subsystem();
    let subsystem = subsystem.as_ref().map_or("discovery", |nqn| nqn.as_str());
    info!(%host, subsystem, controller, qid, connection = connection.id.0, "a host's queue is connected");
}
