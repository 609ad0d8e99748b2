//! `_core.Mesh`: messages between the ranks of a group on several hosts.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use softs_net::Endpoint;
use softs_net::mesh::{Listening, Mesh as NetMesh, MeshError, Message};
use softs_proto::mesh::Key;

use crate::credentials::{Der, credentials_of};
use crate::errors::{net_error, raise};
use crate::memory::buffer::{Buffer, Source};
use crate::process::{Owned, blocking, duration};

/// Connections between all ranks of a group, one for each pair.
#[pyclass(frozen, module = "softs_fast._core")]
pub(crate) struct Mesh {
    rank: Owned<Rank>,
}

struct Rank {
    endpoint: String,
    key: Key,
    /// Until all others have connected.
    listening: Mutex<Option<Listening>>,
    joined: Mutex<Option<Arc<NetMesh>>>,
    is_shut: AtomicBool,
}

#[pymethods]
impl Mesh {
    #[new]
    fn new(py: Python<'_>, endpoint: &str, credentials: Option<Der>, plain: bool) -> PyResult<Self> {
        let endpoint = endpoint.parse::<Endpoint>().map_err(|error| net_error(py, &error))?;
        let credentials = credentials.map(|der| credentials_of(py, der)).transpose()?;
        let listening = py.detach(|| Listening::bind(&endpoint, credentials, plain));
        let listening = listening.map_err(|error| net_error(py, &error))?;
        let (endpoint, key) = (listening.endpoint().to_owned(), listening.key());
        let (listening, joined) = (Mutex::new(Some(listening)), Mutex::default());
        let is_shut = AtomicBool::new(false);
        Ok(Self { rank: Owned::new("group", Rank { endpoint, key, listening, joined, is_shut }) })
    }

    #[getter]
    fn endpoint(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.rank.here(py)?.endpoint.clone())
    }

    #[getter]
    fn key(&self, py: Python<'_>) -> PyResult<Key> {
        Ok(self.rank.here(py)?.key)
    }

    fn join(&self, py: Python<'_>, rank: usize, peers: Vec<(String, Key)>, timeout_s: f64) -> PyResult<()> {
        let own = self.rank.here(py)?;
        let timeout = duration(py, "timeout_s", timeout_s)?;
        let place =
            |(endpoint, key): &(String, Key)| endpoint.parse::<Endpoint>().map(|endpoint| (endpoint, *key));
        let places: Result<Vec<_>, _> = peers.iter().map(place).collect();
        let places = places.map_err(|error| net_error(py, &error))?;
        let listening = lock(&own.listening).take();
        let listening =
            listening.ok_or_else(|| raise(py, "ConfigError", "this mesh was joined before".to_owned()))?;
        let joined = blocking(py, &listening, |listening, interrupted| {
            let is_over = &mut || own.is_shut.load(Ordering::Acquire) || interrupted();
            listening.join(rank, &places, timeout, is_over)
        })?;
        // A signal handler that raised has been reported, so without a mesh it was shut down.
        let mesh = joined.map_err(|error| mesh_error(py, &error))?.ready();
        let mesh = mesh.ok_or_else(|| raise(py, "PeerLost", "this rank has left the group".to_owned()))?;
        *lock(&own.joined) = Some(Arc::new(mesh));
        // It may have been shut down since then.
        if own.is_shut.load(Ordering::Acquire) { self.shut_down(py) } else { Ok(()) }
    }

    fn exchange(
        &self,
        py: Python<'_>,
        sends: Vec<(usize, Bound<'_, PyAny>)>,
        receives: Vec<(usize, Bound<'_, PyAny>)>,
        timeout_s: f64,
    ) -> PyResult<()> {
        let (mesh, stall) = (self.mesh(py)?, duration(py, "timeout_s", timeout_s)?);
        let sources: PyResult<Vec<_>> = sends.iter().map(|(_, data)| Source::new(data)).collect();
        let targets: PyResult<Vec<_>> = receives.iter().map(|(_, data)| Buffer::writable(data)).collect();
        let (sources, targets) = (sources?, targets?);
        let outgoing: Vec<Message<'_>> =
            sends.iter().zip(&sources).map(|((rank, _), source)| (*rank, source.foreign())).collect();
        let incoming: Vec<Message<'_>> =
            receives.iter().zip(&targets).map(|((rank, _), target)| (*rank, target.foreign())).collect();
        let done =
            blocking(py, &mesh, |mesh, interrupted| mesh.exchange(&outgoing, &incoming, stall, interrupted))?;
        done.map_err(|error| mesh_error(py, &error))
    }

    #[getter]
    fn lost(&self, py: Python<'_>) -> PyResult<Vec<usize>> {
        self.rank.here(py)?;
        Ok(self.mesh(py).map_or_else(|_| Vec::new(), |mesh| mesh.lost()))
    }

    #[getter]
    fn ended(&self, py: Python<'_>) -> PyResult<Vec<usize>> {
        Ok(self.mesh(py)?.ended())
    }

    fn drain(&self, py: Python<'_>, timeout_s: f64) -> PyResult<()> {
        let (joined, stall) =
            (lock(&self.rank.here(py)?.joined).clone(), duration(py, "timeout_s", timeout_s)?);
        let Some(mesh) = joined else { return Ok(()) };
        blocking(py, &mesh, |mesh, interrupted| mesh.drain(stall, interrupted))
    }

    fn shut_down(&self, py: Python<'_>) -> PyResult<()> {
        let own = self.rank.here(py)?;
        own.is_shut.store(true, Ordering::Release);
        lock(&own.listening).take();
        if let Some(mesh) = &*lock(&own.joined) {
            mesh.shut_down();
        }
        Ok(())
    }
}

impl Mesh {
    fn mesh(&self, py: Python<'_>) -> PyResult<Arc<NetMesh>> {
        let joined = lock(&self.rank.here(py)?.joined).clone();
        joined.ok_or_else(|| raise(py, "ConfigError", "this mesh was not joined".to_owned()))
    }
}

fn mesh_error(py: Python<'_>, error: &MeshError) -> PyErr {
    let class = match error {
        MeshError::NoRank(..) => "ConfigError",
        MeshError::Broken(_) => "PeerLost",
    };
    raise(py, class, error.to_string())
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
