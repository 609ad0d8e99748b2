//! The products that a supplier fails, and the back-offs that follow.

use std::collections::BTreeMap;
use std::time::Instant;

use super::ids::{ProductKey, SupplierKey};

/// A product that a supplier has failed since it last served it.
pub(super) struct Failing {
    pub(super) product: ProductKey,
    pub(super) failures: u32,
    /// The end of the present back-off; it is a key of [`BackoffEnds`].
    pub(super) until: Option<(Instant, u64)>,
}

/// When back-offs end. The number makes keys unique.
pub(super) type BackoffEnds = BTreeMap<(Instant, u64), (SupplierKey, ProductKey)>;
