//! Several brokers of which one serves: the list of hosts in an endpoint is the order in which they do.
//!
//! A broker that is not the first in the list is a *standby*. It watches those before it, and while it hears one, it
//! leaves the handshake of each peer unanswered. So a peer can connect to all hosts at once, and READY of one of them says
//! that it serves. A connection that breaks sends no peer to the standby, because that one is not ready.
//!
//! A host that vanishes closes no connection. The standby notices first and becomes ready for all peers in the same step;
//! each of them then *doubts* the broker that it uses, and leaves it if it does not answer either. A peer that hears its
//! broker stays: so where only the two brokers do not hear each other, no peer moves.
//!
//! A supplier may hear a broker that its client has left. Segments refuse what it writes then, by their epoch; other
//! mediums do not, so suppliers leave a vanished broker some beats before clients do. A broker that is there is left when
//! nothing is under way there ([`Choice::wants_to_leave`]), and a connection that breaks is made again to the same broker
//! before another one is used.
//!
//! Beats are counted, not seconds: a process that was stopped itself has not listened meanwhile.

use std::time::Duration;

use crate::silence::Sign;

/// Time between two questions of a standby to the brokers before it.
pub const WATCH_BEAT: Duration = Duration::from_millis(100);
/// Time between two questions of a peer to a broker that it doubts.
pub const DOUBT_BEAT: Duration = Duration::from_millis(50);
/// Silent beats after which the second in the list serves; those after it wait once more as long each.
const SERVES_AFTER: u32 = 4;
/// Silent beats after which a doubted broker is given up. Suppliers do so first: what they have leased there may be ordered
/// again elsewhere when the clients do.
const WRITER_GIVES_UP_AFTER: u32 = 4;
const GIVES_UP_AFTER: u32 = 6;
/// Beats for which a broker has time to answer a new connection after one that broke.
const RETURN_BEATS: u32 = 5;

/// What a broker knows of those before it in the list.
#[derive(Debug)]
pub struct Watch {
    /// Beats since one of them sent something.
    silent: u32,
    serves_after: u32,
}

impl Watch {
    /// Of the broker that has so many before it.
    #[must_use]
    pub fn new(rank: usize) -> Self {
        let rank = u32::try_from(rank).unwrap_or(u32::MAX);
        Self { silent: 0, serves_after: SERVES_AFTER.saturating_mul(rank) }
    }

    /// One of them serves: a byte of it came after its READY.
    pub fn heard(&mut self) {
        self.silent = 0;
    }

    /// Counts a beat; to be called after everything that has arrived was read.
    pub fn beat(&mut self) {
        self.silent = self.silent.saturating_add(1);
    }

    /// Whether this broker serves.
    #[must_use]
    pub fn serves(&self) -> bool {
        self.silent >= self.serves_after
    }
}

/// Which broker of the list a peer uses.
#[derive(Debug)]
pub struct Choice {
    ready: Vec<bool>,
    current: Option<usize>,
    /// Beats since the current one sent something, or since the doubt began.
    silent: u32,
    gives_up_after: u32,
    /// The broker of the connection that broke, and the beats since.
    broken: Option<(usize, u32)>,
}

impl Choice {
    /// Of a peer that has no broker yet; suppliers write to slots.
    #[must_use]
    pub fn new(n_hosts: usize, writes: bool) -> Self {
        let gives_up_after = if writes { WRITER_GIVES_UP_AFTER } else { GIVES_UP_AFTER };
        let ready = vec![false; n_hosts];
        Self { ready, current: None, silent: 0, gives_up_after, broken: None }
    }

    /// The broker that is used.
    #[must_use]
    pub fn current(&self) -> Option<usize> {
        self.current
    }

    /// The handshake with a host has ended.
    pub fn handle_ready(&mut self, host: usize) {
        let was_doubted = self.is_doubted();
        self.ready[host] = true;
        if self.is_doubted() && !was_doubted {
            self.silent = 0;
        }
    }

    /// A host was given up because it is silent, or left.
    pub fn handle_lost(&mut self, host: usize) {
        self.ready[host] = false;
        self.current.take_if(|current| *current == host);
    }

    /// The connection to a host has ended by itself.
    pub fn handle_broken(&mut self, host: usize) {
        if self.current == Some(host) {
            self.broken = Some((host, 0));
        }
        self.handle_lost(host);
    }

    /// The current broker has sent something.
    pub fn heard(&mut self) {
        self.silent = 0;
    }

    /// Where there is no current broker: makes the first ready one the current one, or that of the connection that broke.
    pub fn choose(&mut self) -> Option<usize> {
        if self.current.is_some() {
            return None;
        }
        let first = self.ready.iter().position(|ready| *ready);
        self.current = match self.broken {
            Some((host, _)) if self.ready[host] => Some(host),
            Some((_, beats)) if beats < RETURN_BEATS => return None,
            _ => first,
        };
        if self.current.is_some() {
            self.broken = None;
        }
        self.silent = 0;
        self.current
    }

    /// Whether a broker before the current one serves.
    #[must_use]
    pub fn wants_to_leave(&self) -> bool {
        self.current.is_some_and(|current| self.ready[..current].contains(&true))
    }

    /// Whether another one than the current one serves: a later one, because it has not heard those before it; or one before
    /// it, to which others may have gone.
    fn is_doubted(&self) -> bool {
        self.current.is_some() && self.ready.iter().filter(|ready| **ready).count() > 1
    }

    /// Whether beats are to be counted.
    #[must_use]
    pub fn is_unsure(&self) -> bool {
        self.is_doubted() || self.broken.is_some_and(|(_, beats)| beats < RETURN_BEATS)
    }

    /// Counts a beat; to be called after everything that has arrived was read. What to do about the current broker.
    pub fn beat(&mut self) -> Sign {
        if let Some((_, beats)) = &mut self.broken {
            *beats += 1;
        }
        if !self.is_doubted() {
            return Sign::Heard;
        }
        self.silent += 1;
        if self.silent < self.gives_up_after { Sign::Silent } else { Sign::Lost }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_standby_that_was_stopped_itself_does_not_take_over() {
        let mut watch = Watch::new(1);
        // However long it stood still, this is one beat, and after it comes what the first one has sent.
        watch.beat();
        assert!(!watch.serves());
        watch.heard();
        (0..3).for_each(|_| watch.beat());
        assert!(!watch.serves());
        watch.beat();
        assert!(watch.serves());
    }

    /// A peer of two brokers that both serve, at the first one.
    fn at_the_first(writes: bool) -> Choice {
        let mut choice = Choice::new(2, writes);
        choice.handle_ready(0);
        assert_eq!(choice.choose(), Some(0));
        choice.handle_ready(1);
        choice
    }

    #[test]
    fn suppliers_give_a_silent_broker_up_before_clients_do() {
        let beats = |writes| {
            let mut choice = at_the_first(writes);
            (1..).find(|_| choice.beat() == Sign::Lost).unwrap()
        };
        assert_eq!((beats(true), beats(false)), (4, 6));
    }

    #[test]
    fn a_connection_that_breaks_is_made_again_to_the_same_broker_if_that_answers_soon() {
        let mut choice = at_the_first(false);
        choice.handle_broken(0);
        for _ in 0..4 {
            choice.beat();
            assert_eq!(choice.choose(), None);
        }
        let mut gone = at_the_first(false);
        gone.handle_broken(0);
        for _ in 0..5 {
            gone.beat();
        }
        assert_eq!(gone.choose(), Some(1));
        choice.handle_ready(0);
        assert_eq!(choice.choose(), Some(0));
    }
}
