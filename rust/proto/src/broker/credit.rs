//! Which suppliers have free credit: they are in a ring of their pattern set.

use super::ids::SupplierKey;
use super::state::Broker;

impl Broker {
    /// Puts a supplier into the right ring of its set, or takes it out, as its credit says.
    pub(super) fn update_ready(&mut self, key: SupplierKey) {
        let supplier = &self.suppliers[key];
        let ring = supplier.has_credit().then(|| supplier.ring_of_kind());
        if supplier.ring == ring {
            return;
        }
        self.leave_ring(key);
        if let (Some(set), Some(ring)) = (self.suppliers[key].set, ring) {
            self.suppliers[key].ring = Some(ring);
            self.index.sets[set].ready[ring].push_back(&mut self.suppliers, key);
        }
    }

    /// Takes a supplier out of the ring that it is in.
    pub(super) fn leave_ring(&mut self, key: SupplierKey) {
        let supplier = &mut self.suppliers[key];
        if let (Some(set), Some(ring)) = (supplier.set, supplier.ring.take()) {
            self.index.sets[set].ready[ring].remove(&mut self.suppliers, key);
        }
    }
}
