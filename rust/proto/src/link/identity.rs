//! Which hosts, sessions and bridges there are, and which host may open a bridge.

use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use crate::limits::MAX_BRIDGES;

/// How long a ticket waits for its host.
pub const TICKET_TIME: Duration = Duration::from_secs(60);
/// How long one that has opened a bridge waits for the next session after the last one.
pub const RETURN_TIME: Duration = Duration::from_secs(3600);

/// A host, by a random number of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(pub u64);

/// One process that runs the links of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Its host.
    pub host: HostId,
    /// Random, drawn when the process starts.
    pub boot: u64,
}

/// A session. The end that was called counts its own, so that none has the number of an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionId {
    /// The process that was called.
    pub boot: u64,
    /// Which of its sessions.
    pub number: u64,
}

/// A random number from the broker that names one bridge.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ticket(pub [u8; 16]);

/// Never the number itself.
impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ticket(..)")
    }
}

/// The tickets by which other hosts open what this one serves.
#[derive(Debug, Default)]
pub struct Tickets {
    grants: FxHashMap<Ticket, Grant>,
}

#[derive(Debug)]
struct Grant {
    host: HostId,
    product: u32,
    /// Until when it may be used; none while it stands for a bridge.
    until: Option<Instant>,
}

impl Tickets {
    /// Lets a host open a product; `false` where there are too many tickets.
    pub fn grant(&mut self, now: Instant, ticket: Ticket, host: HostId, product: u32) -> bool {
        let has_room = !self.is_full();
        if has_room {
            self.grants.insert(ticket, Grant { host, product, until: Some(now + TICKET_TIME) });
        }
        has_room
    }

    /// Whether there are as many as may be; [`Self::expire`] may make room.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.grants.len() >= MAX_BRIDGES
    }

    /// The session is over in which a ticket has opened a bridge.
    pub fn suspend(&mut self, now: Instant, ticket: Ticket) {
        if let Some(grant) = self.grants.get_mut(&ticket) {
            grant.until = Some(now + RETURN_TIME);
        }
    }

    /// A ticket opens nothing more.
    pub fn revoke(&mut self, ticket: Ticket) {
        self.grants.remove(&ticket);
    }

    /// Drops tickets that were not used in time; their hosts.
    pub fn expire(&mut self, now: Instant) -> Vec<HostId> {
        let is_over = |grant: &Grant| grant.until.is_some_and(|until| now >= until);
        self.grants.extract_if(|_, grant| is_over(grant)).map(|(_, grant)| grant.host).collect()
    }

    /// Whether a host has a ticket.
    #[must_use]
    pub fn has(&self, host: HostId) -> bool {
        self.grants.values().any(|grant| grant.host == host)
    }

    /// The product that a ticket opens for a host. From then on it stands for that bridge in later sessions too.
    pub fn redeem(&mut self, now: Instant, ticket: Ticket, host: HostId) -> Option<u32> {
        let grant = self.grants.get_mut(&ticket).filter(|grant| grant.host == host)?;
        if grant.until.is_some_and(|until| now >= until) {
            self.grants.remove(&ticket);
            return None;
        }
        grant.until = None;
        Some(grant.product)
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "virtual time has to start somewhere")]
mod tests {
    use super::*;

    const TICKET: Ticket = Ticket([7; 16]);
    const HOST: HostId = HostId(1);

    #[test]
    fn a_ticket_is_for_one_host_and_must_be_used_in_time() {
        let (now, mut tickets) = (Instant::now(), Tickets::default());
        assert!(tickets.grant(now, TICKET, HOST, 4));
        assert_eq!(tickets.redeem(now, Ticket([8; 16]), HOST), None);
        assert_eq!(tickets.redeem(now, TICKET, HostId(2)), None);
        let late = now + TICKET_TIME;
        assert_eq!(tickets.redeem(late - Duration::from_nanos(1), TICKET, HOST), Some(4));
        assert_eq!(tickets.redeem(late, TICKET, HOST), Some(4), "a later session");
        assert!(tickets.grant(now, Ticket([9; 16]), HOST, 5));
        assert_eq!(tickets.redeem(late, Ticket([9; 16]), HOST), None);
        assert_eq!(format!("{TICKET:?}"), "Ticket(..)");
    }

    #[test]
    fn a_host_has_tickets_until_they_expire_or_are_revoked() {
        let (now, mut tickets) = (Instant::now(), Tickets::default());
        assert!(tickets.grant(now, TICKET, HOST, 4) && tickets.grant(now, Ticket([8; 16]), HostId(2), 4));
        tickets.redeem(now, TICKET, HOST);
        assert_eq!(tickets.expire(now + TICKET_TIME), [HostId(2)]);
        assert_eq!([HOST, HostId(2)].map(|host| tickets.has(host)), [true, false]);
        tickets.revoke(TICKET);
        assert!(!tickets.has(HOST));
        assert_eq!(tickets.redeem(now, TICKET, HOST), None);
    }

    #[test]
    fn tickets_are_bounded_and_those_that_expired_make_room() {
        let (now, mut tickets) = (Instant::now(), Tickets::default());
        let ticket = |n: usize| Ticket((n as u128).to_le_bytes());
        assert!((0..MAX_BRIDGES).all(|n| tickets.grant(now, ticket(n), HOST, 0)));
        assert!(!tickets.grant(now, ticket(MAX_BRIDGES), HOST, 0));
        assert_eq!(tickets.expire(now + TICKET_TIME).len(), MAX_BRIDGES);
        assert!(tickets.grant(now + TICKET_TIME, ticket(MAX_BRIDGES), HOST, 0));
    }
}
