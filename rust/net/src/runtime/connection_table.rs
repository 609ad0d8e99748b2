//! The connections of a server, found by their number in constant time.

use softs_proto::broker::PeerId;

/// All connections. A number is a place in the table (low half) and how often the place was used (high half), so that
/// what is sent to or recorded about a connection that has ended finds no connection rather than its successor.
#[derive(Debug)]
pub(crate) struct ConnectionTable<P> {
    places: Vec<Place<P>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Place<P> {
    generation: u32,
    peer: Option<P>,
}

impl<P> Place<P> {
    fn id(&self, index: u32) -> PeerId {
        PeerId(u64::from(self.generation) << 32 | u64::from(index))
    }
}

impl<P> Default for ConnectionTable<P> {
    fn default() -> Self {
        Self { places: Vec::new(), free: Vec::new() }
    }
}

impl<P> ConnectionTable<P> {
    pub(crate) fn insert(&mut self, peer: P) -> PeerId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place { generation: 0, peer: None });
            // A process cannot have 2^32 descriptors.
            (self.places.len() - 1) as u32
        });
        let place = &mut self.places[index as usize];
        place.peer = Some(peer);
        place.id(index)
    }

    pub(crate) fn get_mut(&mut self, id: PeerId) -> Option<&mut P> {
        self.place(id)?.peer.as_mut()
    }

    pub(crate) fn remove(&mut self, id: PeerId) -> Option<P> {
        let place = self.place(id)?;
        let peer = place.peer.take()?;
        // The top bit of a number is free for marks in the data of events.
        place.generation = place.generation.wrapping_add(1) & (u32::MAX >> 1);
        self.free.push(id.0 as u32);
        Some(peer)
    }

    /// The numbers of all.
    pub(crate) fn ids(&self) -> impl Iterator<Item = PeerId> {
        let places = self.places.iter().zip(0..);
        places.filter(|(place, _)| place.peer.is_some()).map(|(place, index)| place.id(index))
    }

    /// Takes all out.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = P> {
        self.places.iter_mut().filter_map(|place| place.peer.take())
    }

    fn place(&mut self, id: PeerId) -> Option<&mut Place<P>> {
        let place = self.places.get_mut(id.0 as u32 as usize)?;
        (u64::from(place.generation) == id.0 >> 32).then_some(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_never_finds_the_successor_of_its_connection() {
        let mut peers = ConnectionTable::default();
        let (a, b) = (peers.insert("a"), peers.insert("b"));
        assert_ne!(a, b);
        assert!(peers.remove(a).is_some());
        let successor = peers.insert("c");
        assert_eq!(successor.0 as u32, a.0 as u32, "the place is used again");
        assert!(peers.get_mut(a).is_none());
        assert!(peers.remove(a).is_none());
        assert!(peers.get_mut(successor).is_some());
        assert!(peers.get_mut(b).is_some());
    }
}
