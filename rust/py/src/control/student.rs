//! `_core.ControlStudent`.

use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use softs_net::Endpoint;
use softs_net::client::Waited;
use softs_net::control::ControlStudent as NetStudent;
use softs_proto::control::{Model, Outcome};
use softs_proto::wire::check_model;

use crate::errors::{net_error, raise};
use crate::log::{Record, to_python};
use crate::process::{Owned, blocking};

/// (number of the student, generation, model id, model configuration as msgpack).
type Hello<'py> = (u64, u64, String, Bound<'py, PyBytes>);

/// A student's end of the control channel.
#[pyclass(frozen, module = "softs_fast._core")]
pub(crate) struct ControlStudent {
    student: Owned<NetStudent>,
}

#[pymethods]
impl ControlStudent {
    #[new]
    fn new(py: Python<'_>, endpoint: &str, rank: u32, slot_size: u64) -> PyResult<Self> {
        let endpoint = endpoint.parse::<Endpoint>().map_err(|e| net_error(py, &e))?;
        let student = NetStudent::new(endpoint, rank, slot_size).map_err(|e| net_error(py, &e))?;
        Ok(Self { student: Owned::new("student's control connection", student) })
    }

    fn hello<'py>(&self, py: Python<'py>, timeout_ms: u64) -> PyResult<Option<Hello<'py>>> {
        let timeout = Duration::from_millis(timeout_ms);
        match self.blocking(py, |student, interrupted| student.hello(timeout, interrupted))? {
            None => Ok(None),
            Some(Err(text)) => Err(raise(py, "ConfigError", text)),
            Some(Ok((number, model))) => {
                let Model { generation, model_id, model_cfg } = model.unwrap_or_default();
                Ok(Some((number, generation, model_id, PyBytes::new(py, &model_cfg))))
            }
        }
    }

    fn set_model(&self, py: Python<'_>, model_id: &str, model_cfg: &[u8], timeout_ms: u64) -> PyResult<u64> {
        let model_cfg = checked(py, model_id, model_cfg)?;
        let timeout = Duration::from_millis(timeout_ms);
        let waited = self.blocking(py, |student, interrupted| {
            student.set_model(model_id, model_cfg, timeout, interrupted)
        })?;
        self.generation(py, waited, "SET_MODEL", timeout)
    }

    fn stop_workers(&self, py: Python<'_>, timeout_ms: u64) -> PyResult<()> {
        let timeout = Duration::from_millis(timeout_ms);
        let waited = self.blocking(py, |student, interrupted| student.stop_workers(timeout, interrupted))?;
        self.generation(py, waited, "STOP", timeout).map(|_| ())
    }

    fn note_model(
        &self,
        py: Python<'_>,
        generation: u64,
        model_id: String,
        model_cfg: &[u8],
    ) -> PyResult<()> {
        let model_cfg = checked(py, &model_id, model_cfg)?.to_vec();
        self.student.here(py)?.note_model(Model { generation, model_id, model_cfg });
        Ok(())
    }

    #[getter]
    fn connection_error(&self, py: Python<'_>) -> PyResult<Option<String>> {
        Ok(self.student.here(py)?.connection_error().map(|error| error.to_string()))
    }

    fn take_log(&self, py: Python<'_>) -> PyResult<Vec<Record>> {
        Ok(self.student.here(py)?.take_log().into_iter().map(to_python).collect())
    }

    fn close(&self, py: Python<'_>) {
        self.student.end(py, |student| student.close());
    }
}

impl ControlStudent {
    /// Runs a blocking call without the GIL; `None` when it timed out.
    fn blocking<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&NetStudent, &mut dyn FnMut() -> bool) -> Waited<T> + Send,
    ) -> PyResult<Option<T>> {
        blocking(py, self.student.here(py)?, call).map(Waited::ready)
    }

    /// The generation that came of a request.
    fn generation(
        &self,
        py: Python<'_>,
        outcome: Option<Outcome>,
        command: &str,
        timeout: Duration,
    ) -> PyResult<u64> {
        match outcome {
            Some(Ok(generation)) => Ok(generation),
            Some(Err(text)) => Err(raise(py, "ConfigError", text)),
            None => {
                let student = self.student.here(py)?;
                let why = match student.connection_error() {
                    _ if student.is_closed() => ": this student is closed".to_owned(),
                    Some(error) => format!(": {error}"),
                    None => String::new(),
                };
                let text = format!("no answer to {command} within {:.1} s{why}", timeout.as_secs_f64());
                Err(raise(py, "BrokerTimeout", text))
            }
        }
    }
}

/// The configuration of a model that can go over the wire; an empty one is none, which is nil.
fn checked<'a>(py: Python<'_>, model_id: &str, model_cfg: &'a [u8]) -> PyResult<&'a [u8]> {
    let model_cfg = if model_cfg.is_empty() { softs_proto::wire::NO_MODEL_CFG } else { model_cfg };
    check_model(model_id, model_cfg).map_err(|error| raise(py, "ConfigError", error.to_string()))?;
    Ok(model_cfg)
}
