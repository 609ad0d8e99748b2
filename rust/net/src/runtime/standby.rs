//! A broker that has others before it in the list of hosts: which place is its own, and how it watches those.

use std::time::{Duration, Instant};

use softs_proto::log::LogRecord;
use softs_proto::standby::{WATCH_BEAT, Watch};
use softs_proto::zmtp::Role;

use crate::error::NetError;
use crate::transport::dial::Dial;
use crate::transport::endpoint::Endpoint;
use crate::transport::listener::Listener;
use crate::transport::socket::KeepAlive;

/// Time between two steps of an attempt to connect to a broker that does not serve.
const DIAL_STEP: Duration = Duration::from_millis(10);
/// A broker that has not answered a greeting for so long is connected to again: it may have restarted.
const GREETING_PATIENCE: Duration = Duration::from_secs(1);

/// The brokers before this one, as this one sees them.
#[derive(Debug)]
pub(crate) struct Standby {
    dials: Vec<Dial>,
    watch: Watch,
    beat_at: Instant,
    next_at: Instant,
}

impl Standby {
    fn new(before: Vec<Endpoint>, now: Instant) -> Self {
        let watch = Watch::new(before.len());
        let dials = before.into_iter().map(|endpoint| Dial::new(endpoint, Role::Dealer, now)).collect();
        Self { dials, watch, beat_at: now, next_at: now }
    }

    /// Hears the others and asks them; whether this broker serves.
    pub(crate) fn turn(&mut self, now: Instant) -> bool {
        if now < self.next_at {
            return self.watch.serves();
        }
        for dial in &mut self.dials {
            if dial.is_overdue(now, GREETING_PATIENCE) {
                dial.drop_connection();
            }
            if dial.turn(now) && dial.ready().is_some() {
                dial.note_used();
                self.watch.heard();
            }
        }
        if now >= self.beat_at {
            self.beat_at = now + WATCH_BEAT;
            self.watch.beat();
            for dial in self.dials.iter_mut().filter(|dial| dial.ready().is_some()) {
                dial.ping(now);
            }
        }
        let all_serve = self.dials.iter().all(|dial| dial.ready().is_some());
        self.next_at = if all_serve { self.beat_at } else { now + DIAL_STEP };
        self.watch.serves()
    }

    pub(crate) fn next_at(&self) -> Instant {
        self.next_at
    }

    pub(crate) fn take_log(&mut self) -> impl Iterator<Item = LogRecord> {
        self.dials.iter_mut().flat_map(|dial| dial.log.drain(..))
    }

    /// The brokers before this one, for the log.
    pub(crate) fn others(&self) -> String {
        let others: Vec<_> = self.dials.iter().map(|dial| dial.endpoint().as_str()).collect();
        others.join(" and ")
    }
}

/// Binds a server's two endpoints. Where they name several hosts, it takes the first place of the list that it can, and
/// watches those before it.
pub(crate) fn bind(
    [first, second]: &[Endpoint; 2],
    allow_remote: bool,
    keep_alive: KeepAlive,
) -> Result<([Listener; 2], Option<Standby>), NetError> {
    let (hosts, others): (Vec<_>, Vec<_>) = (first.hosts().collect(), second.hosts().collect());
    if hosts.len() != others.len() {
        let why =
            format!("it names {} hosts, and {first} {}: name the same in both", others.len(), hosts.len());
        return Err(NetError::bad_endpoint(second.as_str(), why));
    }
    let mut errors = Vec::new();
    for (rank, host) in hosts.iter().enumerate() {
        match Listener::bind(host, allow_remote, keep_alive) {
            Ok(listener) => {
                let other = Listener::bind(&others[rank], allow_remote, keep_alive)?;
                let standby = (rank > 0).then(|| Standby::new(hosts[..rank].to_vec(), Instant::now()));
                return Ok(([listener, other], standby));
            }
            Err(error @ NetError::RemoteNotAllowed { .. }) => return Err(error),
            Err(error) => errors.push(error),
        }
    }
    if errors.len() > 1 && !errors.iter().any(|error| matches!(error, NetError::EndpointInUse { .. })) {
        let reasons: Vec<_> = errors.iter().map(ToString::to_string).collect();
        let why = format!("none of its hosts is this machine: {}", reasons.join("; "));
        return Err(NetError::bad_endpoint(first.as_str(), why));
    }
    // That an endpoint is in use says more than that another is on another host.
    errors.sort_by_key(|error| !matches!(error, NetError::EndpointInUse { .. }));
    Err(errors.swap_remove(0))
}
