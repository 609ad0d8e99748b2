//! Arguments of both ends: limits, times.

use std::time::Duration;

use pyo3::prelude::*;
use softs_proto::flow::Limits;

use crate::process::duration;

/// (bytes of a frame, bytes that may wait to be sent, bytes that may wait to be received, workers, seconds of the
/// handshake).
pub(super) type LimitNumbers = (u32, usize, usize, usize, f64);

pub(super) fn limits_of(py: Python<'_>, numbers: LimitNumbers) -> PyResult<Limits> {
    let (frame_bytes, unsent_bytes, unread_bytes, workers, handshake_s) = numbers;
    let handshake = duration(py, "handshake_s", handshake_s)?;
    Ok(Limits { frame_bytes, unsent_bytes, unread_bytes, workers, handshake })
}

pub(super) fn timeout_of(py: Python<'_>, timeout_s: Option<f64>) -> PyResult<Option<Duration>> {
    timeout_s.map(|seconds| duration(py, "timeout_s", seconds)).transpose()
}
