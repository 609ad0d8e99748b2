//! [`CachePolicy`]: when copies use non-temporal stores.

use super::caches::largest_cache;

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
    /// For a client that keeps `in_use` bytes of its slots on order, finished or leased. More than three quarters of the
    /// largest cache are evicted before they are used again: whatever else the processes use is there too.
    #[must_use]
    pub fn for_slots(in_use: u64) -> Self {
        Self::streaming_if(in_use > largest_cache() / 4 * 3)
    }

    /// How many slots of `len` bytes the caches keep beside the one that the client reads, while copies go from and to
    /// other memory that is in the caches as well; 1 at least.
    #[must_use]
    pub fn n_cached(len: u64) -> u32 {
        let n_slots = largest_cache() / 4 / len.max(1);
        u32::try_from(n_slots.saturating_sub(1)).unwrap_or(u32::MAX).max(1)
    }

    /// For one sample of `len` bytes in such a slot.
    pub(crate) fn for_sample(self, len: usize) -> Self {
        Self::streaming_if(self == Self::Streaming && len >= STREAMED_SAMPLE)
    }

    /// For a batch of `len` bytes. One of more than half of the largest cache is evicted before it is used: the previous
    /// batch is in the caches too, and the slots are.
    pub(crate) fn for_batch(len: usize) -> Self {
        Self::streaming_if(len as u64 > largest_cache() / 2)
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
        let largest = largest_cache();
        let most = largest / 4 * 3;
        assert_eq!([most, most + 1].map(CachePolicy::for_slots), [Cached, Streaming]);
        let most = (largest / 2) as usize;
        assert_eq!([most, most + 1].map(CachePolicy::for_batch), [Cached, Streaming]);
        assert_eq!([64 << 10, (64 << 10) - 1].map(|len| Streaming.for_sample(len)), [Streaming, Cached]);
        assert_eq!(Cached.for_sample(1 << 30), Cached);
        let kept = [largest / 40, largest / 8, largest / 4, largest].map(CachePolicy::n_cached);
        assert_eq!(kept, [9, 1, 1, 1]);
        assert_eq!(CachePolicy::n_cached(0), u32::try_from(largest / 4 - 1).unwrap());
    }
}
