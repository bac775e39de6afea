//! The users whose processes may be at the other end of a socket.

/// Users whose processes a port talks to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peers {
    /// These, by number.
    Users(Vec<u32>),
    /// Everybody who reaches the socket.
    Any,
}

impl Default for Peers {
    /// Our own user, and root.
    fn default() -> Self {
        Self::Users(vec![rustix::process::geteuid().as_raw(), 0])
    }
}

impl Peers {
    /// One user more.
    pub fn add(&mut self, user: u32) {
        if let Self::Users(users) = self {
            users.push(user);
        }
    }

    /// Takes the value of an option `peer-uid`: a user, or `any`.
    ///
    /// # Errors
    /// It is neither.
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
