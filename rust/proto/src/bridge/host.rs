//! All bridges of one host, and the sessions under them: what arrived goes to a bridge, what bridges have goes out.

use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;
use std::time::Instant;

use super::egress::Egress;
use super::ingress::{Fate, Ingress};
use super::message::{Message, PIECE_HEADER_BYTES, piece_header, shape};
use crate::broker::PeerId;
use crate::client::{LaneRef, Lanes, SlotId};
use crate::framing::Outbox;
use crate::limits::{MAX_BRIDGES, MAX_UNSENT_FRAMES};
use crate::link::{Event, HostId, Identity, Sessions, Ticket, Tickets};
use crate::text::printable;

/// What is to be written to a connection next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// These bytes.
    Frames(Vec<u8>),
    /// A piece of a sample.
    Piece(Piece),
}

/// A header, and behind it bytes of a slot of an egress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The header.
    pub header: [u8; PIECE_HEADER_BYTES],
    /// The product.
    pub product: u32,
    /// Its slot.
    pub slot: SlotId,
    /// The first byte.
    pub from: u64,
    /// The first byte that is not in it.
    pub to: u64,
    /// Whether no more follow.
    pub is_last: bool,
}

/// The state machine. `C` is a claim in a lane of a client of this host, `L` the lane of an egress.
#[derive(Debug)]
pub struct Bridges<C, L> {
    sessions: Sessions,
    all: All<C, L>,
    events: VecDeque<Event>,
}

/// What frames of bridges may change.
#[derive(Debug)]
struct All<C, L> {
    hosts: BTreeMap<HostId, Remote<C>>,
    products: BTreeMap<u32, Egress<L>>,
    tickets: Tickets,
    ended: VecDeque<(C, Fate)>,
    refused: VecDeque<(HostId, u32, String)>,
}

/// What passes between this host and another one.
#[derive(Debug)]
struct Remote<C> {
    ingresses: BTreeMap<u32, Ingress<C>>,
    /// The products that the peer has opened, by its numbers.
    served: BTreeMap<u32, u32>,
    /// Numbers under which it has nothing.
    closed: VecDeque<(u32, &'static str)>,
    next_bridge: u32,
    /// Slots with samples for it.
    written: VecDeque<(u32, SlotId)>,
    /// Bridge and tag of the piece that arrives, and whether it is the last one.
    arriving: Option<(u32, u64, bool)>,
    /// Bridges may have frames for it.
    has_news: bool,
}

impl<C> Default for Remote<C> {
    fn default() -> Self {
        Self {
            ingresses: BTreeMap::new(),
            served: BTreeMap::new(),
            closed: VecDeque::new(),
            next_bridge: 0,
            written: VecDeque::new(),
            arriving: None,
            has_news: true,
        }
    }
}

impl<C, L: Lanes> Bridges<C, L> {
    /// Without bridges.
    #[must_use]
    pub fn new(me: Identity) -> Self {
        let all = All {
            hosts: BTreeMap::new(),
            products: BTreeMap::new(),
            tickets: Tickets::default(),
            ended: VecDeque::new(),
            refused: VecDeque::new(),
        };
        Self { sessions: Sessions::new(me), all, events: VecDeque::new() }
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
        let found = self.all.hosts.entry(host).or_default();
        let bridge = found.ingresses.keys().next_back().map_or(0, |last| last + 1);
        if bridge as usize >= MAX_BRIDGES {
            return None;
        }
        let mut ingress = Ingress::new(ticket, lengths);
        if self.sessions.session(host).is_some() {
            ingress.begin();
            found.has_news = true;
        }
        found.ingresses.insert(bridge, ingress);
        Some(bridge)
    }

    /// This host serves a product to others from now on, through this lane of its own, with `n_slots` slots.
    pub fn add_egress(
        &mut self,
        product: u32,
        lanes: L,
        lane: LaneRef,
        n_slots: u32,
        lengths: RangeInclusive<u64>,
    ) {
        self.all.products.insert(product, Egress::new(lanes, lane, n_slots, lengths));
    }

    /// The broker has introduced a host that wants a product; `false` where there are too many tickets.
    pub fn admit(&mut self, now: Instant, ticket: Ticket, host: HostId, product: u32) -> bool {
        self.sessions.want(now, host, true) && self.all.tickets.grant(now, ticket, host, product)
    }

    /// The lanes of the product's egress.
    pub fn lanes(&mut self, product: u32) -> Option<&mut L> {
        self.all.products.get_mut(&product).map(Egress::lanes)
    }

    /// How many orders may be claimed for a bridge now.
    pub fn room(&mut self, now: Instant, host: HostId, bridge: u32) -> usize {
        self.all.ingress(host, bridge).map_or(0, |ingress| ingress.room(now))
    }

    /// An order was claimed for a bridge, within its room.
    pub fn claimed(&mut self, now: Instant, host: HostId, bridge: u32, claim: C, sequence: u64) {
        match self.all.ingress(host, bridge) {
            Some(ingress) => ingress.claimed(now, claim, sequence),
            None => self.all.ended.push_back((claim, Fate::Returned)),
        }
    }

    /// The slots of clients that may be on order: half of them while suppliers of this host are attached to their lanes,
    /// else all.
    pub fn set_share(&mut self, host: HostId, bridge: u32, share: u32) {
        if let Some(ingress) = self.all.ingress(host, bridge) {
            ingress.set_share(share);
        }
    }

    /// The lane of a bridge is empty, and `n` suppliers of this host wait.
    pub fn handle_idle_suppliers(&mut self, now: Instant, host: HostId, bridge: u32, n: usize) -> bool {
        let All { hosts, ended, .. } = &mut self.all;
        let Some(found) = hosts.get_mut(&host) else { return false };
        let any = found.ingresses.get_mut(&bridge).is_some_and(|ingress| ingress.give_back(now, n, ended));
        found.has_news |= any;
        any
    }

    /// A claim that has ended, and how. Such a claim is to be published or returned at once.
    pub fn poll_ended(&mut self) -> Option<(C, Fate)> {
        self.all.ended.pop_front()
    }

    /// A bridge that the other host does not serve, and why; it is tried again in the next session.
    pub fn poll_refused(&mut self) -> Option<(HostId, u32, String)> {
        self.all.refused.pop_front()
    }

    /// What has become of sessions.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Orders of a product have ended, or its suppliers have come or gone; whether an order has ended.
    ///
    /// `measure`: how many bytes from the beginning of a slot on the sample has.
    pub fn handle_lanes(&mut self, product: u32, measure: &mut dyn FnMut(SlotId) -> u64) -> bool {
        let All { hosts, products, .. } = &mut self.all;
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
        let products: Vec<_> = self.all.products.keys().copied().collect();
        for product in products {
            if let Some(egress) = self.all.products.get_mut(&product) {
                egress.drain();
            }
            self.all.note_news(product);
        }
    }

    /// Takes bytes of a connection. Those of samples go to `store`, with their claim and where in its slot they belong.
    /// Bytes are left where [`Sessions::wants_bytes`] says no.
    pub fn receive(
        &mut self,
        now: Instant,
        id: PeerId,
        bytes: &mut &[u8],
        mut store: impl FnMut(&C, u64, &[u8]),
    ) {
        loop {
            if let Some((claim, offset, left)) = self.piece(id) {
                let (part, rest) = bytes.split_at(left.min(bytes.len()));
                store(claim, offset, part);
                *bytes = rest;
                self.stored(now, id, part.len());
            }
            let Some(received) = self.sessions.receive(now, id, bytes, shape) else { break };
            let handled = Message::decode(received.kind, received.payload, received.left)
                .map_err(|error| error.to_string())
                .and_then(|(bridge, message)| {
                    self.all.handle(now, received.host, bridge, message, received.left)
                });
            if let Err(why) = handled {
                self.sessions.refuse(now, id, &why);
            }
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
        let (bridge, tag, _) = found.arriving?;
        let (claim, offset) = found.ingresses.get(&bridge)?.claim(tag)?;
        Some((claim, offset, left))
    }

    /// `n` bytes were stored there.
    pub fn stored(&mut self, now: Instant, id: PeerId, n: usize) {
        let Some(host) = self.sessions.host_of(id) else { return };
        self.sessions.stored(id, n);
        let is_over = self.sessions.bulk_left(id) == 0;
        let All { hosts, ended, .. } = &mut self.all;
        let Some(found) = hosts.get_mut(&host) else { return };
        let Some((bridge, tag, is_last)) = found.arriving else { return };
        if let Some(ingress) = found.ingresses.get_mut(&bridge) {
            ingress.stored(now, tag, n, is_over && is_last, ended);
        }
        found.arriving.take_if(|_| is_over);
    }

    /// What is to be written to a connection next: frames of the session, of bridges, then samples. Of a piece
    /// [`Self::sent`] is due once the kernel has its bytes.
    pub fn poll_output(&mut self, id: PeerId) -> Option<Output> {
        let host = self.sessions.host_of(id);
        let out = self.sessions.outbox(id)?;
        if let (true, Some(host)) = (out.is_empty(), host) {
            self.all.encode(host, out);
            if out.is_empty() {
                return self.all.next_piece(host).map(Output::Piece);
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
        let All { hosts, products, .. } = &self.all;
        self.sessions.handle_timeout(now, |host| {
            let waits = hosts.get(&host).is_some_and(|found| found.ingresses.values().any(Ingress::waits));
            waits || products.values().any(|egress| egress.owes(host))
        });
    }

    /// When [`Self::handle_timeout`], [`Self::room`] and [`Sessions::poll_dial`] should be called even if nothing happens.
    #[must_use]
    pub fn next_at(&self) -> Option<Instant> {
        let ingresses = self.all.hosts.values().flat_map(|found| found.ingresses.values());
        ingresses.filter_map(Ingress::held_until).chain(self.sessions.next_at()).min()
    }

    /// Whether other hosts wait for samples of this one.
    #[must_use]
    pub fn owes(&self) -> bool {
        self.all.products.values().any(|egress| egress.hosts().any(|host| egress.owes(host)))
    }

    fn follow_sessions(&mut self) {
        while let Some(event) = self.sessions.poll_event() {
            match event {
                Event::Began(host) => {
                    let found = self.all.hosts.entry(host).or_default();
                    found.ingresses.values_mut().for_each(Ingress::begin);
                    found.has_news = true;
                }
                Event::Ended(host, _) => self.all.end(host),
            }
            self.events.push_back(event);
        }
    }
}

impl<C, L: Lanes> All<C, L> {
    fn ingress(&mut self, host: HostId, bridge: u32) -> Option<&mut Ingress<C>> {
        let found = self.hosts.get_mut(&host)?;
        found.has_news = true;
        found.ingresses.get_mut(&bridge)
    }

    /// The hosts that have opened a product may have to be told something.
    fn note_news(&mut self, product: u32) {
        for host in self.products.get(&product).into_iter().flat_map(Egress::hosts) {
            self.hosts.entry(host).or_default().has_news = true;
        }
    }

    /// The session with a host is over.
    fn end(&mut self, host: HostId) {
        if let Some(found) = self.hosts.get_mut(&host) {
            let mut ingresses = std::mem::take(&mut found.ingresses);
            ingresses.values_mut().for_each(|ingress| ingress.end(&mut self.ended));
            *found = Remote { ingresses, ..Remote::default() };
        }
        self.products.values_mut().for_each(|egress| egress.end(host));
    }

    /// Frames of bridges for a host.
    fn encode(&mut self, host: HostId, out: &mut Outbox) {
        let Some(found) = self.hosts.get_mut(&host) else { return };
        if !std::mem::take(&mut found.has_news) {
            return;
        }
        for (&bridge, ingress) in &mut found.ingresses {
            while out.len() < MAX_UNSENT_FRAMES && ingress.encode(bridge, out) {}
        }
        for product in found.served.values() {
            let Some(egress) = self.products.get_mut(product) else { continue };
            while out.len() < MAX_UNSENT_FRAMES && egress.encode(host, out) {}
        }
        while out.len() < MAX_UNSENT_FRAMES
            && let Some((bridge, why)) = found.closed.pop_front()
        {
            Message::Closed(why).encode(bridge, out);
        }
        found.has_news = out.len() >= MAX_UNSENT_FRAMES;
    }

    fn next_piece(&mut self, host: HostId) -> Option<Piece> {
        let found = self.hosts.get_mut(&host)?;
        let &(product, slot) = found.written.front()?;
        let egress = self.products.get_mut(&product)?;
        let (bridge, tag, from, to, is_last) = egress.next_piece(slot)?;
        if is_last {
            found.written.pop_front();
        }
        let header = piece_header(bridge, (tag, from, is_last), (to - from) as usize);
        Some(Piece { header, product, slot, from, to, is_last })
    }

    fn handle(
        &mut self,
        now: Instant,
        host: HostId,
        bridge: u32,
        message: Message<'_>,
        left: usize,
    ) -> Result<(), String> {
        let found = self.hosts.entry(host).or_default();
        found.has_news = true;
        if let Message::Open(ticket) = message {
            return self.open(now, host, bridge, ticket);
        }
        if matches!(message, Message::Want(_) | Message::Cancel(_)) {
            let egress = found.served.get(&bridge).and_then(|product| self.products.get_mut(product));
            let egress = egress.ok_or("a bridge that is not open")?;
            return match message {
                Message::Want(wanted) => egress.want(host, wanted),
                Message::Cancel(tags) => egress.cancel(host, tags.iter()),
                _ => Ok(()),
            };
        }
        // All others come from the teachers' host.
        let ingress = found.ingresses.get_mut(&bridge).ok_or("a bridge that is not there")?;
        match message {
            Message::Closed(why) => {
                ingress.end(&mut self.ended);
                self.refused.push_back((host, bridge, printable(why)));
            }
            Message::Offer(offer) => ingress.set_offer(offer),
            Message::Return(tags) => ingress.returned(now, tags, &mut self.ended)?,
            Message::Failed(tag, why) => ingress.failed(tag, why, &mut self.ended)?,
            Message::Piece(tag, offset, is_last) => {
                ingress.check_piece(tag, offset, left as u64, is_last)?;
                found.arriving = Some((bridge, tag, is_last));
            }
            Message::Open(_) | Message::Want(_) | Message::Cancel(_) => {}
        }
        Ok(())
    }

    fn open(&mut self, now: Instant, host: HostId, bridge: u32, ticket: Ticket) -> Result<(), String> {
        let found = self.hosts.entry(host).or_default();
        if bridge < found.next_bridge || bridge as usize >= MAX_BRIDGES {
            return Err("a bridge that was opened before".to_owned());
        }
        found.next_bridge = bridge + 1;
        let product = self.tickets.redeem(now, ticket, host);
        let egress = product.and_then(|product| Some((product, self.products.get_mut(&product)?)));
        match egress.map(|(product, egress)| (product, egress.open(host, bridge))) {
            Some((product, true)) => {
                found.served.insert(bridge, product);
            }
            Some((_, false)) => found.closed.push_back((bridge, "this product is open already")),
            None => found.closed.push_back((bridge, "this ticket opens nothing here")),
        }
        Ok(())
    }
}
