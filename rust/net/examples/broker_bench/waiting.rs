//! How all peers of the benchmark wait for something to read.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use crate::outcome::Outcome;

/// How long the drivers of softs-net spin before they block, and so all peers here.
const SPIN: Duration = Duration::from_micros(20);

/// Waits until there is something to read, as all peers do here, with a broker or without.
pub(crate) fn spin_then_wait(fd: BorrowedFd<'_>) -> Outcome<()> {
    let started = Instant::now();
    while started.elapsed() < SPIN {
        if softs_net::wait(fd, true, false, Duration::ZERO)? {
            return Ok(());
        }
        std::thread::yield_now();
    }
    while !softs_net::wait(fd, true, false, Duration::from_secs(60))? {}
    Ok(())
}
