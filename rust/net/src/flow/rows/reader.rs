//! The reader's end: connects, asks, and takes bytes right into the memory of its caller where they are many.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use softs_proto::flow::Token;
use softs_proto::flow::rows::{Answers, Gone, Joining, MAX_REQUESTS, MAX_VALUES, SegmentId, Value, Wanted};
use softs_proto::framing::Outbox;
use softs_shm::ForeignBytes;

use crate::error::{NetError, os_text};
use crate::flow::connections::write;
use crate::flow::joining::{Joined, connect, join};
use crate::flow::waiting::SLICE;
use crate::transport::connecting::Hosts;
use crate::transport::endpoint::Endpoint;
use crate::transport::nonce::random_bytes;
use crate::transport::socket::{self, wait};
use crate::waited::Waited;

/// Bytes read at once where values are small.
const BUFFER_BYTES: usize = 256 << 10;
/// From so many bytes of one value on they are read right into the memory of the caller.
const DIRECT_BYTES: usize = 32 << 10;

/// How a read has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadEnd {
    /// All values are there.
    Complete,
    /// One is gone: why, and its number. The connection has ended.
    Gone(Gone, usize),
}

/// A connection to a row server; of one thread at a time.
#[derive(Debug)]
pub struct RowReader {
    socket: Arc<OwnedFd>,
    endpoint: String,
    buffer: Box<[u8]>,
    /// Something was asked for that has not come.
    is_broken: bool,
}

/// Where values go, in order.
struct Targets<'a> {
    parts: &'a [ForeignBytes<'a>],
    next: usize,
    filled: usize,
}

impl RowReader {
    /// Connects, and proves that it has the token, within `timeout`.
    ///
    /// # Errors
    /// [`NetError::NotServed`] where one end refused the other, [`NetError::Lost`] where there is none,
    /// [`NetError::BadEndpoint`], [`NetError::Os`].
    pub fn connect(
        endpoint: &Endpoint,
        token: Token,
        timeout: Duration,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<Waited<Self>, NetError> {
        let begun = Instant::now();
        let in_our_words = |error| match error {
            NetError::NoMaster { endpoint, why } => NetError::Lost { endpoint, why },
            other => other,
        };
        let Some(socket) = connect(endpoint, Hosts::Any, timeout, interrupted).map_err(in_our_words)? else {
            return Ok(Waited::Interrupted);
        };
        let mut joining = Joining::new(token, random_bytes()?);
        let endpoint = endpoint.as_str().to_owned();
        match join(&socket, &mut joining, begun, timeout, interrupted)? {
            Joined::Yes => {}
            Joined::Interrupted => return Ok(Waited::Interrupted),
            Joined::Refused(why) => return Err(NetError::NotServed { endpoint, why }),
            Joined::Lost(why) => return Err(NetError::Lost { endpoint, why }),
        }
        let buffer = vec![0; BUFFER_BYTES].into_boxed_slice();
        Ok(Waited::Ready(Self { socket, endpoint, buffer, is_broken: false }))
    }

    /// Reads values of a segment to `targets`, of which each has the bytes of its value.
    ///
    /// # Errors
    /// [`NetError::Lost`]: the connection has ended, nothing came for `stall`, or it had an error before.
    pub fn read(
        &mut self,
        segment: SegmentId,
        values: &[Value],
        targets: &[ForeignBytes<'_>],
        stall: Duration,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<Waited<ReadEnd>, NetError> {
        if std::mem::replace(&mut self.is_broken, true) {
            return Err(self.lost("an earlier read has failed".to_owned()));
        }
        let (mut answers, mut outbox) = (Answers::default(), Outbox::default());
        let mut requests = values.chunks(MAX_VALUES);
        let (mut n_asked, mut targets) = (0, Targets { parts: targets, next: 0, filled: 0 });
        let mut heard = Instant::now();
        loop {
            while answers.n_open() < MAX_REQUESTS
                && let Some(some) = requests.next()
            {
                Wanted { segment, values: some.to_vec() }.encode(&mut outbox);
                answers.expect(some.iter().map(|value| value.bytes).sum());
                n_asked += 1;
            }
            if answers.n_open() == 0 {
                self.is_broken = false;
                return Ok(Waited::Ready(ReadEnd::Complete));
            }
            write(&self.socket, &mut outbox);
            let (taken, n_before) = (self.take(&mut answers, &mut targets)?, answers.n_open());
            if let Some(gone) = answers.gone() {
                let first = (n_asked - n_before) * MAX_VALUES;
                return Ok(Waited::Ready(ReadEnd::Gone(gone, first + gone.index as usize)));
            }
            if taken {
                heard = Instant::now();
                continue;
            }
            let left = stall.saturating_sub(heard.elapsed());
            if left.is_zero() {
                let why = format!("no bytes of rows for {:.1} s", stall.as_secs_f64());
                return Err(self.lost(why));
            }
            let has_output = !outbox.is_empty();
            if !wait(self.socket.as_fd(), true, has_output, left.min(SLICE))? && interrupted() {
                return Ok(Waited::Interrupted);
            }
        }
    }

    /// Takes what the socket has, some of it; whether there was something.
    fn take(&mut self, answers: &mut Answers, targets: &mut Targets<'_>) -> Result<bool, NetError> {
        let direct = targets.direct(answers.values_left());
        let taken = match direct {
            Some(part) => part.receive(self.socket.as_fd()),
            None => socket::read(&self.socket, &mut self.buffer),
        };
        match taken {
            Ok(None) => Ok(false),
            Ok(Some(0)) | Err(Errno::CONNRESET) => Err(self.lost("the connection ended".to_owned())),
            Ok(Some(n)) if direct.is_some() => {
                answers.took(n);
                targets.took(n);
                Ok(true)
            }
            Ok(Some(n)) => {
                let received = answers.receive(&self.buffer[..n], &mut |bytes| targets.fill(bytes));
                received.map(|()| true).map_err(|why| self.lost(why))
            }
            Err(error) => Err(self.lost(os_text(error))),
        }
    }

    fn lost(&self, why: String) -> NetError {
        NetError::Lost { endpoint: self.endpoint.clone(), why }
    }
}

impl Drop for RowReader {
    fn drop(&mut self) {
        socket::hang_up(&self.socket);
    }
}

impl<'a> Targets<'a> {
    /// Memory for bytes of one value, if many of them come next.
    fn direct(&self, values_left: usize) -> Option<ForeignBytes<'a>> {
        let target = self.parts.get(self.next)?;
        let left = values_left.min(target.len() - self.filled);
        (left >= DIRECT_BYTES).then(|| target.part(self.filled, left))?
    }

    fn took(&mut self, n: usize) {
        self.filled += n;
        self.skip_full();
    }

    fn fill(&mut self, mut bytes: &[u8]) {
        self.skip_full();
        while let Some(target) = self.parts.get(self.next).filter(|_| !bytes.is_empty()) {
            let n = bytes.len().min(target.len() - self.filled);
            if let Some(part) = target.part(self.filled, n) {
                part.fill_from(&bytes[..n]);
            }
            bytes = &bytes[n..];
            self.took(n);
        }
    }

    /// Values may be empty.
    fn skip_full(&mut self) {
        while self.parts.get(self.next).is_some_and(|target| target.len() == self.filled) {
            (self.next, self.filled) = (self.next + 1, 0);
        }
    }
}
