//! `_core.ControlSubscriber`.

use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use softs_net::Endpoint;
use softs_net::control::ControlSubscriber as NetSubscriber;
use softs_proto::control::{Model, News};

use crate::errors::net_error;
use crate::log::{Record, to_python};
use crate::process::{Owned, blocking};

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
        Ok(Self { subscriber: Owned::new("subscriber", subscriber) })
    }

    #[pyo3(signature = (timeout_ms))]
    fn next_event<'py>(
        &self,
        py: Python<'py>,
        timeout_ms: Option<u64>,
    ) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let timeout = timeout_ms.map(Duration::from_millis);
        let subscriber = self.subscriber.here(py)?;
        let news =
            blocking(py, subscriber, |subscriber, interrupted| subscriber.next_event(timeout, interrupted))?;
        match news.ready() {
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
        self.subscriber.unless_forked().is_none_or(NetSubscriber::is_closed)
    }

    #[getter]
    fn connection_error(&self, py: Python<'_>) -> PyResult<Option<String>> {
        Ok(self.subscriber.here(py)?.connection_error().map(|error| error.to_string()))
    }

    fn take_log(&self, py: Python<'_>) -> PyResult<Vec<Record>> {
        Ok(self.subscriber.here(py)?.take_log().into_iter().map(to_python).collect())
    }

    fn close(&self, py: Python<'_>) {
        self.subscriber.end(py, |subscriber| subscriber.close());
    }
}
