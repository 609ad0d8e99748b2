//! A supplier of softs: it knows no fence, and writes whenever its call is over, whatever became of the broker.

use std::collections::VecDeque;

use softs_proto::broker::PeerId;
use softs_proto::wire::{Message, SupplierRequest, ToSupplier};

use crate::world::Frames;

#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) order_id: String,
    pub(crate) product: String,
    pub(crate) address: String,
    pub(crate) offset: u64,
    pub(crate) steps_left: usize,
}

#[derive(Debug, Default)]
pub(crate) struct SoftsSupplier {
    pub(crate) wire: Option<PeerId>,
    pub(crate) call: Option<Call>,
    /// What it sends as soon as it is connected.
    pub(crate) unsent: VecDeque<Frames>,
}

impl SoftsSupplier {
    fn send(&mut self, request: &SupplierRequest<'_>) {
        let mut message = Message::new();
        request.encode(&mut message);
        self.unsent.push_back(message.frames().map(<[u8]>::to_vec).collect());
    }

    /// softs' own sends HELLO once only; this one is one that its user starts again, with its call still going on.
    pub(crate) fn connected(&mut self, peer: PeerId) {
        self.wire = Some(peer);
        self.send(&SupplierRequest::Hello { product_ids: vec!["[abc]"], name: None });
        if self.call.is_none() {
            self.send(&SupplierRequest::Ready { credit: None });
        }
    }

    /// Its answer to an order is not lost with the connection; READY is.
    pub(crate) fn disconnected(&mut self) {
        self.wire = None;
        self.unsent.retain(|frames| frames[0] == b"DONE");
    }

    pub(crate) fn handle_message(&mut self, frames: &[&[u8]], steps: usize) {
        if let Ok(ToSupplier::Work { order_id, product_id, address, offset }) = ToSupplier::decode(frames) {
            assert!(self.call.is_none(), "a supplier of softs has one order at a time");
            self.call = Some(Call {
                order_id: order_id.to_owned(),
                product: product_id.to_owned(),
                address: address.to_owned(),
                offset,
                steps_left: steps,
            });
        }
    }

    /// Reports a call that is over.
    pub(crate) fn report(&mut self, order_id: &str, success: bool) {
        self.send(&SupplierRequest::Done { order_id, success });
        self.send(&SupplierRequest::Ready { credit: None });
    }
}
