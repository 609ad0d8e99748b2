//! Whether the host at the other end of a TCP connection answers.

use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use rustix::io::Errno;

/// Segments that the kernel has sent again before a host counts as silent: one alone may be lost.
const RETRANSMITS: u8 = 2;

/// How long the host at the other end has acknowledged nothing, although bytes wait for that; `None` while it answers.
///
/// Its kernel answers whatever the process there does, also if that is stopped and takes no more bytes: then none are on
/// their way, and none wait. (`TCP_USER_TIMEOUT` would end that connection.)
///
/// # Errors
/// It is no TCP socket.
pub fn silence(socket: BorrowedFd<'_>) -> Result<Option<Duration>, Errno> {
    // SAFETY: M8: numbers, for which zeros are valid.
    let mut info: libc::tcp_info = unsafe { zeroed() };
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: M8: the kernel writes at most `len` bytes to `info`.
    let failed = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut len,
        )
    };
    if failed != 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL));
    }
    let is_silent = info.tcpi_unacked > 0 && info.tcpi_retransmits >= RETRANSMITS;
    Ok(is_silent.then(|| Duration::from_millis(info.tcpi_last_ack_recv.into())))
}
