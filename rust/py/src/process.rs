//! Processes: handles belong to the process that made them; identity and liveness of other processes.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use softs_net::Watch;
use softs_net::flow::pipe;
use softs_shm::{Identity, ProcessToken, is_process_alive, start_of};

use crate::errors::raise;

/// The number, start and pid namespace of this process.
#[pyfunction]
pub(crate) fn this_process(py: Python<'_>) -> PyResult<(u32, u64, u64)> {
    let Identity { pid, pid_ns, .. } =
        Identity::current().map_err(|error| raise(py, "SegmentError", error.to_string()))?;
    let start = start_of(pid).ok_or_else(|| {
        raise(py, "SegmentError", format!("/proc/{pid}/stat does not tell when this process started"))
    })?;
    Ok((pid, start, pid_ns))
}

#[pyfunction]
pub(crate) fn is_alive(pid: u32, start: u64, pid_namespace: u64) -> bool {
    is_process_alive(pid, start, pid_namespace)
}

#[pyfunction]
pub(crate) fn is_ours(peer: (String, u16), own: (String, u16)) -> bool {
    let address = |(host, port): (String, u16)| host.parse().ok().map(|ip: IpAddr| SocketAddr::new(ip, port));
    address(peer).zip(address(own)).is_some_and(|(peer, own)| softs_net::is_ours(peer, own))
}

#[pyfunction]
pub(crate) fn end_after(
    py: Python<'_>,
    pid: u32,
    start: u64,
    pid_namespace: u64,
    grace_s: f64,
) -> PyResult<()> {
    let process = Identity { pid, start: start as u32, pid_ns: pid_namespace };
    let grace = Duration::try_from_secs_f64(grace_s)
        .map_err(|_| raise(py, "ConfigError", format!("grace_s must be at least 0, have {grace_s}")))?;
    softs_net::end_after(&process, grace)
        .map_err(|error| raise(py, "PeerLost", format!("cannot wait for the end of process {pid}: {error}")))
}

/// A native handle and the process that opened it. A fork inherits the memory but neither the threads nor the right to
/// the socket, and a lock that a thread held is never released there. So the handle is out of reach in a fork, and is
/// never dropped.
#[derive(Debug)]
pub(crate) struct Owned<T> {
    value: Arc<T>,
    /// For errors.
    what: &'static str,
    process: ProcessToken,
    pid: u32,
}

impl<T> Owned<T> {
    pub(crate) fn new(what: &'static str, value: T) -> Self {
        Self { value: Arc::new(value), what, process: ProcessToken::current(), pid: std::process::id() }
    }

    /// The handle for a thread of this process. A fork has no such thread, so the reference is never dropped there.
    pub(crate) fn share(&self) -> Arc<T> {
        Arc::clone(&self.value)
    }

    /// The handle; `None` in a fork.
    pub(crate) fn unless_forked(&self) -> Option<&T> {
        self.process.is_current().then_some(&self.value)
    }

    /// The handle, or the error of a fork.
    pub(crate) fn here(&self, py: Python<'_>) -> PyResult<&T> {
        if let Some(handle) = self.unless_forked() {
            return Ok(handle);
        }
        let (what, owner, child) = (self.what, self.pid, std::process::id());
        Err(raise(
            py,
            "ForkedError",
            format!(
                "this {what} was opened by process {owner} and cannot be used in its fork {child}; open one after the fork, in the process that uses it"
            ),
        ))
    }
}

impl<T: Sync> Owned<T> {
    /// Ends the handle's work without the GIL. Not in a fork, which has no thread to end, and the parent's sockets.
    pub(crate) fn end(&self, py: Python<'_>, end: impl FnOnce(&T) + Send) {
        if let Some(handle) = self.unless_forked() {
            py.detach(|| end(handle));
        }
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        if !self.process.is_current() {
            // One reference too many, so that the value's own Drop, which would speak on the parent's socket, never
            // runs.
            std::mem::forget(Arc::clone(&self.value));
        }
    }
}

/// Checks for signals during a blocking call; keeps what their handlers raised.
struct Signals(Option<PyErr>);

impl Signals {
    fn new() -> Self {
        Self(None)
    }

    /// Whether a handler raised.
    fn interrupted(&mut self) -> bool {
        if let Err(error) = Python::attach(|py| py.check_signals()) {
            self.0 = Some(error);
        }
        self.0.is_some()
    }

    fn raised(self) -> PyResult<()> {
        self.0.map_or(Ok(()), Err)
    }
}

/// As [`Signals`], for a call that may wait for long: Python's signal handler writes to a pipe, whichever thread it runs
/// in, and also for `_thread.interrupt_main`.
struct WatchedSignals {
    signals: Signals,
    /// What the handler writes to.
    writer: Option<OwnedFd>,
}

impl WatchedSignals {
    fn try_watch(&mut self, py: Python<'_>) -> PyResult<Watch> {
        let Ok((reader, writer)) = pipe() else { return Ok(Watch::Unknown) };
        let old = match set_wakeup_fd(py, writer.as_raw_fd()) {
            Ok(old) => old,
            // Only the main thread may set it, and only that one runs handlers of signals.
            Err(error) if error.is_instance_of::<PyValueError>(py) => return Ok(Watch::Elsewhere),
            Err(error) => return Err(error),
        };
        if old != NO_DESCRIPTOR {
            // An event loop of the caller has its own, and is to see each signal.
            set_wakeup_fd(py, old)?;
            return Ok(Watch::Unknown);
        }
        self.writer = Some(writer);
        Ok(Watch::Descriptor(reader))
    }
}

impl softs_net::Signals for WatchedSignals {
    fn interrupted(&mut self) -> bool {
        self.signals.interrupted()
    }

    fn watch(&mut self) -> Watch {
        Python::attach(|py| self.try_watch(py)).unwrap_or_else(|error| {
            self.signals.0 = Some(error);
            Watch::Unknown
        })
    }

    fn unwatch(&mut self) {
        let Some(writer) = self.writer.take() else { return };
        let unset = Python::attach(|py| {
            let now = set_wakeup_fd(py, NO_DESCRIPTOR)?;
            // A handler has set another one meanwhile.
            if now != writer.as_raw_fd() { set_wakeup_fd(py, now).map(drop) } else { Ok(()) }
        });
        if let Err(error) = unset {
            self.signals.0.get_or_insert(error);
        }
    }
}

/// What `signal.set_wakeup_fd` has where there is none.
const NO_DESCRIPTOR: i32 = -1;

fn set_wakeup_fd(py: Python<'_>, descriptor: i32) -> PyResult<i32> {
    py.import("signal")?.call_method1("set_wakeup_fd", (descriptor,))?.extract()
}

/// Runs a call that may wait for long without the GIL, and that sleeps while nothing happens; raises what a signal handler
/// raised meanwhile.
pub(crate) fn waiting<H: Sync, T: Send>(
    py: Python<'_>,
    handle: &H,
    call: impl FnOnce(&H, &mut dyn softs_net::Signals) -> T + Send,
) -> PyResult<T> {
    let mut signals = WatchedSignals { signals: Signals::new(), writer: None };
    let done = py.detach(|| call(handle, &mut signals));
    signals.signals.raised()?;
    Ok(done)
}

/// Runs a blocking call without the GIL; raises what a signal handler raised meanwhile.
pub(crate) fn blocking<H: Sync, T: Send>(
    py: Python<'_>,
    handle: &H,
    call: impl FnOnce(&H, &mut dyn FnMut() -> bool) -> T + Send,
) -> PyResult<T> {
    let mut signals = Signals::new();
    let done = py.detach(|| call(handle, &mut || signals.interrupted()));
    signals.raised()?;
    Ok(done)
}

/// What is added to a time of the clock must fit; it is 136 years.
const FOR_EVER: Duration = Duration::from_secs(1 << 32);

pub(crate) fn duration(py: Python<'_>, name: &str, seconds: f64) -> PyResult<Duration> {
    if seconds.is_nan() || seconds < 0.0 {
        return Err(raise(py, "ConfigError", format!("{name} must be at least 0, have {seconds}")));
    }
    Ok(Duration::try_from_secs_f64(seconds).unwrap_or(FOR_EVER).min(FOR_EVER))
}
