//! All bridges of one host, and the sessions under them: what arrived goes to a bridge, what bridges have goes out.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::demand::Asked;
use super::egress::Egress;
use super::exchange::Exchange;
use super::ingress::{Fate, Ingress, SlotMemory};
use super::message::{Message, shape};
use super::model_frames::{self, FIRST_OF_MODELS};
use super::models::Models;
use super::output::{Output, Piece};
use super::sample_layout::SampleLayout;
use super::turns::Room;
use crate::broker::PeerId;
use crate::client::{LaneRef, Lanes, SlotId};
use crate::control::generation_of;
use crate::link::{Event, HostId, Received, Sessions};

/// What was made for other hosts is kept for so long after the last bridge: a session that was cut begins again.
pub const UNUSED_TIME: Duration = Duration::from_secs(60);

/// Why a session ends of which a further connection brings anything but samples.
const MISPLACED: &str = "a frame that only the first connection of a session may bring";

/// The state machine. `C` is a claim in a lane of a client of this host, with its slot, `L` the lane of an egress.
#[derive(Debug)]
pub struct Bridges<C, L> {
    sessions: Sessions,
    all: Exchange<C, L>,
    events: VecDeque<Event>,
}

impl<C: SlotMemory, L: Lanes> Bridges<C, L> {
    /// Without bridges.
    #[must_use]
    pub fn new(me: HostId) -> Self {
        Self { sessions: Sessions::new(me), all: Exchange::new(), events: VecDeque::new() }
    }

    /// Connections: what is dialled, accepted and closed.
    pub fn sessions(&mut self) -> &mut Sessions {
        &mut self.sessions
    }

    /// Which leader this host follows. [`Self::settle_models`] is due after each change.
    pub fn models(&mut self) -> &mut Models {
        &mut self.all.models
    }

    /// Whether samples of a product may be for a client of this host: not those of a model that does not run here.
    #[must_use]
    pub fn is_wanted(&self, product: &str) -> bool {
        generation_of(product).is_none_or(|generation| !self.all.models.is_past(generation))
    }

    /// See [`Models::settle`].
    pub fn settle_models(&mut self, now: Instant, name: impl Fn(HostId) -> String) {
        self.all.models.settle(now, name);
        self.all.follow_models();
    }

    /// Orders a product at a host; the number of the bridge. `None`: there is no session with it, no number left in this
    /// one, or no right of the host to make samples. A bridge is over with its session.
    pub fn add_ingress(&mut self, host: HostId, product: &Arc<str>, layout: &SampleLayout) -> Option<u32> {
        let id = self.sessions.session(host)?;
        if !self.sessions.rights(id).serves {
            return None;
        }
        self.all.hosts.entry(host).or_default().add(Ingress::new(Arc::clone(product), layout.clone()))
    }

    /// No client orders by a bridge any more: it is over once its claims have ended.
    pub fn remove_ingress(&mut self, now: Instant, host: HostId, bridge: u32) {
        let Exchange { hosts, ended, .. } = &mut self.all;
        let Some(found) = hosts.get_mut(&host) else { return };
        if let Some(ingress) = found.ingresses.get_mut(&bridge) {
            ingress.close(now, ended);
            found.has_news = true;
        }
    }

    /// Suppliers of the product of a bridge at its host, as it says.
    #[must_use]
    pub fn n_suppliers(&self, host: HostId, bridge: u32) -> u32 {
        self.all
            .hosts
            .get(&host)
            .and_then(|found| found.ingresses.get(&bridge))
            .map_or(0, Ingress::n_suppliers)
    }

    /// Whether [`Self::n_suppliers`] may have changed since the last call.
    pub fn take_offers(&mut self) -> bool {
        std::mem::take(&mut self.all.has_offers)
    }

    /// Whether [`Self::poll_asked`] has one.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        !self.all.asked.is_empty()
    }

    /// A product that another host orders for the first time. [`Self::set_lane`] follows once this host can make it.
    pub fn poll_asked(&mut self) -> Option<Asked> {
        self.all.asked.pop_front()
    }

    /// Suppliers of this host make the samples of a product in this lane, with `n_slots` slots. Once for each product.
    pub fn set_lane(&mut self, product: u32, lanes: L, lane: LaneRef, n_slots: u32) {
        if let Some(egress) = self.all.products.get_mut(&product) {
            egress.set_lane(lanes, lane, n_slots);
            self.all.note_news(product);
        }
    }

    /// Drops the products that no host has ordered for [`UNUSED_TIME`]; their numbers.
    pub fn drop_unused(&mut self, now: Instant) -> Vec<u32> {
        let Exchange { products, numbers, asked, models, .. } = &mut self.all;
        let unused = products.iter_mut().filter_map(|(&number, egress)| {
            // No host orders what was before a switch.
            let is_past = egress.generation().is_some_and(|generation| models.is_past(generation));
            let time = if is_past { Duration::ZERO } else { UNUSED_TIME };
            egress.is_unused(now, time).then_some(number)
        });
        let unused: Vec<_> = unused.collect();
        if !unused.is_empty() {
            products.retain(|number, _| !unused.contains(number));
            numbers.retain(|_, number| !unused.contains(number));
            asked.retain(|asked| !unused.contains(&asked.number));
        }
        unused
    }

    /// The lanes of the product's egress.
    pub fn lanes(&mut self, product: u32) -> Option<&mut L> {
        self.all.products.get_mut(&product).and_then(Egress::lanes)
    }

    /// How many orders may be claimed for a bridge now.
    pub fn room(&mut self, now: Instant, host: HostId, bridge: u32) -> Room {
        let connections = self.sessions.n_connections(host);
        self.all.ingress(host, bridge).map_or(Room::default(), |ingress| ingress.room(now, connections))
    }

    /// An order was claimed for a bridge, within its room.
    pub fn claimed(&mut self, now: Instant, host: HostId, bridge: u32, claim: C, sequence: u64) {
        match self.all.ingress(host, bridge) {
            Some(ingress) => ingress.claimed(now, claim, sequence),
            None => self.all.ended.push_back((claim, Fate::Returned)),
        }
    }

    /// The slots of clients that may be on order: half of them while suppliers of this host are attached to their lanes,
    /// else all. `n_suppliers`: of the product, at all hosts.
    pub fn set_share(&mut self, host: HostId, bridge: u32, share: u32, n_suppliers: u64) {
        if let Some(ingress) = self.all.ingress(host, bridge) {
            ingress.set_share(share, n_suppliers);
        }
    }

    /// The lane of a bridge is empty, and `n` suppliers of this host wait.
    pub fn handle_idle_suppliers(&mut self, now: Instant, host: HostId, bridge: u32, n: usize) -> bool {
        let Exchange { hosts, ended, .. } = &mut self.all;
        let Some(found) = hosts.get_mut(&host) else { return false };
        let Some(ingress) = found.ingresses.get_mut(&bridge) else { return false };
        let n_ended = ended.len();
        let any = ingress.give_back(now, n, ended);
        found.has_news |= any;
        if ended.len() > n_ended {
            let product = Arc::clone(ingress.product());
            self.all.hold(now, &product);
        }
        any
    }

    /// The lane of a bridge is not served any more: orders that no supplier has begun with go back.
    pub fn give_back(&mut self, now: Instant, host: HostId, bridge: u32) {
        let Exchange { hosts, ended, .. } = &mut self.all;
        let Some(found) = hosts.get_mut(&host) else { return };
        if let Some(ingress) = found.ingresses.get_mut(&bridge) {
            ingress.give_all_back(now, ended);
            found.has_news = true;
        }
    }

    /// A claim that has ended, and how. Such a claim is to be published or returned at once.
    pub fn poll_ended(&mut self) -> Option<(C, Fate)> {
        self.all.ended.pop_front()
    }

    /// A bridge that the other host does not serve, and why.
    pub fn poll_refused(&mut self) -> Option<(HostId, u32, String)> {
        self.all.refused.pop_front()
    }

    /// What has become of sessions.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Orders of a product have ended, or its suppliers have come or gone; whether an order has ended.
    ///
    /// `measure`: how many bytes from the beginning of a slot on the sample has, or why it has none that a sample may have.
    pub fn handle_lanes(
        &mut self,
        product: u32,
        measure: &mut dyn FnMut(SlotId) -> Result<u64, String>,
    ) -> bool {
        let Exchange { hosts, products, .. } = &mut self.all;
        let Some(egress) = products.get_mut(&product) else { return false };
        let any = egress.handle_lanes(
            |host, slot| hosts.entry(host).or_default().written.push_back((product, slot)),
            measure,
        );
        self.all.note_news(product);
        any
    }

    /// This host stops: orders that no supplier has begun with go back at once, and none is taken any more.
    pub fn drain(&mut self) {
        self.all.is_draining = true;
        let products: Vec<_> = self.all.products.keys().copied().collect();
        for product in products {
            if let Some(egress) = self.all.products.get_mut(&product) {
                egress.drain();
            }
            self.all.note_news(product);
        }
    }

    /// Takes bytes of a connection. Those of samples go into the slots of their claims. Bytes are left where
    /// [`Sessions::wants_bytes`] says no.
    pub fn receive(&mut self, now: Instant, id: PeerId, bytes: &mut &[u8]) {
        loop {
            if let Some((claim, offset, left)) = self.piece(id) {
                let (part, rest) = bytes.split_at(left.min(bytes.len()));
                claim.store(offset, part);
                *bytes = rest;
                self.stored(now, id, part.len());
            } else if self.sessions.bulk_left(id) > 0 {
                self.sessions.refuse(now, id, "the bridge of a piece has ended");
            }
            let shape = |kind| if kind < FIRST_OF_MODELS { shape(kind) } else { model_frames::shape(kind) };
            let (orders, is_first) = (self.sessions.rights(id).orders, self.sessions.is_first(id));
            let Some(received) = self.sessions.receive(now, id, bytes, shape) else { break };
            let Received { host, kind, payload, left } = received;
            let handled = if kind < FIRST_OF_MODELS {
                Message::decode(kind, payload, left).map_err(|error| error.to_string()).and_then(
                    |(bridge, message)| match message {
                        // The others have an order, which only the first connection keeps.
                        message if !is_first && !matches!(message, Message::Piece(..)) => {
                            Err(MISPLACED.to_owned())
                        }
                        Message::Open(..) if !orders => self.all.close(host, bridge),
                        message => self.all.handle(now, (host, id), bridge, message, left),
                    },
                )
            } else if !is_first {
                Err(MISPLACED.to_owned())
            } else {
                self.all.models.handle(host, orders, kind, payload).map_err(|error| error.to_string())
            };
            if let Err(why) = handled {
                self.sessions.refuse(now, id, &why);
            }
            self.all.follow_models();
            self.follow_sessions();
        }
        self.follow_sessions();
    }

    /// Where the next bytes of a connection go: the claim, the offset in its slot, and how many they are. The driver may
    /// put them there itself.
    #[must_use]
    pub fn piece(&self, id: PeerId) -> Option<(&C, u64, usize)> {
        let left = self.sessions.bulk_left(id);
        if left == 0 {
            return None;
        }
        let found = self.all.hosts.get(&self.sessions.host_of(id)?)?;
        let (bridge, tag, _) = found.arriving(id)?;
        let (claim, offset) = found.ingresses.get(&bridge)?.claim(tag)?;
        Some((claim, offset, left))
    }

    /// `n` bytes were stored there.
    pub fn stored(&mut self, now: Instant, id: PeerId, n: usize) {
        let Some(host) = self.sessions.host_of(id) else { return };
        self.sessions.stored(id, n);
        let is_over = self.sessions.bulk_left(id) == 0;
        let Exchange { hosts, ended, .. } = &mut self.all;
        let Some(found) = hosts.get_mut(&host) else { return };
        let Some((bridge, tag, is_last)) = found.arriving(id) else { return };
        let ingress = found.ingresses.get_mut(&bridge);
        let ends = (is_over, is_over && is_last);
        let stored = ingress.map_or(Ok(()), |it| it.stored(now, tag, n, ends, ended));
        found.arriving.retain(|(by, _)| *by != id || !is_over);
        found.has_news |= is_over;
        if let Err(why) = stored {
            self.sessions.refuse(now, id, &why);
        }
    }

    /// What is to be written to a connection next: frames of the session, of bridges if it is the first one of its session,
    /// then samples, each by the connection that took its first piece. Of a piece
    /// [`Self::sent`] is due once the kernel has its bytes.
    pub fn poll_output(&mut self, id: PeerId) -> Option<Output> {
        let (host, is_first) = (self.sessions.host_of(id), self.sessions.is_first(id));
        let out = self.sessions.outbox(id)?;
        if let (true, Some(host)) = (out.is_empty(), host) {
            if is_first {
                self.all.encode(host, out);
            }
            if out.is_empty() {
                return self.all.next_piece(host, id).map(Output::Piece);
            }
        }
        (!out.is_empty()).then(|| Output::Frames(std::mem::take(out).into_bytes()))
    }

    /// The kernel has the bytes of a piece.
    pub fn sent(&mut self, piece: &Piece) {
        if piece.is_last
            && let Some(egress) = self.all.products.get_mut(&piece.product)
        {
            egress.sent(piece.slot);
        }
    }

    /// See [`Sessions::disconnected`]. What was handed out for this connection needs no [`Self::sent`] any more.
    pub fn disconnected(&mut self, now: Instant, id: PeerId, why: &str) {
        self.sessions.disconnected(now, id, why);
        self.follow_sessions();
    }

    /// See [`Sessions::handle_timeout`].
    pub fn handle_timeout(&mut self, now: Instant) {
        let Exchange { hosts, products, .. } = &self.all;
        self.sessions.handle_timeout(now, |host| {
            let waits = hosts.get(&host).is_some_and(|found| found.ingresses.values().any(Ingress::waits));
            waits || products.values().any(|egress| egress.owes(host))
        });
    }

    /// When [`Self::handle_timeout`], [`Self::room`] and [`Sessions::poll_dial`] should be called even if nothing happens.
    #[must_use]
    pub fn next_at(&self) -> Option<Instant> {
        let ingresses = self.all.hosts.values().flat_map(|found| found.ingresses.values());
        let due = ingresses.filter_map(Ingress::held_until).chain(self.sessions.next_at());
        due.chain(self.all.models.next_at()).min()
    }

    /// Whether other hosts wait for samples of this one.
    #[must_use]
    pub fn owes(&self) -> bool {
        self.all.products.values().any(|egress| egress.hosts().any(|host| egress.owes(host)))
    }

    fn follow_sessions(&mut self) {
        while let Some(event) = self.sessions.poll_event() {
            match event {
                Event::Began(host) => self.all.models.begin(host),
                Event::Ended(host, _) => self.all.end(host),
            }
            self.events.push_back(event);
        }
    }
}
