//! [`Encrypted`]: TLS of a connection, and its socket.

use std::os::fd::OwnedFd;
use std::time::SystemTime;

use rustix::io::Errno;
use softs_proto::link::Rights;

use super::credentials::Credentials;
use super::error::TlsError;
use super::plaintext::Plaintext;
use super::service::Service;
use super::session::Session;
use crate::transport::socket;

/// What is encrypted at once: it stays in the processor's cache until the kernel has copied it.
pub(crate) const BATCH_BYTES: usize = 128 << 10;

/// Why a connection is over.
#[derive(Debug)]
pub(crate) enum Over {
    /// The other end has closed it.
    Closed,
    Failed(TlsError),
    Os(Errno),
}

#[derive(Debug)]
pub(crate) struct Encrypted(Box<Session>);

impl Encrypted {
    /// Of an end that has dialled, or that has accepted.
    pub(crate) fn begin(
        credentials: &Credentials,
        service: Service,
        has_dialled: bool,
    ) -> Result<Self, TlsError> {
        let begin = if has_dialled { Session::dial } else { Session::accept };
        begin(credentials, service, SystemTime::now()).map(|session| Self(Box::new(session)))
    }

    /// Whether the peer is authenticated.
    pub(crate) fn is_ready(&self) -> bool {
        self.0.is_ready()
    }

    /// What the role in the peer's certificate allows; nothing before it is authenticated.
    pub(crate) fn rights(&self) -> Rights {
        self.0.rights()
    }

    /// The peer's certificate, as DER; empty before it is authenticated.
    pub(crate) fn certificate(&self) -> &[u8] {
        self.0.certificate()
    }

    /// What the peer has not shown, once the time for it is over.
    pub(crate) fn missing(&mut self) -> Option<String> {
        self.0.handle_deadline().err().map(|error| error.to_string())
    }

    /// Reads the socket once; how many bytes came, and whether no more are there.
    pub(crate) fn read(
        &mut self,
        fd: &OwnedFd,
        deliver: &mut dyn FnMut(&[u8]),
    ) -> Result<(usize, bool), Over> {
        let space = self.0.space();
        let asked = space.len();
        let n = match socket::read(fd, space) {
            Ok(None) => return Ok((0, true)),
            Ok(Some(0)) | Err(Errno::CONNRESET) => {
                return self.0.end().map_err(Over::Failed).and(Err(Over::Closed));
            }
            Ok(Some(n)) => n,
            Err(error) => return Err(Over::Os(error)),
        };
        self.0.received(n);
        self.0.read(deliver).map_err(Over::Failed)?;
        if self.0.is_closed() { Err(Over::Closed) } else { Ok((n, n < asked)) }
    }

    /// Encrypts parts, one behind the other; they should be [`BATCH_BYTES`] at most, after what was there is written.
    pub(crate) fn send(&mut self, parts: &[&dyn Plaintext]) -> Result<(), TlsError> {
        self.0.send(parts)
    }

    /// Whether something is to be written.
    pub(crate) fn has_output(&self) -> bool {
        !self.0.output().is_empty()
    }

    /// Writes once; how many bytes the socket took.
    pub(crate) fn write(&mut self, fd: &OwnedFd) -> Result<usize, Errno> {
        let n = socket::write(fd, self.0.output())?;
        self.0.advance(n);
        Ok(n)
    }

    /// Tells the peer that nothing more comes, or why it is refused, as far as that goes at once.
    pub(crate) fn end(&mut self, fd: &OwnedFd) {
        self.0.close();
        while let Ok(1..) = self.write(fd) {}
    }
}
