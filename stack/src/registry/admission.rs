//! Whose processes are part of a host: its owner's, and those of users whom the owner admits.
//!
//! A host belongs to the user whose number is in the names of its registry. A process of another user, a *guest*, is a member as any
//! other, once a member has let it join; it makes no registry, though. Each process knows for itself whom it hears: its owner, its own
//! user, and those that it was told. Nothing that stands in the memory counts for this, as any member can write there; who a process
//! belongs to is the kernel's word.

use super::error::RegistryError;
use super::name::Name;
use super::sys;
use crate::runtime::stands_for_unknown;

/// Whose processes this one hears, and believes to be members.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Admitted {
    owner: u32,
    us: u32,
    others: Vec<u32>,
}

impl Admitted {
    /// For this process, on the host of `owner`, or of its own user: all of these users are heard.
    ///
    /// # Errors
    /// One of them cannot be told from others.
    pub fn new(owner: Option<u32>, others: &[u32]) -> Result<Self, RegistryError> {
        let us = rustix::process::geteuid().as_raw();
        let admitted = Self { owner: owner.unwrap_or(us), us, others: others.to_vec() };
        let mut all = [us, admitted.owner].into_iter().chain(others.iter().copied());
        match all.find(|uid| stands_for_unknown(*uid)) {
            Some(uid) => Err(RegistryError::Unnamed(uid)),
            None => Ok(admitted),
        }
    }

    /// Whether a process of this user is heard.
    pub fn admits(&self, uid: u32) -> bool {
        uid == self.owner || uid == self.us || self.others.contains(&uid)
    }

    /// Whether what a process of this user has at a name counts: only the owner's processes make a registry.
    pub fn may_have(&self, name: Name, uid: u32) -> bool {
        match name {
            Name::Run(_) => self.admits(uid),
            Name::Birth(_) => uid == self.owner,
        }
    }

    /// Whose host it is.
    pub fn owner(&self) -> u32 {
        self.owner
    }

    /// Whether a process of this user is a guest.
    pub fn is_guest(&self, uid: u32) -> bool {
        uid != self.owner
    }

    /// Whether this process is a guest.
    pub fn are_guests(&self) -> bool {
        self.is_guest(self.us)
    }
}

/// The number of a user that a text names, or writes as a number.
///
/// # Errors
/// A sentence that says what to do.
pub fn user(text: &str) -> Result<u32, String> {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        // The last number stands for no user.
        let number = text.parse().ok().filter(|number| *number != u32::MAX);
        return number.ok_or_else(|| format!("{text} is not the number of a user"));
    }
    let found =
        sys::user_number(text).map_err(|error| format!("the user {text:?} cannot be looked up: {error}"))?;
    found.ok_or_else(|| format!("there is no user {text:?}: write a name that id(1) knows, or a number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(owner: u32, us: u32, others: &[u32]) -> Admitted {
        Admitted { owner, us, others: others.to_vec() }
    }

    #[test]
    fn the_owner_this_user_and_those_that_were_named_are_heard() {
        let heard = |admitted: &Admitted| (0..6).filter(|uid| admitted.admits(*uid)).collect::<Vec<_>>();
        assert_eq!(heard(&at(1, 1, &[])), [1]);
        assert_eq!(heard(&at(1, 1, &[3, 4])), [1, 3, 4]);
        assert_eq!(heard(&at(1, 3, &[])), [1, 3], "a guest");
        assert_eq!(heard(&at(1, 3, &[4])), [1, 3, 4]);
        let birth = |admitted: &Admitted| [1, 3].map(|uid| admitted.may_have(Name::Birth(0), uid));
        assert_eq!([birth(&at(1, 1, &[3])), birth(&at(1, 3, &[]))], [[true, false]; 2]);
        assert!(at(1, 3, &[]).are_guests() && !at(1, 1, &[3]).are_guests());
        assert!(at(1, 1, &[3]).is_guest(3) && !at(1, 3, &[3]).is_guest(1));
    }

    #[cfg(not(miri))]
    #[test]
    fn users_have_names_and_numbers() {
        assert_eq!([user("0"), user("65533"), user("root")], [Ok(0), Ok(65533), Ok(0)]);
        for wrong in ["", " ", "no such user", "-1", "1 ", "4294967295", "4294967296", "a\0b", "root,root"] {
            let error = user(wrong).unwrap_err();
            assert!(error.contains("number"), "{wrong:?}: {error}");
        }
    }

    #[cfg(not(miri))]
    #[test]
    fn without_an_owner_the_host_is_this_users() {
        let admitted = Admitted::new(None, &[]).unwrap();
        assert!(!admitted.are_guests() && admitted.admits(rustix::process::geteuid().as_raw()));
    }
}
