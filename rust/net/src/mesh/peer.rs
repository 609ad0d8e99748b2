//! [`Peer`]: one connection of a mesh, plain or with TLS.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use softs_proto::mesh::{Incoming, Outgoing, Part};
use softs_shm::{ForeignBytes, SendList, silence, unacknowledged};

use crate::error::os_text;
use crate::tls::{BATCH_BYTES, Credentials, Encrypted, Over, Plaintext, Service, TlsError, is_tls};
use crate::transport::socket;

/// What one connection moves in each direction before it is the turn of another one.
const TURN_BYTES: usize = 1 << 20;
/// What is read at once where it is not known yet where it belongs.
const BEHIND_BYTES: usize = 4 << 10;
/// A rank that waits sends so often, so that a host that is gone is noticed.
const PING: Duration = Duration::from_millis(200);
/// A host that acknowledges nothing for so long is gone.
const SILENT: Duration = Duration::from_secs(1);

/// Why a connection cannot be used any more.
#[derive(Debug)]
pub(super) enum Failure {
    /// It has ended, or its host does not answer.
    Lost(String),
    /// What came is not what was expected.
    Refused(String),
}

#[derive(Debug)]
pub(super) struct Peer {
    fd: Arc<OwnedFd>,
    tls: Option<Encrypted>,
    incoming: Incoming,
    outgoing: Outgoing,
    /// What came behind all that was expected.
    held: Vec<u8>,
    /// Of the greeting, what was not given to the socket or encrypted.
    unsaid: Vec<u8>,
    /// The socket took not all.
    is_blocked: bool,
    is_new: bool,
    sent_at: Instant,
}

/// A part of what is sent, for TLS.
enum Piece<'a> {
    Header(&'a [u8]),
    Body(ForeignBytes<'a>),
}

impl Plaintext for Piece<'_> {
    fn n_bytes(&self) -> usize {
        match self {
            Self::Header(bytes) => bytes.len(),
            Self::Body(bytes) => (*bytes).len(),
        }
    }

    fn copy_to(&self, at: usize, out: &mut [u8]) {
        match self {
            Self::Header(bytes) => Plaintext::copy_to(bytes, at, out),
            Self::Body(bytes) => Plaintext::copy_to(bytes, at, out),
        }
    }
}

impl Peer {
    /// Of an end that has dialled, or that has accepted. With credentials it is encrypted from the first byte on.
    pub(super) fn begin(
        fd: Arc<OwnedFd>,
        credentials: Option<&Credentials>,
        has_dialled: bool,
    ) -> Result<Self, TlsError> {
        let begin = |credentials| Encrypted::begin(credentials, Service::Mesh, has_dialled);
        Ok(Self {
            fd,
            tls: credentials.map(begin).transpose()?,
            incoming: Incoming::default(),
            outgoing: Outgoing::default(),
            held: Vec::new(),
            unsaid: Vec::new(),
            is_blocked: false,
            is_new: true,
            sent_at: Instant::now(),
        })
    }

    pub(super) fn socket(&self) -> &Arc<OwnedFd> {
        &self.fd
    }

    /// Says a greeting, as soon as the other end has shown what it is.
    pub(super) fn say(&mut self, bytes: &[u8]) {
        self.unsaid.extend_from_slice(bytes);
    }

    /// Whether all of it is in the socket.
    pub(super) fn has_said(&self) -> bool {
        self.unsaid.is_empty() && !self.has_output()
    }

    /// The first bytes of the other end, once there are so many.
    pub(super) fn heard<const N: usize>(&mut self) -> Option<[u8; N]> {
        let first = *self.held.first_chunk()?;
        self.held.drain(..N);
        Some(first)
    }

    /// Says and hears what goes now.
    pub(super) fn converse(&mut self) -> Result<(), Failure> {
        loop {
            self.flush()?;
            if self.unsaid.is_empty() || self.has_output() || !self.is_ready() {
                break;
            }
            match &mut self.tls {
                Some(tls) => {
                    tls.send(&[&self.unsaid.as_slice()]).map_err(|error| refused(&error))?;
                    self.unsaid.clear();
                }
                None => match socket::write(&self.fd, &self.unsaid).map_err(lost)? {
                    0 => break,
                    n => drop(self.unsaid.drain(..n)),
                },
            }
        }
        self.hear()
    }

    fn hear(&mut self) -> Result<(), Failure> {
        if let Some(tls) = &mut self.tls {
            let held = &mut self.held;
            tls.read(&self.fd, &mut |record| held.extend_from_slice(record)).map_err(over)?;
            return Ok(());
        }
        let mut buffer = [0; BEHIND_BYTES];
        match socket::read(&self.fd, &mut buffer).map_err(lost)? {
            None => return Ok(()),
            Some(0) => return Err(ended()),
            Some(n) => self.held.extend_from_slice(&buffer[..n]),
        }
        if std::mem::take(&mut self.is_new) && is_tls(&self.held) {
            return Err(refused(&TlsError::Encrypted));
        }
        Ok(())
    }

    /// What the other end has not shown, once the time for it is over.
    pub(super) fn missing(&mut self) -> String {
        let shown = self.tls.as_mut().and_then(Encrypted::missing);
        shown.unwrap_or_else(|| "it has not said which rank it is".to_owned())
    }

    /// From now on these messages are sent and received.
    pub(super) fn begin_call(&mut self, sends: &[ForeignBytes<'_>], receives: &[ForeignBytes<'_>]) {
        self.outgoing.send(sends.iter().map(|message| message.len()));
        self.incoming.expect(receives.iter().map(|message| message.len()));
        self.is_blocked = false;
    }

    /// Whether all of them were sent and received.
    pub(super) fn is_done(&self) -> bool {
        self.incoming.is_complete() && self.outgoing.is_complete() && !self.has_output()
    }

    /// Whether messages of the other end are missing.
    pub(super) fn is_waiting(&self) -> bool {
        !self.incoming.is_complete()
    }

    pub(super) fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    /// The socket may take bytes again.
    pub(super) fn unblock(&mut self) {
        self.is_blocked = false;
    }

    /// Sends and receives what goes now, one turn of it; whether any bytes of messages moved.
    pub(super) fn advance(
        &mut self,
        sends: &[ForeignBytes<'_>],
        receives: &[ForeignBytes<'_>],
        now: Instant,
    ) -> Result<bool, Failure> {
        let before = (self.incoming.n_bytes(), self.outgoing.progress());
        self.receive(receives)?;
        if !self.is_blocked {
            match self.send(sends) {
                Ok(true) => self.sent_at = now,
                Ok(false) => {}
                // A rank that has all it needs may leave. What it sent before is here, or its end is.
                Err(Failure::Lost(_)) if self.is_waiting() => self.is_blocked = true,
                Err(failure) => return Err(failure),
            }
        }
        Ok(before != (self.incoming.n_bytes(), self.outgoing.progress()))
    }

    /// Has a host that is gone noticed; to be called now and then while the other end is waited for.
    pub(super) fn check(&mut self, now: Instant) -> Result<(), Failure> {
        if let Ok(Some(silent)) = silence(self.fd.as_fd())
            && silent >= SILENT
        {
            return Err(Failure::Lost(format!(
                "its host has not answered for {:.1} s",
                silent.as_secs_f64()
            )));
        }
        // While something waits for an acknowledgement nothing more is needed, and a rank that only sends reads no pings:
        // they would fill all buffers.
        let is_quiet = now.saturating_duration_since(self.sent_at) >= PING && !self.has_output();
        if is_quiet && matches!(unacknowledged(self.fd.as_fd()), Ok(0)) {
            self.outgoing.ping();
        }
        Ok(())
    }

    fn receive(&mut self, targets: &[ForeignBytes<'_>]) -> Result<(), Failure> {
        let mut left = TURN_BYTES;
        if !self.held.is_empty() && self.is_waiting() {
            let held = std::mem::take(&mut self.held);
            self.take(&held, targets)?;
        }
        while left > 0 && self.is_waiting() {
            let received =
                if self.tls.is_some() { self.receive_records(targets) } else { self.receive_plain(targets) };
            match received {
                Ok((n, false)) => left = left.saturating_sub(n),
                Ok((_, true)) => break,
                // Its end came with the last that is expected: the next call finds it.
                Err(Failure::Lost(_)) if !self.is_waiting() => break,
                Err(failure) => return Err(failure),
            }
        }
        Ok(())
    }

    /// How many bytes came, and whether no more are there.
    fn receive_plain(&mut self, targets: &[ForeignBytes<'_>]) -> Result<(usize, bool), Failure> {
        let mut behind = [0; BEHIND_BYTES];
        let body = self.incoming.body();
        let body = body.and_then(|(index, at, missing)| targets.get(index)?.part(at, missing));
        let (asked, received) = match body {
            Some(part) => (part.len() + behind.len(), part.receive_with(self.fd.as_fd(), &mut behind)),
            None => (behind.len(), socket::read(&self.fd, &mut behind)),
        };
        let n = match received.map_err(lost)? {
            None => return Ok((0, true)),
            Some(0) => return Err(ended()),
            Some(n) => n,
        };
        let n_stored = body.map_or(0, |part| n.min(part.len()));
        if n_stored > 0 {
            self.incoming.stored(n_stored);
        }
        self.take(&behind[..n - n_stored], targets)?;
        Ok((n, n < asked))
    }

    fn receive_records(&mut self, targets: &[ForeignBytes<'_>]) -> Result<(usize, bool), Failure> {
        let Some(tls) = &mut self.tls else { return Ok((0, true)) };
        let (incoming, held, mut stored) = (&mut self.incoming, &mut self.held, Ok(()));
        let read = tls.read(&self.fd, &mut |record| {
            if stored.is_ok() {
                stored = store(incoming, held, record, targets);
            }
        });
        stored?;
        read.map_err(over)
    }

    fn take(&mut self, bytes: &[u8], targets: &[ForeignBytes<'_>]) -> Result<(), Failure> {
        store(&mut self.incoming, &mut self.held, bytes, targets)
    }

    /// Whether the socket took anything.
    fn send(&mut self, sources: &[ForeignBytes<'_>]) -> Result<bool, Failure> {
        let mut n_sent = 0;
        while n_sent < TURN_BYTES {
            if self.has_output() {
                n_sent += self.flush()?;
                if self.is_blocked {
                    break;
                }
            }
            if self.outgoing.is_complete() {
                break;
            }
            let most = if self.tls.is_some() { BATCH_BYTES } else { TURN_BYTES };
            let parts = self.outgoing.parts(most);
            let n_bytes: usize = parts.iter().map(Part::n_bytes).sum();
            let pieces = parts.iter().map(|part| match part {
                Part::Header { bytes, at } => Some(Piece::Header(&bytes[*at..])),
                Part::Body { index, at, len } => {
                    sources.get(*index).and_then(|source| source.part(*at, *len)).map(Piece::Body)
                }
            });
            let pieces: Vec<Piece<'_>> = pieces.flatten().collect();
            if let Some(tls) = &mut self.tls {
                let pieces: Vec<&dyn Plaintext> = pieces.iter().map(|piece| piece as _).collect();
                tls.send(&pieces).map_err(|error| refused(&error))?;
                self.outgoing.advance(n_bytes);
                continue;
            }
            let mut list = SendList::default();
            for piece in &pieces {
                match piece {
                    Piece::Header(bytes) => list.push(bytes),
                    Piece::Body(bytes) => list.push_foreign(*bytes),
                }
            }
            let n = list.send(self.fd.as_fd()).map_err(lost)?;
            self.outgoing.advance(n);
            n_sent += n;
            self.is_blocked = n < n_bytes;
            if self.is_blocked {
                break;
            }
        }
        Ok(n_sent > 0)
    }

    /// Writes what is encrypted, as far as the socket takes it; how many bytes.
    fn flush(&mut self) -> Result<usize, Failure> {
        let Some(tls) = &mut self.tls else { return Ok(0) };
        let mut n_written = 0;
        while tls.has_output() {
            let n = tls.write(&self.fd).map_err(lost)?;
            n_written += n;
            self.is_blocked = tls.has_output();
            if n == 0 {
                break;
            }
        }
        Ok(n_written)
    }

    pub(super) fn has_output(&self) -> bool {
        self.tls.as_ref().is_some_and(Encrypted::has_output)
    }

    fn is_ready(&self) -> bool {
        self.tls.as_ref().is_none_or(Encrypted::is_ready)
    }
}

impl AsFd for Peer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.end(&self.fd);
        }
        socket::hang_up(&self.fd);
    }
}

/// Stores what is expected, and holds what comes behind that.
fn store(
    incoming: &mut Incoming,
    held: &mut Vec<u8>,
    bytes: &[u8],
    targets: &[ForeignBytes<'_>],
) -> Result<(), Failure> {
    let taken = incoming.receive(bytes, &mut |index, at, part| {
        if let Some(target) = targets.get(index).and_then(|target| target.part(at, part.len())) {
            target.fill_from(part);
        }
    });
    let taken = taken.map_err(|wrong| Failure::Refused(wrong.to_string()))?;
    held.extend_from_slice(&bytes[taken..]);
    Ok(())
}

fn ended() -> Failure {
    Failure::Lost("the connection has ended; its process may have ended".to_owned())
}

fn lost(error: Errno) -> Failure {
    match error {
        Errno::CONNRESET | Errno::PIPE => ended(),
        other => Failure::Lost(format!("the connection has failed: {}", os_text(other))),
    }
}

fn over(over: Over) -> Failure {
    match over {
        Over::Closed | Over::Failed(TlsError::Truncated) => ended(),
        Over::Failed(error) => refused(&error),
        Over::Os(error) => lost(error),
    }
}

fn refused(error: &TlsError) -> Failure {
    Failure::Refused(error.to_string())
}
