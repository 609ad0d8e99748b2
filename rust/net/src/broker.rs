//! A broker in a thread of its own: bind, run, ask, stop. The thread is [`event_loop`]; what it decides is `softs_proto::broker`.

mod duet;
mod event_loop;
mod log;
mod peers;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::EventfdFlags;
use rustix::fd::OwnedFd;
use softs_proto::broker::Config;
use softs_proto::limits;
use softs_proto::log::{Level, LogRecord};
use softs_proto::wire::Stats;

use crate::listener::Listener;
use crate::socket::KeepAlive;
use crate::{Endpoint, NetError};
use event_loop::EventLoop;
use log::Log;

/// What a broker is started with.
#[derive(Clone, Debug)]
pub struct BrokerOptions {
    /// Where clients connect to.
    pub frontend: Endpoint,
    /// Where suppliers connect to.
    pub backend: Endpoint,
    /// Settings of the state machine.
    pub config: Config,
    /// Whether other machines may reach a tcp endpoint.
    pub allow_remote: bool,
    /// When a TCP peer counts as dead.
    pub keep_alive: KeepAlive,
    /// Time that a peer has for greeting and READY.
    pub handshake_timeout: Duration,
    /// Bytes that may wait for one peer that does not read.
    pub max_unsent_bytes: usize,
}

impl BrokerOptions {
    /// The two endpoints, and for everything else the limits of `docs/wire.md`.
    #[must_use]
    pub fn new(frontend: Endpoint, backend: Endpoint, config: Config) -> Self {
        Self {
            frontend,
            backend,
            config,
            allow_remote: false,
            keep_alive: KeepAlive::default(),
            handshake_timeout: limits::HANDSHAKE_TIMEOUT,
            max_unsent_bytes: limits::MAX_UNSENT_BYTES,
        }
    }
}

/// A running broker. Dropping it stops it.
///
/// After a fork the child's copy is a husk: it runs nothing, stops nothing, and answers with empty values.
#[derive(Debug)]
pub struct BrokerHandle {
    shared: Arc<Shared>,
    endpoints: (String, String),
    thread: Mutex<Option<JoinHandle<()>>>,
    pid: u32,
}

/// What the loop's thread and the handle have in common.
#[derive(Debug)]
struct Shared {
    /// An eventfd in the loop's epoll.
    wake: OwnedFd,
    stop: AtomicBool,
    questions: Mutex<Questions>,
    log: Log,
}

/// Who waits for statistics.
#[derive(Debug)]
struct Questions {
    waiting: Vec<mpsc::SyncSender<Stats>>,
    /// The statistics at the end of the loop; `None` while it runs.
    last: Option<Stats>,
}

impl BrokerHandle {
    /// Binds both endpoints in the caller's thread, so that what is wrong with them is returned, and starts the loop.
    ///
    /// # Errors
    /// [`NetError::EndpointInUse`], [`NetError::RemoteNotAllowed`], [`NetError::PathTaken`], [`NetError::BadEndpoint`],
    /// [`NetError::Os`]. Nothing stays behind then.
    pub fn start(options: BrokerOptions) -> Result<Self, NetError> {
        let bind = |endpoint| Listener::bind(endpoint, options.allow_remote, options.keep_alive);
        let frontend = bind(&options.frontend)?;
        let backend = bind(&options.backend)?;
        let endpoints = (frontend.local_endpoint().to_owned(), backend.local_endpoint().to_owned());
        let os = |what: &'static str| {
            let endpoint = endpoints.0.clone();
            move |error: std::io::Error| NetError::os(&endpoint, what, error)
        };
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| os("cannot make an eventfd")(error.into()))?;
        let shared = Arc::new(Shared {
            wake,
            stop: AtomicBool::new(false),
            questions: Mutex::new(Questions { waiting: Vec::new(), last: None }),
            log: Log::default(),
        });
        let mut event_loop = EventLoop::new(frontend, backend, options, Arc::clone(&shared))
            .map_err(|error| os("cannot watch the sockets")(error.into()))?;
        let in_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("softs-broker".to_owned())
            .spawn(move || {
                let end = catch_unwind(AssertUnwindSafe(|| event_loop.run()));
                // Sockets, paths and locks go before anybody can see that the broker has ended.
                let last = catch_unwind(AssertUnwindSafe(|| event_loop.into_stats()));
                let last = last.unwrap_or_default();
                in_thread.finish(last, end.map_err(|panic| panic_text(&*panic)));
            })
            .map_err(os("cannot start the broker's thread"))?;
        Ok(Self { shared, endpoints, thread: Mutex::new(Some(thread)), pid: std::process::id() })
    }

    /// Frontend and backend with the paths and ports that they really got.
    #[must_use]
    pub fn endpoints(&self) -> (String, String) {
        self.endpoints.clone()
    }

    /// The statistics of now, or of the end where the broker has stopped.
    #[must_use]
    pub fn stats(&self) -> Stats {
        if self.is_forked() {
            return Stats::default();
        }
        let (sender, answer) = mpsc::sync_channel(1);
        {
            let mut questions = self.shared.questions();
            if let Some(last) = &questions.last {
                return last.clone();
            }
            questions.waiting.push(sender);
        }
        self.shared.wake();
        // It fails only when the loop ended before it came to the question.
        answer.recv().unwrap_or_else(|_| self.shared.questions().last.clone().unwrap_or_default())
    }

    /// The next line of log; `None` when none came within `timeout`, or none will come because the broker has stopped.
    #[must_use]
    pub fn next_log(&self, timeout: Duration) -> Option<LogRecord> {
        if self.is_forked() {
            return None;
        }
        self.shared.log.next(timeout)
    }

    /// Whether the loop runs.
    #[must_use]
    pub fn is_running(&self) -> bool {
        !self.is_forked() && self.shared.questions().last.is_none()
    }

    /// Closes everything, removes paths and locks, and waits for the thread to end. A second call does nothing.
    pub fn stop(&self) {
        // In a forked child there is no thread to wait for, and the eventfd is the parent's too.
        if self.is_forked() {
            return;
        }
        self.shared.stop.store(true, Ordering::Release);
        self.shared.wake();
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread {
            // The thread catches its panics and has logged them.
            let _caught = thread.join();
        }
    }

    fn is_forked(&self) -> bool {
        self.pid != std::process::id()
    }
}

impl Drop for BrokerHandle {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn wake(&self) {
        // It fails only when the counter is full, and then the loop is awake as it is.
        let _awake = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    fn questions(&self) -> MutexGuard<'_, Questions> {
        lock(&self.questions)
    }

    fn answer(&self, stats: impl Fn() -> Stats) {
        for sender in self.questions().waiting.drain(..) {
            // Whoever asked may have gone away.
            let _unheard = sender.try_send(stats());
        }
    }

    fn finish(&self, last: Stats, end: Result<Result<(), NetError>, String>) {
        let text = match end {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(format!("broker stopped: {error}")),
            Err(panic) => Some(format!("broker stopped by a bug: {panic}")),
        };
        if let Some(text) = text {
            self.log.push(LogRecord { level: Level::Error, text });
        }
        {
            let mut questions = self.questions();
            questions.last = Some(last);
            questions.waiting.clear();
        }
        self.log.close();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What these locks guard is whole after every single statement, so a panic elsewhere has not spoilt it.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "panic without a text".to_owned())
}
