//! What frames of bridges change: the bridges with each host, and the products that other hosts order.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use rustc_hash::FxHashMap;

use super::demand::Asked;
use super::egress::Egress;
use super::ingress::{Fate, Ingress};
use super::message::{Message, piece_header};
use super::models::Models;
use super::output::Piece;
use super::remote::Remote;
use super::sample_layout::SampleLayout;
use crate::broker::PeerId;
use crate::client::Lanes;
use crate::control::generation_of;
use crate::framing::Outbox;
use crate::limits::MAX_BRIDGED_PRODUCTS;
use crate::link::HostId;
use crate::text::printable;

#[derive(Debug)]
pub(super) struct Exchange<C, L> {
    pub(super) hosts: BTreeMap<HostId, Remote<C>>,
    pub(super) products: BTreeMap<u32, Egress<L>>,
    /// Their numbers, by name and bytes of a sample.
    pub(super) numbers: FxHashMap<(Arc<str>, SampleLayout), u32>,
    pub(super) next_product: u32,
    pub(super) models: Models,
    pub(super) asked: VecDeque<Asked>,
    pub(super) ended: VecDeque<(C, Fate)>,
    pub(super) refused: VecDeque<(HostId, u32, String)>,
    /// Offers have changed.
    pub(super) has_offers: bool,
    /// This host stops.
    pub(super) is_draining: bool,
}

impl<C, L: Lanes> Exchange<C, L> {
    pub(super) fn new() -> Self {
        Self {
            hosts: BTreeMap::new(),
            products: BTreeMap::new(),
            numbers: FxHashMap::default(),
            next_product: 0,
            models: Models::default(),
            asked: VecDeque::new(),
            ended: VecDeque::new(),
            refused: VecDeque::new(),
            has_offers: false,
            is_draining: false,
        }
    }

    pub(super) fn ingress(&mut self, host: HostId, bridge: u32) -> Option<&mut Ingress<C>> {
        let found = self.hosts.get_mut(&host)?;
        found.has_news = true;
        found.ingresses.get_mut(&bridge)
    }

    /// Orders of a product are back for suppliers of this host that wait: no bridge takes them before those had their time.
    pub(super) fn hold(&mut self, now: Instant, product: &str) {
        let all = self.hosts.values_mut().flat_map(|found| found.ingresses.values_mut());
        all.filter(|ingress| **ingress.product() == *product).for_each(|ingress| ingress.hold(now));
    }

    /// The hosts that have opened a product may have to be told something.
    pub(super) fn note_news(&mut self, product: u32) {
        for host in self.products.get(&product).into_iter().flat_map(Egress::hosts) {
            self.hosts.entry(host).or_default().has_news = true;
        }
    }

    /// The session with a host is over.
    pub(super) fn end(&mut self, host: HostId) {
        if let Some(mut found) = self.hosts.remove(&host) {
            found.end(&mut self.ended);
        }
        self.products.values_mut().for_each(|egress| egress.end(host));
        self.models.end(host);
        self.has_offers = true;
    }

    /// What runs here or elsewhere may have changed: orders of generations are taken of other hosts than before.
    pub(super) fn follow_models(&mut self) {
        if !self.models.take_moved() {
            return;
        }
        self.has_offers = true;
        for egress in self.products.values_mut() {
            let Some(generation) = egress.generation() else { continue };
            for host in egress.hosts().collect::<Vec<_>>() {
                egress.set_open(host, self.models.serves(host, generation));
                self.hosts.entry(host).or_default().has_news = true;
            }
        }
    }

    /// Frames of bridges for a host, behind those about models.
    pub(super) fn encode(&mut self, host: HostId, out: &mut Outbox) {
        self.models.encode(host, out);
        if let Some(found) = self.hosts.get_mut(&host) {
            found.encode(host, &mut self.products, out);
        }
    }

    pub(super) fn next_piece(&mut self, host: HostId, id: PeerId) -> Option<Piece> {
        let found = self.hosts.get_mut(&host)?;
        let (product, slot) = found.next_slot(id)?;
        let egress = self.products.get_mut(&product)?;
        let (bridge, tag, from, to, is_last) = egress.next_piece(slot)?;
        if !is_last {
            found.sending.push((id, (product, slot)));
        }
        let header = piece_header(bridge, (tag, from, is_last), (to - from) as usize);
        Some(Piece { header, product, slot, from, to, is_last })
    }

    pub(super) fn handle(
        &mut self,
        now: Instant,
        (host, id): (HostId, PeerId),
        bridge: u32,
        message: Message<'_>,
        left: usize,
    ) -> Result<(), String> {
        let found = self.hosts.entry(host).or_default();
        found.has_news = true;
        if let Message::Open(layout, product) = message {
            return self.open(host, bridge, product, layout);
        }
        if matches!(message, Message::Want(_) | Message::Cancel(_)) {
            let egress = found.served.get(&bridge).and_then(|product| self.products.get_mut(product));
            let egress = egress.ok_or("a bridge that is not open")?;
            return match message {
                Message::Want(wanted) => egress.want((host, bridge), wanted),
                Message::Cancel(tags) => egress.cancel((host, bridge), tags.iter()),
                _ => Ok(()),
            };
        }
        if message == Message::Leave {
            return self.leave(host, bridge);
        }
        // All others come from the teachers' host.
        let is_late = matches!(message, Message::Closed(_) | Message::Offer(_)) && found.had(bridge);
        let ingress = match found.ingresses.get_mut(&bridge) {
            None if is_late => return Ok(()),
            ingress => ingress.ok_or("a bridge that is not there")?,
        };
        match message {
            Message::Closed(why) => {
                ingress.end(&mut self.ended);
                self.has_offers = true;
                self.refused.push_back((host, bridge, printable(why)));
            }
            Message::Offer(offer) => {
                ingress.set_offer(offer);
                self.has_offers = true;
            }
            Message::Return(tags) => {
                if ingress.returned(now, tags, &mut self.ended)? {
                    let product = Arc::clone(ingress.product());
                    self.hold(now, &product);
                }
            }
            Message::Failed(tag, why) => ingress.failed(tag, why, &mut self.ended)?,
            Message::Piece(tag, offset, is_last) => {
                ingress.begin_piece(tag, offset, left as u64, is_last)?;
                found.arriving.push((id, (bridge, tag, is_last)));
            }
            Message::Open(..) | Message::Want(_) | Message::Cancel(_) | Message::Leave => {}
        }
        Ok(())
    }

    fn open(&mut self, host: HostId, bridge: u32, product: &str, layout: SampleLayout) -> Result<(), String> {
        let found = self.hosts.entry(host).or_default();
        found.reserve(bridge)?;
        let name = (Arc::from(product), layout.clone());
        let number = match self.numbers.get(&name) {
            Some(&number) => number,
            None if self.products.len() >= MAX_BRIDGED_PRODUCTS => {
                found.closed.push_back((bridge, "as many products are ordered here as may be"));
                return Ok(());
            }
            None => {
                let number = self.next_product;
                self.next_product += 1;
                self.products.insert(number, Egress::new(layout.clone(), generation_of(product)));
                self.asked.push_back(Asked { number, product: Arc::clone(&name.0), layout });
                self.numbers.insert(name, number);
                number
            }
        };
        if let Some(egress) = self.products.get_mut(&number) {
            if self.is_draining {
                egress.drain();
            }
            let is_open = egress.generation().is_none_or(|generation| self.models.serves(host, generation));
            egress.open((host, bridge), is_open);
            found.served.insert(bridge, number);
        }
        Ok(())
    }

    /// A host opens a bridge, and has no right to order.
    pub(super) fn close(&mut self, host: HostId, bridge: u32) -> Result<(), String> {
        let found = self.hosts.entry(host).or_default();
        found.has_news = true;
        found.reserve(bridge)?;
        found
            .closed
            .push_back((bridge, "by its certificate this host may order none; it needs the role student"));
        Ok(())
    }

    fn leave(&mut self, host: HostId, bridge: u32) -> Result<(), String> {
        let Some(found) = self.hosts.get_mut(&host).filter(|found| bridge < found.next_bridge) else {
            return Err("it leaves a bridge that was not opened".to_owned());
        };
        // It may have been closed, which the host did not know.
        let egress = found.served.remove(&bridge).and_then(|product| self.products.get_mut(&product));
        egress.map_or(Ok(()), |egress| egress.leave((host, bridge)))
    }
}
