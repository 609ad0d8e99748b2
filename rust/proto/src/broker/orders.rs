//! State of one order.

use std::borrow::Cow;
use std::sync::Arc;

use super::ids::{AddressKey, ClientKey, LostClientKey, OrderTag, ProductKey, SupplierKey};
use super::slab::{Linked, Links, Slab};

/// What a client calls its order; unique within the client only.
#[derive(Clone)]
pub(super) enum OrderId {
    Native(u64),
    Softs(Arc<str>),
}

impl OrderId {
    /// How the log calls it.
    pub(super) fn text(&self) -> Cow<'_, str> {
        match self {
            Self::Native(number) => Cow::Owned(number.to_string()),
            Self::Softs(id) => Cow::Borrowed(id),
        }
    }

    /// What a softs supplier gets to see. With the nonce it names the client even to a broker that never knew the
    /// order.
    pub(super) fn for_softs(&self, nonce: Option<u64>) -> Arc<str> {
        match (self, nonce) {
            (Self::Native(number), Some(nonce)) => format!("{nonce:016x}-{number}").into(),
            (Self::Native(number), None) => number.to_string().into(),
            (Self::Softs(id), _) => Arc::clone(id),
        }
    }
}

/// The nonce and the number in an id that [`OrderId::for_softs`] made.
pub(super) fn parse_for_softs(text: &str) -> Option<(u64, u64)> {
    let (nonce, number) = text.split_once('-')?;
    // Exactly as it was written: no signs, no other widths.
    let parsed = (u64::from_str_radix(nonce, 16).ok()?, number.parse().ok()?);
    let again = OrderId::Native(parsed.1).for_softs(Some(parsed.0));
    (*again == *text).then_some(parsed)
}

/// The suppliers that have failed an order; of more than are kept, the last ones.
#[derive(Clone, Copy, Default)]
pub(super) struct FailedBy([Option<SupplierKey>; 4]);

impl FailedBy {
    pub(super) fn len(self) -> usize {
        self.0.iter().flatten().count()
    }

    pub(super) fn contains(self, supplier: SupplierKey) -> bool {
        self.0.contains(&Some(supplier))
    }

    /// Adds a supplier; whether it is another one.
    pub(super) fn add(&mut self, supplier: SupplierKey) -> bool {
        let is_another = !self.contains(supplier);
        if is_another {
            self.0.rotate_right(1);
            self.0[0] = Some(supplier);
        }
        is_another
    }
}

/// Where an order is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Has not had its turn, and waits for it in the queue of its client.
    Queued,
    /// Has had its turn, and is the first to be leased again.
    GivenBack,
    /// Among those that wait for the end of another lease on the same slot.
    Guarded,
    /// With a supplier.
    Leased,
}

/// One order, from its arrival until its end. 64,000 of them have to be cheap: what is the same for many is interned.
pub(super) struct Order {
    pub(super) id: OrderId,
    /// `None`: the client is gone, and only the lease keeps the order.
    pub(super) client: Option<ClientKey>,
    /// The entry that records the end of that lease, if the client should reconnect.
    pub(super) lost_client: Option<LostClientKey>,
    pub(super) product: ProductKey,
    pub(super) address: AddressKey,
    /// Others should try it, if there are any.
    pub(super) failed_by: FailedBy,
    pub(super) offset: u64,
    /// Which segment must lie at the address, for the supplier; 0 if it is not known.
    pub(super) segment_id: u64,
    pub(super) slot_size: u64,
    /// The number of the sample in its client's stream, for the supplier.
    pub(super) sequence: u64,
    pub(super) links: Links<OrderTag>,
    /// Failures, but no repeated ones of a supplier while another one has not tried.
    pub(super) attempts: u32,
    pub(super) failures: u32,
    /// How often a supplier was lost while this was its oldest lease.
    pub(super) lost: u32,
    pub(super) place: Place,
}

/// All orders.
pub(super) type OrderTable = Slab<OrderTag, Order>;

impl Linked<OrderTag> for Order {
    fn links(&self) -> &Links<OrderTag> {
        &self.links
    }
    fn links_mut(&mut self) -> &mut Links<OrderTag> {
        &mut self.links
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_small() {
        assert!(size_of::<Order>() <= 104, "{} bytes", size_of::<Order>());
    }
}
