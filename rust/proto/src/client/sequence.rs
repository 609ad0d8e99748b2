//! Streams: which sample of a product comes next, and which were handed out.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::ids::BlockId;

/// Which samples of its [`Share`] of a product this client takes: the i-th is number `start + (i / run) * stride + i %
/// run` of them.
///
/// One of `n` workers that take turns with batches of `b` samples has `start` = its number times `b`, `run` = `b`,
/// `stride` = `n * b`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The first number.
    pub start: u64,
    /// How many come one after the other. 0 counts as 1.
    pub run: u64,
    /// From the first of one run to the first of the next.
    pub stride: u64,
}

impl Default for Plan {
    /// Every sample: 0, 1, 2, ...
    fn default() -> Self {
        Self { start: 0, run: 1, stride: 1 }
    }
}

impl Plan {
    /// The number of the sample at `place` in the stream.
    #[must_use]
    pub fn sequence(&self, place: u64) -> u64 {
        let (runs, rest) = if self.run <= 1 { (place, 0) } else { (place / self.run, place % self.run) };
        self.start.wrapping_add(runs.wrapping_mul(self.stride)).wrapping_add(rest)
    }

    /// The place of the sample with this number in the stream; `None` if the stream does not have it.
    #[must_use]
    pub fn place(&self, sequence: u64) -> Option<u64> {
        let (run, distance) = (self.run.max(1), sequence.checked_sub(self.start)?);
        let runs = distance.checked_div(self.stride).unwrap_or(0);
        let place =
            runs.wrapping_mul(run).wrapping_add(distance.wrapping_sub(runs.wrapping_mul(self.stride)));
        (self.sequence(place) == sequence).then_some(place)
    }
}

/// Which numbers this client has of all that there are: the n-th of its own is `index + n * of`. Clients with the same
/// `of`, such as the ranks of a training or the workers of a loader, have none in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Which of the shares, from 0.
    pub index: u64,
    /// How many shares there are.
    pub of: u64,
}

impl Default for Share {
    /// All numbers.
    fn default() -> Self {
        Self { index: 0, of: 1 }
    }
}

impl Share {
    /// The sequence number of the client's `n`-th.
    #[must_use]
    pub fn sequence(&self, n: u64) -> u64 {
        self.index.wrapping_add(n.wrapping_mul(self.of))
    }
}

const MISSING: BlockId = BlockId::MAX;

/// How far the stream of one product has come. Places are counted in samples and handled in blocks of `unit`
/// neighbours.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    pub(super) plan: Plan,
    unit: u64,
    /// The first place that was never ordered.
    next: u64,
    /// Places before `next` that are neither on order nor finished nor handed out.
    gaps: BTreeSet<u64>,
    handed_out: u64,
    /// Ordered streams: finished blocks, from the first place that was not handed out.
    ready: VecDeque<BlockId>,
}

impl Stream {
    pub(super) fn new(plan: Plan, position: u64, unit: u64) -> Self {
        Self {
            plan,
            unit,
            next: position,
            gaps: BTreeSet::new(),
            handed_out: position,
            ready: VecDeque::new(),
        }
    }

    /// A stream at `position` of which blocks at some places, from there on, are on order or finished.
    pub(super) fn with_blocks(plan: Plan, position: u64, unit: u64, places: &BTreeMap<u64, BlockId>) -> Self {
        let mut stream = Self::new(plan, position, unit);
        for &place in places.keys() {
            while stream.next < place {
                stream.gaps.insert(stream.next);
                stream.next = stream.next.wrapping_add(unit);
            }
            stream.next = place.wrapping_add(unit);
        }
        stream
    }

    pub(super) fn handed_out(&self) -> u64 {
        self.handed_out
    }

    /// Places from this one on were never ordered.
    pub(super) fn n_ordered(&self) -> u64 {
        self.next
    }

    /// The first place of the next block to order.
    pub(super) fn take(&mut self) -> u64 {
        if !self.gaps.is_empty()
            && let Some(place) = self.gaps.pop_first()
        {
            return place;
        }
        let place = self.next;
        self.next = place.wrapping_add(self.unit);
        place
    }

    /// The block is ordered again before anything else.
    pub(super) fn give_back(&mut self, place: u64) {
        self.gaps.insert(place);
        while self.gaps.last().is_some_and(|last| last.wrapping_add(self.unit) == self.next) {
            self.gaps.pop_last();
            self.next = self.next.wrapping_sub(self.unit);
        }
    }

    /// The earliest place that was ordered before and is owed to the stream.
    pub(super) fn first_gap(&self) -> Option<u64> {
        self.gaps.first().copied()
    }

    pub(super) fn note_handed_out(&mut self) {
        self.handed_out = self.handed_out.wrapping_add(self.unit);
    }

    // -- ordered streams --------------------------------------------------------------------------

    pub(super) fn set_ready(&mut self, place: u64, block: BlockId) {
        let position = self.position_of(place);
        if self.ready.len() <= position {
            self.ready.resize(position + 1, MISSING);
        }
        self.ready[position] = block;
    }

    pub(super) fn clear_ready(&mut self, place: u64) {
        let position = self.position_of(place);
        if let Some(block) = self.ready.get_mut(position) {
            *block = MISSING;
        }
    }

    /// The block at the first place that was not handed out, if it is finished.
    pub(super) fn next_ready(&self) -> Option<BlockId> {
        self.ready.front().copied().filter(|&block| block != MISSING)
    }

    pub(super) fn pop_ready(&mut self) {
        self.ready.pop_front();
    }

    /// Blocks between `place` and the first one not handed out: no more than blocks that were on order at once, since
    /// gaps are filled first, or than a seek keeps.
    fn position_of(&self, place: u64) -> usize {
        (place.wrapping_sub(self.handed_out) / self.unit) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_that_take_turns_cover_every_sequence_once() {
        let (workers, batch) = (3, 4);
        let mut all: Vec<_> = (0..workers)
            .map(|worker| Plan { start: worker * batch, run: batch, stride: workers * batch })
            .flat_map(|plan| (0..20).map(move |place| plan.sequence(place)))
            .collect();
        all.sort_unstable();
        assert_eq!(all, (0..workers * 20).collect::<Vec<_>>());
    }

    #[test]
    fn workers_of_several_ranks_cover_every_sequence_once() {
        let (ranks, workers, batch) = (3, 2, 4);
        let mut all = Vec::new();
        for share in (0..ranks).map(|index| Share { index, of: ranks }) {
            for worker in 0..workers {
                let plan = Plan { start: worker * batch, run: batch, stride: workers * batch };
                all.extend((0..20).map(|place| share.sequence(plan.sequence(place))));
            }
        }
        all.sort_unstable();
        assert_eq!(all, (0..ranks * workers * 20).collect::<Vec<_>>());
    }

    #[test]
    fn a_plan_knows_the_place_of_each_of_its_numbers_and_of_no_other() {
        for code in 0..125 {
            let plan = Plan { start: code / 25, run: code / 5 % 5, stride: code % 5 };
            let ours: BTreeSet<_> = (0..200).map(|place| plan.sequence(place)).collect();
            for sequence in 0..40 {
                let place = plan.place(sequence);
                assert_eq!(place.is_some(), ours.contains(&sequence), "{plan:?}: {sequence}");
                assert!(place.is_none_or(|place| plan.sequence(place) == sequence));
            }
        }
        assert_eq!(Plan { start: u64::MAX, run: 0, stride: u64::MAX }.place(7), None);
    }

    #[test]
    fn places_given_back_come_first_and_in_order() {
        let mut stream = Stream::new(Plan::default(), 0, 2);
        assert_eq!([stream.take(), stream.take(), stream.take(), stream.take()], [0, 2, 4, 6]);
        stream.give_back(4);
        stream.give_back(0);
        assert_eq!([stream.take(), stream.take(), stream.take()], [0, 4, 8]);
        for place in [0, 8, 6, 4, 2] {
            stream.give_back(place);
        }
        assert!(stream.gaps.is_empty(), "all of it back is the beginning again");
        assert_eq!(stream.take(), 0);
    }
}
