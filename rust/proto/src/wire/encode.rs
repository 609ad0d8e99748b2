//! Messages to frames, byte for byte what softs itself would send in the softs dialect.

use super::envelope::{empty_map, two_frames};
use super::lanes;
use super::medium_profile;
use super::message::Message;
use super::pushes::{ToClient, ToSupplier};
use super::reader::cut;
use super::requests::{ClientRequest, SupplierRequest};
use super::writer;

impl ClientRequest<'_> {
    /// Appends the two frames of this message to `out`.
    pub fn encode(&self, out: &mut Message) {
        match self {
            Self::Hello { nonce: None } => two_frames(out, b"HELLO", empty_map),
            Self::Hello { nonce: Some(nonce) } => two_frames(out, b"HELLO", |out| {
                writer::map(out, 1);
                writer::str(out, "nonce");
                writer::uint(out, *nonce);
            }),
            Self::Discard => two_frames(out, b"DISCARD", empty_map),
            &Self::Order { order_id, product_id, address, offset } => {
                work(out, b"ORDER", order_id, product_id, address, offset);
            }
            Self::Cancel { order_id } => one_order(out, b"CANCEL", order_id),
            Self::Stats { request_id, product_id, detail } => two_frames(out, b"STATS", |out| {
                let given = [request_id.is_some(), product_id.is_some(), *detail];
                writer::map(out, given.into_iter().filter(|given| *given).count());
                if let Some(request_id) = request_id {
                    writer::str(out, "request_id");
                    writer::uint(out, *request_id);
                }
                if let Some(product_id) = product_id {
                    writer::str(out, "product_id");
                    writer::str(out, product_id);
                }
                if *detail {
                    writer::str(out, "detail");
                    writer::bool(out, true);
                }
            }),
            Self::Orders { address, segment_id, slot_size, product_id, orders } => {
                two_frames(out, b"ORDERS", |out| {
                    writer::array(out, 5);
                    writer::str(out, address);
                    writer::uint(out, *segment_id);
                    writer::uint(out, *slot_size);
                    writer::str(out, product_id);
                    writer::flat_triples(out, orders);
                });
            }
            Self::Cancels { request_id, orders } => two_frames(out, b"CANCELS", |out| {
                writer::array(out, 2);
                writer::uint(out, *request_id);
                writer::uints(out, orders);
            }),
            Self::Medium(profile) => {
                two_frames(out, b"MEDIUM", |out| medium_profile::encode(out, *profile));
            }
            Self::Lanes { address, segment_id, lanes } => two_frames(out, b"LANES", |out| {
                lanes::encode_announced(out, address, *segment_id, lanes);
            }),
        }
    }
}

impl SupplierRequest<'_> {
    /// Appends the two frames of this message to `out`.
    pub fn encode(&self, out: &mut Message) {
        match self {
            Self::Hello { product_ids, name } => two_frames(out, b"HELLO", |out| {
                writer::map(out, 1 + usize::from(name.is_some()));
                writer::str(out, "product_ids");
                writer::strs(out, product_ids);
                if let Some(name) = name {
                    writer::str(out, "name");
                    writer::str(out, name);
                }
            }),
            Self::Ready { credit: None } => two_frames(out, b"READY", empty_map),
            Self::Ready { credit: Some(credit) } => two_frames(out, b"READY", |out| {
                writer::map(out, 1);
                writer::str(out, "credit");
                writer::uint(out, *credit);
            }),
            Self::Done { order_id, success } => two_frames(out, b"DONE", |out| {
                writer::map(out, 2);
                writer::str(out, "order_id");
                writer::str(out, order_id);
                writer::str(out, "success");
                writer::bool(out, *success);
            }),
            Self::Dones { done, failed, returned } => two_frames(out, b"DONES", |out| {
                writer::array(out, 3);
                writer::uints(out, done);
                writer::array(out, failed.len());
                for (lease, text) in failed {
                    writer::array(out, 2);
                    writer::uint(out, *lease);
                    writer::str(out, cut(text));
                }
                writer::uints(out, returned);
            }),
            Self::Goodbye => two_frames(out, b"GOODBYE", empty_map),
            Self::Medium(profile) => {
                two_frames(out, b"MEDIUM", |out| medium_profile::encode(out, *profile));
            }
            Self::Unattached(names) => two_frames(out, b"UNATTACHED", |out| lanes::encode_names(out, names)),
            Self::Attached(names) => two_frames(out, b"ATTACHED", |out| lanes::encode_names(out, names)),
        }
    }
}

impl ToClient<'_> {
    /// Appends the frames of this message to `out`: one for a reply, else two.
    pub fn encode(&self, out: &mut Message) {
        match self {
            Self::Reply(reply) => reply.encode(out),
            Self::Fulfilled { order_id } => one_order(out, b"FULFILLED", order_id),
            Self::Failed { order_id } => one_order(out, b"FAILED", order_id),
            Self::Results { done, ended } => two_frames(out, b"RESULTS", |out| {
                writer::array(out, 2);
                writer::uints(out, done);
                writer::array(out, ended.len());
                for (order, code, text) in ended {
                    writer::array(out, 3);
                    writer::uint(out, *order);
                    writer::uint(out, *code as u64);
                    writer::str(out, cut(text));
                }
            }),
            Self::Supply(supply) => two_frames(out, b"SUPPLY", |out| lanes::encode_supply(out, supply)),
            Self::Late(orders) => two_frames(out, b"LATE", |out| writer::uints(out, orders)),
        }
    }
}

impl ToSupplier<'_> {
    /// Appends the frames of this message to `out`: one for a reply, else two.
    pub fn encode(&self, out: &mut Message) {
        match self {
            Self::Reply(reply) => reply.encode(out),
            &Self::Work { order_id, product_id, address, offset } => {
                work(out, b"WORK", order_id, product_id, address, offset);
            }
            Self::Works(groups) => two_frames(out, b"WORKS", |out| {
                writer::array(out, groups.len());
                for group in groups {
                    writer::array(out, 5);
                    writer::str(out, group.product_id);
                    writer::str(out, group.address);
                    writer::uint(out, group.segment_id);
                    writer::uint(out, group.slot_size);
                    writer::flat_triples(out, &group.leases);
                }
            }),
            Self::Attach(offers) => two_frames(out, b"ATTACH", |out| lanes::encode_offers(out, offers)),
            Self::Detach(names) => two_frames(out, b"DETACH", |out| lanes::encode_names(out, names)),
            Self::Terminate => two_frames(out, b"TERMINATE", empty_map),
        }
    }
}

fn one_order(out: &mut Message, command: &[u8], order_id: &str) {
    two_frames(out, command, |out| {
        writer::map(out, 1);
        writer::str(out, "order_id");
        writer::str(out, order_id);
    });
}

/// ORDER and WORK have the same fields.
fn work(out: &mut Message, command: &[u8], order_id: &str, product_id: &str, address: &str, offset: u64) {
    two_frames(out, command, |out| {
        writer::map(out, 4);
        writer::str(out, "order_id");
        writer::str(out, order_id);
        writer::str(out, "product_id");
        writer::str(out, product_id);
        writer::str(out, "address");
        writer::str(out, address);
        writer::str(out, "offset");
        writer::uint(out, offset);
    });
}
