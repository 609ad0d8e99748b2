//! Where one thread is, as the handler of a signal writes it in that thread: also while Python holds its lock.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::fd::OwnedFd;
use rustix::pipe::{PipeFlags, pipe_with};
use softs_shm::{NotSent, ThreadSignal};

use crate::error::NetError;
use crate::transport::socket::wait;

/// How long a thread may take to write. It needs microseconds, unless it blocks the signal or cannot be interrupted.
const LIMIT: Duration = Duration::from_millis(500);
/// A thread that has not written all is looked at again after this.
const PAUSE: Duration = Duration::from_millis(2);
/// What is read at most, bytes; a pipe takes no more either, and the handler does not wait for room.
const MOST_BYTES: usize = 64 << 10;

/// The thread that is asked, and the pipe that its handler writes to.
#[derive(Debug)]
pub(super) struct StackReader {
    thread: ThreadSignal,
    pipe: OwnedFd,
}

/// A pipe to which a handler of a signal can write: its reading end, and the other one. Neither ever waits.
///
/// # Errors
/// [`NetError::Os`].
pub fn pipe() -> Result<(OwnedFd, OwnedFd), NetError> {
    pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)
        .map_err(|error| NetError::os("(pipe)", "cannot open a pipe", error))
}

impl StackReader {
    pub(super) fn new(thread: ThreadSignal, pipe: OwnedFd) -> Self {
        Self { thread, pipe }
    }

    /// What the thread writes, cut after `most` bytes; or why it writes nothing.
    pub(super) fn read(&self, most: usize) -> Vec<u8> {
        let most = most.min(MOST_BYTES);
        // What an answer that came too late has left.
        self.drain(usize::MAX);
        match self.thread.send() {
            Ok(()) => {}
            Err(NotSent::OtherHandler) => return b"no stack: the signal has another handler by now".to_vec(),
            Err(NotSent::Ended | NotSent::Fork) => return b"no stack: the thread has ended".to_vec(),
        }
        let (begun, mut text) = (Instant::now(), Vec::new());
        loop {
            // A signal that is being delivered is neither waiting nor blocked for a moment. Once its handler has written
            // anything, it is blocked until the handler has finished.
            let has_finished = !text.is_empty() && !self.thread.is_under_way();
            text.extend(self.drain(most - text.len()));
            if has_finished || text.len() == most {
                return text;
            }
            if begun.elapsed() >= LIMIT {
                if text.is_empty() {
                    text.extend(b"no stack: the thread does not take the signal");
                }
                text.truncate(most);
                return text;
            }
            // What was written last may be there although the handler runs still, so this waits for no more of it.
            if text.is_empty() {
                let _may_be_readable = wait(self.pipe.as_fd(), true, false, PAUSE);
            } else {
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// What is in the pipe, at most so much of it.
    fn drain(&self, most: usize) -> Vec<u8> {
        let (mut found, mut buffer) = (Vec::new(), [0; 4096]);
        while found.len() < most {
            let n = buffer.len().min(most - found.len());
            match rustix::io::read(&self.pipe, &mut buffer[..n]) {
                Ok(0) | Err(_) => break,
                Ok(n) => found.extend(&buffer[..n]),
            }
        }
        found
    }
}
