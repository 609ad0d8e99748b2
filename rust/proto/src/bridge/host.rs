//! All bridges of one host, and the sessions under them: what arrived goes to a bridge, what bridges have goes out.

use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;
use std::time::Instant;

use super::egress::Egress;
use super::ingress::{Fate, Ingress};
use super::message::{Message, PIECE_HEADER_BYTES, shape};
use super::remote::{Handling, Piece, Remote, Speaker};
use crate::broker::PeerId;
use crate::client::{Lanes, SlotId};
use crate::framing::Outbox;
use crate::limits::MAX_BRIDGES;
use crate::link::{Class, Event, HostId, Identity, Received, Sessions, Ticket, Tickets};

/// What is to be written to a connection next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// These bytes.
    Frames(Vec<u8>),
    /// A piece of a sample.
    Piece(Piece),
}

/// The state machine. `C` is a claim in a lane of a client of this host, `L` the lane of an egress.
#[derive(Debug)]
pub struct Bridges<C, L> {
    sessions: Sessions,
    hosts: BTreeMap<HostId, Remote<C>>,
    products: BTreeMap<u32, Egress<L>>,
    tickets: Tickets,
    ended: VecDeque<(C, Fate)>,
    refused: VecDeque<(HostId, u32, String)>,
    events: VecDeque<Event>,
}

impl<C, L: Lanes> Bridges<C, L> {
    /// Without bridges.
    #[must_use]
    pub fn new(me: Identity) -> Self {
        Self {
            sessions: Sessions::new(me),
            hosts: BTreeMap::new(),
            products: BTreeMap::new(),
            tickets: Tickets::default(),
            ended: VecDeque::new(),
            refused: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// Connections: what is dialled, accepted and closed.
    pub fn sessions(&mut self) -> &mut Sessions {
        &mut self.sessions
    }

    /// The broker has introduced a host that serves a product; the number of the bridge. `None`: there is no room, or it
    /// is this host.
    ///
    /// `lengths`: bytes that a sample may have; exactly one number unless tensors are ragged.
    pub fn add_ingress(
        &mut self,
        now: Instant,
        host: HostId,
        ticket: Ticket,
        lengths: RangeInclusive<u64>,
    ) -> Option<u32> {
        if !self.sessions.want(now, host, true) {
            return None;
        }
        let is_open = self.sessions.session(host).is_some();
        let found = self.hosts.entry(host).or_default();
        let bridge = found.ingresses.keys().next_back().map_or(0, |last| last + 1);
        if bridge as usize >= MAX_BRIDGES {
            return None;
        }
        let mut ingress = Ingress::new(ticket, lengths);
        if is_open {
            ingress.begin();
            found.speakers.push(Speaker::Ingress(bridge));
        }
        found.ingresses.insert(bridge, ingress);
        Some(bridge)
    }

    /// This host serves a product to others from now on, through a lane of its own with `n_slots` slots.
    pub fn add_egress(
        &mut self,
        product: u32,
        name: &str,
        lanes: L,
        n_slots: u32,
        lengths: RangeInclusive<u64>,
    ) {
        self.products.insert(product, Egress::new(lanes, name, n_slots, lengths));
    }

    /// The broker has introduced a host that wants a product; `false` where there are too many tickets.
    pub fn admit(&mut self, now: Instant, ticket: Ticket, host: HostId, product: u32) -> bool {
        self.sessions.want(now, host, true) && self.tickets.grant(now, ticket, host, product)
    }

    /// How many orders may be claimed for a bridge now.
    pub fn room(&mut self, now: Instant, host: HostId, bridge: u32) -> usize {
        let Some((_, rtt)) = self.sessions.session(host) else { return 0 };
        self.ingress(host, bridge).map_or(0, |ingress| ingress.room(now, rtt))
    }

    /// An order was claimed for a bridge, within its room.
    pub fn claimed(&mut self, host: HostId, bridge: u32, claim: C, sequence: u64) {
        match self.ingress(host, bridge) {
            Some(ingress) => ingress.claimed(claim, sequence),
            None => self.ended.push_back((claim, Fate::Returned)),
        }
        self.speak(host, Speaker::Ingress(bridge));
    }

    /// The slots of clients that may be on order: half of them while suppliers of this host are attached to their lanes,
    /// else all.
    pub fn set_share(&mut self, host: HostId, bridge: u32, share: u32) {
        if let Some(ingress) = self.ingress(host, bridge) {
            ingress.set_share(share);
        }
    }

    /// The lane of a bridge is empty, and `n` suppliers of this host wait.
    pub fn handle_idle_suppliers(&mut self, now: Instant, host: HostId, bridge: u32, n: usize) {
        if let Some(ingress) = self.hosts.get_mut(&host).and_then(|found| found.ingresses.get_mut(&bridge)) {
            ingress.give_back(now, n, &mut self.ended);
        }
        self.speak(host, Speaker::Ingress(bridge));
    }

    /// A claim that has ended, and how. Such a claim is to be published or returned at once.
    pub fn poll_ended(&mut self) -> Option<(C, Fate)> {
        self.ended.pop_front()
    }

    /// A bridge that the other host does not serve, and why; it is tried again in the next session.
    pub fn poll_refused(&mut self) -> Option<(HostId, u32, String)> {
        self.refused.pop_front()
    }

    /// What has become of sessions.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The longest call of a product's suppliers of late.
    pub fn set_longest_call(&mut self, product: u32, us: u32) {
        if let Some(egress) = self.products.get_mut(&product) {
            egress.set_longest_call(us);
        }
    }

    /// Orders of a product have ended, or its suppliers have come or gone; see [`Self::add_egress`].
    ///
    /// `measure`: how many bytes from the beginning of a slot on the sample has.
    pub fn handle_lanes(&mut self, product: u32, measure: &mut dyn FnMut(SlotId) -> u64) {
        let Some(egress) = self.products.get_mut(&product) else { return };
        for (host, slot) in egress.handle_lanes(measure) {
            if let Some(found) = self.hosts.get_mut(&host) {
                found.written.push_back((product, slot));
            }
        }
        self.speak_of(product);
    }

    /// This host stops: orders that no supplier has begun with go back at once, and none is taken any more.
    pub fn drain(&mut self) {
        let products: Vec<_> = self.products.keys().copied().collect();
        for product in products {
            if let Some(egress) = self.products.get_mut(&product) {
                egress.drain();
            }
            self.speak_of(product);
        }
    }

    /// Takes bytes of a connection, all but those of a piece: where [`Self::piece`] says so, what is left goes there.
    pub fn receive(&mut self, now: Instant, id: PeerId, bytes: &mut &[u8]) {
        loop {
            let handled = match self.sessions.receive(now, id, bytes, shape) {
                None => break,
                Some(received) => Message::decode(received.kind, received.payload, received.left)
                    .map_err(|error| error.to_string())
                    .and_then(|(bridge, message)| {
                        let Received { host, left, .. } = received;
                        let found = self.hosts.entry(host).or_default();
                        let mut handling = Handling {
                            now,
                            host,
                            found,
                            products: &mut self.products,
                            tickets: &mut self.tickets,
                            ended: &mut self.ended,
                            refused: &mut self.refused,
                        };
                        handling.handle(bridge, message, left)
                    }),
            };
            if let Err(why) = handled {
                self.sessions.refuse(now, id, &why);
            }
            self.follow_sessions();
        }
        self.follow_sessions();
    }

    /// Where the next bytes of a connection go: the claim, the offset in its slot, and how many they are.
    #[must_use]
    pub fn piece(&self, id: PeerId) -> Option<(&C, u64, usize)> {
        let found = self.hosts.get(&self.sessions.host_of(id)?)?;
        let (bridge, tag, _) = found.arriving?;
        let (claim, offset) = found.ingresses.get(&bridge)?.claim(tag)?;
        Some((claim, offset, self.sessions.bulk_left(id)))
    }

    /// `n` bytes were stored there.
    pub fn stored(&mut self, id: PeerId, n: usize) {
        let Some(host) = self.sessions.host_of(id) else { return };
        self.sessions.stored(id, n);
        let is_over = self.sessions.bulk_left(id) == 0;
        let Some(found) = self.hosts.get_mut(&host) else { return };
        let Some((bridge, tag, is_last)) = found.arriving else { return };
        if let Some(ingress) = found.ingresses.get_mut(&bridge) {
            ingress.stored(tag, n, is_over && is_last, &mut self.ended);
        }
        if is_over {
            found.arriving = None;
        }
    }

    /// What is to be written to a connection next. Of a piece [`Self::sent`] is due once the kernel has its bytes.
    pub fn poll_output(&mut self, id: PeerId) -> Option<Output> {
        let outbox = self.sessions.outbox(id)?;
        let mut out = if outbox.is_empty() { Outbox::default() } else { std::mem::take(outbox) };
        let host = self.sessions.host_of(id);
        if let (true, Some(host)) = (out.is_empty(), host) {
            let found = self.hosts.get_mut(&host)?;
            // What has nothing to say any more.
            while found.speakers.front().is_some_and(|one| found.waiting(&self.products, host, one) == 0) {
                found.speakers.pop();
            }
            let speaker = found.speakers.front();
            let orders = speaker.map_or(0, |one| found.waiting(&self.products, host, one));
            let piece = found.next_piece(&self.products);
            let sample = piece.map_or(0, |piece| PIECE_HEADER_BYTES + (piece.to - piece.from) as usize);
            match (found.classes.next([0, orders, sample, 0, 0, 0])?, piece, speaker) {
                (Class::Samples, Some(piece), _) => {
                    if let Some(egress) = self.products.get_mut(&piece.product) {
                        egress.handed_out(piece.slot, piece.to);
                    }
                    if piece.is_last {
                        found.written.pop_front();
                    }
                    return Some(Output::Piece(piece));
                }
                (_, _, Some(speaker)) => {
                    found.speakers.pop();
                    found.encode(&mut self.products, host, speaker, &mut out);
                    found.speakers.push(speaker);
                }
                _ => {}
            }
        }
        (!out.is_empty()).then(|| Output::Frames(out.bytes().to_vec()))
    }

    /// The kernel has the bytes of a piece.
    pub fn sent(&mut self, piece: &Piece) {
        if piece.is_last
            && let Some(egress) = self.products.get_mut(&piece.product)
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
        let (hosts, products) = (&self.hosts, &self.products);
        self.sessions.handle_timeout(now, |host| {
            let waits = hosts.get(&host).is_some_and(|found| found.ingresses.values().any(Ingress::waits));
            waits || products.values().any(|egress| egress.owes(host))
        });
    }

    /// When [`Self::handle_timeout`], [`Self::room`] and [`Sessions::poll_dial`] should be called even if nothing happens.
    #[must_use]
    pub fn next_at(&self) -> Option<Instant> {
        let held =
            self.hosts.values().flat_map(|found| found.ingresses.values()).filter_map(Ingress::held_until);
        held.chain(self.sessions.next_at()).min()
    }

    fn follow_sessions(&mut self) {
        while let Some(event) = self.sessions.poll_event() {
            match event {
                Event::Began(host) => {
                    let found = self.hosts.entry(host).or_default();
                    for (&bridge, ingress) in &mut found.ingresses {
                        ingress.begin();
                        found.speakers.push(Speaker::Ingress(bridge));
                    }
                }
                Event::Ended(host, _) => {
                    if let Some(found) = self.hosts.get_mut(&host) {
                        for ingress in found.ingresses.values_mut() {
                            ingress.end(&mut self.ended);
                        }
                        let ingresses = std::mem::take(&mut found.ingresses);
                        *found = Remote { ingresses, ..Remote::default() };
                    }
                    for egress in self.products.values_mut() {
                        egress.end(host);
                    }
                }
            }
            self.events.push_back(event);
        }
    }

    fn ingress(&mut self, host: HostId, bridge: u32) -> Option<&mut Ingress<C>> {
        self.hosts.get_mut(&host)?.ingresses.get_mut(&bridge)
    }

    fn speak(&mut self, host: HostId, speaker: Speaker) {
        if let Some(found) = self.hosts.get_mut(&host) {
            found.speakers.push(speaker);
        }
    }

    fn speak_of(&mut self, product: u32) {
        let Some(egress) = self.products.get(&product) else { return };
        for host in egress.speakers() {
            if let Some(found) = self.hosts.get_mut(&host) {
                found.speakers.push(Speaker::Egress(product));
            }
        }
    }
}
