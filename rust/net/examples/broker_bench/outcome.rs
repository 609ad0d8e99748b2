//! Results of the benchmark.

use std::error::Error;

/// What went wrong; the benchmark ends with it.
pub(crate) type Failure = Box<dyn Error + Send + Sync>;
/// A value or what went wrong.
pub(crate) type Outcome<T> = Result<T, Failure>;
