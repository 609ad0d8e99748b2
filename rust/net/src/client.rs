//! The client's driver: no thread of its own, every call turns the crank in the caller's.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use softs_proto::Dialect;
use softs_proto::client::{
    Client as Machine, Config, Failure, NoLanes, Outcome, ReleaseError, RequestId, SlotId,
};
use softs_proto::log::LogRecord;
use softs_proto::wire::Message;

use crate::endpoint::Endpoint;
use crate::error::NetError;
use crate::link::{self, Link};

/// A blocked call looks up this often, to see signals and what other threads received.
const SLICE: Duration = Duration::from_millis(50);
/// A new order waits for the broker's SUPPLY at most this long; the state machine has less patience.
const SUPPLY_WAIT: Duration = Duration::from_millis(100);

impl link::Machine for Machine {
    fn handle_connected(&mut self, _now: Instant, dialect: Dialect) {
        Machine::handle_connected(self, dialect);
    }
    fn handle_disconnected(&mut self) {
        Machine::handle_disconnected(self);
    }
    fn handle_message(&mut self, now: Instant, frames: &[&[u8]]) {
        Machine::handle_message(self, now, frames);
    }
    fn wants_transmit(&self, _now: Instant) -> bool {
        true
    }
    fn poll_transmit(&mut self, now: Instant, out: &mut Message) -> bool {
        Machine::poll_transmit(self, now, out)
    }
    fn poll_timeout(&self) -> Option<Instant> {
        Machine::poll_timeout(self)
    }
    fn poll_log(&mut self) -> Option<LogRecord> {
        Machine::poll_log(self)
    }
}

/// How a blocking call ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Waited<T> {
    /// With what was asked for.
    Ready(T),
    /// Without it, in time.
    TimedOut,
    /// Because the caller's `interrupted` said so.
    Interrupted,
}

/// A client of one broker; may be shared between threads.
#[derive(Debug)]
pub struct Client {
    link: Mutex<Link<Machine>>,
}

impl Client {
    /// A client that will connect on its first call.
    #[must_use]
    pub fn new(endpoint: Endpoint, config: Config) -> Self {
        Self { link: Mutex::new(Link::new(Machine::new(config, NoLanes), endpoint, Instant::now())) }
    }

    /// The finished slot of `product` if there is one; never blocks.
    pub fn try_sample(&self, product: &str) -> Option<SlotId> {
        let now = Instant::now();
        let mut link = self.lock();
        let slot = link.machine.request_sample(now, product);
        link.transmit(now);
        slot
    }

    /// A finished slot of `product`, held by the caller.
    pub fn request_sample(
        &self,
        product: &str,
        timeout: Duration,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Waited<SlotId> {
        self.wait(timeout, interrupted, |machine, now| machine.request_sample(now, product))
    }

    /// Puts one slot on order once a broker is there. Ready with `None`: no slot is free.
    pub fn request_slot(
        &self,
        product: &str,
        timeout: Duration,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Waited<Option<String>> {
        let placed = self.wait(timeout, interrupted, |machine, _| {
            machine.peer_id()?;
            let number = machine.request_slot(product);
            Some(number.map(|n| machine.order_id(n)))
        });
        if matches!(placed, Waited::Ready(Some(_))) {
            // The order is on its way when this returns, whenever the next call comes.
            let sent = |machine: &mut Machine, now| {
                let late = machine.poll_timeout().is_some_and(|at| at <= now);
                (late || !machine.awaits_supply()).then_some(())
            };
            self.wait(SUPPLY_WAIT, interrupted, sent);
        }
        placed
    }

    /// Waits for results; how many came since the last call.
    pub fn poll_completions(
        &self,
        timeout: Duration,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Waited<usize> {
        self.wait(timeout, interrupted, |machine, _| Some(machine.take_completions()).filter(|&n| n > 0))
    }

    /// Any finished slot, held by the caller.
    pub fn take_completed(&self) -> Option<SlotId> {
        self.lock().machine.take_completed()
    }

    /// Makes a held slot free.
    ///
    /// # Errors
    /// No such slot, or not held.
    pub fn release_slot(&self, slot: u64) -> Result<(), ReleaseError> {
        self.lock().machine.release_slot(slot)
    }

    /// Waits until a broker has answered our HELLO; the number it gave us.
    pub fn hello(&self, timeout: Duration, interrupted: &mut dyn FnMut() -> bool) -> Waited<u64> {
        self.wait(timeout, interrupted, |machine, _| machine.peer_id())
    }

    /// The number that the broker gave us.
    pub fn peer_id(&self) -> Option<u64> {
        self.lock().machine.peer_id()
    }

    /// Takes one order back; whether the broker did. `None`: there is no such order.
    pub fn cancel(
        &self,
        order_id: &str,
        timeout: Duration,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Option<Waited<Outcome>> {
        let request = {
            let machine = &mut self.lock().machine;
            machine.parse_order_id(order_id).and_then(|number| machine.cancel(number))
        }?;
        Some(self.outcome(request, timeout, interrupted))
    }

    /// Makes everything ordered so far stale and takes back what no supplier has started.
    pub fn discard(&self, timeout: Duration, interrupted: &mut dyn FnMut() -> bool) -> Waited<Outcome> {
        let request = self.lock().machine.discard();
        self.outcome(request, timeout, interrupted)
    }

    /// The broker's statistics, with a diagnosis of `product` if given and if the broker can.
    pub fn stats(
        &self,
        product: Option<&str>,
        timeout: Duration,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Waited<Outcome> {
        let started = Instant::now();
        match self.wait(timeout, interrupted, |machine, _| machine.is_connected().then_some(())) {
            Waited::Ready(()) => {}
            Waited::TimedOut => return Waited::TimedOut,
            Waited::Interrupted => return Waited::Interrupted,
        }
        let request = self.lock().machine.request_stats(product);
        self.outcome(request, timeout.saturating_sub(started.elapsed()), interrupted)
    }

    /// How many slots the user holds.
    pub fn n_held(&self) -> usize {
        self.lock().machine.n_held()
    }

    /// The last failure of `product` that no success followed.
    pub fn failure(&self, product: &str) -> Option<Failure> {
        self.lock().machine.failure(product).cloned()
    }

    /// Why there is no connection.
    pub fn connection_error(&self) -> Option<NetError> {
        self.lock().error().cloned()
    }

    /// The log records since the last call.
    pub fn take_log(&self) -> Vec<LogRecord> {
        self.lock().take_log()
    }

    /// Ends the connection: the broker forgets this client at once.
    pub fn close(&self) {
        self.lock().close();
    }

    fn outcome(
        &self,
        request: RequestId,
        timeout: Duration,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Waited<Outcome> {
        let waited = self.wait(timeout, interrupted, |machine, _| machine.take_outcome(request));
        if !matches!(waited, Waited::Ready(_)) {
            self.lock().machine.abandon(request);
        }
        waited
    }

    /// Turns the crank until `check` has what it wants. The lock is not held while waiting.
    fn wait<T>(
        &self,
        timeout: Duration,
        interrupted: &mut dyn FnMut() -> bool,
        mut check: impl FnMut(&mut Machine, Instant) -> Option<T>,
    ) -> Waited<T> {
        let started = Instant::now();
        let mut now = started;
        loop {
            let waitable = {
                let mut link = self.lock();
                if let Some(found) = check(&mut link.machine, now) {
                    link.transmit(now);
                    return Waited::Ready(found);
                }
                link.turn(now);
                if let Some(found) = check(&mut link.machine, now) {
                    link.transmit(now);
                    return Waited::Ready(found);
                }
                link.transmit(now);
                link.eager_waitable()
            };
            let left = timeout.saturating_sub(now.saturating_duration_since(started));
            if left.is_zero() {
                return Waited::TimedOut;
            }
            let found = waitable.wait(now, Some(left.min(SLICE)), None);
            self.lock().waited(found);
            if interrupted() {
                return Waited::Interrupted;
            }
            now = Instant::now();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Link<Machine>> {
        // A panic in another call leaves a state that is still consistent enough to be closed.
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
