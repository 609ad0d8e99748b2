//! What goes past the caches.

/// Slots of more bytes have left the caches before they are used again.
const CACHED_SLOTS: u64 = 64 << 20;
/// As [`CACHED_SLOTS`], where the bytes go through the caches twice: what the client copies out of the slots lies there too.
const CACHED_COPIED_SLOTS: u64 = 24 << 20;
/// A batch of more bytes has left the caches before anybody uses it: the one before it lies there too, and the slots.
const CACHED_BATCH: usize = 16 << 20;
/// Less is not worth the fence.
const STREAMED_SAMPLE: usize = 64 << 10;

/// Where the bytes of a copy end up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CachePolicy {
    /// In the caches, for whoever uses them soon.
    Cached,
    /// In memory, past the caches: for more bytes than fit there, which would have to be fetched before they are overwritten, and written back.
    Streaming,
}

impl CachePolicy {
    /// For a client that keeps `in_use` bytes of its slots on order, finished or in hand, and copies the samples out of them, or does not.
    #[must_use]
    pub fn for_slots(in_use: u64, are_copied: bool) -> Self {
        Self::past(in_use > if are_copied { CACHED_COPIED_SLOTS } else { CACHED_SLOTS })
    }

    /// For one sample of `len` bytes in such a slot.
    pub(crate) fn for_sample(self, len: usize) -> Self {
        Self::past(self == Self::Streaming && len >= STREAMED_SAMPLE)
    }

    /// For a batch of `len` bytes.
    pub(crate) fn for_batch(len: usize) -> Self {
        Self::past(len > CACHED_BATCH)
    }

    fn past(streaming: bool) -> Self {
        if streaming { Self::Streaming } else { Self::Cached }
    }
}

#[cfg(test)]
mod tests {
    use super::CachePolicy::{Cached, Streaming};
    use super::*;

    #[test]
    fn what_fits_into_the_caches_stays_there() {
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
