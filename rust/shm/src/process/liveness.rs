//! Liveness of other processes: one rule for Rust and Python. `csrc/collective/process.cpp` implements the same rule
//! for C++, and `tests/liveness_cases.txt` lists the cases that all of them must pass.
//!
//! A process is dead when a descriptor of it (a pidfd) is readable, or when no process has its number (ESRCH).
//! Numbers are reused, so the start of the process that has the number is compared after the descriptor was opened:
//! another start means that the expected process is dead. Everything that cannot be determined counts as alive: no
//! permission, no free descriptor, a start that cannot be read from `/proc`, a number of another namespace.

use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::identity::Identity;
use super::stat::start_of;

/// A descriptor of a process.
#[derive(Debug)]
pub struct ProcessWatch {
    pidfd: OwnedFd,
}

/// What is known about a process.
#[derive(Debug)]
pub enum Liveness {
    /// It runs.
    Alive(ProcessWatch),
    /// It has ended: it is a zombie, its number is free, or the number is that of a later process.
    Dead,
    /// The kernel gave no descriptor of it, for the reason given. It counts as alive.
    Unknown(Errno),
}

impl ProcessWatch {
    /// Opens a descriptor of a process.
    #[must_use]
    pub fn open(process: &Identity) -> Liveness {
        if is_other_namespace(process.pid_ns) {
            return Liveness::Unknown(Errno::XDEV);
        }
        open(process.pid, |start| start as u32 == process.start)
    }

    /// Whether the process has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut fds = [PollFd::from_borrowed_fd(self.as_fd(), PollFlags::IN)];
        poll(&mut fds, Some(&at_once)).is_ok_and(|n_ready| n_ready > 0)
    }
}

/// Readable once the process has ended.
impl AsFd for ProcessWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

impl Identity {
    /// Whether the process runs, as far as this process can determine.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        !matches!(ProcessWatch::open(self), Liveness::Dead)
    }
}

/// As [`Identity::is_alive`], for a start of 64 bits.
#[must_use]
pub fn is_process_alive(pid: u32, start: u64, pid_ns: u64) -> bool {
    is_other_namespace(pid_ns) || !matches!(open(pid, |now| now == start), Liveness::Dead)
}

fn open(pid: u32, is_expected: impl FnOnce(u64) -> bool) -> Liveness {
    let Some(number) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
        // No process has such a number.
        return Liveness::Dead;
    };
    let opened = pidfd_open(number, PidfdFlags::empty());
    if matches!(opened, Err(Errno::SRCH)) {
        return Liveness::Dead;
    }
    // Read after the descriptor was opened. Also without a descriptor: there is none of a number that a thread has by
    // now.
    if start_of(pid).is_some_and(|start| !is_expected(start)) {
        return Liveness::Dead;
    }
    match opened.map(|pidfd| ProcessWatch { pidfd }) {
        Ok(watch) if watch.has_ended() => Liveness::Dead,
        Ok(watch) => Liveness::Alive(watch),
        Err(errno) => Liveness::Unknown(errno),
    }
}

/// Whether a namespace is known to be another one than that of this process, which 0 stands for too.
fn is_other_namespace(pid_ns: u64) -> bool {
    pid_ns != 0 && fs::metadata("/proc/self/ns/pid").is_ok_and(|own| own.ino() != pid_ns)
}
