//! Configuration of a broker.

/// What a user may choose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Orders of softs clients for one product that may wait for a supplier; more are refused. Those of native clients
    /// are bounded per client alone ([`crate::limits::MAX_ORDERS_PER_CLIENT`]).
    pub max_queue_per_product: usize,
    /// Failed attempts after which an order is given up.
    pub max_order_attempts: u32,
    /// The host of the broker, as in [`crate::wire::MediumProfile`]; 0: not known.
    pub host: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self { max_queue_per_product: 16, max_order_attempts: 5, host: 0 }
    }
}
