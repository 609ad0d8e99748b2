//! The one table from Rust errors to the classes of `softs_fast.errors`.

use pyo3::exceptions::PyImportError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use softs_net::NetError;
use softs_net::client::GatherError;
use softs_proto::client::ReleaseError;
use softs_proto::flow::{AskError, SendError};
use softs_shm::SegmentError;

/// An exception of `softs_fast.errors`; a Python error of its own if that class is missing.
pub(crate) fn raise(py: Python<'_>, class: &str, message: String) -> PyErr {
    let built = py
        .import("softs_fast.errors")
        .and_then(|module| module.getattr(class))
        .and_then(|class| class.call1((message,)));
    match built {
        Ok(exception) => PyErr::from_value(exception),
        Err(error) => PyImportError::new_err(format!("softs_fast.errors.{class}: {error}")),
    }
}

/// Text as it can be sent: what is no Unicode, such as the bytes of a file name that Python could not decode, becomes
/// `\\udcXX`.
pub(crate) fn sendable(text: &Bound<'_, PyAny>) -> PyResult<String> {
    let bytes = text.call_method1("encode", ("utf-8", "backslashreplace"))?;
    Ok(String::from_utf8_lossy(bytes.cast::<PyBytes>()?.as_bytes()).into_owned())
}

pub(crate) fn net_error(py: Python<'_>, error: &NetError) -> PyErr {
    let class = match error {
        NetError::BadEndpoint { .. }
        | NetError::RemoteNotAllowed { .. }
        | NetError::TokenNeeded { .. }
        | NetError::CredentialsNeeded { .. } => "ConfigError",
        NetError::EndpointInUse { .. } | NetError::PathTaken { .. } => "EndpointInUse",
        NetError::ForeignOwner { .. }
        | NetError::NoBroker { .. }
        | NetError::NoLink { .. }
        | NetError::NoMaster { .. }
        | NetError::NoStore { .. }
        | NetError::Lost { .. }
        | NetError::Os { .. } => "PeerLost",
        NetError::Protocol { .. } => "WireError",
        NetError::NotJoined { .. } | NetError::NotServed { .. } => "HelloError",
    };
    raise(py, class, error.to_string())
}

pub(crate) fn release_error(py: Python<'_>, error: ReleaseError) -> PyErr {
    match error {
        ReleaseError::Unknown { .. } | ReleaseError::NotHeld(_) => {
            raise(py, "ConfigError", error.to_string())
        }
    }
}

pub(crate) fn segment_error(py: Python<'_>, error: &SegmentError) -> PyErr {
    let class = match error {
        SegmentError::Invalid(_) => "ConfigError",
        SegmentError::Malformed { .. } => "WireError",
        SegmentError::Exists { .. } | SegmentError::Busy { .. } => "SegmentExists",
        SegmentError::NotFound { .. } => "SegmentNotFound",
        SegmentError::Full { .. }
        | SegmentError::FileLimit { .. }
        | SegmentError::Refused { .. }
        | SegmentError::Crowded { .. }
        | SegmentError::OutOfBounds { .. }
        | SegmentError::NotOneSlot { .. }
        | SegmentError::Gone { .. }
        | SegmentError::NotOwner { .. }
        | SegmentError::Io { .. } => "SegmentError",
    };
    raise(py, class, error.to_string())
}

/// What every call raises that wants more of a client that is closed.
pub(crate) fn closed(py: Python<'_>) -> PyErr {
    raise(py, "SegmentError", "this client is closed; open another one".to_owned())
}

pub(crate) fn send_error(py: Python<'_>, error: &SendError) -> PyErr {
    let class = match error {
        SendError::NotConnected { .. } => "PeerLost",
        SendError::TooLong { .. } => "ConfigError",
        SendError::Full { .. } => "PeerBusy",
    };
    raise(py, class, error.to_string())
}

pub(crate) fn ask_error(py: Python<'_>, error: &AskError) -> PyErr {
    match error {
        AskError::NotSent(error) => send_error(py, error),
        AskError::Left { .. } => raise(py, "PeerLost", error.to_string()),
        AskError::NotPublished { .. } => raise(py, "ConfigError", error.to_string()),
    }
}

pub(crate) fn gather_error(py: Python<'_>, error: &GatherError) -> PyErr {
    match error {
        GatherError::Copy(error) => segment_error(py, error),
        GatherError::Release(error) => release_error(py, *error),
        GatherError::Panic => raise(py, "SegmentError", "a thread that gathers batches panicked".to_owned()),
    }
}
