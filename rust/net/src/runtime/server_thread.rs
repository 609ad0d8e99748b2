//! A server in a thread of its own: start, ask, read its log, stop. The thread is a loop over epoll that its owner brings along.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::EventfdFlags;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use softs_proto::log::{Level, LogRecord};

use crate::NetError;
use crate::runtime::log_queue::LogQueue;
use crate::runtime::mutex::lock;

/// What runs in the thread.
pub(crate) trait Server: Send + 'static {
    /// What it answers with.
    type Stats: Clone + Default + Send + 'static;

    /// Turns until [`Shared::is_stopping`].
    fn run(&mut self) -> Result<(), NetError>;

    /// Closes everything; the statistics are all that is left.
    fn into_stats(self) -> Self::Stats;
}

/// A running server. Dropping it stops it.
///
/// After a fork the child's copy is a husk: it runs nothing, stops nothing, and answers with empty values.
#[derive(Debug)]
pub(crate) struct ServerThread<S> {
    shared: Arc<Shared<S>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    pid: u32,
}

/// What the loop's thread and its owner have in common.
#[derive(Debug)]
pub(crate) struct Shared<S> {
    /// An eventfd in the loop's epoll.
    wake: OwnedFd,
    stop: AtomicBool,
    questions: Mutex<Questions<S>>,
    pub(crate) log: LogQueue,
    /// For the log.
    name: &'static str,
}

/// Who waits for statistics.
#[derive(Debug)]
struct Questions<S> {
    waiting: Vec<mpsc::SyncSender<S>>,
    /// The statistics at the end of the loop; `None` while it runs.
    last: Option<S>,
}

impl<S: Clone + Default + Send + 'static> ServerThread<S> {
    /// Starts the loop that `build` makes. `name` and `endpoint` are for its thread and its errors.
    pub(crate) fn start<L: Server<Stats = S>>(
        name: &'static str,
        endpoint: &str,
        build: impl FnOnce(Arc<Shared<S>>) -> Result<L, Errno>,
    ) -> Result<Self, NetError> {
        let os = |what: &str, error: std::io::Error| NetError::os(endpoint, what, error);
        let shared = Arc::new(Shared::new(name).map_err(|error| os("cannot make an eventfd", error.into()))?);
        let mut server =
            build(Arc::clone(&shared)).map_err(|error| os("cannot watch the sockets", error.into()))?;
        let in_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name(format!("softs-{name}"))
            .spawn(move || {
                let end = catch_unwind(AssertUnwindSafe(|| server.run()));
                // Sockets, paths and locks go before anybody can see that the server has ended.
                let last = catch_unwind(AssertUnwindSafe(|| server.into_stats()));
                let last = last.unwrap_or_default();
                in_thread.finish(last, end.map_err(|panic| panic_text(&*panic)));
            })
            .map_err(|error| os(&format!("cannot start the {name}'s thread"), error))?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)), pid: std::process::id() })
    }

    /// The statistics of now, or of the end where the server has stopped.
    pub(crate) fn stats(&self) -> S {
        if self.is_forked() {
            return S::default();
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

    /// The next line of log; `None` when none came within `timeout`, or none will come because the server has stopped.
    pub(crate) fn next_log(&self, timeout: Duration) -> Option<LogRecord> {
        if self.is_forked() {
            return None;
        }
        self.shared.log.next(timeout)
    }

    /// Whether the loop runs.
    pub(crate) fn is_running(&self) -> bool {
        !self.is_forked() && self.shared.questions().last.is_none()
    }
}

impl<S> ServerThread<S> {
    /// Closes everything, removes paths and locks, and waits for the thread to end. A second call does nothing.
    pub(crate) fn stop(&self) {
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

impl<S> Drop for ServerThread<S> {
    fn drop(&mut self) {
        self.stop();
    }
}

impl<S> Shared<S> {
    /// Of a loop that is to start.
    pub(crate) fn new(name: &'static str) -> Result<Self, Errno> {
        Ok(Self {
            wake: rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            stop: AtomicBool::new(false),
            questions: Mutex::new(Questions { waiting: Vec::new(), last: None }),
            log: LogQueue::default(),
            name,
        })
    }

    /// Readable when [`Shared::is_stopping`] or [`Shared::answer`] has to be called.
    pub(crate) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Whether the loop shall end.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Answers whoever has asked; the wake-up is cleared first, so that one who asks meanwhile causes another.
    pub(crate) fn answer(&self, stats: impl Fn() -> S) {
        let mut count = [0_u8; 8];
        // It fails only when there is nothing to clear.
        let _cleared = rustix::io::read(&self.wake, &mut count);
        for sender in self.questions().waiting.drain(..) {
            // Whoever asked may have gone away.
            let _unheard = sender.try_send(stats());
        }
    }

    fn wake(&self) {
        // It fails only when the counter is full, and then the loop is awake as it is.
        let _awake = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    fn questions(&self) -> MutexGuard<'_, Questions<S>> {
        lock(&self.questions)
    }

    fn finish(&self, last: S, end: Result<Result<(), NetError>, String>) {
        let name = self.name;
        let text = match end {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(format!("{name} stopped: {error}")),
            Err(panic) => Some(format!("{name} stopped by a bug: {panic}")),
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

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "panic without a text".to_owned())
}
