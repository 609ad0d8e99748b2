//! [`CachePolicy`]: when copies use non-temporal stores.

/// Slots of more bytes are evicted from the caches before they are used again.
const CACHED_SLOTS: u64 = 64 << 20;
/// As [`CACHED_SLOTS`], where the bytes go through the caches twice: the copies that the client makes of the slots
/// are there too.
const CACHED_COPIED_SLOTS: u64 = 24 << 20;
/// A batch of more bytes is evicted before it is used: the previous batch is in the caches too, and the slots are.
const CACHED_BATCH: usize = 16 << 20;
/// Smaller samples are not worth the fence.
const STREAMED_SAMPLE: usize = 64 << 10;

/// Where a copy leaves its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CachePolicy {
    /// In the caches, for bytes that are used soon.
    Cached,
    /// In memory, by non-temporal stores: for more bytes than fit into the caches. Ordinary stores would fetch each
    /// line before they overwrite it, and write it back later.
    Streaming,
}

impl CachePolicy {
    /// For a client that keeps `in_use` bytes of its slots on order, finished or leased, and copies the samples out
    /// of them or does not.
    #[must_use]
    pub fn for_slots(in_use: u64, are_copied: bool) -> Self {
        Self::streaming_if(in_use > if are_copied { CACHED_COPIED_SLOTS } else { CACHED_SLOTS })
    }

    /// For one sample of `len` bytes in such a slot.
    pub(crate) fn for_sample(self, len: usize) -> Self {
        Self::streaming_if(self == Self::Streaming && len >= STREAMED_SAMPLE)
    }

    /// For a batch of `len` bytes.
    pub(crate) fn for_batch(len: usize) -> Self {
        Self::streaming_if(len > CACHED_BATCH)
    }

    fn streaming_if(streaming: bool) -> Self {
        if streaming { Self::Streaming } else { Self::Cached }
    }
}

#[cfg(test)]
mod tests {
    use super::CachePolicy::{Cached, Streaming};
    use super::*;

    #[test]
    fn bytes_that_fit_into_the_caches_stay_there() {
        assert_eq!([16 << 20, 64 << 20].map(|bytes| CachePolicy::for_slots(bytes, false)), [Cached, Cached]);
        assert_eq!(CachePolicy::for_slots((64 << 20) + 1, false), Streaming);
        assert_eq!(
            [24 << 20, (24 << 20) + 1].map(|bytes| CachePolicy::for_slots(bytes, true)),
            [Cached, Streaming]
        );
        assert_eq!([16 << 20, (16 << 20) + 1].map(CachePolicy::for_batch), [Cached, Streaming]);
        assert_eq!([64 << 10, (64 << 10) - 1].map(|len| Streaming.for_sample(len)), [Streaming, Cached]);
        assert_eq!(Cached.for_sample(1 << 30), Cached);
    }
}
