//! The grant of a key, cached for callers that use one key many times in a turn.

use super::access::Access;
use super::range::GrantedRange;
use super::table::{KeyFault, MrTable, Span};
use crate::id::{PdId, Qpn};

/// No protection domain has this number.
const NOBODY: PdId = PdId(u32::MAX);

/// The key that was checked last, and its grant, as programs mostly use one key. Valid until the end of the turn.
#[derive(Clone, Copy, Debug)]
pub struct CachedKey {
    need: Access,
    pd: PdId,
    span: Span,
}

impl CachedKey {
    /// An empty cache for grants of `need`.
    pub fn new(need: Access) -> Self {
        Self { need, pd: NOBODY, span: Span::default() }
    }

    /// Empties the cache. Call it at the end of a turn.
    #[inline]
    pub fn forget(&mut self) {
        self.pd = NOBODY;
    }

    /// Same as [`MrTable::check`] if `qpn` is `None`, otherwise as [`MrTable::check_remote`], for one byte or more. A variable key (of a
    /// memory window, or for fast registration) is not cached, but looked up each time.
    ///
    /// # Errors
    /// Those of these methods.
    #[inline]
    pub fn check(
        &mut self,
        keys: &MrTable,
        key: u32,
        pd: PdId,
        qpn: Option<Qpn>,
        va: u64,
        len: u64,
    ) -> Result<GrantedRange, KeyFault> {
        if (self.span.key, self.pd) == (key, pd) {
            return self.span.place(va, len);
        }
        self.look_up(keys, key, pd, qpn, va, len)
    }

    fn look_up(
        &mut self,
        keys: &MrTable,
        key: u32,
        pd: PdId,
        qpn: Option<Qpn>,
        va: u64,
        len: u64,
    ) -> Result<GrantedRange, KeyFault> {
        let Some(span) = keys.span(key, pd, self.need) else {
            return keys.look_up(key, pd, qpn, self.need, va, len);
        };
        (self.pd, self.span) = (pd, span);
        span.place(va, len)
    }
}

#[cfg(test)]
mod tests {
    use super::super::key::NO_KEY;
    use super::super::{TurnsPassed, UserMemory};
    use super::*;

    #[test]
    fn a_cached_key_grants_what_it_would_grant_anew() {
        let keys = MrTable::new();
        let (ours, other, start) = (PdId(1), PdId(2), 0x1000u64);
        let rights = Access::LOCAL_WRITE | Access::REMOTE_READ;
        let register = |pd, access| keys.register(pd, UserMemory::nowhere(start, 64), access, 7).unwrap();
        let registered = [register(ours, rights), register(ours, Access::empty()), register(other, rights)];
        let all = [registered[0], registered[1], registered[2], NO_KEY, 0xffff];
        let all_ranges = [(start, 64), (start + 63, 1), (start, 65), (start + 64, 1), (start - 1, 1), (0, 1)];
        // Under Miri, which is slow, some of them.
        let (ranges, every) = if cfg!(miri) { (&all_ranges[1..3], 3) } else { (&all_ranges[..], 1) };
        let mut granted = 0;
        for (need, qpn) in
            [(Access::LOCAL_WRITE, None), (Access::empty(), None), (Access::REMOTE_READ, Some(Qpn::new(9)))]
        {
            let mut cached = CachedKey::new(need);
            // Every pair, so that the cached key is now the same and now another.
            for (before, key) in all.into_iter().flat_map(|a| all.map(|b| (a, b))).step_by(every) {
                for (pd, elsewhere) in [(ours, other), (other, ours)] {
                    for &(va, len) in ranges {
                        let _ = cached.check(&keys, before, pd, qpn, start, 1);
                        for pd in [pd, pd, elsewhere] {
                            let anew = keys.look_up(key, pd, qpn, need, va, len).ok();
                            let is = cached.check(&keys, key, pd, qpn, va, len).ok();
                            assert_eq!(is, anew, "{key:#x} of {pd:?} at {va:#x}+{len} after {before:#x}");
                            granted += u32::from(is.is_some());
                        }
                    }
                }
            }
            cached.check(&keys, all[0], ours, qpn, start, 1).unwrap();
            cached.forget();
            keys.revoke(all[0]).unwrap();
            for key in [NO_KEY, all[0]] {
                assert_eq!(cached.check(&keys, key, ours, qpn, start, 1), Err(KeyFault::UnknownKey));
                cached.forget();
            }
            let memory = UserMemory::nowhere(start, 64);
            keys.restore(all[0], ours, memory, rights, TurnsPassed::without_shards()).unwrap();
        }
        assert!(granted > 0);
    }
}
