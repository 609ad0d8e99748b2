//! A lease in a WORKS message.

/// One lease on one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseRef {
    /// Names the lease in DONES.
    pub lease: u64,
    /// Byte offset of the slot.
    pub offset: u64,
    /// Number of the sample in the client's stream; 0 from clients that do not number theirs.
    pub sequence: u64,
    /// The client's number of the order; 0 where it has none.
    pub order: u64,
}
