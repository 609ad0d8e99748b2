//! Configuration of a client.

use super::sequence::Share;
use crate::wire::MediumProfile;

/// What a client is made of.
#[derive(Clone, Debug)]
pub struct Config {
    /// Address of the medium, as suppliers attach to it.
    pub address: String,
    /// Bytes of one slot.
    pub slot_size: u64,
    /// From one slot to the next in the medium, bytes; [`Self::slot_size`] if 0.
    pub slot_stride: u64,
    /// Number of slots.
    pub n_slots: u32,
    /// Which segment lies at `address`; 0 for a medium that is none.
    pub segment_id: u64,
    /// What the broker chooses suppliers by.
    pub medium: MediumProfile,
    /// Random; the broker knows the client by it from one connection to the next.
    pub nonce: u64,
    /// Whether samples of a product are handed out strictly in the order of their sequence numbers.
    pub ordered: bool,
    /// Slots on order or finished ahead of requests at most; all if not given.
    pub prefetch: Option<u32>,
    /// Slots that the caches keep; the client goes on with so few where that is faster. 0: it never does.
    pub cached_slots: u32,
    /// Slots of one block. With more than 1, only whole blocks are handed out (`Client::request_block`); slots that
    /// are left over are not used.
    pub block: u32,
    /// Which sequence numbers its samples have.
    pub share: Share,
}

impl Default for Config {
    /// No slots; single ones, in any order, all ordered ahead.
    fn default() -> Self {
        Self {
            address: String::new(),
            slot_size: 0,
            slot_stride: 0,
            n_slots: 0,
            segment_id: 0,
            medium: MediumProfile::default(),
            nonce: 0,
            ordered: false,
            prefetch: None,
            cached_slots: 0,
            block: 1,
            share: Share::default(),
        }
    }
}
