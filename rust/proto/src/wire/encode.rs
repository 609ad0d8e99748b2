//! Messages to frames, byte for byte what softs itself would send in the softs dialect.

use super::envelope::{two_frames, with_empty_map, with_map};
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
            Self::Hello { nonce } => with_map(out, b"HELLO", |map| map.optional_uint("nonce", *nonce)),
            Self::Discard => with_empty_map(out, b"DISCARD"),
            &Self::Order { order_id, product_id, address, offset } => {
                work(out, b"ORDER", order_id, product_id, address, offset);
            }
            Self::Cancel { order_id } => one_order(out, b"CANCEL", order_id),
            Self::Stats { request_id, product_id, detail } => with_map(out, b"STATS", |map| {
                map.optional_uint("request_id", *request_id);
                map.optional_str("product_id", *product_id);
                if *detail {
                    map.bool("detail", true);
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
            Self::Hello { product_ids, name } => with_map(out, b"HELLO", |map| {
                writer::strs(map.key("product_ids"), product_ids);
                map.optional_str("name", *name);
            }),
            Self::Ready { credit } => with_map(out, b"READY", |map| map.optional_uint("credit", *credit)),
            Self::Done { order_id, success } => with_map(out, b"DONE", |map| {
                map.str("order_id", order_id);
                map.bool("success", *success);
            }),
            Self::Dones { done, failed, returned } => two_frames(out, b"DONES", |out| {
                writer::array(out, 3);
                writer::uints(out, done);
                writer::list(out, failed, |out, (lease, text)| {
                    writer::array(out, 2);
                    writer::uint(out, *lease);
                    writer::str(out, cut(text));
                });
                writer::uints(out, returned);
            }),
            Self::Goodbye => with_empty_map(out, b"GOODBYE"),
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
                writer::list(out, ended, |out, (order, code, text)| {
                    writer::array(out, 3);
                    writer::uint(out, *order);
                    writer::uint(out, *code as u64);
                    writer::str(out, cut(text));
                });
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
                writer::list(out, groups, |out, group| {
                    writer::array(out, 5);
                    writer::str(out, group.product_id);
                    writer::str(out, group.address);
                    writer::uint(out, group.segment_id);
                    writer::uint(out, group.slot_size);
                    writer::flat_triples(out, &group.leases);
                });
            }),
            Self::Attach(offers) => two_frames(out, b"ATTACH", |out| lanes::encode_offers(out, offers)),
            Self::Detach(names) => two_frames(out, b"DETACH", |out| lanes::encode_names(out, names)),
            Self::Terminate => with_empty_map(out, b"TERMINATE"),
        }
    }
}

fn one_order(out: &mut Message, command: &[u8], order_id: &str) {
    with_map(out, command, |map| map.str("order_id", order_id));
}

/// ORDER and WORK have the same fields.
fn work(out: &mut Message, command: &[u8], order_id: &str, product_id: &str, address: &str, offset: u64) {
    with_map(out, command, |map| {
        map.str("order_id", order_id);
        map.str("product_id", product_id);
        map.str("address", address);
        map.uint("offset", offset);
    });
}
