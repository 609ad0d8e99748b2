//! The student's end of a bridge: claims, the tags by which they are wanted, and how each ends.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use super::message::{Message, Numbers, Offer, bytes_of, numbers};
use super::sample_layout::SampleLayout;
use super::turns::Room;
use super::window::Window;
use crate::framing::Outbox;
use crate::limits::MAX_TAGS;

/// After an order was given back the other suppliers of its lane have so long to take it.
pub const HOLD_TIME: Duration = Duration::from_millis(10);

/// The memory of an order that was claimed: its slot.
pub trait SlotMemory {
    /// Puts bytes of its sample at an offset.
    fn store(&self, offset: u64, bytes: &[u8]);

    /// Bytes of the sample that is in it, by the lengths of its ragged tensors.
    ///
    /// # Errors
    /// No sample has such lengths.
    fn sample_bytes(&self) -> Result<u64, String>;
}

/// How a claim ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Its slot has these bytes from its beginning on: all of a sample.
    Written(u64),
    /// No supplier of the other host could make it, and why.
    Failed(String),
    /// Any supplier may claim the order again.
    Returned,
}

#[derive(Debug)]
pub(super) struct Ingress<C> {
    product: Arc<str>,
    layout: SampleLayout,
    /// By their tags, which only grow.
    claims: FxHashMap<u64, Claimed<C>>,
    next_tag: u64,
    /// Tags from here on were not sent.
    unsent: u64,
    cancels: VecDeque<u64>,
    must_open: bool,
    /// OPEN has no answer yet.
    awaits_offer: bool,
    offer: Offer,
    window: Window,
    share: u32,
    /// Suppliers of the product at all hosts.
    n_suppliers: u64,
    held_until: Option<Instant>,
    /// No order comes any more.
    is_closing: bool,
}

#[derive(Debug)]
struct Claimed<C> {
    claim: C,
    sequence: u64,
    since: Instant,
    received: u64,
    /// A piece of it has begun, and is not all here.
    is_arriving: bool,
    is_cancelled: bool,
}

impl<C> Ingress<C> {
    pub(super) fn new(product: Arc<str>, layout: SampleLayout) -> Self {
        Self {
            product,
            layout,
            claims: FxHashMap::default(),
            next_tag: 0,
            unsent: 0,
            cancels: VecDeque::new(),
            must_open: true,
            awaits_offer: true,
            offer: Offer::default(),
            window: Window::default(),
            share: u32::MAX,
            n_suppliers: 0,
            held_until: None,
            is_closing: false,
        }
    }

    /// Whether this end waits for the other one.
    pub(super) fn waits(&self) -> bool {
        !self.claims.is_empty() || self.awaits_offer
    }

    /// Slots of the client that may be on order at the other host, and suppliers of all hosts.
    pub(super) fn set_share(&mut self, share: u32, n_suppliers: u64) {
        (self.share, self.n_suppliers) = (share, n_suppliers);
    }

    /// The session is over, or the other host does not serve this bridge.
    pub(super) fn end(&mut self, ended: &mut VecDeque<(C, Fate)>) {
        let mut claims: Vec<_> = std::mem::take(&mut self.claims).into_iter().collect();
        // Lanes have the oldest order first again.
        claims.sort_unstable_by_key(|(tag, _)| *tag);
        ended.extend(claims.into_iter().map(|(_, claimed)| (claimed.claim, Fate::Returned)));
        (self.must_open, self.awaits_offer) = (false, false);
        self.offer = Offer::default();
        self.unsent = self.next_tag;
        self.cancels.clear();
    }

    /// Takes no more orders, and gives back those that no supplier has begun with.
    pub(super) fn close(&mut self, now: Instant, ended: &mut VecDeque<(C, Fate)>) {
        self.is_closing = true;
        self.give_all_back(now, ended);
    }

    /// Gives back all orders that no supplier has begun with.
    pub(super) fn give_all_back(&mut self, now: Instant, ended: &mut VecDeque<(C, Fate)>) {
        self.held_until = None;
        self.give_back(now, usize::MAX, ended);
    }

    /// Whether it is closed, and no order is open.
    pub(super) fn is_over(&self) -> bool {
        self.is_closing && self.claims.is_empty()
    }

    /// Suppliers of the product at the other host.
    pub(super) fn n_suppliers(&self) -> u32 {
        self.offer.suppliers
    }

    pub(super) fn set_offer(&mut self, offer: Offer) {
        (self.offer, self.awaits_offer) = (offer, false);
    }

    /// How many more orders may be claimed; none without an offer of this session, which has so many connections.
    pub(super) fn room(&mut self, now: Instant, connections: u32) -> Room {
        self.held_until.take_if(|until| *until <= now);
        let open = self.claims.len();
        let window = self.window.len(now, self.offer, (self.n_suppliers, self.share), connections) as usize;
        if self.held_until.is_some() || self.is_closing {
            return Room::default();
        }
        let orders = window.saturating_sub(open);
        Room { orders, idle: (self.offer.suppliers as usize).saturating_sub(open).min(orders) }
    }

    /// When [`Self::room`] may be another one although nothing happens.
    pub(super) fn held_until(&self) -> Option<Instant> {
        // A bridge that ends claims nothing more, so its room is not asked for.
        self.held_until.filter(|_| !self.is_closing)
    }

    pub(super) fn claimed(&mut self, now: Instant, claim: C, sequence: u64) {
        let claimed =
            Claimed { claim, sequence, since: now, received: 0, is_arriving: false, is_cancelled: false };
        self.claims.insert(self.next_tag, claimed);
        self.next_tag += 1;
        self.window.claimed(self.claims.len());
    }

    /// The product that it brings.
    pub(super) fn product(&self) -> &Arc<str> {
        &self.product
    }

    /// Claims nothing before other suppliers had their time.
    pub(super) fn hold(&mut self, now: Instant) {
        self.held_until = Some(now + HOLD_TIME);
    }

    /// `n` suppliers of this host wait while orders are here that none has begun with: gives them back, the newest first.
    /// Not again before those had their time to take them.
    pub(super) fn give_back(&mut self, now: Instant, n: usize, ended: &mut VecDeque<(C, Fate)>) -> bool {
        if self.held_until.is_some_and(|until| now < until) {
            return false;
        }
        let unstarted = self.claims.iter().filter(|(_, one)| one.received == 0 && !one.is_cancelled);
        let mut tags: Vec<_> = unstarted.map(|(&tag, _)| tag).collect();
        tags.sort_unstable();
        let any = n > 0 && !tags.is_empty();
        for tag in tags.into_iter().rev().take(n) {
            self.hold(now);
            if tag < self.unsent {
                self.cancels.push_back(tag);
                self.claims.entry(tag).and_modify(|claimed| claimed.is_cancelled = true);
            } else if let Some(claimed) = self.claims.remove(&tag) {
                ended.push_back((claimed.claim, Fate::Returned));
            }
        }
        any
    }

    /// A piece of `len` bytes begins.
    pub(super) fn begin_piece(
        &mut self,
        tag: u64,
        offset: u64,
        len: u64,
        is_last: bool,
    ) -> Result<(), String> {
        let (least, most) = self.layout.lengths().into_inner();
        let claimed = self.posted(tag)?;
        let end = offset.checked_add(len).filter(|&end| end <= most);
        let is_right = offset == claimed.received
            && end.is_some_and(|end| if is_last { end >= least } else { end < most });
        if is_right {
            claimed.is_arriving = true;
            return Ok(());
        }
        Err(format!(
            "{len} bytes at {offset} of a sample of {least} to {most}, of which {} are here",
            claimed.received
        ))
    }

    /// The claim of a tag, and how many bytes of it are here.
    pub(super) fn claim(&self, tag: u64) -> Option<(&C, u64)> {
        self.claims.get(&tag).map(|claimed| (&claimed.claim, claimed.received))
    }

    /// `n` bytes of a piece were stored; `is_over`: with them the piece is, and `is_complete`: the sample.
    pub(super) fn stored(
        &mut self,
        now: Instant,
        tag: u64,
        n: usize,
        (is_over, is_complete): (bool, bool),
        ended: &mut VecDeque<(C, Fate)>,
    ) -> Result<(), String>
    where
        C: SlotMemory,
    {
        let Some(claimed) = self.claims.get_mut(&tag) else { return Ok(()) };
        claimed.received += n as u64;
        claimed.is_arriving = !is_over;
        if is_complete && !self.layout.ragged().is_empty() {
            let (stated, received) = (claimed.claim.sample_bytes()?, claimed.received);
            if stated != received {
                return Err(format!("{received} bytes of a sample that has {stated} by its lengths"));
            }
        }
        if is_complete && let Some(claimed) = self.claims.remove(&tag) {
            self.window.arrived(now, now.saturating_duration_since(claimed.since));
            ended.push_back((claimed.claim, Fate::Written(claimed.received)));
        }
        Ok(())
    }

    /// Orders are back; whether this end had asked for one.
    pub(super) fn returned(
        &mut self,
        now: Instant,
        tags: Numbers<'_>,
        ended: &mut VecDeque<(C, Fate)>,
    ) -> Result<bool, String> {
        let is_asked = tags.iter().any(|tag| self.claims.get(&tag).is_some_and(|one| one.is_cancelled));
        tags.iter().try_for_each(|tag| self.finish(tag, Fate::Returned, ended))?;
        self.hold(now);
        Ok(is_asked)
    }

    pub(super) fn failed(
        &mut self,
        tag: u64,
        why: &str,
        ended: &mut VecDeque<(C, Fate)>,
    ) -> Result<(), String> {
        self.finish(tag, Fate::Failed(why.to_owned()), ended)
    }

    /// Appends the next frame; whether there was one.
    pub(super) fn encode(&mut self, bridge: u32, out: &mut Outbox) -> bool {
        if std::mem::take(&mut self.must_open) {
            Message::Open(self.layout.clone(), &self.product).encode(bridge, out);
        } else if !self.cancels.is_empty() {
            let n = self.cancels.len().min(MAX_TAGS);
            let bytes = bytes_of(self.cancels.drain(..n));
            Message::Cancel(numbers(&bytes)).encode(bridge, out);
        } else {
            let end = self.next_tag.min(self.unsent + MAX_TAGS as u64);
            // Some were given back before they were sent.
            let wanted = (self.unsent..end).filter_map(|tag| Some([tag, self.claims.get(&tag)?.sequence]));
            let bytes = bytes_of(wanted.flatten());
            self.unsent = end;
            if bytes.is_empty() {
                return false;
            }
            Message::Want(numbers(&bytes)).encode(bridge, out);
        }
        true
    }

    /// The claim of a tag that a WANT of this session has posted.
    fn posted(&mut self, tag: u64) -> Result<&mut Claimed<C>, String> {
        match self.claims.get_mut(&tag).filter(|_| tag < self.unsent) {
            Some(claimed) if claimed.is_arriving => Err(format!("tag {tag} arrives by another connection")),
            claimed => claimed.ok_or_else(|| format!("tag {tag} was not posted, or has ended")),
        }
    }

    fn finish(&mut self, tag: u64, fate: Fate, ended: &mut VecDeque<(C, Fate)>) -> Result<(), String> {
        if self.posted(tag)?.received > 0 {
            return Err(format!("tag {tag} ends in the middle of its sample"));
        }
        ended.extend(self.claims.remove(&tag).map(|claimed| (claimed.claim, fate)));
        Ok(())
    }
}
