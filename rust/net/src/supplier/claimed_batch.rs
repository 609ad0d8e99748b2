//! The orders that one call of the generator serves: claimed, written, published or given back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use softs_shm::{CachePolicy, Claim, ForeignBytes, LaneRef, SegmentError, SlotView};

use crate::lanes::counters::supplier as counter;
use crate::lanes::supplier::AttachedSegment;

/// Bytes of the text of a failed order that are sure to reach the client.
const MAX_TEXT: usize = 8000;
/// Where a longer text is cut, its first bytes stay: they name what failed.
const TEXT_HEAD: usize = 1000;

/// One whole sample.
#[derive(Clone, Copy, Debug)]
pub enum Sample<'a> {
    /// In memory of our own.
    Bytes(&'a [u8]),
    /// In memory that others may write to.
    Foreign(ForeignBytes<'a>),
}

/// Claimed orders of a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneTask {
    /// What to make.
    pub product_id: Arc<str>,
    /// The number of the first sample in its stream.
    pub sequence: u64,
    /// How many samples to make.
    pub n: usize,
}

/// Claimed orders, all of one lane; empty between two calls of the generator.
#[derive(Debug, Default)]
pub(super) struct ClaimedBatch {
    lane: Option<(Arc<AttachedSegment>, LaneRef, Arc<str>)>,
    claims: Vec<Claim>,
    /// Whether the memory of the slots was handed out, and may be written to by the generator.
    is_shown: bool,
    begun: Option<Instant>,
}

impl ClaimedBatch {
    pub(super) fn len(&self) -> usize {
        self.claims.len()
    }

    /// The segment that the orders are of.
    pub(super) fn segment(&self) -> Option<&Arc<AttachedSegment>> {
        self.lane.as_ref().map(|(attached, ..)| attached)
    }

    /// The lane that the orders are of.
    pub(super) fn lane(&self) -> Option<(&Arc<AttachedSegment>, LaneRef)> {
        self.lane.as_ref().map(|(attached, lane, _)| (attached, *lane))
    }

    /// Claims orders of a lane until it holds `max`; how many it holds.
    pub(super) fn claim(
        &mut self,
        attached: &Arc<AttachedSegment>,
        lane: LaneRef,
        product_id: &Arc<str>,
        max: usize,
    ) -> usize {
        claim_orders(attached, lane, max, &mut self.claims);
        if !self.claims.is_empty() {
            self.lane = Some((Arc::clone(attached), lane, Arc::clone(product_id)));
        }
        self.claims.len()
    }

    /// Claims more orders of the same lane until it holds `max`; how many came.
    pub(super) fn claim_more(&mut self, max: usize) -> usize {
        let Some((attached, lane, _)) = &self.lane else { return 0 };
        let before = self.claims.len();
        claim_orders(attached, *lane, max, &mut self.claims);
        self.claims.len() - before
    }

    /// A call of the generator begins.
    pub(super) fn begin(&mut self, now: Instant) -> Option<LaneTask> {
        let (_, _, product_id) = self.lane.as_ref()?;
        let first = self.claims.first()?;
        self.begun = Some(now);
        let (sequence, n) = (first.sequence(), self.claims.len());
        Some(LaneTask { product_id: product_id.clone(), sequence, n })
    }

    pub(super) fn sequences(&self) -> Vec<u64> {
        self.claims.iter().map(Claim::sequence).collect()
    }

    /// The memory of the slots, for a generator that writes into them.
    pub(super) fn show(&mut self) -> Result<(Vec<SlotView>, CachePolicy), SegmentError> {
        let Some((attached, ..)) = &self.lane else { return Ok((Vec::new(), CachePolicy::Cached)) };
        let views = self.claims.iter().map(|claim| attached.lanes.slot_bytes(claim));
        let views = views.collect::<Result<Vec<_>, _>>()?;
        self.is_shown = true;
        Ok((views, attached.lanes.cache_policy()))
    }

    /// Writes samples into the slots, one each.
    pub(super) fn write<'a>(
        &self,
        samples: impl IntoIterator<Item = Sample<'a>>,
    ) -> Result<(), SegmentError> {
        let Some((attached, ..)) = &self.lane else { return Ok(()) };
        for (claim, sample) in self.claims.iter().zip(samples) {
            match sample {
                Sample::Bytes(data) => attached.lanes.write(claim, data)?,
                Sample::Foreign(data) => attached.lanes.write_from(claim, data)?,
            }
        }
        Ok(())
    }

    /// Ends the orders, if they were not given back meanwhile; how long each took.
    pub(super) fn end(&mut self, now: Instant, outcome: Result<(), &str>) -> Option<Duration> {
        let call = self.begun.map_or(Duration::ZERO, |begun| now.saturating_duration_since(begun));
        let n = self.claims.len() as u64;
        let text = outcome.err().map(cut);
        self.clear(|attached, claims| {
            for claim in claims {
                // Refused where the client believes that this process has ended, as in a fork of a container: then it
                // has ordered the slot anew.
                attached.lanes.publish(claim, text.as_deref().map_or(Ok(()), Err));
            }
            let counters = attached.lanes.counters();
            counters.add(if text.is_none() { counter::MADE } else { counter::FAILED }, n);
            counters.add(counter::BUSY_NS, call.as_nanos() as u64);
            match text {
                None => attached.note_made(n),
                Some(_) => attached.wake_client(),
            }
        });
        Some(Duration::from_nanos((call.as_nanos() as u64).checked_div(n)?))
    }

    /// Returns the orders to the lane, where another supplier claims them.
    pub(super) fn give_back(&mut self) {
        self.clear(|attached, claims| {
            attached.lanes.counters().add(counter::RETURNED, claims.len() as u64);
            claims.for_each(|claim| attached.lanes.unclaim(claim));
            attached.wake_client();
        });
    }

    /// As [`Self::give_back`], from another thread than the one that makes the samples: not what that one may be
    /// writing to.
    pub(super) fn give_back_unwritten(&mut self) {
        if !self.is_shown {
            self.give_back();
        }
    }

    fn clear(&mut self, end: impl FnOnce(&AttachedSegment, std::vec::Drain<'_, Claim>)) {
        let Self { lane, claims, is_shown, begun } = self;
        if let Some((attached, ..)) = lane.take() {
            end(&attached, claims.drain(..));
        }
        (*is_shown, *begun) = (false, None);
    }
}

fn claim_orders(attached: &AttachedSegment, lane: LaneRef, max: usize, claims: &mut Vec<Claim>) {
    while claims.len() < max {
        let Some(claim) = attached.lanes.claim(lane) else { return };
        claims.push(claim);
    }
}

/// The beginning names what failed, the last lines of a traceback why.
pub(super) fn cut(text: &str) -> String {
    if text.len() <= MAX_TEXT {
        return text.to_owned();
    }
    let (mut head, mut tail) = (TEXT_HEAD, text.len() - (MAX_TEXT - TEXT_HEAD));
    while !text.is_char_boundary(head) {
        head -= 1;
    }
    while !text.is_char_boundary(tail) {
        tail += 1;
    }
    format!("{}\n[...]\n{}", &text[..head], &text[tail..])
}
