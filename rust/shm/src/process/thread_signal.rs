//! A signal to one thread of this process, as long as its handler is the one that was meant.

use std::fs;
use std::{mem, ptr};

use rustix::thread::gettid;

use super::token::ProcessToken;

/// A thread of this process, and the handler of a signal that is to run in it.
#[derive(Debug)]
pub struct ThreadSignal {
    process: ProcessToken,
    thread: i32,
    signal: i32,
    handler: libc::sighandler_t,
}

/// Why a signal was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotSent {
    /// The signal has another handler by now, or none.
    OtherHandler,
    /// The thread has ended.
    Ended,
    /// This is a fork: the thread is not in it.
    Fork,
}

impl ThreadSignal {
    /// For the thread that calls; `None` if the signal has no handler.
    #[must_use]
    pub fn of_this_thread(signal: i32) -> Option<Self> {
        let handler = handler_of(signal)?;
        let thread = gettid().as_raw_nonzero().get();
        Some(Self { process: ProcessToken::current(), thread, signal, handler })
    }

    /// Has the handler run in the thread, at once if it does not block the signal; a system call that the thread is in is
    /// interrupted.
    ///
    /// # Errors
    /// See [`NotSent`].
    pub fn send(&self) -> Result<(), NotSent> {
        if !self.process.is_current() {
            return Err(NotSent::Fork);
        }
        if handler_of(self.signal) != Some(self.handler) {
            return Err(NotSent::OtherHandler);
        }
        let process = libc::c_long::from(std::process::id().cast_signed());
        let (thread, signal) = (libc::c_long::from(self.thread), libc::c_long::from(self.signal));
        // SAFETY: M11: numbers alone go to the system, and the handler is still the one that was meant.
        match unsafe { libc::syscall(libc::SYS_tgkill, process, thread, signal) } {
            0 => Ok(()),
            _ => Err(NotSent::Ended),
        }
    }

    /// Whether the signal waits for the thread, or its handler runs there: it is blocked meanwhile.
    #[must_use]
    pub fn is_under_way(&self) -> bool {
        let Ok(status) = fs::read_to_string(format!("/proc/self/task/{}/status", self.thread)) else {
            return false;
        };
        masks(&status).is_some_and(|mask| mask & (1 << (self.signal - 1)) != 0)
    }
}

/// The signals that wait for a thread or that it blocks, one bit each.
fn masks(status: &str) -> Option<u64> {
    let mask = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        u64::from_str_radix(line.trim(), 16).ok()
    };
    Some(mask("SigPnd:")? | mask("SigBlk:")?)
}

/// The address of a handler; `None` where the system acts by itself.
fn handler_of(signal: i32) -> Option<libc::sighandler_t> {
    let mut action = mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: M8: the system writes into a value of its type on this stack, and reads none.
    let failed = unsafe { libc::sigaction(signal, ptr::null(), action.as_mut_ptr()) };
    // SAFETY: M8: all bytes of it are zero, or the system has written them.
    let handler = unsafe { action.assume_init() }.sa_sigaction;
    (failed == 0 && handler != libc::SIG_DFL && handler != libc::SIG_IGN).then_some(handler)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_read() {
        let status =
            "Name:\tx\nSigQ:\t1/2\nSigPnd:\t0000000000400000\nShdPnd:\t1\nSigBlk:\t0000000000000200\n";
        assert_eq!(masks(status), Some(0x40_0200));
        assert_eq!(masks("SigPnd:\t0\n"), None);
        assert_eq!(masks("SigPnd:\tx\nSigBlk:\t0\n"), None);
    }

    #[test]
    fn a_signal_without_a_handler_is_not_sent() {
        // The system ignores SIGURG, and its default for SIGUSR2 ends the process.
        for signal in [libc::SIGURG, libc::SIGUSR2] {
            assert!(ThreadSignal::of_this_thread(signal).is_none());
            let meant = ThreadSignal { process: ProcessToken::current(), thread: 1, signal, handler: 4711 };
            assert_eq!(meant.send(), Err(NotSent::OtherHandler));
        }
    }
}
