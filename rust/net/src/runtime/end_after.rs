//! Ends this process after another one: a worker process after the process of its fleet.

use std::io;
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{Signal, getpid, kill_process};
use softs_shm::{Identity, Liveness, ProcessWatch};

/// Kills this process `grace` after `process` has ended, whatever its threads do, and removes the shared memory of dead
/// owners before. The process may end by itself meanwhile.
///
/// # Errors
/// The kernel gives no descriptor of `process`, or there is no thread for the wait.
pub fn end_after(process: &Identity, grace: Duration) -> io::Result<()> {
    let watch = match ProcessWatch::open(process) {
        Liveness::Alive(watch) => Some(watch),
        Liveness::Dead => None,
        Liveness::Unknown(errno) => return Err(errno.into()),
    };
    let end = move || {
        if watch.is_some_and(|watch| wait_for(&watch).is_err()) {
            // What cannot be determined counts as alive.
            return;
        }
        thread::sleep(grace);
        softs_shm::sweep();
        // A process may always send itself a signal.
        let _sent = kill_process(getpid(), Signal::KILL);
    };
    thread::Builder::new().name("softs-fleet".to_owned()).spawn(end)?;
    Ok(())
}

fn wait_for(watch: &ProcessWatch) -> Result<(), Errno> {
    let mut fds = [PollFd::new(watch, PollFlags::IN)];
    retry_on_intr(|| poll(&mut fds, None)).map(|_| ())
}
