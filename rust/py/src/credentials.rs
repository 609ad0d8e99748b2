//! What a process proves to other hosts, as Python has it.

use pyo3::prelude::*;
use softs_net::tls::Credentials;

use crate::errors::raise;

/// Key, certificates and CAs, in DER.
pub(crate) type Der = (Vec<u8>, Vec<Vec<u8>>, Vec<Vec<u8>>);

pub(crate) fn credentials_of(py: Python<'_>, (key, chain, roots): Der) -> PyResult<Credentials> {
    Credentials::new(&key, &chain, &roots).map_err(|error| raise(py, "ConfigError", error.to_string()))
}
