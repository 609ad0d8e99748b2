//! Times of round trips.

/// Median and tail of many round trips.
#[derive(Clone, Copy)]
pub(crate) struct Times {
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
}
