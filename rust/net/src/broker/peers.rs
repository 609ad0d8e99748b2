//! The connections of a broker, found by their number in constant time.

use std::os::fd::OwnedFd;
use std::time::Instant;

use softs_proto::broker::{PeerId, Side};
use softs_proto::zmtp::{Codec, Role};

use crate::socket;

/// One accepted connection.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) fd: OwnedFd,
    pub(super) codec: Codec,
    pub(super) side: Side,
    /// When its handshake must be over; `None` once it is, and then the state machine knows it.
    pub(super) deadline: Option<Instant>,
    /// Whether it is in the list of those with something to write.
    pub(super) is_dirty: bool,
    /// Whether it is in the list of those with an answer to write that can wait.
    pub(super) is_patient: bool,
    /// Whether epoll waits for room in its socket.
    pub(super) is_armed: bool,
}

impl Peer {
    pub(super) fn new(fd: OwnedFd, side: Side, deadline: Instant) -> Self {
        Self {
            fd,
            codec: Codec::new(Role::Router),
            side,
            deadline: Some(deadline),
            is_dirty: false,
            is_patient: false,
            is_armed: false,
        }
    }
}

/// All connections. A number is a place in the table (low half) and how often the place was used (high half), so that what is
/// said to or about a connection that has ended finds nobody rather than its successor.
#[derive(Debug, Default)]
pub(super) struct Peers {
    places: Vec<Place>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Place {
    generation: u32,
    peer: Option<Peer>,
}

impl Peers {
    pub(super) fn insert(&mut self, peer: Peer) -> PeerId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place { generation: 0, peer: None });
            // A process cannot have 2^32 descriptors.
            (self.places.len() - 1) as u32
        });
        let place = &mut self.places[index as usize];
        place.peer = Some(peer);
        PeerId(u64::from(place.generation) << 32 | u64::from(index))
    }

    pub(super) fn get_mut(&mut self, id: PeerId) -> Option<&mut Peer> {
        self.place(id)?.peer.as_mut()
    }

    pub(super) fn remove(&mut self, id: PeerId) -> Option<Peer> {
        let place = self.place(id)?;
        let peer = place.peer.take()?;
        place.generation = place.generation.wrapping_add(1);
        self.free.push(id.0 as u32);
        Some(peer)
    }

    /// Ends all connections.
    pub(super) fn hang_up(&mut self) {
        for peer in self.places.iter_mut().filter_map(|place| place.peer.take()) {
            socket::hang_up(&peer.fd);
        }
    }

    fn place(&mut self, id: PeerId) -> Option<&mut Place> {
        let place = self.places.get_mut(id.0 as u32 as usize)?;
        (u64::from(place.generation) == id.0 >> 32).then_some(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer() -> Peer {
        let fd = std::fs::File::open("/dev/null").unwrap().into();
        Peer::new(fd, Side::Frontend, Instant::now())
    }

    #[test]
    fn a_number_never_finds_the_successor_of_its_connection() {
        let mut peers = Peers::default();
        let (a, b) = (peers.insert(peer()), peers.insert(peer()));
        assert_ne!(a, b);
        assert!(peers.remove(a).is_some());
        let successor = peers.insert(peer());
        assert_eq!(successor.0 as u32, a.0 as u32, "the place is used again");
        assert!(peers.get_mut(a).is_none());
        assert!(peers.remove(a).is_none());
        assert!(peers.get_mut(successor).is_some());
        assert!(peers.get_mut(b).is_some());
    }
}
