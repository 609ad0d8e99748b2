//! The layout of samples as segments have it, and as links say it to each other.

use softs_proto::bridge::{RaggedTensor, SampleLayout};
use softs_shm::{RaggedLayout, Segment};

/// That of the samples in a segment; all of a slot is theirs where its client has said nothing of ragged tensors. `None`: its
/// slots are larger than those that another host may order.
pub(super) fn layout_of(segment: &Segment) -> Option<SampleLayout> {
    let Some(layout) = segment.ragged() else {
        return SampleLayout::new(segment.slot_size(), [].into());
    };
    let tensors = layout.tensors().iter().map(|tensor| RaggedTensor {
        step_bytes: tensor.step_len as u64,
        max_length: tensor.max_length as u64,
    });
    SampleLayout::new(layout.values_at() as u64, tensors.collect())
}

/// The ragged tensors of a layout that a peer has said; `None` without some.
pub(super) fn ragged_of(layout: &SampleLayout) -> Option<RaggedLayout> {
    let tensors = layout.ragged().iter().enumerate().map(|(i, tensor)| {
        Some(softs_shm::RaggedTensor {
            name: i.to_string(),
            step_len: usize::try_from(tensor.step_bytes).ok()?,
            max_length: usize::try_from(tensor.max_length).ok()?,
        })
    });
    RaggedLayout::new(usize::try_from(layout.values_at()).ok()?, tensors.collect::<Option<_>>()?)
}
