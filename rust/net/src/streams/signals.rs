//! What a call that waits has to know of the signals of its process.

use std::os::fd::OwnedFd;

/// Signals, as the language of the caller handles them.
pub trait Signals {
    /// Whether the call is to end: runs the handlers of what has come, and one of them raised.
    fn interrupted(&mut self) -> bool;

    /// Begins to notice signals for a call that waits for long.
    fn watch(&mut self) -> Watch;

    /// Ends that, after a [`Watch::Descriptor`].
    fn unwatch(&mut self);
}

/// How a call notices signals.
#[derive(Debug)]
pub enum Watch {
    /// Another thread handles them.
    Elsewhere,
    /// This can be read after each one that comes from now on.
    Descriptor(OwnedFd),
    /// Nothing tells: the call has to check for them now and then.
    Unknown,
}

/// For calls that no signal ends.
pub(crate) struct NoSignals;

impl Signals for NoSignals {
    fn interrupted(&mut self) -> bool {
        false
    }

    fn watch(&mut self) -> Watch {
        Watch::Elsewhere
    }

    fn unwatch(&mut self) {}
}
