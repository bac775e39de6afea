//! The users whose processes may be the peer on a socket.

/// The users whose processes a port accepts as peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peers {
    /// These users, by uid.
    Users(Vec<u32>),
    /// Every user who reaches the socket.
    Any,
}

impl Default for Peers {
    /// Our own effective user, and root.
    fn default() -> Self {
        Self::Users(vec![rustix::process::geteuid().as_raw(), 0])
    }
}

impl Peers {
    /// Adds a user; changes nothing if every user is accepted.
    pub fn add(&mut self, user: u32) {
        if let Self::Users(users) = self {
            users.push(user);
        }
    }

    /// Applies the value of an option `peer-uid`: a uid, or `any`.
    ///
    /// # Errors
    /// When the value is neither.
    pub fn take(&mut self, value: &str) -> Result<(), String> {
        match value.parse() {
            _ if value == "any" => *self = Self::Any,
            Ok(user) => self.add(user),
            Err(_) => return Err(format!("peer-uid={value} is neither the number of a user nor any")),
        }
        Ok(())
    }

    /// Whether a process of this user may be the peer.
    pub fn has(&self, user: u32) -> bool {
        match self {
            Self::Users(users) => users.contains(&user),
            Self::Any => true,
        }
    }
}
