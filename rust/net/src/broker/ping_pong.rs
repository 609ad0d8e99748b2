//! Notices that one client and one supplier have the broker to themselves.
//!
//! Then each of them waits for the other, and the shortest way for a message is all that counts. With more peers there is always
//! somebody else to serve, and what counts is to serve many at once.

use softs_proto::broker::PeerId;

/// For so many events nobody else may have said anything.
const LONG_ENOUGH: u32 = 16;

/// Who spoke last.
#[derive(Debug, Default)]
pub(super) struct PingPong {
    pair: [Option<PeerId>; 2],
    events: u32,
}

impl PingPong {
    /// A peer has said something.
    pub(super) fn note(&mut self, id: PeerId) {
        if self.pair.contains(&Some(id)) {
            self.events = self.events.saturating_add(1);
        } else {
            self.pair = [self.pair[1], Some(id)];
            self.events = 0;
        }
    }

    /// Whether only two peers have spoken for a while.
    pub(super) fn is_on(&self) -> bool {
        self.events >= LONG_ENOUGH
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_peers_are_a_duet_after_a_while_and_a_third_one_ends_it() {
        let mut ping_pong = PingPong::default();
        for n in 0..u64::from(LONG_ENOUGH) + 2 {
            assert!(!ping_pong.is_on());
            ping_pong.note(PeerId(n % 2));
        }
        assert!(ping_pong.is_on());
        ping_pong.note(PeerId(7));
        assert!(!ping_pong.is_on());
    }

    #[test]
    fn peers_that_take_turns_are_none() {
        let mut ping_pong = PingPong::default();
        for n in 0..1000 {
            ping_pong.note(PeerId(n % 3));
            assert!(!ping_pong.is_on());
        }
    }
}
