//! What passes between this host and another one.

use std::collections::{BTreeMap, VecDeque};

use super::egress::Egress;
use super::ingress::{Fate, Ingress};
use super::message::Message;
use crate::broker::PeerId;
use crate::client::{Lanes, SlotId};
use crate::framing::Outbox;
use crate::limits::{MAX_BRIDGES, MAX_UNSENT_FRAMES};
use crate::link::HostId;

#[derive(Debug)]
pub(super) struct Remote<C> {
    pub(super) ingresses: BTreeMap<u32, Ingress<C>>,
    /// The number of the next one: none is used twice in a session.
    next_ingress: u32,
    /// The products that the peer has opened, by its numbers.
    pub(super) served: BTreeMap<u32, u32>,
    /// Numbers under which it has nothing.
    pub(super) closed: VecDeque<(u32, &'static str)>,
    pub(super) next_bridge: u32,
    /// Slots with samples for it.
    pub(super) written: VecDeque<(u32, SlotId)>,
    /// By connection: that of which the next piece is due.
    pub(super) sending: Vec<(PeerId, (u32, SlotId))>,
    /// By connection: bridge and tag of the piece that arrives, and whether it is the last one.
    pub(super) arriving: Vec<(PeerId, (u32, u64, bool))>,
    /// Bridges may have frames for it.
    pub(super) has_news: bool,
}

impl<C> Default for Remote<C> {
    fn default() -> Self {
        Self {
            ingresses: BTreeMap::new(),
            next_ingress: 0,
            served: BTreeMap::new(),
            closed: VecDeque::new(),
            next_bridge: 0,
            written: VecDeque::new(),
            sending: Vec::new(),
            arriving: Vec::new(),
            has_news: true,
        }
    }
}

impl<C> Remote<C> {
    /// Adds a bridge; `None` where this session has as many as it may, or no number for it.
    pub(super) fn add(&mut self, ingress: Ingress<C>) -> Option<u32> {
        let bridge = self.next_ingress;
        if self.ingresses.len() >= MAX_BRIDGES {
            return None;
        }
        self.next_ingress = bridge.checked_add(1)?;
        self.ingresses.insert(bridge, ingress);
        self.has_news = true;
        Some(bridge)
    }

    /// The peer opens a bridge by this number.
    pub(super) fn reserve(&mut self, bridge: u32) -> Result<(), String> {
        if bridge < self.next_bridge {
            return Err("a bridge that was opened before".to_owned());
        }
        if self.served.len() + self.closed.len() >= MAX_BRIDGES {
            return Err(format!("{MAX_BRIDGES} bridges are open"));
        }
        self.next_bridge = bridge.checked_add(1).ok_or("the last bridge")?;
        Ok(())
    }

    /// The slot of which a connection has the next piece: a sample goes by one.
    pub(super) fn next_slot(&mut self, id: PeerId) -> Option<(u32, SlotId)> {
        let begun = self.sending.iter().position(|(by, _)| *by == id);
        begun.map(|at| self.sending.swap_remove(at).1).or_else(|| self.written.pop_front())
    }

    /// The piece that arrives by a connection.
    pub(super) fn arriving(&self, id: PeerId) -> Option<(u32, u64, bool)> {
        self.arriving.iter().find(|(by, _)| *by == id).map(|(_, piece)| *piece)
    }

    /// Whether a bridge of this number was there in this session: what the peer has said of it may have crossed LEAVE.
    pub(super) fn had(&self, bridge: u32) -> bool {
        bridge < self.next_ingress
    }

    /// The session is over, and all bridges with it.
    pub(super) fn end(&mut self, ended: &mut VecDeque<(C, Fate)>) {
        self.ingresses.values_mut().for_each(|ingress| ingress.end(ended));
    }

    /// Appends frames of bridges for the host.
    pub(super) fn encode<L: Lanes>(
        &mut self,
        host: HostId,
        products: &mut BTreeMap<u32, Egress<L>>,
        out: &mut Outbox,
    ) {
        if !std::mem::take(&mut self.has_news) {
            return;
        }
        for (&bridge, ingress) in &mut self.ingresses {
            while out.len() < MAX_UNSENT_FRAMES && ingress.encode(bridge, out) {}
        }
        self.ingresses.retain(|&bridge, ingress| {
            let leaves = ingress.is_over() && out.len() < MAX_UNSENT_FRAMES;
            if leaves {
                Message::Leave.encode(bridge, out);
            }
            !leaves
        });
        for (&bridge, product) in &self.served {
            let Some(egress) = products.get_mut(product) else { continue };
            while out.len() < MAX_UNSENT_FRAMES && egress.encode((host, bridge), out) {}
        }
        while out.len() < MAX_UNSENT_FRAMES
            && let Some((bridge, why)) = self.closed.pop_front()
        {
            Message::Closed(why).encode(bridge, out);
        }
        self.has_news = out.len() >= MAX_UNSENT_FRAMES;
    }
}
