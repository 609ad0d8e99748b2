//! [`Incoming`]: bytes of a peer to messages in memory of the caller.

/// What comes before a message: its length. That of a ping is 0.
pub const HEADER_BYTES: usize = 8;

/// The peer sends another message than the one that is expected: the ranks make different calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it sends {sent} bytes where {expected} are expected: the ranks make different calls")]
pub struct Wrong {
    /// Bytes that it sends.
    pub sent: u64,
    /// Bytes that were expected.
    pub expected: u64,
}

/// What comes from one peer.
#[derive(Debug, Default)]
pub struct Incoming {
    header: [u8; HEADER_BYTES],
    n_header: usize,
    /// Lengths of the messages that are expected.
    expected: Vec<u64>,
    /// The one that comes, and how much of it has.
    index: usize,
    n_stored: u64,
    n_bytes: u64,
}

impl Incoming {
    /// Bytes of messages that have come in all.
    #[must_use]
    pub fn n_bytes(&self) -> u64 {
        self.n_bytes
    }

    /// From now on these messages are expected; those before have come.
    pub fn expect(&mut self, lengths: impl IntoIterator<Item = usize>) {
        self.expected.clear();
        self.expected.extend(lengths.into_iter().map(|length| length as u64));
        (self.index, self.n_stored) = (0, 0);
        self.skip_empty();
    }

    /// Whether all of them have come.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.index == self.expected.len()
    }

    /// Of the message that comes now: its number, how much of it has come, and how much is missing. `None` where its
    /// header comes first.
    #[must_use]
    pub fn body(&self) -> Option<(usize, usize, usize)> {
        let length = *self.expected.get(self.index).filter(|_| self.n_header == HEADER_BYTES)?;
        // They were numbers of this type.
        Some((self.index, self.n_stored as usize, (length - self.n_stored) as usize))
    }

    /// Takes bytes up to the end of the last message that is expected, and not more; how many. `store` gets the number of
    /// a message, a place in it, and what belongs there.
    ///
    /// # Errors
    /// A message has another length than is expected.
    pub fn receive(
        &mut self,
        bytes: &[u8],
        store: &mut dyn FnMut(usize, usize, &[u8]),
    ) -> Result<usize, Wrong> {
        let mut rest = bytes;
        while !rest.is_empty() && !self.is_complete() {
            if let Some((index, at, missing)) = self.body() {
                let (body, behind) = rest.split_at(missing.min(rest.len()));
                store(index, at, body);
                self.stored(body.len());
                rest = behind;
                continue;
            }
            let (header, behind) = rest.split_at((HEADER_BYTES - self.n_header).min(rest.len()));
            self.header[self.n_header..self.n_header + header.len()].copy_from_slice(header);
            self.n_header += header.len();
            rest = behind;
            self.check()?;
        }
        Ok(bytes.len() - rest.len())
    }

    /// So many bytes of [`Self::body`] were stored by the caller.
    pub fn stored(&mut self, n: usize) {
        (self.n_stored, self.n_bytes) = (self.n_stored + n as u64, self.n_bytes + n as u64);
        if self.expected.get(self.index) == Some(&self.n_stored) {
            (self.index, self.n_stored, self.n_header) = (self.index + 1, 0, 0);
            self.skip_empty();
        }
    }

    fn check(&mut self) -> Result<(), Wrong> {
        if self.n_header < HEADER_BYTES {
            return Ok(());
        }
        let (sent, expected) = (u64::from_le_bytes(self.header), self.expected[self.index]);
        if sent == 0 {
            self.n_header = 0;
        } else if sent != expected {
            return Err(Wrong { sent, expected });
        }
        Ok(())
    }

    fn skip_empty(&mut self) {
        while self.expected.get(self.index) == Some(&0) {
            self.index += 1;
        }
    }
}
