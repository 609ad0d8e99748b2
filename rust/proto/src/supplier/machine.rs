//! The state machine of a supplier.

use std::collections::VecDeque;
use std::mem::{replace, take};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::config::Config;
use super::credit::{Call, Credit};
use super::lanes::Lanes;
use super::work::{Lease, Work};
use crate::Dialect;
use crate::limits::MAX_ERROR_TEXT_BYTES;
use crate::log::{Level, LogRecord};
use crate::text::end_of;
use crate::wire::{MediumKind, MediumProfile, Message, SupplierRequest, ToSupplier};

/// Results wait at most this long for others to join their message, as long as there is other work to do.
const FLUSH_AFTER: Duration = Duration::from_micros(200);
/// A softs broker drops a supplier that sends nothing for `supplier_timeout` (60 s), without a message; HELLO is
/// repeated this often.
const SOFTS_HELLO_EVERY: Duration = Duration::from_secs(10);
/// A softs broker gives an order that has been leased for 10 s to another supplier: from then on this one may not write
/// to its slot (W3).
const SOFTS_LEASE: Duration = Duration::from_millis(9_900);

/// The supplier's state machine.
#[derive(Debug, Default)]
pub struct Supplier {
    config: Config,
    dialect: Option<Dialect>,
    /// Counts connections: a lease is good for the one it came on.
    connection: u64,
    queue: VecDeque<Work>,
    current: Option<Work>,
    call: Option<Call>,
    done: Vec<u64>,
    failed: Vec<(u64, String)>,
    returned: Vec<u64>,
    oldest_result_at: Option<Instant>,
    /// Softs dialect: the one result to send, and what else is due.
    softs_done: Option<(String, bool)>,
    /// The hello to send, or the time of the next one under a softs broker.
    hello_due: bool,
    /// Native dialect: MEDIUM is due, before HELLO.
    medium_due: bool,
    next_softs_hello: Option<Instant>,
    ready_due: bool,
    goodbye_due: bool,
    leaving: bool,
    /// The broker has answered GOODBYE: it sends no more leases.
    left: bool,
    credit: Credit,
    /// A call for a lane takes long: no leases are wanted.
    paused: bool,
    /// The open requests, in the order in which the broker answers them.
    expected: VecDeque<Expected>,
    hello: Option<Result<u64, String>>,
    terminated: bool,
    pub(super) lanes: Lanes,
    log: VecDeque<LogRecord>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    Hello,
    Done,
    Goodbye,
}

impl Supplier {
    /// A supplier without leases, not connected.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let lanes = Lanes::new(config.medium.kind == MediumKind::Link);
        Self { lanes, config, ..Self::default() }
    }

    /// The broker's answer to the HELLO of the present connection: the number of this supplier, or why it was refused.
    #[must_use]
    pub fn hello(&self) -> Option<&Result<u64, String>> {
        self.hello.as_ref()
    }

    /// Whether the broker asked this supplier to stop.
    #[must_use]
    pub fn is_terminated(&self) -> bool {
        self.terminated
    }

    /// Whether the broker has confirmed GOODBYE and has all leases again; true without a broker.
    #[must_use]
    pub fn has_left(&self) -> bool {
        self.dialect.is_none() || (self.left && self.returned.is_empty() && self.oldest_result_at.is_none())
    }

    /// Whether a lease waits to be begun.
    #[must_use]
    pub fn has_work(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Whether it holds leases, which end with the connection.
    #[must_use]
    pub fn has_leases(&self) -> bool {
        self.current.is_some() || self.has_work()
    }

    /// Since when the present call of the generator runs, or what it has made is on the wire.
    #[must_use]
    pub fn begun_at(&self) -> Option<Instant> {
        self.call.as_ref().map(Call::begun_at)
    }

    /// The next log record.
    pub fn poll_log(&mut self) -> Option<LogRecord> {
        self.log.pop_front()
    }

    // -- commands ---------------------------------------------------------------------------------

    /// Takes the next lease to work on.
    pub fn begin(&mut self, now: Instant) -> Option<Work> {
        let work = self.queue.pop_front()?;
        self.call = Some(Call::begin(now));
        self.current = Some(work.clone());
        Some(work)
    }

    /// Whether the current lease still allows writes: its connection is up, and the deadline of a softs broker has not
    /// passed (W3).
    #[must_use]
    pub fn may_write(&self, now: Instant) -> bool {
        self.current.as_ref().is_some_and(|work| {
            self.dialect.is_some()
                && work.connection == self.connection
                && (matches!(work.lease, Lease::Native(_))
                    || now.saturating_duration_since(work.leased_at) < SOFTS_LEASE)
        })
    }

    /// The generator has made the sample of the current lease: the rest of the call waits for the wire, and is no work.
    pub fn note_made(&mut self, now: Instant) {
        if let Some(call) = &mut self.call {
            call.note_made(now);
        }
    }

    /// Ends the current lease: the slot is written, or why it is not.
    pub fn finish(&mut self, now: Instant, result: Result<(), String>) {
        let Some(work) = self.current.take() else {
            return;
        };
        self.ready_due |= self.call.take().is_some_and(|call| self.credit.observe(&call, now));
        if work.connection != self.connection || self.dialect.is_none() {
            // The client has ordered it again through the new connection (C3).
            return;
        }
        match (work.lease, result) {
            (Lease::Native(lease), Ok(())) => self.done.push(lease),
            (Lease::Native(lease), Err(text)) => {
                self.failed.push((lease, end_of(text, MAX_ERROR_TEXT_BYTES)))
            }
            (Lease::Softs(order_id), result) => {
                let in_time = now.saturating_duration_since(work.leased_at) < SOFTS_LEASE;
                self.softs_done = Some((order_id, result.is_ok() && in_time));
            }
        }
        self.oldest_result_at.get_or_insert(now);
    }

    /// A call takes long: returns the leases that wait behind it, and asks for no more meanwhile. What waits behind a
    /// sample on the wire stays as long as that is only far away.
    pub fn return_unstarted(&mut self, now: Instant) {
        if !self.call.as_ref().is_some_and(|call| call.is_on_its_way(now)) {
            self.return_queue();
        }
    }

    fn return_queue(&mut self) {
        if self.queue.is_empty() {
            return;
        }
        self.credit.shrink();
        self.ready_due = true;
        for work in self.queue.drain(..) {
            if let Lease::Native(lease) = work.lease {
                self.returned.push(lease);
            }
        }
    }

    /// A call for an order of a lane takes long: no leases are wanted until [`Supplier::resume`]. One that is returned
    /// while none is held would come again at once.
    pub fn pause(&mut self) {
        self.ready_due |= !replace(&mut self.paused, true);
    }

    /// The call that took long has ended: leases are wanted again.
    pub fn resume(&mut self) {
        self.ready_due |= take(&mut self.paused);
    }

    /// Whether it is connected to a broker that knows of lanes.
    #[must_use]
    pub fn is_native(&self) -> bool {
        self.dialect == Some(Dialect::Native)
    }

    /// Sends GOODBYE; leases not begun are returned.
    pub fn leave(&mut self) {
        if self.leaving {
            return;
        }
        self.return_queue();
        self.leaving = true;
        self.lanes.leave();
        self.ready_due = false;
        self.goodbye_due = self.dialect.is_some();
    }

    // -- events -----------------------------------------------------------------------------------

    /// A connection to a broker is up.
    pub fn handle_connected(&mut self, now: Instant, dialect: Dialect) {
        self.dialect = Some(dialect);
        self.connection += 1;
        self.hello = None;
        self.hello_due = true;
        self.medium_due = dialect == Dialect::Native && self.config.medium != MediumProfile::default();
        self.ready_due = true;
        self.next_softs_hello = (dialect == Dialect::Softs).then(|| now + SOFTS_HELLO_EVERY);
    }

    /// The connection ended, and all leases with it.
    pub fn handle_disconnected(&mut self) {
        self.dialect = None;
        self.queue.clear();
        self.done.clear();
        self.failed.clear();
        self.returned.clear();
        self.oldest_result_at = None;
        self.softs_done = None;
        self.next_softs_hello = None;
        self.expected.clear();
        self.goodbye_due = false;
        self.lanes.handle_disconnected();
    }

    /// A message of the broker.
    pub fn handle_message(&mut self, now: Instant, frames: &[&[u8]]) {
        match ToSupplier::decode(frames) {
            Ok(ToSupplier::Reply(reply)) => match self.expected.pop_front() {
                Some(Expected::Hello) => {
                    self.hello = Some(match (reply.ok, reply.peer_id) {
                        (true, Some(peer_id)) => Ok(peer_id),
                        _ => Err(reply.error.unwrap_or("no reason given").to_owned()),
                    });
                }
                Some(Expected::Goodbye) => self.left = true,
                Some(Expected::Done) => {}
                None => self.warn("the broker answered a request that was never made".to_owned()),
            },
            Ok(ToSupplier::Work { order_id, product_id, address, offset }) => {
                self.enqueue(Work::of_softs(order_id, (product_id, address, offset), self.connection, now));
            }
            Ok(ToSupplier::Works(groups)) => {
                for group in groups {
                    let (product, address): (Arc<str>, Arc<str>) =
                        (Arc::from(group.product_id), Arc::from(group.address));
                    for (lease, offset, sequence) in group.leases {
                        self.enqueue(Work {
                            product_id: product.clone(),
                            address: address.clone(),
                            segment_id: group.segment_id,
                            offset,
                            slot_size: group.slot_size,
                            sequence,
                            lease: Lease::Native(lease),
                            connection: self.connection,
                            leased_at: now,
                        });
                    }
                }
            }
            // Offers that crossed GOODBYE: the broker withdraws them by itself.
            Ok(ToSupplier::Attach(_)) if self.leaving => {}
            Ok(ToSupplier::Attach(offers)) => self.lanes.attach(now, &offers),
            Ok(ToSupplier::Detach(names)) => self.lanes.detach(&names),
            Ok(ToSupplier::Terminate) => self.terminated = true,
            Err(error) => self.warn(format!("message of the broker not understood: {error}")),
        }
    }

    /// When [`Supplier::poll_transmit`] should be drained even if nothing happens.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let flush = self.oldest_result_at.map(|at| at + FLUSH_AFTER);
        let hello = self.next_softs_hello.filter(|_| self.current.is_none());
        [flush, hello].into_iter().flatten().min()
    }

    /// Whether there is something to send now: results wait for others only while there is other work.
    #[must_use]
    pub fn wants_transmit(&self, now: Instant) -> bool {
        let has_results = self.oldest_result_at.is_some();
        let full = self.done.len() + self.failed.len() >= self.credit.window().div_ceil(2) as usize;
        self.hello_due
            || self.ready_due
            || self.goodbye_due
            || !self.returned.is_empty()
            || self.lanes.has_news()
            || (has_results && (self.queue.is_empty() || full))
            || self.poll_timeout().is_some_and(|at| at <= now)
    }

    /// Fills `out` with the next message for the broker; `false` when there is none.
    pub fn poll_transmit(&mut self, now: Instant, out: &mut Message) -> bool {
        out.clear();
        let Some(dialect) = self.dialect else {
            return false;
        };
        if self.next_softs_hello.is_some_and(|at| at <= now) && self.current.is_none() {
            self.hello_due = true;
            self.ready_due = true;
        }
        if take(&mut self.medium_due) {
            SupplierRequest::Medium(self.config.medium).encode(out);
            return true;
        }
        if self.hello_due {
            self.hello_due = false;
            self.next_softs_hello = (dialect == Dialect::Softs).then(|| now + SOFTS_HELLO_EVERY);
            self.expected.push_back(Expected::Hello);
            let product_ids = self.config.product_ids.iter().map(String::as_str).collect();
            let name = (dialect == Dialect::Native).then_some(self.config.name.as_str());
            SupplierRequest::Hello { product_ids, name }.encode(out);
            return true;
        }
        match dialect {
            Dialect::Native => self.transmit_native(out),
            Dialect::Softs => self.transmit_softs(out),
        }
    }

    fn transmit_native(&mut self, out: &mut Message) -> bool {
        if self.ready_due && !self.leaving {
            self.ready_due = false;
            let wanted = if self.paused { 0 } else { self.credit.window() };
            SupplierRequest::Ready { credit: Some(u64::from(wanted)) }.encode(out);
            return true;
        }
        if self.lanes.encode(out) {
            return true;
        }
        if self.oldest_result_at.take().is_some() || !self.returned.is_empty() {
            let (done, failed) = (take(&mut self.done), take(&mut self.failed));
            let returned = take(&mut self.returned);
            let failed = failed.iter().map(|(lease, text)| (*lease, text.as_str())).collect();
            SupplierRequest::Dones { done, failed, returned }.encode(out);
            return true;
        }
        self.transmit_goodbye(out)
    }

    fn transmit_softs(&mut self, out: &mut Message) -> bool {
        if let Some((order_id, success)) = self.softs_done.take() {
            self.oldest_result_at = None;
            self.ready_due = true;
            self.expected.push_back(Expected::Done);
            SupplierRequest::Done { order_id: &order_id, success }.encode(out);
            return true;
        }
        // One lease at a time: READY while one is held would ask for a second.
        if self.ready_due && !self.leaving && !self.paused && self.current.is_none() && self.queue.is_empty()
        {
            self.ready_due = false;
            SupplierRequest::Ready { credit: None }.encode(out);
            return true;
        }
        self.transmit_goodbye(out)
    }

    fn transmit_goodbye(&mut self, out: &mut Message) -> bool {
        if !take(&mut self.goodbye_due) {
            return false;
        }
        self.expected.push_back(Expected::Goodbye);
        SupplierRequest::Goodbye.encode(out);
        true
    }

    fn enqueue(&mut self, work: Work) {
        if !self.leaving {
            self.queue.push_back(work);
        } else if let Lease::Native(lease) = work.lease {
            self.returned.push(lease);
        }
    }

    fn warn(&mut self, text: String) {
        self.log.push_back(LogRecord { level: Level::Warning, text });
    }
}
