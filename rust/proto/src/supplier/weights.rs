//! What share of its time a supplier gives to which product.

use crate::limits::MAX_PATTERNS;
use crate::patterns::{self, Patterns};

/// The largest weight.
pub const MAX_WEIGHT: u32 = 1000;

/// Weights by pattern; a product has that of the first pattern that matches its whole id, else 1.
#[derive(Clone, Debug, Default)]
pub struct Weights(Vec<(Pattern, u32)>);

#[derive(Clone, Debug)]
enum Pattern {
    Name(Box<str>),
    Regex(Patterns),
}

impl Weights {
    /// Weights from 1 to [`MAX_WEIGHT`], by patterns of the same syntax as those that a supplier registers.
    ///
    /// # Errors
    /// The text for the user: which pattern or weight, and what is wrong with it.
    pub fn new<'a>(weights: impl IntoIterator<Item = (&'a str, u32)>) -> Result<Self, String> {
        let mut compiled = Vec::new();
        for (pattern, weight) in weights {
            if !(1..=MAX_WEIGHT).contains(&weight) {
                return Err(format!(
                    "the weight of {pattern:?} must be from 1 to {MAX_WEIGHT}, have {weight}"
                ));
            }
            if compiled.len() == MAX_PATTERNS {
                return Err(format!("at most {MAX_PATTERNS} weights are allowed"));
            }
            let name: Box<str> = pattern.into();
            let matcher = match patterns::compile(std::slice::from_ref(&name))? {
                Some(regex) => Pattern::Regex(regex),
                None => Pattern::Name(name),
            };
            compiled.push((matcher, weight));
        }
        Ok(Self(compiled))
    }

    /// The weight of a product.
    #[must_use]
    pub fn of(&self, product_id: &str) -> u32 {
        let found = self.0.iter().find(|(pattern, _)| match pattern {
            Pattern::Name(name) => **name == *product_id,
            Pattern::Regex(regex) => regex.is_match(product_id),
        });
        found.map_or(1, |(_, weight)| *weight)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_pattern_that_matches_the_whole_id_counts() {
        let weights = Weights::new([("a1", 7), (r"a\d", 3), ("a.*", 2)]).unwrap();
        for (product, weight) in [("a1", 7), ("a2", 3), ("a12", 2), ("ab", 2), ("b", 1), ("xa1", 1)] {
            assert_eq!(weights.of(product), weight, "{product}");
        }
        assert_eq!(Weights::default().of("a"), 1);
    }

    #[test]
    fn wrong_weights_are_refused_in_words() {
        assert!(Weights::new([("a", 0)]).unwrap_err().contains("from 1 to 1000, have 0"));
        assert!(Weights::new([("a", 1001)]).unwrap_err().contains("have 1001"));
        assert!(Weights::new([("(a", 1)]).unwrap_err().contains("unclosed group"));
        assert!(Weights::new([("(?=a)", 1)]).unwrap_err().contains("look-ahead"));
    }
}
