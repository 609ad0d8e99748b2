//! What a supplier is made of.

/// What a supplier is made of.
#[derive(Clone, Debug)]
pub struct Config {
    /// Patterns of what it can make.
    pub product_ids: Vec<String>,
    /// How it is called in errors and statistics.
    pub name: String,
}
