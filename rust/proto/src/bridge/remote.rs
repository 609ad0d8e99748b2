//! What passes between this host and another one: its bridges in both directions, and frames of them.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use super::egress::Egress;
use super::ingress::{Fate, Ingress};
use super::message::{Message, PIECE_HEADER_BYTES, piece_header};
use super::turns::Turns;
use crate::client::{Lanes, SlotId};
use crate::framing::Outbox;
use crate::limits::MAX_BRIDGES;
use crate::link::{Classes, HostId, Ticket, Tickets};

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

/// What passes between this host and another one.
#[derive(Debug)]
pub(super) struct Remote<C> {
    pub(super) ingresses: BTreeMap<u32, Ingress<C>>,
    /// The products that the peer has opened, by its numbers.
    pub(super) served: BTreeMap<u32, u32>,
    /// Numbers under which it has nothing.
    pub(super) closed: VecDeque<(u32, &'static str)>,
    pub(super) next_bridge: u32,
    /// Slots with samples for it.
    pub(super) written: VecDeque<(u32, SlotId)>,
    pub(super) speakers: Turns<Speaker>,
    pub(super) classes: Classes,
    /// Bridge and tag of the piece that arrives, and whether it is the last one.
    pub(super) arriving: Option<(u32, u64, bool)>,
}

/// What has a frame of the class of orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Speaker {
    Ingress(u32),
    Egress(u32),
    Closed,
}

impl<C> Default for Remote<C> {
    fn default() -> Self {
        Self {
            ingresses: BTreeMap::new(),
            served: BTreeMap::new(),
            closed: VecDeque::new(),
            next_bridge: 0,
            written: VecDeque::new(),
            speakers: Turns::default(),
            classes: Classes::default(),
            arriving: None,
        }
    }
}

impl<C> Remote<C> {
    pub(super) fn waiting<L: Lanes>(
        &self,
        products: &BTreeMap<u32, Egress<L>>,
        host: HostId,
        speaker: Speaker,
    ) -> usize {
        match speaker {
            Speaker::Ingress(bridge) => self.ingresses.get(&bridge).map_or(0, Ingress::waiting),
            Speaker::Egress(product) => products.get(&product).map_or(0, |egress| egress.waiting(host)),
            Speaker::Closed => 64 * self.closed.len().min(1),
        }
    }

    pub(super) fn encode<L: Lanes>(
        &mut self,
        products: &mut BTreeMap<u32, Egress<L>>,
        host: HostId,
        speaker: Speaker,
        out: &mut Outbox,
    ) {
        match speaker {
            Speaker::Ingress(bridge) => {
                if let Some(ingress) = self.ingresses.get_mut(&bridge) {
                    ingress.encode(bridge, out);
                }
            }
            Speaker::Egress(product) => {
                if let Some(egress) = products.get_mut(&product) {
                    egress.encode(host, out);
                }
            }
            Speaker::Closed => {
                if let Some((bridge, why)) = self.closed.pop_front() {
                    Message::Closed(why).encode(bridge, out);
                }
            }
        }
    }

    pub(super) fn next_piece<L: Lanes>(&self, products: &BTreeMap<u32, Egress<L>>) -> Option<Piece> {
        let &(product, slot) = self.written.front()?;
        let (bridge, tag, from, to, is_last) = products.get(&product)?.piece(slot)?;
        let header = piece_header(bridge, (tag, from, is_last), (to - from) as usize);
        Some(Piece { header, product, slot, from, to, is_last })
    }
}

/// A frame of a bridge, and all that it may change.
pub(super) struct Handling<'a, C, L> {
    pub(super) now: Instant,
    pub(super) host: HostId,
    pub(super) found: &'a mut Remote<C>,
    pub(super) products: &'a mut BTreeMap<u32, Egress<L>>,
    pub(super) tickets: &'a mut Tickets,
    pub(super) ended: &'a mut VecDeque<(C, Fate)>,
    pub(super) refused: &'a mut VecDeque<(HostId, u32, String)>,
}

impl<C, L: Lanes> Handling<'_, C, L> {
    pub(super) fn handle(&mut self, bridge: u32, message: Message<'_>, left: usize) -> Result<(), String> {
        match message {
            Message::Open(ticket) => self.open(bridge, ticket),
            Message::Want(_) | Message::Cancel(_) => {
                let product = *self.found.served.get(&bridge).ok_or("a bridge that is not open")?;
                let Some(egress) = self.products.get_mut(&product) else { return Ok(()) };
                match message {
                    Message::Want(wanted) => egress.want(self.host, wanted)?,
                    Message::Cancel(tags) => egress.cancel(self.host, tags.iter())?,
                    _ => {}
                }
                self.found.speakers.push(Speaker::Egress(product));
                Ok(())
            }
            _ => self.answer(bridge, message, left),
        }
    }

    fn open(&mut self, bridge: u32, ticket: Ticket) -> Result<(), String> {
        if bridge < self.found.next_bridge || bridge as usize >= MAX_BRIDGES {
            return Err("a bridge that was opened before".to_owned());
        }
        self.found.next_bridge = bridge + 1;
        let product = self.tickets.redeem(self.now, ticket, self.host);
        let is_open =
            product.and_then(|product| Some(self.products.get_mut(&product)?.open(self.host, bridge)));
        match (product, is_open) {
            (Some(product), Some(true)) => {
                self.found.served.insert(bridge, product);
                self.found.speakers.push(Speaker::Egress(product));
            }
            (_, is_open) => {
                let why =
                    is_open.map_or("this ticket opens nothing here", |_| "this product is open already");
                self.found.closed.push_back((bridge, why));
                self.found.speakers.push(Speaker::Closed);
            }
        }
        Ok(())
    }

    /// A frame from the teachers' host.
    fn answer(&mut self, bridge: u32, message: Message<'_>, left: usize) -> Result<(), String> {
        let ingress = self.found.ingresses.get_mut(&bridge).ok_or("a bridge that is not there")?;
        match message {
            Message::Closed(why) => {
                ingress.end(self.ended);
                self.refused.push_back((self.host, bridge, why.to_owned()));
            }
            Message::Offer(offer) => ingress.set_offer(offer),
            Message::Return(tags) => ingress.returned(self.now, tags, self.ended)?,
            Message::Failed(tag, why) => ingress.failed(tag, why, self.ended)?,
            Message::Piece(tag, offset, is_last) => {
                ingress.check_piece(tag, offset, left as u64, is_last)?;
                self.found.arriving = Some((bridge, tag, is_last));
            }
            Message::Open(_) | Message::Want(_) | Message::Cancel(_) => {}
        }
        Ok(())
    }
}
