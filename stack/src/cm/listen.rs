//! Listeners for connection and SIDR requests.

use std::collections::BTreeMap;

use super::error::Error;
use super::event::{ConnId, Listen, ListenId};
use super::machine::Machine;
use super::service::ServiceId;
use super::share::{Full, Shares};
use crate::id::Gid;

/// A listener with its backlog.
struct Listener {
    listen: Listen,
    /// Connection requests that wait to be accepted or rejected, by peer.
    waiting: Shares<ConnId>,
}

/// All listeners of a device.
#[derive(Default)]
pub(super) struct Listeners {
    by_id: BTreeMap<ListenId, Listener>,
    by_service: BTreeMap<(ServiceId, Option<Gid>), ListenId>,
}

impl Listeners {
    /// The listener for a service at our address `address`: one for that address, else one for all addresses.
    pub fn find(&self, service_id: ServiceId, address: Gid) -> Option<ListenId> {
        let key = |address| self.by_service.get(&(service_id, address)).copied();
        key(Some(address)).or_else(|| key(None))
    }
    /// Makes sure that the backlog has room for one more request of `host`. `Some` is a waiting request to drop for it.
    ///
    /// # Errors
    /// [`Full`]: no room, or no such listener.
    pub fn room(&self, id: ListenId, host: Gid) -> Result<Option<ConnId>, Full> {
        let listener = self.by_id.get(&id).ok_or(Full)?;
        listener.waiting.room(listener.listen.backlog.max(1) as usize, host)
    }
    /// Adds a request to the backlog.
    pub fn wait(&mut self, id: ListenId, host: Gid, request: ConnId) {
        if let Some(listener) = self.by_id.get_mut(&id) {
            listener.waiting.insert(host, request);
        }
    }
    /// Removes a request from the backlog, because it was accepted, rejected or dropped.
    pub fn decided(&mut self, id: ListenId, host: Gid, request: ConnId) {
        if let Some(listener) = self.by_id.get_mut(&id) {
            listener.waiting.remove(host, request);
        }
    }
}

/// Listeners.
impl Machine {
    /// Starts to accept requests for a service ID. A listener for one address takes precedence over one for all addresses.
    ///
    /// # Errors
    /// [`Error::InUse`] if there is a listener for the same service and address, [`Error::Limit`] if there are too many.
    #[doc(alias = "rdma_listen")]
    pub fn listen(&mut self, listen: &Listen) -> Result<ListenId, Error> {
        let key = (listen.service_id, listen.address);
        if self.listeners.by_service.contains_key(&key) {
            return Err(Error::InUse(listen.service_id));
        }
        if self.listeners.by_id.len() >= self.config.limits.listeners {
            return Err(Error::Limit("listeners"));
        }
        let id = ListenId(self.new_id());
        self.listeners.by_service.insert(key, id);
        self.listeners.by_id.insert(id, Listener { listen: *listen, waiting: Shares::default() });
        Ok(id)
    }

    /// Stops accepting requests. Requests that have arrived stay: each must still be accepted, rejected or destroyed.
    ///
    /// # Errors
    /// [`Error::NoListener`].
    pub fn close_listener(&mut self, id: ListenId) -> Result<(), Error> {
        let listener = self.listeners.by_id.remove(&id).ok_or(Error::NoListener(id))?;
        self.listeners.by_service.remove(&(listener.listen.service_id, listener.listen.address));
        Ok(())
    }
}
