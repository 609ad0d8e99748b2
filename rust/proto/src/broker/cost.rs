//! Counts what invariant B2 promises to be independent of the load; a no-op outside this crate's own tests.

#[cfg(test)]
thread_local! {
    static STEPS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// One entry of a table visited, or one pattern list tried.
#[inline]
pub(super) fn step() {
    #[cfg(test)]
    STEPS.with(|steps| steps.set(steps.get() + 1));
}

/// Steps of this thread since the last call.
#[cfg(test)]
pub(super) fn take_steps() -> u64 {
    STEPS.with(|steps| steps.replace(0))
}
