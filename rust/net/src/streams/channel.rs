//! [`Channel`]: the socket of a connection, and TLS where the other end may be on another host.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use softs_proto::framing::Outbox;

use crate::error::os_text;
use crate::tls::{BATCH_BYTES, Credentials, Encrypted, Over, Service, TlsError, is_tls};
use crate::transport::socket;

/// For an end that speaks TLS to a plain one: it learns so by bytes that are not those of TLS.
const PLAIN: &[u8] = b"plain";

/// Dropping it ends the connection for both ends; with TLS the other end is told so, or why, as far as that goes at once.
#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) fd: Arc<OwnedFd>,
    pub(crate) tls: Option<Encrypted>,
    /// Bytes of the outbox that are encrypted; they stay in it until all of them are written.
    n_encrypted: usize,
    /// Nothing has come yet.
    is_new: bool,
}

/// What was written.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Written {
    /// Bytes that have left the outbox.
    pub(crate) n: usize,
    /// Whether the socket took anything.
    pub(crate) any: bool,
    /// Whether the socket has to take more before anything else can be written.
    pub(crate) is_blocked: bool,
}

impl Channel {
    /// Of an end that has dialled, or that has accepted. With credentials it is encrypted from the first byte on.
    pub(crate) fn begin(
        fd: Arc<OwnedFd>,
        credentials: Option<(&Credentials, Service)>,
        has_dialled: bool,
    ) -> Result<Self, TlsError> {
        let begin = |(credentials, service)| Encrypted::begin(credentials, service, has_dialled);
        let tls = credentials.map(begin).transpose()?;
        Ok(Self { fd, tls, n_encrypted: 0, is_new: true })
    }

    /// Whether the other end is authenticated.
    pub(crate) fn is_ready(&self) -> bool {
        self.tls.as_ref().is_none_or(Encrypted::is_ready)
    }

    /// Reads the socket once: how many bytes came, and whether no more are there. `buffer` is for plain ones; all that is
    /// understood is delivered at once.
    pub(crate) fn read(
        &mut self,
        buffer: &mut [u8],
        deliver: &mut dyn FnMut(&[u8]),
    ) -> Result<(usize, bool), Over> {
        if let Some(tls) = &mut self.tls {
            return tls.read(&self.fd, deliver);
        }
        let n = match socket::read(&self.fd, buffer) {
            Ok(None) => return Ok((0, true)),
            // The second is an ordinary end too, of a peer that had not read everything.
            Ok(Some(0)) | Err(Errno::CONNRESET) => return Err(Over::Closed),
            Ok(Some(n)) => n,
            Err(error) => return Err(Over::Os(error)),
        };
        if std::mem::take(&mut self.is_new) && is_tls(&buffer[..n]) {
            let _said = socket::write(&self.fd, PLAIN);
            return Err(Over::Failed(TlsError::Encrypted));
        }
        deliver(&buffer[..n]);
        Ok((n, n < buffer.len()))
    }

    /// Writes what the socket takes. What a peer that has ended sent before is still in the socket, and so is its end: it
    /// is read, so errors are not looked at here.
    pub(crate) fn write(&mut self, outbox: &mut Outbox) -> Written {
        let (before, mut any) = (outbox.len(), false);
        let is_blocked = match &mut self.tls {
            None => loop {
                if outbox.is_empty() {
                    break false;
                }
                match socket::write(&self.fd, outbox.bytes()) {
                    Ok(0) | Err(_) => break true,
                    Ok(n) => outbox.advance(n),
                }
                any = true;
            },
            Some(tls) => loop {
                if tls.has_output() {
                    any |= tls.write(&self.fd).is_ok_and(|n| n > 0);
                }
                if tls.has_output() {
                    break true;
                }
                outbox.advance(std::mem::take(&mut self.n_encrypted));
                let n = outbox.len().min(BATCH_BYTES);
                if n == 0 || !tls.is_ready() || tls.send(&[&&outbox.bytes()[..n]]).is_err() {
                    break false;
                }
                self.n_encrypted = n;
            },
        };
        Written { n: before - outbox.len(), any, is_blocked }
    }
}

/// Why a connection is over, for texts; `closed` where the other end has ended it.
pub(crate) fn why(over: Over, closed: &str) -> String {
    match over {
        Over::Closed | Over::Failed(TlsError::Truncated) => closed.to_owned(),
        Over::Failed(error) => error.to_string(),
        Over::Os(error) => os_text(error),
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.end(&self.fd);
        }
        socket::hang_up(&self.fd);
    }
}
