//! The registry of ranks: one live connection per rank.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::links::id_of;
use crate::broker::PeerId;
use crate::limits::MAX_STUDENTS;

/// The rank that may set models.
pub(super) const LEADER: u32 = 0;

/// The students that are there.
#[derive(Debug, Default)]
pub(super) struct RankRegistry {
    students: FxHashMap<PeerId, Seat>,
    by_rank: BTreeMap<u32, PeerId>,
    /// Numbers given to students so far.
    n_numbers: u64,
}

#[derive(Clone, Copy, Debug)]
struct Seat {
    rank: u32,
    slot_size: u64,
    /// The same for all connections of one student.
    nonce: Option<u64>,
    number: u64,
}

impl RankRegistry {
    /// Gives a rank to a connection, which loses the one that it had; its number, and whether it is a new student. The
    /// connection that the same student had before loses its seat.
    pub(super) fn take(
        &mut self,
        peer: PeerId,
        rank: u32,
        slot_size: u64,
        nonce: Option<u64>,
    ) -> Result<(u64, bool), String> {
        let holder = self.by_rank.get(&rank).copied();
        let replaced = holder.filter(|holder| {
            *holder == peer
                || (nonce.is_some() && self.students.get(holder).is_some_and(|s| s.nonce == nonce))
        });
        if holder.is_some() && replaced.is_none() {
            return Err(format!(
                "HELLO: rank {rank} is taken by a live student; stop that one, or use another student_rank"
            ));
        }
        let is_counted = replaced.is_some() || self.students.contains_key(&peer);
        if !is_counted && self.students.len() >= MAX_STUDENTS {
            return Err(format!("HELLO: {MAX_STUDENTS} students are connected, and no more may be"));
        }
        let number = replaced.and_then(|holder| self.students.remove(&holder)).map(|seat| seat.number);
        self.leave(peer);
        let is_new = number.is_none();
        let number = number.unwrap_or_else(|| {
            self.n_numbers += 1;
            self.n_numbers
        });
        self.students.insert(peer, Seat { rank, slot_size, nonce, number });
        self.by_rank.insert(rank, peer);
        Ok((number, is_new))
    }

    /// Frees the seat of a connection; which it was.
    pub(super) fn leave(&mut self, peer: PeerId) -> Option<u32> {
        let seat = self.students.remove(&peer)?;
        self.by_rank.remove(&seat.rank);
        Some(seat.rank)
    }

    /// Refuses a peer that is not the leader.
    pub(super) fn check_leader(&self, peer: PeerId, command: &str) -> Result<(), String> {
        match self.students.get(&peer) {
            Some(seat) if seat.rank == LEADER => Ok(()),
            Some(seat) => Err(format!(
                "{command}: only rank 0, the leader, may send this, and this is rank {}",
                seat.rank
            )),
            None => Err(format!(
                "{command}: only rank 0, the leader, may send this, and this connection has not sent HELLO"
            )),
        }
    }

    /// The slot size of the leader, if there is one.
    pub(super) fn leader(&self) -> Option<u64> {
        self.leader_seat().map(|seat| seat.slot_size)
    }

    /// What other hosts know the leader by. One of softs has no random number but that of its seat.
    pub(super) fn leader_id(&self) -> Option<u64> {
        self.leader_seat().map(|seat| seat.nonce.map_or(seat.number, id_of))
    }

    /// All ranks, ascending.
    pub(super) fn ranks(&self) -> impl Iterator<Item = u32> {
        self.by_rank.keys().copied()
    }

    fn leader_seat(&self) -> Option<&Seat> {
        self.students.get(self.by_rank.get(&LEADER)?)
    }
}
