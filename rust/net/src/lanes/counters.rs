//! What the counters mean that peers keep in a segment for monitoring.

/// The client's counters.
pub mod client {
    /// Samples handed out.
    pub const DELIVERED: usize = 0;
    /// Nanoseconds that callers waited for samples.
    pub const WAITED_NS: usize = 1;
    /// Times that a caller had to wait.
    pub const WAITS: usize = 2;
    /// Slots that the user holds now.
    pub const HELD: usize = 3;
    /// Failed attempts after which an order was placed again.
    pub const RETRIES: usize = 4;
    /// Orders given up.
    pub const FAILED: usize = 5;
    /// Orders that were lost with their supplier.
    pub const LOST: usize = 6;
    /// Slots that are finished and not handed out now.
    pub const FINISHED: usize = 7;
    /// Slots on order now.
    pub const ON_ORDER: usize = 8;
    /// When the client began, nanoseconds since 1970.
    pub const STARTED_NS: usize = 9;
}

/// A supplier's counters.
pub mod supplier {
    /// Samples made.
    pub const MADE: usize = 0;
    /// Orders that failed.
    pub const FAILED: usize = 1;
    /// Nanoseconds in calls of the generator.
    pub const BUSY_NS: usize = 2;
    /// Times it went to sleep.
    pub const SLEEPS: usize = 3;
    /// Orders given back.
    pub const RETURNED: usize = 4;
}
