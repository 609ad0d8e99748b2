//! The connected peers and what is on order: what a STATS answer has for a peer that asks for `detail`.

use super::error::WireError;
use super::lists::short_list;
use super::reader::Reader;
use super::writer;
use crate::Dialect;
use crate::limits::{MAX_ANNOUNCED, MAX_DETAIL_PATTERNS, MAX_DETAIL_PEERS, MAX_DETAIL_PRODUCTS};

/// The peers of a broker, at most [`MAX_DETAIL_PEERS`] of each side, and at most [`MAX_DETAIL_PRODUCTS`] of its
/// products.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Detail {
    /// Those that sent HELLO.
    pub clients: Vec<ClientDetail>,
    /// Those that sent HELLO.
    pub suppliers: Vec<SupplierDetail>,
    /// Those that have orders or are announced, the longest queues first.
    pub products: Vec<ProductDetail>,
}

/// One client.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClientDetail {
    /// The number that it was given.
    pub peer_id: u64,
    /// The medium that it announced.
    pub address: Option<String>,
    /// Which segment lies there, as it announced.
    pub segment_id: Option<u64>,
    /// Its orders that are queued or leased.
    pub orders: u64,
    /// Those of them that suppliers have.
    pub leased: u64,
    /// The products that it announced, with their lanes.
    pub lanes: Vec<LaneDetail>,
}

/// One announced product of one client.
#[derive(Clone, Debug, PartialEq)]
pub struct LaneDetail {
    /// What is ordered.
    pub product_id: String,
    /// Index of its lane, or [`super::NO_LANE`].
    pub lane: u32,
    /// Which use of that lane.
    pub generation: u32,
}

/// One supplier.
#[derive(Clone, Debug, PartialEq)]
pub struct SupplierDetail {
    /// The number that it was given.
    pub peer_id: u64,
    /// Its name; empty if it sent none.
    pub name: String,
    /// The first of its patterns, cut.
    pub patterns: Vec<String>,
    /// Its dialect.
    pub dialect: Dialect,
    /// Leases that it holds.
    pub leases: u64,
    /// Seconds since the oldest of them was given; 0 without one.
    pub busy_s: f64,
    /// Lanes that it was asked to serve and did not refuse.
    pub attached: u64,
}

/// One product.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProductDetail {
    /// What is ordered.
    pub product_id: String,
    /// Its orders that no supplier has.
    pub queued: u64,
    /// Its orders that suppliers have.
    pub leased: u64,
    /// Suppliers with a pattern that matches it.
    pub suppliers: u64,
}

impl Detail {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        writer::map(out, |map| {
            writer::list(map.key("clients"), &self.clients, |out, client| client.encode(out));
            writer::list(map.key("suppliers"), &self.suppliers, |out, supplier| supplier.encode(out));
            writer::list(map.key("products"), &self.products, |out, product| {
                writer::array(out, 4);
                writer::str(out, &product.product_id);
                writer::uint(out, product.queued);
                writer::uint(out, product.leased);
                writer::uint(out, product.suppliers);
            });
        });
    }

    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        let (mut clients, mut suppliers, mut products) = (None, None, None);
        reader.map("detail", |reader, key| {
            match key {
                b"clients" => {
                    clients = Some(short_list(reader, "clients", MAX_DETAIL_PEERS, ClientDetail::decode)?)
                }
                b"suppliers" => {
                    suppliers =
                        Some(short_list(reader, "suppliers", MAX_DETAIL_PEERS, SupplierDetail::decode)?);
                }
                b"products" => {
                    products = Some(short_list(reader, "products", MAX_DETAIL_PRODUCTS, product)?);
                }
                _ => reader.skip(key)?,
            }
            Ok(())
        })?;
        let seen = [clients.is_some(), suppliers.is_some(), products.is_some()];
        let (Some(clients), Some(suppliers), Some(products)) = (clients, suppliers, products) else {
            return Err(missing(reader, ["clients", "suppliers", "products"], seen));
        };
        Ok(Self { clients, suppliers, products })
    }
}

impl ClientDetail {
    fn encode(&self, out: &mut Vec<u8>) {
        writer::map(out, |map| {
            map.uint("peer_id", self.peer_id);
            map.optional_str("address", self.address.as_deref());
            map.optional_uint("segment_id", self.segment_id);
            map.uint("orders", self.orders);
            map.uint("leased", self.leased);
            writer::list(map.key("lanes"), &self.lanes, |out, lane| {
                writer::array(out, 3);
                writer::str(out, &lane.product_id);
                writer::uint(out, lane.lane.into());
                writer::uint(out, lane.generation.into());
            });
        });
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        let mut client = Self::default();
        let mut seen = [false; 4];
        reader.map("clients", |reader, key| {
            match key {
                b"peer_id" => (client.peer_id, seen[0]) = (reader.uint("peer_id")?, true),
                b"address" => client.address = Some(reader.id("address")?.to_owned()),
                b"segment_id" => client.segment_id = Some(reader.uint("segment_id")?),
                b"orders" => (client.orders, seen[1]) = (reader.uint("orders")?, true),
                b"leased" => (client.leased, seen[2]) = (reader.uint("leased")?, true),
                b"lanes" => {
                    (client.lanes, seen[3]) = (short_list(reader, "lanes", MAX_ANNOUNCED, lane)?, true)
                }
                _ => reader.skip(key)?,
            }
            Ok(())
        })?;
        all_seen(reader, ["peer_id", "orders", "leased", "lanes"], seen)?;
        Ok(client)
    }
}

impl SupplierDetail {
    fn encode(&self, out: &mut Vec<u8>) {
        writer::map(out, |map| {
            map.uint("peer_id", self.peer_id);
            map.str("name", &self.name);
            writer::strs(map.key("patterns"), &self.patterns);
            map.str("dialect", self.dialect.name());
            map.uint("leases", self.leases);
            map.float("busy_s", self.busy_s);
            map.uint("attached", self.attached);
        });
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        let mut supplier = Self {
            peer_id: 0,
            name: String::new(),
            patterns: Vec::new(),
            dialect: Dialect::Softs,
            leases: 0,
            busy_s: 0.0,
            attached: 0,
        };
        let mut seen = [false; 7];
        reader.map("suppliers", |reader, key| {
            match key {
                b"peer_id" => (supplier.peer_id, seen[0]) = (reader.uint("peer_id")?, true),
                b"name" => (supplier.name, seen[1]) = (reader.id("name")?.to_owned(), true),
                b"patterns" => {
                    let pattern = |reader: &mut Reader<'_>| reader.id("patterns").map(str::to_owned);
                    supplier.patterns = short_list(reader, "patterns", MAX_DETAIL_PATTERNS, pattern)?;
                    seen[2] = true;
                }
                b"dialect" => {
                    let name = reader.str("dialect")?;
                    supplier.dialect = match name {
                        "softs" => Dialect::Softs,
                        "native" => Dialect::Native,
                        _ => return Err(reader.error("dialect", "need \"softs\" or \"native\"")),
                    };
                    seen[3] = true;
                }
                b"leases" => (supplier.leases, seen[4]) = (reader.uint("leases")?, true),
                b"busy_s" => (supplier.busy_s, seen[5]) = (reader.number("busy_s")?, true),
                b"attached" => (supplier.attached, seen[6]) = (reader.uint("attached")?, true),
                _ => reader.skip(key)?,
            }
            Ok(())
        })?;
        all_seen(reader, ["peer_id", "name", "patterns", "dialect", "leases", "busy_s", "attached"], seen)?;
        Ok(supplier)
    }
}

fn lane(reader: &mut Reader<'_>) -> Result<LaneDetail, WireError> {
    reader.tuple("lanes", 3)?;
    Ok(LaneDetail {
        product_id: reader.id("product_id")?.to_owned(),
        lane: reader.uint32("lane")?,
        generation: reader.uint32("generation")?,
    })
}

fn product(reader: &mut Reader<'_>) -> Result<ProductDetail, WireError> {
    reader.tuple("products", 4)?;
    Ok(ProductDetail {
        product_id: reader.id("product_id")?.to_owned(),
        queued: reader.uint("queued")?,
        leased: reader.uint("leased")?,
        suppliers: reader.uint("suppliers")?,
    })
}

fn all_seen<const N: usize>(reader: &Reader<'_>, names: [&str; N], seen: [bool; N]) -> Result<(), WireError> {
    if seen == [true; N] { Ok(()) } else { Err(missing(reader, names, seen)) }
}

fn missing<const N: usize>(reader: &Reader<'_>, names: [&str; N], seen: [bool; N]) -> WireError {
    let fields: Vec<_> = names.into_iter().zip(seen).collect();
    reader.missing(&fields)
}
