//! The links of a host at its control channel, and the leader of another host that one of them follows.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};

use crate::broker::PeerId;
use crate::limits::MAX_LINKS;

/// What links, and other hosts, know a nonce of a student by: with the nonce itself they could take the seat of the student.
/// 0 is none.
pub(super) fn id_of(nonce: u64) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write_u64(nonce);
    hasher.finish().max(1)
}

#[derive(Debug, Default)]
pub(super) struct Links {
    /// The other host with the leader that it follows, if any.
    followed: BTreeMap<PeerId, Option<String>>,
}

impl Links {
    pub(super) fn enter(&mut self, peer: PeerId) -> Result<(), String> {
        if self.followed.len() >= MAX_LINKS && !self.followed.contains_key(&peer) {
            return Err(format!("LINK: {MAX_LINKS} links are connected, and no more may be"));
        }
        self.followed.entry(peer).or_default();
        Ok(())
    }

    pub(super) fn leave(&mut self, peer: PeerId) {
        self.followed.remove(&peer);
    }

    pub(super) fn peers(&self) -> impl Iterator<Item = PeerId> {
        self.followed.keys().copied()
    }

    /// What this link follows from now on. The error: it is no link.
    pub(super) fn follow(&mut self, peer: PeerId, host: Option<&str>) -> Result<(), String> {
        let followed = self.followed.get_mut(&peer).ok_or("FOLLOW: this connection has not sent LINK")?;
        *followed = host.map(str::to_owned);
        Ok(())
    }

    pub(super) fn has(&self, peer: PeerId) -> bool {
        self.followed.contains_key(&peer)
    }

    /// The host with the leader that is followed.
    pub(super) fn leader(&self) -> Option<&str> {
        self.followed.values().find_map(Option::as_deref)
    }
}
