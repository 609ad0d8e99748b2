//! Frames to messages. The requests of a softs peer are as strict as the dataclasses of softs are; its other payloads
//! are not decoded.

use super::envelope::{any_map, read_map, split, unknown_command};
use super::error::WireError;
use super::lanes;
use super::lists::{flat_triples, list, uints};
use super::medium_profile;
use super::pushes::{EndCode, ToClient, ToSupplier, WorkGroup};
use super::reader::Reader;
use super::reply::Reply;
use super::requests::{ClientRequest, SupplierRequest};
use crate::limits::MAX_PATTERNS;

impl<'a> ClientRequest<'a> {
    /// Reads a message from a client; frames beyond the second do not matter.
    ///
    /// # Errors
    /// [`WireError`] names the field and the error: the answer to the client.
    pub fn decode(frames: &[&'a [u8]]) -> Result<Self, WireError> {
        let (command, payload) = split(frames)?;
        match command {
            b"ORDERS" => orders(payload),
            b"MEDIUM" => medium_profile::decode(payload).map(Self::Medium),
            b"ORDER" => {
                let order = work("ORDER", payload)?;
                let (product_id, address) = (order.product_id, order.address);
                Ok(Self::Order { order_id: order.order_id, product_id, address, offset: order.offset })
            }
            b"CANCEL" => Ok(Self::Cancel { order_id: order_id("CANCEL", payload)? }),
            b"CANCELS" => cancels(payload),
            b"STATS" => stats(payload),
            b"LANES" => lanes::announced(payload),
            b"HELLO" => client_hello(payload),
            b"DISCARD" => any_map("DISCARD", payload).map(|()| Self::Discard),
            _ => Err(unknown_command(command)),
        }
    }
}

impl<'a> SupplierRequest<'a> {
    /// Reads a message from a supplier; frames beyond the second do not matter.
    ///
    /// # Errors
    /// [`WireError`] names the field and the error: the answer to the supplier.
    pub fn decode(frames: &[&'a [u8]]) -> Result<Self, WireError> {
        let (command, payload) = split(frames)?;
        match command {
            b"DONES" => dones(payload),
            b"DONE" => done(payload),
            b"READY" => ready(payload),
            b"HELLO" => supplier_hello(payload),
            b"MEDIUM" => medium_profile::decode(payload).map(Self::Medium),
            b"UNATTACHED" => lanes::unattached(payload),
            b"ATTACHED" => lanes::attached(payload),
            b"GOODBYE" => any_map("GOODBYE", payload).map(|()| Self::Goodbye),
            _ => Err(unknown_command(command)),
        }
    }
}

impl<'a> ToClient<'a> {
    /// Reads a message from a broker to a client; a single frame is a reply.
    ///
    /// # Errors
    /// [`WireError`] names the field and the error.
    pub fn decode(frames: &[&'a [u8]]) -> Result<Self, WireError> {
        if let [reply] = frames {
            return Reply::decode(reply).map(Self::Reply);
        }
        let (command, payload) = split(frames)?;
        match command {
            b"RESULTS" => results(payload),
            b"SUPPLY" => lanes::supply(payload),
            b"LATE" => late(payload),
            b"FULFILLED" => Ok(Self::Fulfilled { order_id: order_id("FULFILLED", payload)? }),
            b"FAILED" => Ok(Self::Failed { order_id: order_id("FAILED", payload)? }),
            _ => Err(unknown_command(command)),
        }
    }
}

impl<'a> ToSupplier<'a> {
    /// Reads a message from a broker to a supplier; a single frame is a reply.
    ///
    /// # Errors
    /// [`WireError`] names the field and the error.
    pub fn decode(frames: &[&'a [u8]]) -> Result<Self, WireError> {
        if let [reply] = frames {
            return Reply::decode(reply).map(Self::Reply);
        }
        let (command, payload) = split(frames)?;
        match command {
            b"WORKS" => works(payload),
            b"WORK" => {
                let order = work("WORK", payload)?;
                let (product_id, address) = (order.product_id, order.address);
                Ok(Self::Work { order_id: order.order_id, product_id, address, offset: order.offset })
            }
            b"ATTACH" => lanes::attach(payload),
            b"DETACH" => lanes::detach(payload),
            b"TERMINATE" => any_map("TERMINATE", payload).map(|()| Self::Terminate),
            _ => Err(unknown_command(command)),
        }
    }
}

/// The content of ORDER and of WORK.
struct Work<'a> {
    order_id: &'a str,
    product_id: &'a str,
    address: &'a str,
    offset: u64,
}

fn work<'a>(message: &'static str, payload: &'a [u8]) -> Result<Work<'a>, WireError> {
    let (mut order_id, mut product_id, mut address, mut offset) = (None, None, None, None);
    let reader = read_map(message, payload, |reader, key| {
        match key {
            b"order_id" => order_id = Some(reader.id("order_id")?),
            b"product_id" => product_id = Some(reader.id("product_id")?),
            b"address" => address = Some(reader.id("address")?),
            b"offset" => offset = Some(reader.uint("offset")?),
            _ => return Err(reader.unknown(key)),
        }
        Ok(())
    })?;
    match (order_id, product_id, address, offset) {
        (Some(order_id), Some(product_id), Some(address), Some(offset)) => {
            Ok(Work { order_id, product_id, address, offset })
        }
        _ => Err(reader.missing(&[
            ("order_id", order_id.is_some()),
            ("product_id", product_id.is_some()),
            ("address", address.is_some()),
            ("offset", offset.is_some()),
        ])),
    }
}

fn order_id<'a>(message: &'static str, payload: &'a [u8]) -> Result<&'a str, WireError> {
    let mut order_id = None;
    let reader = read_map(message, payload, |reader, key| {
        match key {
            b"order_id" => order_id = Some(reader.id("order_id")?),
            _ => return Err(reader.unknown(key)),
        }
        Ok(())
    })?;
    order_id.ok_or_else(|| reader.missing(&[("order_id", false)]))
}

fn stats(payload: &[u8]) -> Result<ClientRequest<'_>, WireError> {
    let (mut request_id, mut product_id, mut detail) = (None, None, false);
    read_map("STATS", payload, |reader, key| {
        match key {
            b"request_id" => request_id = Some(reader.uint("request_id")?),
            b"product_id" => product_id = Some(reader.id("product_id")?),
            b"detail" => detail = reader.bool("detail")?,
            _ => reader.skip(key)?,
        }
        Ok(())
    })?;
    Ok(ClientRequest::Stats { request_id, product_id, detail })
}

fn client_hello(payload: &[u8]) -> Result<ClientRequest<'_>, WireError> {
    let mut nonce = None;
    read_map("HELLO", payload, |reader, key| {
        match key {
            b"nonce" => nonce = Some(reader.uint("nonce")?),
            _ => reader.skip(key)?,
        }
        Ok(())
    })?;
    Ok(ClientRequest::Hello { nonce })
}

fn orders(payload: &[u8]) -> Result<ClientRequest<'_>, WireError> {
    let mut reader = Reader::new("ORDERS", payload);
    reader.tuple("payload", 5)?;
    let address = reader.id("address")?;
    let segment_id = reader.uint("segment_id")?;
    let slot_size = reader.uint("slot_size")?;
    let product_id = reader.id("product_id")?;
    let orders = flat_triples(&mut reader, "orders")?;
    reader.end()?;
    Ok(ClientRequest::Orders { address, segment_id, slot_size, product_id, orders })
}

fn cancels(payload: &[u8]) -> Result<ClientRequest<'_>, WireError> {
    let mut reader = Reader::new("CANCELS", payload);
    reader.tuple("payload", 2)?;
    let request_id = reader.uint("request_id")?;
    let orders = uints(&mut reader, "orders")?;
    reader.end()?;
    Ok(ClientRequest::Cancels { request_id, orders })
}

fn supplier_hello(payload: &[u8]) -> Result<SupplierRequest<'_>, WireError> {
    let (mut product_ids, mut name) = (Vec::new(), None);
    read_map("HELLO", payload, |reader, key| {
        match key {
            b"product_ids" => {
                let len = reader.array("product_ids")?;
                if len > MAX_PATTERNS {
                    return Err(reader
                        .error("product_ids", &format!("{len} patterns, at most {MAX_PATTERNS} allowed")));
                }
                product_ids.clear();
                product_ids.reserve(len);
                for _ in 0..len {
                    product_ids.push(reader.id("product_ids")?);
                }
            }
            b"name" => name = Some(reader.id("name")?),
            _ => reader.skip(key)?,
        }
        Ok(())
    })?;
    Ok(SupplierRequest::Hello { product_ids, name })
}

fn ready(payload: &[u8]) -> Result<SupplierRequest<'_>, WireError> {
    let mut credit = None;
    read_map("READY", payload, |reader, key| {
        match key {
            b"credit" => credit = Some(reader.uint("credit")?),
            _ => reader.skip(key)?,
        }
        Ok(())
    })?;
    Ok(SupplierRequest::Ready { credit })
}

fn done(payload: &[u8]) -> Result<SupplierRequest<'_>, WireError> {
    let (mut order_id, mut success) = (None, true);
    let reader = read_map("DONE", payload, |reader, key| {
        match key {
            b"order_id" => order_id = Some(reader.id("order_id")?),
            b"success" => success = reader.bool("success")?,
            _ => return Err(reader.unknown(key)),
        }
        Ok(())
    })?;
    let order_id = order_id.ok_or_else(|| reader.missing(&[("order_id", false)]))?;
    Ok(SupplierRequest::Done { order_id, success })
}

fn dones(payload: &[u8]) -> Result<SupplierRequest<'_>, WireError> {
    let mut reader = Reader::new("DONES", payload);
    reader.tuple("payload", 3)?;
    let done = uints(&mut reader, "done")?;
    let failed = list(&mut reader, "failed", 3, |reader| {
        reader.tuple("failed", 2)?;
        Ok((reader.uint("failed")?, reader.text("failed")?))
    })?;
    let returned = uints(&mut reader, "returned")?;
    reader.end()?;
    Ok(SupplierRequest::Dones { done, failed, returned })
}

fn results(payload: &[u8]) -> Result<ToClient<'_>, WireError> {
    let mut reader = Reader::new("RESULTS", payload);
    reader.tuple("payload", 2)?;
    let done = uints(&mut reader, "done")?;
    let ended = list(&mut reader, "ended", 4, |reader| {
        reader.tuple("ended", 3)?;
        let order = reader.uint("ended")?;
        let code = match reader.uint("ended")? {
            1 => EndCode::Failed,
            2 => EndCode::Invalid,
            3 => EndCode::Returned,
            code => {
                return Err(reader.error("ended", &format!("need a code from 1 to 3, have {code}")));
            }
        };
        Ok((order, code, reader.text("ended")?))
    })?;
    reader.end()?;
    Ok(ToClient::Results { done, ended })
}

fn late(payload: &[u8]) -> Result<ToClient<'_>, WireError> {
    let mut reader = Reader::new("LATE", payload);
    let orders = uints(&mut reader, "orders")?;
    reader.end()?;
    Ok(ToClient::Late(orders))
}

fn works(payload: &[u8]) -> Result<ToSupplier<'_>, WireError> {
    let mut reader = Reader::new("WORKS", payload);
    let groups = list(&mut reader, "groups", 6, |reader| {
        reader.tuple("group", 5)?;
        Ok(WorkGroup {
            product_id: reader.id("product_id")?,
            address: reader.id("address")?,
            segment_id: reader.uint("segment_id")?,
            slot_size: reader.uint("slot_size")?,
            leases: flat_triples(reader, "leases")?,
        })
    })?;
    reader.end()?;
    Ok(ToSupplier::Works(groups))
}
