//! [`Outgoing`]: which bytes go to a peer next.

use std::collections::VecDeque;

use super::incoming::HEADER_BYTES;

/// Bytes that are to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The bytes of a header from `at` on.
    Header {
        /// The header.
        bytes: [u8; HEADER_BYTES],
        /// How many of them were sent.
        at: usize,
    },
    /// A part of a message of the caller.
    Body {
        /// The number of the message.
        index: usize,
        /// Where in it.
        at: usize,
        /// Bytes of the part.
        len: usize,
    },
}

impl Part {
    /// Number of bytes.
    #[must_use]
    pub fn n_bytes(&self) -> usize {
        match self {
            Self::Header { at, .. } => HEADER_BYTES - at,
            Self::Body { len, .. } => *len,
        }
    }
}

/// What goes to one peer.
#[derive(Debug, Default)]
pub struct Outgoing {
    /// Number and length of each message that has not been sent in full; a ping has length 0.
    messages: VecDeque<(usize, usize)>,
    /// Bytes of the first one that were sent, with its header.
    n_sent: usize,
    n_messages: u64,
}

impl Outgoing {
    /// How much was sent in all, pings apart: it grows with each byte of a message.
    #[must_use]
    pub fn progress(&self) -> (u64, usize) {
        (self.n_messages, if self.is_pinging() { 0 } else { self.n_sent })
    }

    fn is_pinging(&self) -> bool {
        matches!(self.messages.front(), None | Some((_, 0)))
    }

    /// Sends these messages, behind a ping of which a part was sent; those before have been sent.
    pub fn send(&mut self, lengths: impl IntoIterator<Item = usize>) {
        let messages = lengths.into_iter().enumerate().filter(|(_, length)| *length > 0);
        self.messages.extend(messages);
    }

    /// Sends a ping, unless something waits to be sent.
    pub fn ping(&mut self) {
        if self.messages.is_empty() {
            self.messages.push_back((0, 0));
        }
    }

    /// Whether nothing is to be sent.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.messages.is_empty()
    }

    /// What goes next, about `most` bytes.
    #[must_use]
    pub fn parts(&self, most: usize) -> Vec<Part> {
        let (mut parts, mut n_bytes, mut n_sent) = (Vec::new(), 0, self.n_sent);
        for &(index, length) in &self.messages {
            if n_bytes >= most {
                break;
            }
            if n_sent < HEADER_BYTES {
                parts.push(Part::Header { bytes: (length as u64).to_le_bytes(), at: n_sent });
                n_bytes += HEADER_BYTES - n_sent;
                n_sent = HEADER_BYTES;
            }
            let at = n_sent - HEADER_BYTES;
            let len = (length - at).min(most.saturating_sub(n_bytes));
            if len > 0 {
                parts.push(Part::Body { index, at, len });
                n_bytes += len;
            }
            n_sent = 0;
        }
        parts
    }

    /// So many of the next bytes were sent.
    pub fn advance(&mut self, n: usize) {
        self.n_sent += n;
        while let Some((_, length)) = self.messages.front()
            && self.n_sent >= HEADER_BYTES + length
        {
            self.n_sent -= HEADER_BYTES + length;
            self.n_messages += u64::from(*length > 0);
            self.messages.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Incoming;
    use super::*;

    /// A generator of small numbers (SplitMix64).
    fn random(state: &mut u64, below: usize) -> usize {
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % below as u64) as usize
    }

    fn bytes_of(parts: &[Part], messages: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for part in parts {
            match *part {
                Part::Header { bytes: header, at } => bytes.extend(&header[at..]),
                Part::Body { index, at, len } => bytes.extend(&messages[index][at..at + len]),
            }
        }
        bytes
    }

    #[test]
    fn messages_arrive_whole_however_their_bytes_are_cut() {
        for seed in 0..300 {
            let state = &mut { seed };
            let (mut outgoing, mut incoming, mut pipe) =
                (Outgoing::default(), Incoming::default(), Vec::new());
            for _ in 0..5 {
                let n = random(state, 4);
                let messages: Vec<Vec<u8>> =
                    (0..n).map(|_| (0..random(state, 50)).map(|at| at as u8).collect()).collect();
                let mut got: Vec<Vec<u8>> = messages.iter().map(|message| vec![0; message.len()]).collect();
                outgoing.send(messages.iter().map(Vec::len));
                incoming.expect(messages.iter().map(Vec::len));
                while !(outgoing.is_complete() && incoming.is_complete()) {
                    if random(state, 3) == 0 {
                        outgoing.ping();
                    }
                    let mut bytes = bytes_of(&outgoing.parts(1 + random(state, 30)), &messages);
                    bytes.truncate(random(state, bytes.len() + 1));
                    outgoing.advance(bytes.len());
                    pipe.extend(bytes);
                    let n = random(state, pipe.len() + 1);
                    let mut store = |index: usize, at: usize, part: &[u8]| {
                        got[index][at..at + part.len()].copy_from_slice(part);
                    };
                    let taken = incoming.receive(&pipe[..n], &mut store).unwrap();
                    pipe.drain(..taken);
                }
                assert_eq!(got, messages, "seed {seed}");
            }
        }
    }

    #[test]
    fn a_message_of_another_length_is_refused_before_any_of_it_is_stored() {
        let mut incoming = Incoming::default();
        incoming.expect([0, 5]);
        let wrong = incoming.receive(&6_u64.to_le_bytes(), &mut |_, _, _| unreachable!()).unwrap_err();
        assert_eq!((wrong.sent, wrong.expected), (6, 5));
    }

    #[test]
    fn bytes_of_the_next_call_are_left_where_they_are() {
        let mut incoming = Incoming::default();
        incoming.expect([2]);
        let bytes = [&2_u64.to_le_bytes()[..], &[1, 2], &3_u64.to_le_bytes()].concat();
        assert_eq!(incoming.receive(&bytes, &mut |_, _, _| {}), Ok(10));
        assert_eq!(incoming.receive(&bytes[10..], &mut |_, _, _| unreachable!()), Ok(0));
    }
}
