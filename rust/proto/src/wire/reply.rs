//! The answer to a request, in and out: one frame, `{ok, error, ...}`.

use super::detail::Detail;
use super::envelope::read_map;
use super::error::WireError;
use super::lists::{list, uints};
use super::message::Message;
use super::reader::{Reader, cut};
use super::writer::{self, Map};

/// The answer to a request: one frame, `{ok, error, ...}`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reply<'a> {
    /// Whether the request was carried out.
    pub ok: bool,
    /// Why not.
    pub error: Option<&'a str>,
    /// Number of the peer, in answer to HELLO.
    pub peer_id: Option<u64>,
    /// Failed attempts after which an order is given up, in answer to HELLO (native).
    pub max_order_attempts: Option<u64>,
    /// Echo of the request (native).
    pub request_id: Option<u64>,
    /// What DISCARD cancelled, softs dialect (`cancelled` is its length).
    pub cancelled: Option<Vec<&'a str>>,
    /// What CANCELS cancelled, native dialect.
    pub cancelled_orders: Option<Vec<u64>>,
    /// In answer to STATS.
    pub stats: Option<Stats>,
    /// In answer to STATS with a product id (native).
    pub diagnosis: Option<Box<Diagnosis>>,
    /// In answer to STATS that asks which peers are connected (native).
    pub detail: Option<Box<Detail>>,
}

/// The broker's statistics; the fields of `softs.BrokerStats`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Orders queued or leased.
    pub pending_orders: u64,
    /// Suppliers that could take one more order now.
    pub available_suppliers: u64,
    /// Clients that sent HELLO.
    pub connected_clients: u64,
    /// Suppliers that sent HELLO.
    pub connected_suppliers: u64,
    /// Orders fulfilled since the start.
    pub total_completed: u64,
    /// All patterns of all connected suppliers, each once.
    pub product_ids: Vec<String>,
}

/// Why a product may be late.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Diagnosis {
    /// Suppliers with a pattern that matches the product, and which can serve this client.
    pub matching_suppliers: u64,
    /// How many of them hold leases.
    pub busy_suppliers: u64,
    /// Seconds since the oldest open lease of a matching supplier was given.
    pub busiest_s: f64,
    /// Orders of this product that wait for a supplier.
    pub queued: u64,
    /// Suppliers with a pattern that matches the product, but which cannot serve this client.
    pub unable_suppliers: u64,
    /// Why not, of one of them; empty if there is none.
    pub unable: String,
}

impl<'a> Reply<'a> {
    /// The request was carried out.
    #[must_use]
    pub fn ok() -> Self {
        Self { ok: true, ..Self::default() }
    }

    /// The request was not carried out.
    #[must_use]
    pub fn error(text: &'a str) -> Self {
        Self { error: Some(text), ..Self::default() }
    }

    /// Appends the one frame of this reply to `out`. `cancelled` wins over `cancelled_orders`; a reply has one of them
    /// at most.
    pub fn encode(&self, out: &mut Message) {
        let fields = |map: &mut Map<'_>| {
            map.bool("ok", self.ok);
            writer::str_or_nil(map.key("error"), self.error.map(cut));
            map.optional_uint("peer_id", self.peer_id);
            map.optional_uint("max_order_attempts", self.max_order_attempts);
            map.optional_uint("request_id", self.request_id);
            if let Some(order_ids) = &self.cancelled {
                map.uint("cancelled", order_ids.len() as u64);
                writer::strs(map.key("cancelled_ids"), order_ids);
            } else if let Some(orders) = &self.cancelled_orders {
                writer::uints(map.key("cancelled_ids"), orders);
            }
            if let Some(stats) = &self.stats {
                encode_stats(map, stats);
            }
            if let Some(diagnosis) = &self.diagnosis {
                encode_diagnosis(map.key("diagnosis"), diagnosis);
            }
            if let Some(detail) = &self.detail {
                detail.encode(map.key("detail"));
            }
        };
        out.frame(|out| writer::map(out, fields));
    }

    /// Reads a reply; fields that we do not know do not matter.
    pub(super) fn decode(frame: &'a [u8]) -> Result<Self, WireError> {
        let mut reply = Self::default();
        let (mut ok, mut cancelled, mut stats) = (None, CancelledIds::default(), StatsFields::default());
        let reader = read_map("reply", frame, |reader, key| {
            match key {
                b"ok" => ok = Some(reader.bool("ok")?),
                b"error" => reply.error = reader.optional_str("error")?.map(cut),
                b"peer_id" => reply.peer_id = Some(reader.uint("peer_id")?),
                b"max_order_attempts" => reply.max_order_attempts = Some(reader.uint("max_order_attempts")?),
                b"request_id" => reply.request_id = Some(reader.uint("request_id")?),
                b"cancelled" => {
                    reader.uint("cancelled")?;
                    cancelled.counted = true;
                }
                b"cancelled_ids" => cancelled.read(reader)?,
                b"diagnosis" => reply.diagnosis = Some(Box::new(decode_diagnosis(reader)?)),
                b"detail" => reply.detail = Some(Box::new(Detail::decode(reader)?)),
                _ => stats.read(reader, key)?,
            }
            Ok(())
        })?;
        reply.ok = ok.ok_or_else(|| reader.missing(&[("ok", false)]))?;
        (reply.cancelled, reply.cancelled_orders) = cancelled.finish();
        reply.stats = stats.finish(&reader)?;
        Ok(reply)
    }
}

/// `cancelled_ids` has strings in one dialect and numbers in the other; an empty one belongs to the dialect that also
/// counts it.
#[derive(Default)]
struct CancelledIds<'a> {
    counted: bool,
    order_ids: Option<Vec<&'a str>>,
    orders: Option<Vec<u64>>,
}

impl<'a> CancelledIds<'a> {
    fn read(&mut self, reader: &mut Reader<'a>) -> Result<(), WireError> {
        let what = "cancelled_ids";
        (self.order_ids, self.orders) = (None, None);
        if reader.is_array_of_str_next() {
            self.order_ids = Some(list(reader, what, 1, |reader| reader.id(what))?);
        } else {
            self.orders = Some(uints(reader, what)?);
        }
        Ok(())
    }

    fn finish(self) -> (Option<Vec<&'a str>>, Option<Vec<u64>>) {
        match self.orders {
            Some(orders) if orders.is_empty() && self.counted => (Some(Vec::new()), None),
            orders => (self.order_ids, orders),
        }
    }
}

/// The statistics lie in the reply itself, in any order: there are six of them or none.
#[derive(Default)]
struct StatsFields {
    numbers: [Option<u64>; 5],
    product_ids: Option<Vec<String>>,
}

impl StatsFields {
    fn read<'a>(&mut self, reader: &mut Reader<'a>, key: &'a [u8]) -> Result<(), WireError> {
        if key == b"product_ids" {
            let product_ids =
                list(reader, "product_ids", 1, |reader| reader.str("product_ids").map(str::to_owned))?;
            self.product_ids = Some(product_ids);
            return Ok(());
        }
        for (number, name) in self.numbers.iter_mut().zip(STATS_NUMBERS) {
            if key == name.as_bytes() {
                *number = Some(reader.uint(name)?);
                return Ok(());
            }
        }
        reader.skip(key)
    }

    fn finish(self, reader: &Reader<'_>) -> Result<Option<Stats>, WireError> {
        match (self.numbers, self.product_ids) {
            ([None, None, None, None, None], None) => Ok(None),
            (
                [Some(pending), Some(available), Some(clients), Some(suppliers), Some(completed)],
                Some(product_ids),
            ) => Ok(Some(Stats {
                pending_orders: pending,
                available_suppliers: available,
                connected_clients: clients,
                connected_suppliers: suppliers,
                total_completed: completed,
                product_ids,
            })),
            (numbers, product_ids) => {
                let present = numbers.iter().map(Option::is_some).chain([product_ids.is_some()]);
                let fields: Vec<_> = STATS_NUMBERS.into_iter().chain(["product_ids"]).zip(present).collect();
                Err(reader.missing(&fields))
            }
        }
    }
}

/// In the order in which softs sends them.
const STATS_NUMBERS: [&str; 5] =
    ["pending_orders", "available_suppliers", "connected_clients", "connected_suppliers", "total_completed"];

fn encode_stats(map: &mut Map<'_>, stats: &Stats) {
    let numbers = [
        stats.pending_orders,
        stats.available_suppliers,
        stats.connected_clients,
        stats.connected_suppliers,
        stats.total_completed,
    ];
    for (name, number) in STATS_NUMBERS.into_iter().zip(numbers) {
        map.uint(name, number);
    }
    writer::strs(map.key("product_ids"), &stats.product_ids);
}

fn encode_diagnosis(out: &mut Vec<u8>, diagnosis: &Diagnosis) {
    writer::map(out, |map| {
        map.uint("matching_suppliers", diagnosis.matching_suppliers);
        map.uint("busy_suppliers", diagnosis.busy_suppliers);
        map.float("busiest_s", diagnosis.busiest_s);
        map.uint("queued", diagnosis.queued);
        map.uint("unable_suppliers", diagnosis.unable_suppliers);
        map.str("unable", cut(&diagnosis.unable));
    });
}

fn decode_diagnosis(reader: &mut Reader<'_>) -> Result<Diagnosis, WireError> {
    let mut diagnosis = Diagnosis::default();
    let mut seen = [false; 6];
    reader.map("diagnosis", |reader, key| {
        match key {
            b"matching_suppliers" => {
                (diagnosis.matching_suppliers, seen[0]) = (reader.uint("matching_suppliers")?, true)
            }
            b"busy_suppliers" => (diagnosis.busy_suppliers, seen[1]) = (reader.uint("busy_suppliers")?, true),
            b"busiest_s" => (diagnosis.busiest_s, seen[2]) = (reader.number("busiest_s")?, true),
            b"queued" => (diagnosis.queued, seen[3]) = (reader.uint("queued")?, true),
            b"unable_suppliers" => {
                (diagnosis.unable_suppliers, seen[4]) = (reader.uint("unable_suppliers")?, true)
            }
            b"unable" => (diagnosis.unable, seen[5]) = (reader.text("unable")?.to_owned(), true),
            _ => reader.skip(key)?,
        }
        Ok(())
    })?;
    if seen != [true; 6] {
        let names =
            ["matching_suppliers", "busy_suppliers", "busiest_s", "queued", "unable_suppliers", "unable"];
        let fields: Vec<_> = names.into_iter().zip(seen).collect();
        return Err(reader.missing(&fields));
    }
    Ok(diagnosis)
}
