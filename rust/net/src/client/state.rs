//! What a client's calls share: its state machine, its link to the broker, and when they need maintenance.

use std::time::{Duration, Instant};

use softs_proto::Dialect;
use softs_proto::client::Client as StateMachine;
use softs_proto::log::LogRecord;
use softs_proto::wire::Message;
use softs_shm::CachePolicy;

use crate::lanes::client::ClientLanes;
use crate::transport::broker_link::{BrokerLink, PeerMachine};

/// While samples come without waiting, the socket and the suppliers are checked this often.
const MAINTENANCE_INTERVAL: Duration = Duration::from_millis(2);
/// The counters for monitoring are set, and suppliers that run another program are searched for, this often.
const COUNTERS_INTERVAL: Duration = Duration::from_millis(100);
/// A blocked call wakes this often, for signals, what other threads received, and orders that no supplier claims.
pub(super) const SLICE: Duration = Duration::from_millis(50);
/// The client of `softs-proto` with the lanes of this process.
pub(super) type Machine = StateMachine<ClientLanes>;

impl PeerMachine for Machine {
    fn handle_connected(&mut self, _now: Instant, dialect: Dialect) {
        StateMachine::handle_connected(self, dialect);
    }
    fn handle_disconnected(&mut self) {
        StateMachine::handle_disconnected(self);
    }
    fn handle_message(&mut self, now: Instant, frames: &[&[u8]]) {
        StateMachine::handle_message(self, now, frames);
    }
    fn poll_transmit(&mut self, now: Instant, out: &mut Message) -> bool {
        StateMachine::poll_transmit(self, now, out)
    }
    fn poll_timeout(&self) -> Option<Instant> {
        StateMachine::poll_timeout(self)
    }
    fn poll_log(&mut self) -> Option<LogRecord> {
        StateMachine::poll_log(self)
    }
    fn is_owed(&self) -> bool {
        StateMachine::is_owed(self)
    }
    fn may_leave(&mut self, is_wanted: bool) -> bool {
        StateMachine::may_leave(self, is_wanted)
    }
}

#[derive(Debug)]
pub(super) struct ClientState {
    pub(super) link: BrokerLink<Machine>,
    maintenance_at: Instant,
    counters_at: Instant,
    remind_at: Instant,
    pub(super) n_sleeping: usize,
}

impl ClientState {
    pub(super) fn new(link: BrokerLink<Machine>, now: Instant) -> Self {
        let state = Self { link, maintenance_at: now, counters_at: now, remind_at: now, n_sleeping: 0 };
        state.advise();
        state
    }

    /// After something was done: writes what is due, wakes suppliers that have something to do.
    pub(super) fn settle(&mut self, now: Instant, waits: bool) {
        self.link.transmit(now);
        if now >= self.maintenance_at {
            self.maintain(now);
            self.link.transmit(now);
        }
        let machine = &mut self.link.machine;
        let is_waited_for = waits || machine.n_finished() == 0;
        let bunch = machine.bunch();
        machine.lanes_mut().ring(is_waited_for, bunch);
        if waits && now >= self.remind_at {
            self.remind_at = now + SLICE;
            machine.lanes_mut().remind();
        }
    }

    /// Tells suppliers how to write the slots.
    fn advise(&self) {
        let machine = &self.link.machine;
        machine.lanes().advise(stores(machine));
    }

    /// Reads what the broker sent, and which suppliers came or ended.
    pub(super) fn maintain(&mut self, now: Instant) {
        self.maintenance_at = now + MAINTENANCE_INTERVAL;
        self.link.turn(now);
        let machine = &mut self.link.machine;
        machine.lanes_mut().update_suppliers();
        let is_due = now >= self.counters_at;
        if is_due {
            machine.lanes_mut().remove_closed();
        }
        machine.handle_lanes(now);
        if machine.adapt_window(now) {
            self.advise();
        }
        if is_due {
            self.counters_at = now + COUNTERS_INTERVAL;
            let machine = &self.link.machine;
            let (done, held) = (machine.counters(), machine.n_held());
            machine.lanes().show(done, held, || machine.slot_counts());
        }
    }
}

/// How suppliers should write the slots: for as many as are on order, finished or held by the caller.
fn stores(machine: &Machine) -> CachePolicy {
    let config = machine.config();
    let in_use = machine.window().saturating_add(config.block).min(config.n_slots);
    CachePolicy::for_slots(u64::from(in_use) * config.slot_size)
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
