//! What names an order, a slot, a block and a product within one client.

/// Number of an order; grows, never used twice by one client.
pub type OrderNumber = u64;

/// Index of a slot in the medium.
pub type SlotId = u32;

/// Index of a block: slots `block * n` to `block * n + n - 1`, where `n` is [`Config::block`](super::Config::block).
pub type BlockId = u32;

/// Names a product within one client.
pub(super) type ProductKey = u32;
