//! One connection with TLS: bytes of the peer to plaintext, plaintext to bytes for the peer.
//!
//! rustls decrypts a record where it was received, copies it once, and from that copy it goes to the memory that the
//! owner chooses. Plaintext is gathered into a record, which stays in the processor's cache until it is encrypted.

use std::fmt;
use std::time::SystemTime;

use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::CertificateDer;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus};
use softs_proto::link::Rights;

use super::credentials::{Credentials, rights, server_name};
use super::error::TlsError;
use super::outgoing::Outgoing;
use super::plaintext::Plaintext;
use super::service::Service;

/// Bytes that a peer may send before it is authenticated.
pub const HANDSHAKE_BYTES: usize = 16 << 10;
/// Memory for bytes of a peer that is, as long as it sends little: more than one record.
pub const IDLE_BYTES: usize = 32 << 10;
/// Memory for bytes of a peer that sends much.
pub const RECEIVE_BYTES: usize = 256 << 10;
/// Plaintext of one record.
const RECORD_BYTES: usize = 16 << 10;
/// What the first record of TLS is: a handshake, or an alert.
const FIRST_BYTES: [u8; 2] = [22, 21];
/// A fatal alert for a peer that speaks no TLS (`unexpected_message`): a plain end knows it by its first bytes.
const ALERT: [u8; 7] = [21, 3, 3, 0, 2, 2, 10];
/// How each record begins once the peer is authenticated.
const HEADER: [u8; 3] = [23, 3, 3];

/// Whether the first bytes of a connection are those of TLS, for an end that does not speak it.
#[must_use]
pub fn is_tls(first: &[u8]) -> bool {
    matches!(first, [first, 3, ..] if FIRST_BYTES.contains(first))
}

/// One end of a connection.
pub struct Session {
    connection: Connection,
    service: Service,
    /// Received bytes; those from `start` to `end` are not decrypted yet.
    incoming: Vec<u8>,
    start: usize,
    end: usize,
    /// Up to where [`Self::read`] has looked.
    seen: usize,
    outgoing: Outgoing,
    /// Of one record, before it is encrypted.
    plaintext: Vec<u8>,
    key_bytes: u64,
    /// Bytes since the keys were changed.
    n_sent: u64,
    is_ready: bool,
    is_closed: bool,
    failed: Option<TlsError>,
}

enum Connection {
    Client(UnbufferedClientConnection),
    Server(UnbufferedServerConnection),
}

/// Nothing of its keys and bytes.
impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Session");
        shown.field("is_ready", &self.is_ready).field("failed", &self.failed).finish_non_exhaustive()
    }
}

/// What is to be done once plaintext can be sent.
#[derive(Clone, Copy)]
enum Deed<'a> {
    Nothing,
    Encrypt(&'a [u8]),
    ChangeKeys,
    Close,
}

/// What rustls came to.
enum Step {
    /// It has more to do.
    More,
    /// A record was decrypted, and is not to be taken now.
    Unread,
    /// It needs bytes of the peer.
    Blocked,
    /// It could send, and has done what was to be done.
    Done,
    /// The peer has said that it sends nothing more.
    PeerClosed,
    /// Both have.
    Closed,
}

type Deliver<'a> = &'a mut dyn FnMut(&[u8]);

impl Session {
    /// The end that has connected. [`Self::output`] has its first bytes.
    ///
    /// # Errors
    /// The credentials cannot be used.
    pub fn dial(credentials: &Credentials, service: Service, now: SystemTime) -> Result<Self, TlsError> {
        let name = server_name()?;
        let connection = UnbufferedClientConnection::new(credentials.client(service, now)?, name)?;
        let mut session = Self::new(Connection::Client(connection), credentials, service);
        session.read(&mut |_| {})?;
        Ok(session)
    }

    /// The end that has accepted a connection.
    ///
    /// # Errors
    /// The credentials cannot be used.
    pub fn accept(credentials: &Credentials, service: Service, now: SystemTime) -> Result<Self, TlsError> {
        let connection = UnbufferedServerConnection::new(credentials.server(service, now)?)?;
        Ok(Self::new(Connection::Server(connection), credentials, service))
    }

    fn new(connection: Connection, credentials: &Credentials, service: Service) -> Self {
        Self {
            connection,
            service,
            incoming: vec![0; HANDSHAKE_BYTES],
            start: 0,
            end: 0,
            seen: 0,
            outgoing: Outgoing::default(),
            plaintext: Vec::new(),
            key_bytes: credentials.key_bytes,
            n_sent: 0,
            is_ready: false,
            is_closed: false,
            failed: None,
        }
    }

    /// Memory for the next bytes of the peer; not empty if [`Self::read`] was called after the last ones. Before the peer
    /// is authenticated it is what is left of [`HANDSHAKE_BYTES`].
    pub fn space(&mut self) -> &mut [u8] {
        if self.is_ready {
            // Many peers may be silent, and one that has filled its memory sends more.
            let was_filled = self.end == self.incoming.len();
            let n = (self.incoming.len() << usize::from(was_filled)).clamp(IDLE_BYTES, RECEIVE_BYTES);
            self.incoming.resize(n, 0);
            if self.start > 0 {
                self.incoming.copy_within(self.start..self.end, 0);
                (self.seen, self.end, self.start) = (self.seen - self.start, self.end - self.start, 0);
            }
        }
        &mut self.incoming[self.end..]
    }

    /// The first `n` bytes of [`Self::space`] were filled.
    pub fn received(&mut self, n: usize) {
        self.end = (self.end + n).min(self.incoming.len());
    }

    /// Decrypts what was received. `deliver` gets the plaintext of each record, in order, and copies it to where it
    /// belongs. [`Self::output`] may have more bytes afterwards.
    ///
    /// # Errors
    /// The connection is to be closed, after [`Self::output`] was written as far as that goes at once.
    pub fn read(&mut self, deliver: Deliver<'_>) -> Result<(), TlsError> {
        self.check()?;
        if self.is_closed {
            // Nothing comes after that.
            self.start = self.end;
        }
        self.seen = self.end;
        if !self.is_ready && self.start == 0 && self.end > 0 && !FIRST_BYTES.contains(&self.incoming[0]) {
            self.outgoing.space(ALERT.len())[..ALERT.len()].copy_from_slice(&ALERT);
            self.outgoing.filled(ALERT.len());
            return Err(self.fail(TlsError::Plain));
        }
        loop {
            match self.step(Deed::Nothing, Some(&mut *deliver))? {
                Step::More | Step::Unread => {}
                Step::PeerClosed => self.is_closed = true,
                Step::Blocked if self.end == self.incoming.len() => {
                    return Err(self.fail(TlsError::TooLong(self.end)));
                }
                Step::Blocked | Step::Done | Step::Closed => return Ok(()),
            }
        }
    }

    /// The peer has ended the connection.
    ///
    /// # Errors
    /// It has not said so within TLS: what it sent last may be missing.
    pub fn end(&mut self) -> Result<(), TlsError> {
        self.check()?;
        match (self.is_closed, self.is_ready) {
            (true, _) => Ok(()),
            (false, true) => Err(self.fail(TlsError::Truncated)),
            (false, false) => Err(self.fail(TlsError::Unfinished)),
        }
    }

    /// The time for the handshake is over.
    ///
    /// # Errors
    /// The peer is not authenticated.
    pub fn handle_deadline(&mut self) -> Result<(), TlsError> {
        self.check()?;
        if self.is_ready { Ok(()) } else { Err(self.fail(TlsError::TooSlow)) }
    }

    /// Encrypts parts, one behind the other, as records of 16 KiB. All of them are taken: it should be called when
    /// [`Self::output`] has little.
    ///
    /// # Errors
    /// The peer is not authenticated yet, or the connection has ended.
    pub fn send(&mut self, parts: &[&dyn Plaintext]) -> Result<(), TlsError> {
        self.check()?;
        let mut record = std::mem::take(&mut self.plaintext);
        record.resize(RECORD_BYTES, 0);
        let sent = self.send_records(parts, &mut record);
        self.plaintext = record;
        sent
    }

    fn send_records(&mut self, parts: &[&dyn Plaintext], record: &mut [u8]) -> Result<(), TlsError> {
        let mut filled = 0;
        for part in parts {
            let mut at = 0;
            while at < part.n_bytes() {
                let n = (part.n_bytes() - at).min(record.len() - filled);
                part.copy_to(at, &mut record[filled..filled + n]);
                (at, filled) = (at + n, filled + n);
                if filled == record.len() {
                    self.send_record(record)?;
                    filled = 0;
                }
            }
        }
        if filled > 0 { self.send_record(&record[..filled]) } else { Ok(()) }
    }

    fn send_record(&mut self, record: &[u8]) -> Result<(), TlsError> {
        let n = record.len() as u64;
        if self.n_sent > 0 && self.n_sent + n > self.key_bytes {
            // The peer answers with new keys for its direction.
            self.perform(Deed::ChangeKeys)?;
            self.n_sent = 0;
        }
        self.n_sent += n;
        self.perform(Deed::Encrypt(record))
    }

    /// Tells the peer that nothing more comes from this end.
    pub fn close(&mut self) {
        if self.check().is_ok() {
            // Before the peer is authenticated, and after both have closed, there is nothing to say.
            let _closed = self.perform(Deed::Close);
        }
    }

    /// Bytes for the peer.
    #[must_use]
    pub fn output(&self) -> &[u8] {
        self.outgoing.bytes()
    }

    /// `n` of them were written.
    pub fn advance(&mut self, n: usize) {
        self.outgoing.advance(n);
    }

    /// Whether the peer is authenticated. One that has dialled learns later whether it is accepted itself.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.is_ready
    }

    /// What the role in the peer's certificate allows; nothing before it is authenticated.
    #[must_use]
    pub fn rights(&self) -> Rights {
        self.leaf().and_then(|own| rights(own).ok()).unwrap_or(Rights::NONE)
    }

    /// The peer's certificate, as DER; empty before it is authenticated.
    #[must_use]
    pub fn certificate(&self) -> &[u8] {
        self.leaf().map_or(&[], |own| own)
    }

    fn leaf(&self) -> Option<&CertificateDer<'_>> {
        let certificates = match &self.connection {
            Connection::Client(client) => client.peer_certificates(),
            Connection::Server(server) => server.peer_certificates(),
        };
        certificates.and_then(|all| all.first()).filter(|_| self.is_ready)
    }

    /// Whether the peer has said that it sends nothing more.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    fn check(&self) -> Result<(), TlsError> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    fn fail(&mut self, error: TlsError) -> TlsError {
        self.failed = Some(error.clone());
        error
    }

    fn perform(&mut self, deed: Deed<'_>) -> Result<(), TlsError> {
        loop {
            match self.step(deed, None)? {
                Step::More => {}
                Step::PeerClosed => self.is_closed = true,
                Step::Done => return Ok(()),
                Step::Unread | Step::Blocked | Step::Closed => return Err(TlsError::NotOpen),
            }
        }
    }

    fn step(&mut self, deed: Deed<'_>, deliver: Option<Deliver<'_>>) -> Result<Step, TlsError> {
        // Before the service is known, nothing is delivered.
        let deliver = deliver.filter(|_| self.is_ready);
        let (bytes, out) = (&mut self.incoming[self.start..self.seen], &mut self.outgoing);
        if self.is_ready && bytes.len() >= HEADER.len() && !bytes.starts_with(&HEADER) {
            // rustls authenticates what should stand there, and does not look at what does.
            return Err(self.fail(TlsError::Changed));
        }
        let (discard, step) = match &mut self.connection {
            Connection::Client(client) => advance(client.process_tls_records(bytes), deed, deliver, out),
            Connection::Server(server) => advance(server.process_tls_records(bytes), deed, deliver, out),
        };
        self.start += discard;
        let step = step.map_err(|error| {
            self.write_alert();
            self.fail(error)
        })?;
        if !self.is_ready && self.is_authenticated()? {
            self.is_ready = true;
        }
        Ok(step)
    }

    fn is_authenticated(&mut self) -> Result<bool, TlsError> {
        let (is_handshaking, protocol) = match &self.connection {
            Connection::Client(client) => (client.is_handshaking(), client.alpn_protocol()),
            Connection::Server(server) => (server.is_handshaking(), server.alpn_protocol()),
        };
        if !is_handshaking && protocol != Some(self.service.protocol()) {
            return Err(self.fail(TlsError::OtherService));
        }
        Ok(!is_handshaking)
    }

    /// Puts the alert of an error into the output.
    fn write_alert(&mut self) {
        let out = &mut self.outgoing;
        let is_written = |step: Result<Step, TlsError>| step.is_ok();
        match &mut self.connection {
            Connection::Client(client) => {
                while client.wants_write()
                    && is_written(advance(client.process_tls_records(&mut []), Deed::Nothing, None, out).1)
                {
                }
            }
            Connection::Server(server) => {
                while server.wants_write()
                    && is_written(advance(server.process_tls_records(&mut []), Deed::Nothing, None, out).1)
                {
                }
            }
        }
    }
}

/// Does what rustls asks for; how many bytes it has taken.
fn advance<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    deed: Deed<'_>,
    deliver: Option<Deliver<'_>>,
    out: &mut Outgoing,
) -> (usize, Result<Step, TlsError>) {
    let mut discard = status.discard;
    let step = status.state.map_err(TlsError::from).and_then(|state| match state {
        ConnectionState::ReadTraffic(mut traffic) => {
            let Some(deliver) = deliver else { return Ok(Step::Unread) };
            while let Some(record) = traffic.next_record() {
                let record = record?;
                discard += record.discard;
                deliver(record.payload);
            }
            Ok(Step::More)
        }
        ConnectionState::EncodeTlsData(mut data) => write(out, 0, |space| {
            data.encode(space).map_err(|error| match error {
                EncodeError::InsufficientSize(size) => Unwritten::Needs(size.required_size),
                EncodeError::AlreadyEncoded => Unwritten::Never(error.to_string()),
            })
        })
        .map(|()| Step::More),
        ConnectionState::TransmitTlsData(data) => {
            data.done();
            Ok(Step::More)
        }
        ConnectionState::BlockedHandshake => Ok(Step::Blocked),
        ConnectionState::WriteTraffic(mut traffic) => match deed {
            Deed::Nothing => Ok(()),
            Deed::Encrypt(record) => {
                write(out, record.len(), |space| traffic.encrypt(record, space).map_err(Unwritten::from))
            }
            Deed::ChangeKeys => traffic.refresh_traffic_keys().map_err(TlsError::from),
            Deed::Close => write(out, 0, |space| traffic.queue_close_notify(space).map_err(Unwritten::from)),
        }
        .map(|()| Step::Done),
        ConnectionState::PeerClosed => Ok(Step::PeerClosed),
        // Data before the handshake is never accepted.
        _ => Ok(Step::Closed),
    });
    (discard, step)
}

/// Why rustls has not written.
enum Unwritten {
    /// For want of memory: it needs so much.
    Needs(usize),
    Never(String),
}

impl From<EncryptError> for Unwritten {
    fn from(error: EncryptError) -> Self {
        match error {
            EncryptError::InsufficientSize(size) => Self::Needs(size.required_size),
            EncryptError::EncryptExhausted => Self::Never(error.to_string()),
        }
    }
}

/// Has memory for `n` bytes written, or for as many as are needed.
fn write(
    out: &mut Outgoing,
    n: usize,
    mut encode: impl FnMut(&mut [u8]) -> Result<usize, Unwritten>,
) -> Result<(), TlsError> {
    let written = match encode(out.space(n)) {
        Err(Unwritten::Needs(more)) => encode(out.space(more)),
        other => other,
    };
    match written {
        Ok(n) => {
            out.filled(n);
            Ok(())
        }
        Err(Unwritten::Needs(n)) => Err(TlsError::Protocol(format!("a record of {n} bytes"))),
        Err(Unwritten::Never(why)) => Err(TlsError::Protocol(why)),
    }
}
