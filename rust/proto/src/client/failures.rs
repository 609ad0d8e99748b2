//! Failures of products, and the delay before each is ordered again.

use std::sync::Arc;
use std::time::{Duration, Instant};

const FIRST_DELAY: Duration = Duration::from_millis(10);
const LONGEST_DELAY: Duration = Duration::from_secs(1);
/// Failing products that are kept; with more of them, the oldest are dropped.
const MAX_FAILING: usize = 64;

/// The last failure of a product.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The broker's text, with the generator's traceback where there is one.
    pub text: String,
    /// Orders that failed one after the other.
    pub count: u32,
    delay: Duration,
    retry_at: Instant,
}

#[derive(Debug, Default)]
pub(super) struct Failures {
    of_products: Vec<(Arc<str>, Failure)>,
    /// The last text of a supplier, and for which product.
    last_text: Option<(Arc<str>, String)>,
}

impl Failures {
    pub(super) fn of(&self, product: &str) -> Option<&Failure> {
        self.of_products.iter().find(|(p, _)| &**p == product).map(|(_, failure)| failure)
    }

    /// Whether `product` should not be ordered ahead now: it failed a moment ago. Each failure doubles the pause.
    pub(super) fn is_paused(&self, now: Instant, product: &str) -> bool {
        self.of(product).is_some_and(|failure| now < failure.retry_at)
    }

    pub(super) fn remove(&mut self, product: &str) {
        if !self.of_products.is_empty() {
            self.of_products.retain(|(p, _)| &**p != product);
        }
    }

    /// The text of a supplier, or without one the last text: orders that fail together fail for one reason.
    pub(super) fn text_of(&mut self, product: &Arc<str>, text: Option<String>) -> String {
        match (text, &self.last_text) {
            (Some(text), _) => self.last_text.insert((product.clone(), text)).1.clone(),
            (None, Some((known, text))) if known == product => text.clone(),
            (None, _) => "the generator failed; the reason is in its supplier's log".to_owned(),
        }
    }

    /// Returns whether the failure is news: the first in a row, or with another text.
    pub(super) fn record(&mut self, now: Instant, product: &Arc<str>, text: &str) -> bool {
        if let Some((_, failure)) = self.of_products.iter_mut().find(|(p, _)| p == product) {
            failure.count += 1;
            // Orders that failed together are one failure.
            if now >= failure.retry_at {
                failure.delay = (failure.delay * 2).min(LONGEST_DELAY);
                failure.retry_at = now + failure.delay;
            }
            let news = failure.text != text;
            if news {
                text.clone_into(&mut failure.text);
            }
            return news;
        }
        if self.of_products.len() == MAX_FAILING {
            self.of_products.remove(0);
        }
        let failure =
            Failure { text: text.to_owned(), count: 1, delay: FIRST_DELAY, retry_at: now + FIRST_DELAY };
        self.of_products.push((product.clone(), failure));
        true
    }
}
