//! Lanes as messages name them.

/// The lane of a product that has none.
pub const NO_LANE: u32 = u32::MAX;

/// A product whose supply a client wants to know, and its lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnnouncedLane<'a> {
    /// What is ordered.
    pub product_id: &'a str,
    /// Index of the lane in the client's segment, or [`NO_LANE`].
    pub lane: u32,
    /// Which use of that lane.
    pub generation: u32,
}

/// One use of one lane. Generations and indices come again in another segment at the same address, so that is named too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneName<'a> {
    /// The client's medium.
    pub address: &'a str,
    /// Which segment lies there.
    pub segment_id: u64,
    /// Index of the lane in the segment.
    pub lane: u32,
    /// Which use of that lane.
    pub generation: u32,
}

/// A lane, and what is ordered through it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneOffer<'a> {
    /// Which lane.
    pub name: LaneName<'a>,
    /// What to make.
    pub product_id: &'a str,
}

/// How many suppliers make a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Supply<'a> {
    /// The product.
    pub product_id: &'a str,
    /// Suppliers that were told to serve its lane and did not refuse.
    pub lane_suppliers: u32,
    /// All others, which can only be reached by orders to the broker.
    pub wire_suppliers: u32,
    /// How many of all are softs ones.
    pub softs_suppliers: u32,
}
