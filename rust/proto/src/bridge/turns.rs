//! A queue in which each key is at most once.

use std::collections::{BTreeSet, VecDeque};

#[derive(Debug)]
pub(super) struct Turns<K> {
    queue: VecDeque<K>,
    waiting: BTreeSet<K>,
}

impl<K> Default for Turns<K> {
    fn default() -> Self {
        Self { queue: VecDeque::new(), waiting: BTreeSet::new() }
    }
}

impl<K: Copy + Ord> Turns<K> {
    /// Puts a key behind all others, unless it waits already.
    pub(super) fn push(&mut self, key: K) {
        if self.waiting.insert(key) {
            self.queue.push_back(key);
        }
    }

    pub(super) fn front(&self) -> Option<K> {
        self.queue.front().copied()
    }

    pub(super) fn pop(&mut self) -> Option<K> {
        let key = self.queue.pop_front()?;
        self.waiting.remove(&key);
        Some(key)
    }
}
