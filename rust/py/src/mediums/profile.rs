//! What the broker is told of a medium.

use pyo3::prelude::*;
use softs_proto::wire::{MediumKind, MediumProfile};
use softs_shm::host_id;

use crate::errors::raise;

/// The profile of a medium on this host. `kind`: its name on the side of Python; `None` for one of the user's.
pub(crate) fn medium_profile(py: Python<'_>, kind: Option<&str>, slot_size: u64) -> PyResult<MediumProfile> {
    let kind = match kind {
        None => MediumKind::Unknown,
        Some("shm") => MediumKind::Shm,
        Some("file") => MediumKind::File,
        Some("tcp") => MediumKind::Tcp,
        Some("tickets") => MediumKind::Tickets,
        Some("shm or file") => MediumKind::ShmOrFile,
        Some(other) => {
            let text = format!("medium must be shm, file, shm or file, tcp, tickets or None, have {other:?}");
            return Err(raise(py, "ConfigError", text));
        }
    };
    Ok(MediumProfile { kind, host: host_id(), slot_size })
}
