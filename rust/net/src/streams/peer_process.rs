//! The process at the other end of a connection of this machine.

use rustix::fd::BorrowedFd;
use rustix::net::sockopt;
use softs_shm::{Identity, Liveness, ProcessWatch, start_of};

/// Its number, and what is readable once it has ended: forks of it hold copies of its socket, which alone would not
/// report its end. `None` on TCP, and where the kernel does not tell.
pub(crate) fn peer_process(fd: BorrowedFd<'_>) -> Option<(u32, Option<ProcessWatch>)> {
    let pid = sockopt::socket_peercred(fd).ok()?.pid.as_raw_nonzero().get().cast_unsigned();
    let identity = start_of(pid).map(|start| Identity { pid, start: start as u32, pid_ns: 0 });
    let watch = match identity.map(|identity| ProcessWatch::open(&identity)) {
        Some(Liveness::Alive(watch)) => Some(watch),
        // The end of one that has ended is reported by its socket.
        Some(Liveness::Dead | Liveness::Unknown(_)) | None => None,
    };
    Some((pid, watch))
}
