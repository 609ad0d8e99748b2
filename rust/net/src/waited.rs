//! The result of a blocking call.

/// How a blocking call ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Waited<T> {
    /// With what was asked for.
    Ready(T),
    /// Without it, because the time is over or the handle is closed.
    TimedOut,
    /// Before that: the caller's `interrupted` returned true, or the client follows another product by now.
    Interrupted,
}

impl<T> Waited<T> {
    /// What was asked for, if it came.
    pub fn ready(self) -> Option<T> {
        match self {
            Self::Ready(value) => Some(value),
            Self::TimedOut | Self::Interrupted => None,
        }
    }
}
