//! Ordering ahead: a request keeps every free block on order for the products that are asked for.

use std::time::Instant;

use super::ids::{BlockId, ProductKey};
use super::lane_port::Lanes;
use super::slots::{Block, State};
use super::state::Client;

impl<L: Lanes> Client<L> {
    /// Puts blocks on order that have become free, for the product that was asked for last, rather than with the next
    /// request.
    pub fn order_ahead(&mut self, now: Instant) {
        if let Some(key) = self.recent.last() {
            self.prefetch(now, key, false);
        }
    }

    /// Puts free blocks on order for `key`; `starved` when the caller goes away without a sample.
    pub(super) fn prefetch(&mut self, now: Instant, key: ProductKey, starved: bool) {
        self.recent.touch(key, self.blocks.len() as u64);
        if !self.owed.is_empty() {
            self.place_owed();
        }
        if !self.failed.is_empty() && !self.failures.is_paused(now, &self.products.get(key).name) {
            self.order_failed_again(key);
        }
        let n_free = self.free.len();
        if !starved {
            // Ordering in bunches saves messages. A lane needs none.
            let bunch = if self.has_lane_suppliers(key) { 1 } else { self.bunch() };
            if n_free == 0 || (self.n_finished > 0 && n_free < bunch) {
                return;
            }
        }
        if self.failures.is_paused(now, &self.products.get(key).name) {
            return;
        }
        let most = self.window.len();
        // Of one product, the usual case, all that is free.
        let share = (most / self.recent.products.len()).max(1);
        self.order_up_to(key, share, most);
        if !starved {
            return;
        }
        let have = self.products.get(key).live as usize;
        if have < share && !self.is_lane_full(key) {
            // Others may have more than their share, since they are not asked for any more; a product that has nothing
            // at all gets something of theirs.
            let theirs = if have == 0 { 0 } else { share };
            self.reclaim_for(key, share - have, theirs);
            self.order_up_to(key, share, most);
        }
        if self.products.get(key).live > 0 {
            self.make_room_for_gap(key);
        }
    }

    fn order_up_to(&mut self, key: ProductKey, share: usize, most: usize) {
        while (self.products.get(key).live as usize) < share
            && self.n_live < most
            && !self.is_lane_full(key)
            && self.order_one_ahead(key)
        {}
    }

    /// Whether the next order of `key` waits for the end of others in its lane. A supplier makes those of a lane in
    /// large calls; for orders by wire in between it makes small ones, which take more time than they save.
    fn is_lane_full(&self, key: ProductKey) -> bool {
        let product = self.products.get(key);
        let Some(lane) = product.lane else { return false };
        // Orders that are not sent before SUPPLY has come may all go there.
        let n_coming = match self.lane_for(key) {
            Some(_) => 0,
            None if self.dialect.is_none() || self.awaits_supply() => product.on_wire,
            None => return false,
        };
        let is_in_use = product.on_lane + n_coming > 0;
        is_in_use && self.lanes.room(lane) < (n_coming + self.config.block) as usize
    }

    /// Slots that may be on order or finished ahead of requests.
    #[must_use]
    pub fn window(&self) -> u32 {
        self.window.len() as u32 * self.config.block
    }

    /// Orders that are worth a message or a wake-up while there are finished samples, in blocks: a quarter of the window
    /// keeps the suppliers busy meanwhile.
    #[must_use]
    pub fn bunch(&self) -> usize {
        (self.window.len() / 4).max(1)
    }

    /// Measures how fast samples are handed out, and adapts the window to it; whether it is another one then. To be
    /// called every few milliseconds while samples are handed out.
    pub fn adapt_window(&mut self, now: Instant) -> bool {
        self.window.observe(now, self.counters.delivered)
    }

    fn order_one_ahead(&mut self, key: ProductKey) -> bool {
        let Some((block, lane)) = self.take_free(key) else {
            return false;
        };
        let product = self.products.get_mut(key);
        product.ahead += 1;
        let place = product.stream.take();
        self.put_on_order(block, key, place, None, lane);
        self.blocks[block as usize].prefetched = true;
        true
    }

    /// An ordered stream waits for a sample that has no slot, others hold later ones, and it is the next one or too few
    /// are on order to keep the suppliers busy: the last of the later ones makes room. Only one that is at rest: its slot
    /// is of use at once.
    fn make_room_for_gap(&mut self, key: ProductKey) {
        let is_full = self.free.is_empty() || self.n_live >= self.window.len();
        let is_idle = self.n_live - self.n_finished < self.bunch();
        let stream = &self.products.get(key).stream;
        let is_next = stream.first_gap() == Some(stream.handed_out());
        let is_needed = self.config.ordered && is_full && (is_idle || is_next);
        let Some(gap) = stream.first_gap().filter(|_| is_needed) else {
            return;
        };
        let is_later = |&id: &BlockId| {
            let block = &self.blocks[id as usize];
            block.wanted && block.prefetched && block.product == key && block.place > gap
        };
        let is_at_rest = |&id: &BlockId| {
            self.slots_of(id).all(|slot| {
                matches!(self.slots[slot as usize].state, State::Finished | State::Failed | State::Waiting)
            })
        };
        let last = (0..self.blocks.len() as BlockId)
            .filter(is_later)
            .filter(is_at_rest)
            .max_by_key(|&id| self.blocks[id as usize].place);
        if let Some(last) = last {
            self.dismantle(last, true);
            self.order_one_ahead(key);
        }
    }

    /// Takes back what was ordered ahead for other products, at most `wanted` blocks, of those that were asked for
    /// lately only what they have beyond `theirs`: finished ones and unclaimed ones in lanes at once, the others when
    /// the broker agrees.
    fn reclaim_for(&mut self, key: ProductKey, wanted: usize, theirs: usize) {
        let mut left = wanted;
        for only_finished in [true, false] {
            for id in 0..self.blocks.len() as BlockId {
                if left == 0 {
                    break;
                }
                let Block { wanted: live, prefetched, product, n_finished, .. } = self.blocks[id as usize];
                let is_theirs = live && prefetched && product != key;
                if is_theirs
                    && (n_finished == self.config.block || !only_finished)
                    && (self.products.get(product).live as usize > theirs || !self.recent.has(product))
                {
                    self.dismantle(id, true);
                    left -= 1;
                }
            }
        }
        self.send_cancels();
    }

    /// Frees up to `wanted` finished blocks that were not asked for yet.
    pub(super) fn drop_prefetched_finished(&mut self, wanted: usize) {
        let complete: Vec<_> = (0..self.blocks.len() as BlockId)
            .filter(|&id| {
                let block = &self.blocks[id as usize];
                block.wanted && block.prefetched && block.n_finished == self.config.block
            })
            .take(wanted)
            .collect();
        for block in complete {
            self.dismantle(block, true);
        }
    }
}
