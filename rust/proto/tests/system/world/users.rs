//! What users of clients do, and that no sample is handed out twice, stale or in the place of another one.

use super::{PRODUCTS, SLOT_SIZE, World};

impl World {
    pub(super) fn use_client(&mut self) {
        let chosen = self.random.below(self.clients.len());
        let release = self.random.chance(50);
        let client = &mut self.clients[chosen];
        if release && let Some((slot, expected)) = client.held.pop_first() {
            let found = self.memory.get(&(client.address.clone(), u64::from(slot) * SLOT_SIZE));
            assert_eq!(found, Some(&expected), "a supplier wrote into a slot that the user held");
            client.machine.release_slot(u64::from(slot)).unwrap();
            return;
        }
        let product = client.product;
        let position = client.machine.position(product);
        if let Some(slot) = client.machine.request_sample(self.now, product) {
            let sample = self.memory[&(client.address.clone(), u64::from(slot) * SLOT_SIZE)].clone();
            assert_eq!(sample.product, product, "a sample of another product");
            assert!(sample.serial > client.fresh_from, "a stale sample");
            assert!(self.handed_out.insert(sample.serial), "a sample handed out twice");
            if let Some(sequence) = sample.sequence {
                let name = (client.address.clone(), product.to_owned(), sequence);
                assert!(self.sequences.insert(name), "a place of the stream handed out twice");
                assert!(!client.ordered || sequence == position, "{sequence} instead of {position}");
            }
            assert!(client.held.insert(slot, sample).is_none(), "a slot handed out twice");
            client.received += 1;
        }
        self.check_late_writers();
    }

    pub(super) fn use_discard(&mut self) {
        let chosen = self.random.below(self.clients.len());
        let product = PRODUCTS[self.random.below(PRODUCTS.len())];
        let client = &mut self.clients[chosen];
        let request = client.machine.discard();
        client.machine.abandon(request);
        client.product = product;
        client.fresh_from = self.serial;
    }
}
