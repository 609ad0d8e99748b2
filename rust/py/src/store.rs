//! `_core.StoreServer` and `_core.StoreClient`: keys and values by which the ranks of a group meet.

use pyo3::prelude::*;
use softs_net::Endpoint;
use softs_net::store::{StoreClient as NetClient, StoreServer as NetServer};
use softs_proto::store::{Reply, Request};

use crate::credentials::{Der, credentials_of};
use crate::errors::{net_error, raise};
use crate::process::{Owned, blocking, duration};

/// A process that keeps a store.
#[pyclass(frozen, module = "softs_fast._core")]
pub(crate) struct StoreServer {
    server: Owned<NetServer>,
}

/// The end that asks.
#[pyclass(frozen, module = "softs_fast._core")]
pub(crate) struct StoreClient {
    client: Owned<NetClient>,
}

/// What was answered; nothing if the time was over before.
type Answered = PyResult<Option<Said>>;

#[derive(IntoPyObject)]
enum Said {
    Value(Vec<u8>),
    Number(i64),
    Found(bool),
}

#[pymethods]
impl StoreServer {
    #[new]
    fn new(py: Python<'_>, endpoint: &str, credentials: Option<Der>, most_bytes: usize) -> PyResult<Self> {
        let endpoint = endpoint.parse::<Endpoint>().map_err(|error| net_error(py, &error))?;
        let credentials = credentials.map(|der| credentials_of(py, der)).transpose()?;
        let server = py.detach(|| NetServer::start(&endpoint, credentials, most_bytes));
        Ok(Self { server: Owned::new("store", server.map_err(|error| net_error(py, &error))?) })
    }

    #[getter]
    fn endpoint(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.server.here(py)?.endpoint().to_owned())
    }

    fn close(&self, py: Python<'_>) {
        self.server.end(py, |server| server.close());
    }
}

#[pymethods]
impl StoreClient {
    #[new]
    fn new(py: Python<'_>, endpoint: &str, credentials: Option<Der>, timeout_s: f64) -> PyResult<Self> {
        let endpoint = endpoint.parse::<Endpoint>().map_err(|error| net_error(py, &error))?;
        let credentials = credentials.map(|der| credentials_of(py, der)).transpose()?;
        let timeout = duration(py, "timeout_s", timeout_s)?;
        let connected = blocking(py, &endpoint, |endpoint, interrupted| {
            NetClient::connect(endpoint.clone(), credentials, timeout, interrupted)
        })?;
        let client = connected.map_err(|error| net_error(py, &error))?.ready();
        // A signal handler that raised has been reported, so there is a client.
        let client = client.ok_or_else(|| raise(py, "PeerLost", "connecting was interrupted".to_owned()))?;
        Ok(Self { client: Owned::new("store", client) })
    }

    fn set(&self, py: Python<'_>, key: &[u8], value: &[u8], timeout_s: f64) -> Answered {
        self.ask(py, &Request::Set(key, value), timeout_s)
    }

    fn get(&self, py: Python<'_>, key: &[u8], timeout_s: f64) -> Answered {
        self.ask(py, &Request::Get(key), timeout_s)
    }

    fn add(&self, py: Python<'_>, key: &[u8], amount: i64, timeout_s: f64) -> Answered {
        self.ask(py, &Request::Add(key, amount), timeout_s)
    }

    fn compare_set(
        &self,
        py: Python<'_>,
        key: &[u8],
        expected: &[u8],
        desired: &[u8],
        timeout_s: f64,
    ) -> Answered {
        self.ask(py, &Request::CompareSet(key, expected, desired), timeout_s)
    }

    fn check(&self, py: Python<'_>, keys: Vec<Vec<u8>>, timeout_s: f64) -> Answered {
        self.ask(py, &Request::Check(keys.iter().map(Vec::as_slice).collect()), timeout_s)
    }

    fn wait(&self, py: Python<'_>, keys: Vec<Vec<u8>>, timeout_s: f64) -> Answered {
        self.ask(py, &Request::Wait(keys.iter().map(Vec::as_slice).collect()), timeout_s)
    }

    fn delete(&self, py: Python<'_>, key: &[u8], timeout_s: f64) -> Answered {
        self.ask(py, &Request::Delete(key), timeout_s)
    }

    fn count(&self, py: Python<'_>, timeout_s: f64) -> Answered {
        self.ask(py, &Request::Count, timeout_s)
    }
}

impl StoreClient {
    fn ask(&self, py: Python<'_>, request: &Request<'_>, timeout_s: f64) -> Answered {
        let timeout = duration(py, "timeout_s", timeout_s)?;
        let take = |reply: Reply<'_>| match reply {
            Reply::Value(value) => Ok(Said::Value(value.to_vec())),
            Reply::Number(number) => Ok(Said::Number(number)),
            Reply::Found(found) => Ok(Said::Found(found)),
            Reply::Refused(why) => Err(why),
        };
        let asked = blocking(py, self.client.here(py)?, |client, interrupted| {
            client.ask(request, timeout, interrupted, take)
        })?;
        let said = asked.map_err(|error| net_error(py, &error))?.ready();
        said.transpose().map_err(|why| raise(py, "ConfigError", why))
    }
}
