//! What a TCP connection has sent, what the host at its other end has acknowledged, and whether it answers.

use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use rustix::io::Errno;

/// Segments that the kernel has sent again before a host counts as silent: one alone may be lost.
const RETRANSMITS: u8 = 2;
/// As many questions without an answer whether more bytes are taken: each is sent once.
const PROBES: u8 = 3;

/// How long the host at the other end has acknowledged nothing, although bytes wait for that; `None` while it answers.
///
/// Its kernel answers whatever the process there does, also if that is stopped and takes no more bytes: then none are on
/// their way, and this kernel asks now and then whether more may come. (`TCP_USER_TIMEOUT` would end that connection.)
///
/// # Errors
/// It is no TCP socket.
pub fn silence(socket: BorrowedFd<'_>) -> Result<Option<Duration>, Errno> {
    let info = info(socket)?;
    let is_silent =
        (info.tcpi_unacked > 0 && info.tcpi_retransmits >= RETRANSMITS) || info.tcpi_probes >= PROBES;
    Ok(is_silent.then(|| Duration::from_millis(info.tcpi_last_ack_recv.into())))
}

/// Bytes that were written and that the host at the other end has not acknowledged.
///
/// # Errors
/// It is no TCP socket.
pub fn unacknowledged(socket: BorrowedFd<'_>) -> Result<u64, Errno> {
    let mut n: libc::c_int = 0;
    // SAFETY: M8: the kernel writes one number to `n`.
    let failed = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut n) };
    if failed != 0 {
        return Err(last_error());
    }
    Ok(u64::try_from(n).unwrap_or(0))
}

/// Takes further bytes only while less than so many have not been sent yet (`TCP_NOTSENT_LOWAT`): those that are on their
/// way do not count.
///
/// # Errors
/// It is no TCP socket.
pub fn limit_unsent(socket: BorrowedFd<'_>, n_bytes: u32) -> Result<(), Errno> {
    let (value, len) = ((&raw const n_bytes).cast(), size_of::<u32>() as libc::socklen_t);
    // SAFETY: M8: the kernel reads `len` bytes, those of `n_bytes`.
    let failed = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, value, len)
    };
    if failed != 0 { Err(last_error()) } else { Ok(()) }
}

fn info(socket: BorrowedFd<'_>) -> Result<libc::tcp_info, Errno> {
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
    if failed != 0 { Err(last_error()) } else { Ok(info) }
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use super::limit_unsent;

    /// Bytes that a connection takes of which the other end reads nothing.
    fn taken(limit: Option<u32>) -> usize {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut writer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (_reader, _) = listener.accept().unwrap();
        if let Some(limit) = limit {
            limit_unsent(writer.as_fd(), limit).unwrap();
        }
        writer.set_nonblocking(true).unwrap();
        let mut n = 0;
        loop {
            match writer.write(&[0; 4096]) {
                Ok(more) => n += more,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    return n;
                }
            }
        }
    }

    #[test]
    fn a_connection_takes_less_where_what_is_unsent_is_limited() {
        let (few, most) = (taken(Some(4096)), taken(None));
        assert!(few > 4096 && most > few + (256 << 10), "{few} and {most} bytes");
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(limit_unsent(file.as_fd(), 1).is_err());
    }
}
