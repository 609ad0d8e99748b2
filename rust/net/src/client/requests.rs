//! What a client's user can ask for: samples, blocks, slots, positions, products, statistics.

use std::time::{Duration, Instant};

use softs_proto::client::{BlockId, Kept, Outcome, Plan, ReleaseError, RequestId, SlotId};

use super::driver::Client;
use super::state::Machine;
use crate::waited::Waited;

/// A new order waits for the broker's SUPPLY at most this long; the state machine has less patience.
const SUPPLY_WAIT: Duration = Duration::from_millis(100);

impl Client {
    /// The finished slot of `product` if there is one; never blocks.
    pub fn try_sample(&self, product: &str) -> Option<SlotId> {
        self.attempt(|machine, now| machine.request_sample(now, product))
    }

    /// A finished slot of `product`, held by the caller.
    pub fn request_sample(
        &self,
        product: &str,
        timeout: Duration,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Waited<SlotId> {
        self.wait_for_samples(
            product,
            timeout,
            interrupted,
            |_| 1,
            |machine, now| machine.request_sample(now, product),
        )
    }

    /// A block of finished slots if there is one; never blocks.
    pub fn try_block(&self, product: &str) -> Option<BlockId> {
        self.attempt(|machine, now| machine.request_block(now, product))
    }

    /// A block of finished slots with consecutive samples, held by the caller.
    pub fn request_block(
        &self,
        product: &str,
        timeout: Duration,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Waited<BlockId> {
        let missing = |machine: &Machine| machine.n_missing(product);
        self.wait_for_samples(product, timeout, interrupted, missing, |machine, now| {
            machine.request_block(now, product)
        })
    }

    /// As many finished slots of `product` as there are, `most` at most, held by the caller, appended to `slots`; waits
    /// until there is one.
    pub fn request_samples(
        &self,
        product: &str,
        most: usize,
        slots: &mut Vec<SlotId>,
        timeout: Duration,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Waited<()> {
        let mut take = |machine: &mut Machine, now| take_samples(machine, now, product, most, slots);
        match self.attempt(&mut take) {
            Some(()) => Waited::Ready(()),
            None => self.wait_for_samples(product, timeout, interrupted, |_| 1, take),
        }
    }

    /// As [`Self::request_samples`], without waiting: whether there were any.
    pub fn try_samples(&self, product: &str, most: usize, slots: &mut Vec<SlotId>) -> bool {
        self.attempt(|machine, now| take_samples(machine, now, product, most, slots)).is_some()
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
            self.wait_until_sent(interrupted);
        }
        placed
    }

    /// Orders are on their way when this returns, whenever the next call comes.
    fn wait_until_sent(&self, interrupted: &mut dyn FnMut() -> bool) {
        let sent = |machine: &mut Machine, now| {
            let late = machine.poll_timeout().is_some_and(|at| at <= now);
            (late || !machine.awaits_supply()).then_some(())
        };
        self.wait(SUPPLY_WAIT, interrupted, sent);
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
        self.attempt(|machine, now| {
            machine.take_completed().or_else(|| {
                machine.handle_lanes(now);
                machine.take_completed()
            })
        })
    }

    /// Makes a held slot free.
    ///
    /// # Errors
    /// No such slot, or not held.
    pub fn release_slot(&self, slot: u64) -> Result<(), ReleaseError> {
        self.release(|machine| machine.release_slot(slot))
    }

    /// Makes a held slot free; calls `overwrite` before, if it is held. No supplier writes to it meanwhile.
    ///
    /// # Errors
    /// No such slot, or not held; `overwrite` was not called then.
    pub fn release_slot_after(&self, slot: u64, overwrite: impl FnOnce()) -> Result<(), ReleaseError> {
        self.release(|machine| {
            if machine.is_held(slot) {
                overwrite();
            }
            machine.release_slot(slot)
        })
    }

    /// Makes held slots free.
    ///
    /// # Errors
    /// No such slot, or not held; the slots before it are free.
    pub fn release_slots(&self, slots: &[SlotId]) -> Result<(), ReleaseError> {
        self.release(|machine| slots.iter().try_for_each(|&slot| machine.release_slot(u64::from(slot))))
    }

    /// Makes a held block free.
    ///
    /// # Errors
    /// No such block, or not held.
    pub fn release_block(&self, block: BlockId) -> Result<(), ReleaseError> {
        self.release(|machine| machine.release_block(block))
    }

    /// Makes slots free and orders the next samples into them.
    fn release<T>(&self, act: impl FnOnce(&mut Machine) -> T) -> T {
        let mut inner = self.lock();
        let done = act(&mut inner.link.machine);
        if !self.is_closed() {
            let now = Instant::now();
            inner.link.machine.order_ahead(now);
            inner.settle(now, false);
        }
        done
    }

    /// How many samples of the stream of `product` were handed out.
    pub fn position(&self, product: &str) -> u64 {
        self.lock().link.machine.position(product)
    }

    /// How many places were ordered of the stream of which most were.
    pub fn n_numbered(&self) -> u64 {
        self.lock().link.machine.n_numbered()
    }

    /// Goes to `position` of the stream of `product` as `plan` counts it; what becomes of what was ordered.
    pub fn seek(&self, product: &str, plan: Plan, position: u64) -> Kept {
        self.lock().link.machine.seek(product, plan, position)
    }

    /// Waits until a broker has answered our HELLO; the number it gave us.
    pub fn hello(&self, timeout: Duration, interrupted: &mut dyn FnMut() -> bool) -> Waited<u64> {
        self.wait(timeout, interrupted, |machine, _| machine.peer_id())
    }

    /// The number that the broker gave us.
    pub fn peer_id(&self) -> Option<u64> {
        self.lock().link.machine.peer_id()
    }

    /// Takes one order back; whether the broker did. `None`: there is no such order.
    pub fn cancel(
        &self,
        order_id: &str,
        timeout: Duration,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Option<Waited<Outcome>> {
        let request = {
            let machine = &mut self.lock().link.machine;
            machine.parse_order_id(order_id).and_then(|number| machine.cancel(number))
        }?;
        Some(self.outcome(request, timeout, interrupted))
    }

    /// Makes everything ordered so far stale and takes back what no supplier has started.
    pub fn discard(&self, timeout: Duration, interrupted: &mut dyn FnMut() -> bool) -> Waited<Outcome> {
        let request = self.lock().link.machine.discard();
        self.outcome(request, timeout, interrupted)
    }

    /// Takes samples of `product` alone from now on, and orders some `ahead`; what else was ordered is discarded. Waits
    /// for other products end. What no supplier has started is taken back at once in lanes; a broker is given `timeout`
    /// to answer.
    pub fn follow(
        &self,
        product: &str,
        ahead: bool,
        timeout: Duration,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Waited<Outcome> {
        let order = |machine: &mut Machine, now| {
            if ahead {
                machine.order_followed(now);
            }
        };
        let request = {
            let mut inner = self.lock();
            if self.is_closed() {
                return Waited::Interrupted;
            }
            let now = Instant::now();
            let machine = &mut inner.link.machine;
            let request = machine.follow(product);
            order(machine, now);
            inner.settle(now, true);
            inner.link.machine.lanes().wake_own();
            request
        };
        let waited = self.outcome(request, timeout, interrupted);
        self.attempt(|machine, now| -> Option<()> {
            order(machine, now);
            None
        });
        if ahead {
            self.wait_until_sent(interrupted);
        }
        waited
    }

    /// The product that is followed is not wanted any more: what was ordered of it is discarded, and all requests get
    /// nothing until one is followed. Whether it was `product`; nothing happens if not.
    pub fn leave(&self, product: &str) -> bool {
        let mut inner = self.lock();
        let is_left = !self.is_closed() && inner.link.machine.leave(product);
        if is_left {
            inner.settle(Instant::now(), true);
            inner.link.machine.lanes().wake_own();
        }
        is_left
    }

    /// The broker's statistics, with a diagnosis of `product` if given and if the broker can.
    pub fn stats(
        &self,
        product: Option<&str>,
        timeout: Duration,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Waited<Outcome> {
        self.ask(timeout, interrupted, |machine| machine.request_stats(product))
    }

    /// The broker's statistics and its connected peers, if the broker can report them.
    pub fn detail(&self, timeout: Duration, interrupted: &mut dyn FnMut() -> bool) -> Waited<Outcome> {
        self.ask(timeout, interrupted, Machine::request_detail)
    }

    /// How many suppliers the lane of `product` has, and how many of its orders are open there.
    pub fn lane_state(&self, product: &str) -> (u32, u32) {
        self.lock().link.machine.lane_state(product)
    }

    /// How many blocks the user holds.
    pub fn n_blocks_held(&self) -> usize {
        self.lock().link.machine.n_blocks_held()
    }

    /// How many slots the user holds.
    pub fn n_held(&self) -> usize {
        self.lock().link.machine.n_held()
    }

    /// Waits for a connection, asks, and waits for the answer.
    fn ask(
        &self,
        timeout: Duration,
        interrupted: &mut dyn FnMut() -> bool,
        request: impl FnOnce(&mut Machine) -> RequestId,
    ) -> Waited<Outcome> {
        let started = Instant::now();
        match self.wait(timeout, interrupted, |machine, _| machine.is_connected().then_some(())) {
            Waited::Ready(()) => {}
            Waited::TimedOut => return Waited::TimedOut,
            Waited::Interrupted => return Waited::Interrupted,
        }
        let request = request(&mut self.lock().link.machine);
        self.outcome(request, timeout.saturating_sub(started.elapsed()), interrupted)
    }

    fn outcome(
        &self,
        request: RequestId,
        timeout: Duration,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Waited<Outcome> {
        let waited = self.wait(timeout, interrupted, |machine, _| machine.take_outcome(request));
        if !matches!(waited, Waited::Ready(_)) {
            self.lock().link.machine.abandon(request);
        }
        waited
    }
}

/// Appends finished slots until there are `most`; `None` where there are none at all.
fn take_samples(
    machine: &mut Machine,
    now: Instant,
    product: &str,
    most: usize,
    slots: &mut Vec<SlotId>,
) -> Option<()> {
    while slots.len() < most
        && let Some(slot) = machine.request_sample(now, product)
    {
        slots.push(slot);
    }
    (!slots.is_empty()).then_some(())
}
