//! [`Peer`]: one connection of a mesh, plain or with TLS.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use softs_proto::framing::Outbox;
use softs_proto::mesh::{Incoming, Outgoing, Part};
use softs_shm::{ForeignBytes, SendList, silence, unacknowledged};

use crate::error::os_text;
use crate::streams::Channel;
use crate::tls::{BATCH_BYTES, Credentials, Encrypted, Over, Plaintext, Service, TlsError};
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
    channel: Channel,
    incoming: Incoming,
    outgoing: Outgoing,
    /// What came behind all that was expected.
    held: Vec<u8>,
    /// The greeting, until all of it is in the socket.
    unsaid: Outbox,
    /// The socket took not all.
    is_blocked: bool,
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
        let credentials = credentials.map(|credentials| (credentials, Service::Mesh));
        Ok(Self {
            channel: Channel::begin(fd, credentials, has_dialled)?,
            incoming: Incoming::default(),
            outgoing: Outgoing::default(),
            held: Vec::new(),
            unsaid: Outbox::default(),
            is_blocked: false,
            sent_at: Instant::now(),
        })
    }

    pub(super) fn socket(&self) -> &Arc<OwnedFd> {
        &self.channel.fd
    }

    /// Says a greeting, as soon as the other end has shown what it is.
    pub(super) fn say(&mut self, bytes: &[u8]) {
        self.unsaid.push_bytes(bytes);
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
        self.is_blocked = self.channel.write(&mut self.unsaid).is_blocked;
        let (mut buffer, held) = ([0; BEHIND_BYTES], &mut self.held);
        let heard = self.channel.read(&mut buffer, &mut |bytes| held.extend_from_slice(bytes));
        heard.map(drop).map_err(over)
    }

    /// What the other end has not shown, once the time for it is over.
    pub(super) fn missing(&mut self) -> String {
        let shown = self.channel.tls.as_mut().and_then(Encrypted::missing);
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
        if let Ok(Some(silent)) = silence(self.as_fd())
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
        if is_quiet && matches!(unacknowledged(self.as_fd()), Ok(0)) {
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
            let received = if self.channel.tls.is_some() {
                self.receive_records(targets)
            } else {
                self.receive_plain(targets)
            };
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
            Some(part) => (part.len() + behind.len(), part.receive_with(self.as_fd(), &mut behind)),
            None => (behind.len(), socket::read(&self.channel.fd, &mut behind)),
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
        let Channel { fd, tls: Some(tls), .. } = &mut self.channel else { return Ok((0, true)) };
        let (incoming, held, mut stored) = (&mut self.incoming, &mut self.held, Ok(()));
        let read = tls.read(fd, &mut |record| {
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
            let most = if self.channel.tls.is_some() { BATCH_BYTES } else { TURN_BYTES };
            let parts = self.outgoing.parts(most);
            let n_bytes: usize = parts.iter().map(Part::n_bytes).sum();
            let pieces = parts.iter().map(|part| match part {
                Part::Header { bytes, at } => Some(Piece::Header(&bytes[*at..])),
                Part::Body { index, at, len } => {
                    sources.get(*index).and_then(|source| source.part(*at, *len)).map(Piece::Body)
                }
            });
            let pieces: Vec<Piece<'_>> = pieces.flatten().collect();
            if let Some(tls) = &mut self.channel.tls {
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
            let n = list.send(self.as_fd()).map_err(lost)?;
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
        let Channel { fd, tls: Some(tls), .. } = &mut self.channel else { return Ok(0) };
        let mut n_written = 0;
        while tls.has_output() {
            let n = tls.write(fd).map_err(lost)?;
            n_written += n;
            self.is_blocked = tls.has_output();
            if n == 0 {
                break;
            }
        }
        Ok(n_written)
    }

    fn has_output(&self) -> bool {
        self.channel.tls.as_ref().is_some_and(Encrypted::has_output)
    }
}

impl AsFd for Peer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
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
