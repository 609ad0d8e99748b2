//! `_core.ControlServer`, `_core.ControlStudent`, `_core.ControlSubscriber`.

use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use softs_net::client::Waited;
use softs_net::control::{
    ControlHandle, ControlOptions, ControlStudent as NetStudent, ControlSubscriber as NetSubscriber,
};
use softs_net::{Endpoint, KeepAlive};
use softs_proto::control::{Model, News, Outcome};
use softs_proto::wire::check_model;

use crate::errors::{net_error, raise};
use crate::log::{Record, to_python};
use crate::process::{Owned, Signals};

/// A log relay that waits looks up this often.
const LOG_SLICE: Duration = Duration::from_secs(3600);

/// (number of the student, generation, model id, model configuration as msgpack).
type Hello<'py> = (u64, u64, String, Bound<'py, PyBytes>);

/// The broker's end of the control channel: one Rust thread, from construction to `stop`.
#[pyclass(frozen, module = "softs_fast._core")]
pub(crate) struct ControlServer {
    handle: ControlHandle,
}

#[pymethods]
impl ControlServer {
    #[new]
    fn new(
        py: Python<'_>,
        control: &str,
        control_pub: &str,
        dead_after_s: f64,
        allow_remote: bool,
    ) -> PyResult<Self> {
        let parse = |text: &str| text.parse::<Endpoint>().map_err(|e| net_error(py, &e));
        let mut options = ControlOptions::new(parse(control)?, parse(control_pub)?);
        options.allow_remote = allow_remote;
        options.keep_alive =
            KeepAlive::within(Duration::try_from_secs_f64(dead_after_s).unwrap_or(Duration::MAX));
        let handle = py.detach(|| ControlHandle::start(&options)).map_err(|e| net_error(py, &e))?;
        Ok(Self { handle })
    }

    #[getter]
    fn endpoints(&self) -> (String, String) {
        self.handle.endpoints()
    }

    #[getter]
    fn is_running(&self) -> bool {
        self.handle.is_running()
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = py.detach(|| self.handle.stats());
        let dict = PyDict::new(py);
        dict.set_item("generation", stats.generation)?;
        dict.set_item("model_id", stats.model_id)?;
        dict.set_item("model_cfg", PyBytes::new(py, &stats.model_cfg))?;
        dict.set_item("leader", stats.leader)?;
        dict.set_item("slot_size", stats.slot_size)?;
        dict.set_item("students", stats.students)?;
        dict.set_item("subscribers", stats.subscribers)?;
        dict.set_item("waiting_s", stats.waiting_s)?;
        Ok(dict)
    }

    fn next_log(&self, py: Python<'_>) -> Option<Record> {
        py.detach(|| {
            loop {
                if let Some(record) = self.handle.next_log(LOG_SLICE) {
                    return Some(to_python(record));
                }
                if !self.handle.is_running() {
                    return None;
                }
            }
        })
    }

    fn stop(&self, py: Python<'_>) {
        py.detach(|| self.handle.stop());
    }
}

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
        Ok(Self { student: Owned::new(student) })
    }

    fn hello<'py>(&self, py: Python<'py>, timeout_ms: u64) -> PyResult<Option<Hello<'py>>> {
        let timeout = Duration::from_millis(timeout_ms);
        match self.blocking(py, |student, look| student.hello(timeout, look))? {
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
        let waited =
            self.blocking(py, |student, look| student.set_model(model_id, model_cfg, timeout, look))?;
        self.generation(py, waited, "SET_MODEL", timeout)
    }

    fn stop_workers(&self, py: Python<'_>, timeout_ms: u64) -> PyResult<()> {
        let timeout = Duration::from_millis(timeout_ms);
        let waited = self.blocking(py, |student, look| student.stop_workers(timeout, look))?;
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
        self.here(py)?.note_model(Model { generation, model_id, model_cfg });
        Ok(())
    }

    #[getter]
    fn connection_error(&self, py: Python<'_>) -> PyResult<Option<String>> {
        Ok(self.here(py)?.connection_error().map(|error| error.to_string()))
    }

    fn take_log(&self, py: Python<'_>) -> PyResult<Vec<Record>> {
        Ok(self.here(py)?.take_log().into_iter().map(to_python).collect())
    }

    fn close(&self, py: Python<'_>) {
        // In a fork there is no thread to end, and the socket is the parent's.
        if !self.student.is_forked() {
            py.detach(|| self.student.close());
        }
    }
}

impl ControlStudent {
    fn here(&self, py: Python<'_>) -> PyResult<&NetStudent> {
        self.student.here(py, "student's control connection")
    }

    /// Runs a blocking call without the GIL; `None` when it timed out.
    fn blocking<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&NetStudent, &mut dyn FnMut() -> bool) -> Waited<T> + Send,
    ) -> PyResult<Option<T>> {
        blocking(py, self.here(py)?, call)
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
            Some(Outcome::Done(generation)) => Ok(generation),
            Some(Outcome::Refused(text)) => Err(raise(py, "ConfigError", text)),
            None => {
                let student = self.here(py)?;
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

/// A subscriber's end of the control channel.
#[pyclass(frozen, module = "softs_fast._core")]
pub(crate) struct ControlSubscriber {
    subscriber: Owned<NetSubscriber>,
}

#[pymethods]
impl ControlSubscriber {
    #[new]
    fn new(py: Python<'_>, endpoint: &str) -> PyResult<Self> {
        let endpoint = endpoint.parse::<Endpoint>().map_err(|e| net_error(py, &e))?;
        let subscriber = NetSubscriber::new(endpoint).map_err(|e| net_error(py, &e))?;
        Ok(Self { subscriber: Owned::new(subscriber) })
    }

    #[pyo3(signature = (timeout_ms))]
    fn next_event<'py>(
        &self,
        py: Python<'py>,
        timeout_ms: Option<u64>,
    ) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let timeout = timeout_ms.map(Duration::from_millis);
        let subscriber = self.here(py)?;
        let news = blocking(py, subscriber, |subscriber, look| subscriber.next_event(timeout, look))?;
        match news {
            None => Ok(None),
            Some(News::Stop) => ("STOP",).into_pyobject(py).map(Some),
            Some(News::Model(Model { generation, model_id, model_cfg })) => {
                let event = ("MODEL", generation, model_id, PyBytes::new(py, &model_cfg));
                event.into_pyobject(py).map(Some)
            }
        }
    }

    #[getter]
    fn is_closed(&self) -> bool {
        self.subscriber.is_forked() || self.subscriber.is_closed()
    }

    #[getter]
    fn connection_error(&self, py: Python<'_>) -> PyResult<Option<String>> {
        Ok(self.here(py)?.connection_error().map(|error| error.to_string()))
    }

    fn take_log(&self, py: Python<'_>) -> PyResult<Vec<Record>> {
        Ok(self.here(py)?.take_log().into_iter().map(to_python).collect())
    }

    fn close(&self, py: Python<'_>) {
        // In a fork the socket is the parent's.
        if !self.subscriber.is_forked() {
            py.detach(|| self.subscriber.close());
        }
    }
}

impl ControlSubscriber {
    fn here(&self, py: Python<'_>) -> PyResult<&NetSubscriber> {
        self.subscriber.here(py, "subscriber")
    }
}

/// Runs a blocking call without the GIL; `None` when it timed out.
fn blocking<H: Sync, T: Send>(
    py: Python<'_>,
    handle: &H,
    call: impl FnOnce(&H, &mut dyn FnMut() -> bool) -> Waited<T> + Send,
) -> PyResult<Option<T>> {
    let mut signals = Signals::new();
    let waited = py.detach(|| call(handle, &mut || signals.look()));
    signals.raised()?;
    match waited {
        Waited::Ready(value) => Ok(Some(value)),
        Waited::TimedOut | Waited::Interrupted => Ok(None),
    }
}

/// The configuration of a model that can go over the wire; an empty one is none, which is nil.
fn checked<'a>(py: Python<'_>, model_id: &str, model_cfg: &'a [u8]) -> PyResult<&'a [u8]> {
    let model_cfg = if model_cfg.is_empty() { softs_proto::wire::NO_MODEL_CFG } else { model_cfg };
    check_model(model_id, model_cfg).map_err(|error| raise(py, "ConfigError", error.to_string()))?;
    Ok(model_cfg)
}
