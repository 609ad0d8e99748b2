//! The reader's end: connects, asks, and has what comes decrypted into the memory of its caller.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use softs_proto::flow::rows::{Answers, MAX_REQUESTS, MAX_VALUES, SegmentId, Value, Wanted, Why};
use softs_proto::framing::Outbox;
use softs_shm::ForeignBytes;

use crate::error::NetError;
use crate::streams::{Channel, SLICE, Undialled, dial, why};
use crate::tls::{Credentials, Service};
use crate::transport::endpoint::Endpoint;
use crate::transport::socket::wait;
use crate::waited::Waited;

/// A connection to a row server; of one thread at a time.
#[derive(Debug)]
pub struct RowReader {
    channel: Channel,
    endpoint: String,
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
    /// Connects within `timeout`; both ends prove what they are.
    ///
    /// # Errors
    /// [`NetError::NotServed`] where one end refused the other, [`NetError::Lost`] where there is none,
    /// [`NetError::BadEndpoint`], [`NetError::Os`].
    pub fn connect(
        endpoint: &Endpoint,
        credentials: &Credentials,
        timeout: Duration,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<Waited<Self>, NetError> {
        let credentials = Some((credentials, Service::Rows));
        let dialled = dial(endpoint, credentials, &mut Outbox::default(), timeout, interrupted);
        let endpoint = endpoint.as_str().to_owned();
        match dialled {
            Ok(Some(channel)) => Ok(Waited::Ready(Self { channel, endpoint, is_broken: false })),
            Ok(None) => Ok(Waited::Interrupted),
            Err(Undialled::Refused(why)) => Err(NetError::NotServed { endpoint, why }),
            Err(Undialled::Unreached(why)) => Err(NetError::Lost { endpoint, why }),
            Err(Undialled::Other(error)) => Err(error),
        }
    }

    /// Reads values of a segment to `targets`, of which each has the bytes of its value. If one is gone: why, and its
    /// number; the connection has ended then.
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
    ) -> Result<Waited<Option<(Why, usize)>>, NetError> {
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
                return Ok(Waited::Ready(None));
            }
            let is_blocked = self.channel.write(&mut outbox).is_blocked;
            let (taken, n_before) = (self.take(&mut answers, &mut targets)?, answers.n_open());
            if let Some((why, index)) = answers.gone() {
                let first = (n_asked - n_before) * MAX_VALUES;
                return Ok(Waited::Ready(Some((why, first + index as usize))));
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
            if !wait(self.channel.as_fd(), true, is_blocked, left.min(SLICE))? && interrupted() {
                return Ok(Waited::Interrupted);
            }
        }
    }

    /// Takes what the socket has, some of it; whether there was something.
    fn take(&mut self, answers: &mut Answers, targets: &mut Targets<'_>) -> Result<bool, NetError> {
        let mut received = Ok(());
        let read = self.channel.read(&mut [], &mut |bytes| {
            if received.is_ok() {
                received = answers.receive(bytes, &mut |values| targets.fill(values));
            }
        });
        received.map_err(|why| self.lost(why))?;
        read.map(|(n, _)| n > 0).map_err(|over| self.lost(why(over, "the connection ended")))
    }

    fn lost(&self, why: String) -> NetError {
        NetError::Lost { endpoint: self.endpoint.clone(), why }
    }
}

impl Targets<'_> {
    fn fill(&mut self, mut bytes: &[u8]) {
        self.skip_full();
        while let Some(target) = self.parts.get(self.next).filter(|_| !bytes.is_empty()) {
            let n = bytes.len().min(target.len() - self.filled);
            if let Some(part) = target.part(self.filled, n) {
                part.fill_from(&bytes[..n]);
            }
            bytes = &bytes[n..];
            self.filled += n;
            self.skip_full();
        }
    }

    /// Values may be empty.
    fn skip_full(&mut self) {
        while self.parts.get(self.next).is_some_and(|target| target.len() == self.filled) {
            (self.next, self.filled) = (self.next + 1, 0);
        }
    }
}
