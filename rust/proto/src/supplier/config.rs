//! Configuration of a supplier.

use crate::wire::MediumProfile;

/// What a supplier is made of.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// Patterns of what it can make.
    pub product_ids: Vec<String>,
    /// How it is called in errors and statistics.
    pub name: String,
    /// Which clients it can serve.
    pub medium: MediumProfile,
}
