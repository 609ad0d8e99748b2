//! decode(encode(x)) = x for every message of both dialects.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use softs_proto::Dialect;
use softs_proto::wire::{
    AnnouncedLane, ClientDetail, ClientRequest, Detail, Diagnosis, EndCode, LaneDetail, LaneName, LaneOffer,
    Message, ProductDetail, Reply, Stats, SupplierDetail, SupplierRequest, Supply, ToClient, ToSupplier,
    WorkGroup,
};

/// Ids, with all widths of string lengths.
fn id() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z0-9/._-]{0,40}",
        "\\PC{0,80}",
        Just("x".repeat(255)),
        Just("y".repeat(256)),
        Just("z".repeat(1024))
    ]
}

/// Numbers of all widths.
fn uint() -> impl Strategy<Value = u64> {
    (any::<u64>(), 0_u32..64).prop_map(|(n, shift)| n >> shift)
}

fn uints() -> impl Strategy<Value = Vec<u64>> {
    vec(uint(), 0..40)
}

fn triples() -> impl Strategy<Value = Vec<(u64, u64, u64)>> {
    vec((uint(), uint(), uint()), 0..40)
}

/// (product, address, segment, lane, generation).
type AnyLane = (String, String, u64, u32, u32);

fn lanes() -> impl Strategy<Value = Vec<AnyLane>> {
    vec((id(), id(), uint(), any::<u32>(), any::<u32>()), 0..20)
}

fn detail() -> impl Strategy<Value = Detail> {
    let lane = (id(), any::<u32>(), any::<u32>());
    let lane = lane.prop_map(|(product_id, lane, generation)| LaneDetail { product_id, lane, generation });
    let client = (uint(), option::of(id()), option::of(uint()), uint(), uint(), vec(lane, 0..4));
    let client = client.prop_map(|(peer_id, address, segment_id, orders, leased, lanes)| ClientDetail {
        peer_id,
        address,
        segment_id,
        orders,
        leased,
        lanes,
    });
    let dialect = prop_oneof![Just(Dialect::Softs), Just(Dialect::Native)];
    let supplier = (uint(), id(), vec(id(), 0..8), dialect, uint(), 0.0..1e9, uint());
    let supplier = supplier.prop_map(|(peer_id, name, patterns, dialect, leases, busy_s, attached)| {
        SupplierDetail { peer_id, name, patterns, dialect, leases, busy_s, attached }
    });
    let product = (id(), uint(), uint(), uint());
    let product = product.prop_map(|(product_id, queued, leased, suppliers)| ProductDetail {
        product_id,
        queued,
        leased,
        suppliers,
    });
    let detail = (vec(client, 0..4), vec(supplier, 0..4), vec(product, 0..4));
    detail.prop_map(|(clients, suppliers, products)| Detail { clients, suppliers, products })
}

fn code() -> impl Strategy<Value = EndCode> {
    prop_oneof![Just(EndCode::Failed), Just(EndCode::Invalid)]
}

macro_rules! round_trip {
    ($type:ident, $value:expr) => {{
        let value = $value;
        let mut message = Message::new();
        value.encode(&mut message);
        let frames: Vec<_> = message.frames().collect();
        prop_assert_eq!($type::decode(&frames), Ok(value));
    }};
}

proptest! {
    #[test]
    fn orders(order_id in id(), product_id in id(), address in id(), offset in uint(), orders in triples(), numbers in uints()) {
        let (order_id, product_id, address) = (&order_id[..], &product_id[..], &address[..]);
        round_trip!(ClientRequest, ClientRequest::Order { order_id, product_id, address, offset });
        round_trip!(ToSupplier, ToSupplier::Work { order_id, product_id, address, offset });
        round_trip!(ClientRequest, ClientRequest::Cancel { order_id });
        round_trip!(ClientRequest, ClientRequest::Orders { address, segment_id: offset / 3, slot_size: offset, product_id, orders });
        round_trip!(ClientRequest, ClientRequest::Cancels { request_id: offset, orders: numbers });
        round_trip!(ToClient, ToClient::Fulfilled { order_id });
        round_trip!(ToClient, ToClient::Failed { order_id });
    }

    #[test]
    fn requests_with_options(request_id in option::of(uint()), product_id in option::of(id()), product_ids in vec(id(), 0..20)) {
        let product_id = product_id.as_deref();
        let detail = request_id.is_some_and(|id| id % 2 == 0);
        round_trip!(ClientRequest, ClientRequest::Stats { request_id, product_id, detail });
        round_trip!(ClientRequest, ClientRequest::Hello { nonce: request_id });
        let product_ids = product_ids.iter().map(String::as_str).collect();
        round_trip!(SupplierRequest, SupplierRequest::Hello { product_ids, name: product_id });
        round_trip!(SupplierRequest, SupplierRequest::Ready { credit: request_id });
    }

    #[test]
    fn answers_of_suppliers(order_id in id(), success: bool, done in uints(), failed in vec((uint(), id()), 0..20), returned in uints()) {
        round_trip!(SupplierRequest, SupplierRequest::Done { order_id: &order_id, success });
        let failed = failed.iter().map(|(lease, text)| (*lease, &text[..])).collect();
        round_trip!(SupplierRequest, SupplierRequest::Dones { done, failed, returned });
    }

    #[test]
    fn results(done in uints(), ended in vec((uint(), code(), id()), 0..20)) {
        let ended = ended.iter().map(|(order, code, text)| (*order, *code, &text[..])).collect();
        round_trip!(ToClient, ToClient::Results { done, ended });
    }

    #[test]
    fn works(groups in vec((id(), id(), uint(), triples()), 0..20)) {
        let groups = groups.iter().map(|(product_id, address, slot_size, leases)| {
            let leases = leases.clone();
            WorkGroup { product_id, address, segment_id: slot_size / 3, slot_size: *slot_size, leases }
        });
        round_trip!(ToSupplier, ToSupplier::Works(groups.collect()));
    }

    #[test]
    fn lanes_of_all_kinds(lanes in lanes(), late in uints()) {
        let names: Vec<_> = lanes.iter().map(|(_, address, segment_id, lane, generation)| {
            LaneName { address, segment_id: *segment_id, lane: *lane, generation: *generation }
        }).collect();
        let offers = lanes.iter().zip(&names).map(|((product_id, ..), &name)| LaneOffer { name, product_id });
        round_trip!(ToSupplier, ToSupplier::Attach(offers.collect()));
        round_trip!(ToSupplier, ToSupplier::Detach(names.clone()));
        round_trip!(SupplierRequest, SupplierRequest::Unattached(names.clone()));
        round_trip!(SupplierRequest, SupplierRequest::Attached(names));
        let announced = lanes.iter().map(|(product_id, _, _, lane, generation)| {
            AnnouncedLane { product_id, lane: *lane, generation: *generation }
        });
        let segment_id = lanes.len() as u64;
        round_trip!(ClientRequest, ClientRequest::Lanes { address: "m", segment_id, lanes: announced.collect() });
        let supply = lanes.iter().map(|(product_id, _, n, lane_suppliers, wire_suppliers)| {
            let (lane_suppliers, wire_suppliers) = (*lane_suppliers, *wire_suppliers);
            Supply { product_id, lane_suppliers, wire_suppliers, softs_suppliers: *n as u32 }
        });
        round_trip!(ToClient, ToClient::Supply(supply.collect()));
        round_trip!(ToClient, ToClient::Late(late));
    }

    #[test]
    fn replies(
        ok: bool, error in option::of(id()), ids in [option::of(uint()), option::of(uint()), option::of(uint())], detail in option::of(detail()), numbers in [uint(), uint(), uint(), uint(), uint()],
        product_ids in vec(id(), 0..20), seconds in 0.0..1e9, has_stats: bool, has_diagnosis: bool,
        cancelled in option::of(vec(id(), 0..20)), cancelled_orders in option::of(uints()),
    ) {
        let stats = Stats {
            pending_orders: numbers[0], available_suppliers: numbers[1], connected_clients: numbers[2],
            connected_suppliers: numbers[3], total_completed: numbers[4], product_ids,
        };
        let diagnosis = Diagnosis { matching_suppliers: numbers[0], busy_suppliers: numbers[1], busiest_s: seconds, queued: numbers[2], unable_suppliers: numbers[0] / 2, unable: "x".repeat(numbers[1] as usize % 9) };
        let cancelled: Option<Vec<_>> = cancelled.as_ref().map(|ids| ids.iter().map(String::as_str).collect());
        let reply = Reply {
            ok,
            error: error.as_deref(),
            peer_id: ids[0],
            request_id: ids[1],
            max_order_attempts: ids[2],
            detail: detail.map(Box::new),
            cancelled_orders: if cancelled.is_some() { None } else { cancelled_orders },
            cancelled,
            stats: has_stats.then_some(stats),
            diagnosis: has_diagnosis.then_some(Box::new(diagnosis)),
        };
        round_trip!(ToClient, ToClient::Reply(reply.clone()));
        round_trip!(ToSupplier, ToSupplier::Reply(reply));
    }
}
