//! Listeners.

use std::collections::BTreeMap;

use super::error::Error;
use super::event::{ConnId, Listen, ListenId};
use super::machine::Machine;
use super::service::ServiceId;
use super::share::{Full, Shares};
use crate::id::Gid;

struct Listener {
    listen: Listen,
    /// Requests that wait for a decision, by peer.
    waiting: Shares<ConnId>,
}

/// All listeners of a device.
#[derive(Default)]
pub(super) struct Listeners {
    by_id: BTreeMap<ListenId, Listener>,
    by_service: BTreeMap<(ServiceId, Option<Gid>), ListenId>,
}

impl Listeners {
    /// The listener for this service at this address of ours.
    pub fn find(&self, service_id: ServiceId, address: Gid) -> Option<ListenId> {
        let key = |address| self.by_service.get(&(service_id, address)).copied();
        key(Some(address)).or_else(|| key(None))
    }
    /// Whether one more request of a host may wait, and which one has to go for it.
    pub fn room(&self, id: ListenId, host: Gid) -> Result<Option<ConnId>, Full> {
        let listener = self.by_id.get(&id).ok_or(Full)?;
        listener.waiting.room(listener.listen.backlog.max(1) as usize, host)
    }
    /// A request waits.
    pub fn wait(&mut self, id: ListenId, host: Gid, request: ConnId) {
        if let Some(listener) = self.by_id.get_mut(&id) {
            listener.waiting.insert(host, request);
        }
    }
    /// A request was decided.
    pub fn decided(&mut self, id: ListenId, host: Gid, request: ConnId) {
        if let Some(listener) = self.by_id.get_mut(&id) {
            listener.waiting.remove(host, request);
        }
    }
}

/// Listeners.
impl Machine {
    /// Takes requests for a service id.
    ///
    /// A listener with an address of its own goes before one for all addresses.
    ///
    /// # Errors
    /// [`Error::InUse`], [`Error::Limit`].
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

    /// Takes no more requests. Those that have arrived stay: each is still to be accepted, rejected or destroyed.
    ///
    /// # Errors
    /// [`Error::NoListener`].
    pub fn close_listener(&mut self, id: ListenId) -> Result<(), Error> {
        let listener = self.listeners.by_id.remove(&id).ok_or(Error::NoListener(id))?;
        self.listeners.by_service.remove(&(listener.listen.service_id, listener.listen.address));
        Ok(())
    }
}
