//! The link as a client: a segment of its own, in which suppliers of this host make the samples of one product.

use std::sync::Arc;

use softs_proto::bridge::Piece;
use softs_proto::client::SlotId;
use softs_shm::{ForeignBytes, RaggedLayout, Segment, SegmentError, SlotView};

/// The memory of one product.
#[derive(Debug)]
pub(super) struct Product {
    pub(super) number: u32,
    segment: Arc<Segment>,
    slots: SlotView,
    /// Where the tensors of varying length are, if there are such.
    layout: Option<RaggedLayout>,
}

impl Product {
    pub(super) fn new(
        number: u32,
        segment: Arc<Segment>,
        layout: Option<RaggedLayout>,
    ) -> Result<Self, SegmentError> {
        let slots = segment.view(0, segment.slots_len())?;
        Ok(Self { number, segment, slots, layout })
    }

    pub(super) fn n_slots(&self) -> u32 {
        u32::try_from(self.segment.n_slots()).unwrap_or(u32::MAX)
    }

    /// Bytes of the sample in a slot. If no sample may have its lengths, that is a length that none may have.
    pub(super) fn measure(&self, slot: SlotId) -> u64 {
        match &self.layout {
            None => self.segment.slot_size(),
            Some(layout) => self.segment.sample_len(slot, layout).unwrap_or(0),
        }
    }

    /// The memory of a piece, without its header.
    pub(super) fn part(&self, piece: &Piece) -> Option<ForeignBytes<'_>> {
        let start = u64::from(piece.slot) * self.segment.slot_stride() + piece.from;
        self.slots.bytes().part(usize::try_from(start).ok()?, (piece.to - piece.from) as usize)
    }
}
