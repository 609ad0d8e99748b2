//! What the thread of a server and its owner share: the request to stop, questions, the log.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, mpsc};

use rustix::event::EventfdFlags;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use softs_proto::log::{Level, LogRecord};

use super::log_queue::LogQueue;
use super::mutex::lock;
use crate::error::NetError;

/// The state that an event loop and the owner of its thread share.
#[derive(Debug)]
pub(crate) struct ServerState<S> {
    /// An eventfd in the epoll set of the loop.
    wake: OwnedFd,
    stop: AtomicBool,
    questions: Mutex<Questions<S>>,
    pub(crate) log: LogQueue,
    /// For the log.
    name: &'static str,
}

/// Requests for statistics.
#[derive(Debug)]
struct Questions<S> {
    waiting: Vec<mpsc::SyncSender<S>>,
    /// The statistics at the end of the loop; `None` while it runs.
    last: Option<S>,
}

impl<S> ServerState<S> {
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

    /// Readable when [`Self::is_stopping`] or [`Self::answer`] has to be called.
    pub(crate) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Whether the loop is to end.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Asks the loop to end.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake();
    }

    /// Answers all questions. The wake-up is cleared first, so that a question that comes meanwhile causes another.
    pub(crate) fn answer(&self, stats: impl Fn() -> S) {
        let mut count = [0_u8; 8];
        // It fails only when there is nothing to clear.
        let _cleared = rustix::io::read(&self.wake, &mut count);
        for sender in self.questions().waiting.drain(..) {
            // The thread that asked may have ended.
            let _unheard = sender.try_send(stats());
        }
    }

    /// The loop has ended, with these statistics.
    pub(super) fn finish(&self, last: S, end: Result<Result<(), NetError>, String>) {
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

    /// Whether the loop has not ended.
    pub(super) fn is_running(&self) -> bool {
        self.questions().last.is_none()
    }

    fn wake(&self) {
        // It fails only when the counter is full, and then the loop is awake as it is.
        let _awake = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    fn questions(&self) -> MutexGuard<'_, Questions<S>> {
        lock(&self.questions)
    }
}

impl<S: Clone + Default> ServerState<S> {
    /// The statistics of now, or of the end where the loop has ended.
    pub(super) fn stats(&self) -> S {
        let (sender, answer) = mpsc::sync_channel(1);
        {
            let mut questions = self.questions();
            if let Some(last) = &questions.last {
                return last.clone();
            }
            questions.waiting.push(sender);
        }
        self.wake();
        // It fails only when the loop ended before it came to the question.
        answer.recv().unwrap_or_else(|_| self.questions().last.clone().unwrap_or_default())
    }
}
