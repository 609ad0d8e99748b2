//! Every message, byte for byte as Python's `msgpack` packs it for softs 0.1.2, in both directions.

use softs_proto::Dialect;
use softs_proto::wire::{
    AnnouncedLane, ClientDetail, ClientRequest, Detail, Diagnosis, EndCode, LaneDetail, LaneName, LaneOffer,
    MediumKind, MediumProfile, Message, NO_LANE, ProductDetail, Reply, Stats, SupplierDetail,
    SupplierRequest, Supply, ToClient, ToSupplier, WireError, WorkGroup,
};

/// Encodes, compares, decodes, compares.
macro_rules! golden {
    ($name:ident, $value:expr, $frames:expr) => {
        #[test]
        fn $name() {
            let value = $value;
            let frames: &[&[u8]] = $frames;
            let mut message = Message::new();
            value.encode(&mut message);
            assert_eq!(message.frames().collect::<Vec<_>>(), frames);
            assert_eq!(decode_like(&value, frames), Ok(value));
        }
    };
}

/// Decodes into the type of `_like`.
fn decode_like<'a, T: Decode<'a>>(_like: &T, frames: &[&'a [u8]]) -> Result<T, WireError> {
    T::decode(frames)
}

trait Decode<'a>: Sized {
    fn decode(frames: &[&'a [u8]]) -> Result<Self, WireError>;
}

macro_rules! decodes {
    ($($message:ident)*) => {$(
        impl<'a> Decode<'a> for $message<'a> {
            fn decode(frames: &[&'a [u8]]) -> Result<Self, WireError> {
                $message::decode(frames)
            }
        }
    )*};
}
decodes!(ClientRequest SupplierRequest ToClient ToSupplier);

const MEDIUM: &str = "sl_0123456789abcdef";
const LANE: LaneName<'static> = LaneName { address: "m", segment_id: 300, lane: 3, generation: 7 };
const FORTY: &str = "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx";

golden!(client_hello, ClientRequest::Hello { nonce: None }, &[b"HELLO", b"\x80"]);
golden!(
    native_client_hello,
    ClientRequest::Hello { nonce: Some(300) },
    &[b"HELLO", b"\x81\xa5nonce\xcd\x01,"]
);
golden!(
    order,
    ClientRequest::Order { order_id: "o1", product_id: "teacher/7", address: MEDIUM, offset: 4096 },
    &[
        b"ORDER",
        b"\x84\xa8order_id\xa2o1\xaaproduct_id\xa9teacher/7\xa7address\xb3sl_0123456789abcdef\xa6offset\xcd\x10\x00"
    ]
);
golden!(
    order_with_the_largest_offset,
    ClientRequest::Order { order_id: "o1", product_id: "teacher/7", address: MEDIUM, offset: u64::MAX },
    &[
        b"ORDER",
        b"\x84\xa8order_id\xa2o1\xaaproduct_id\xa9teacher/7\xa7address\xb3sl_0123456789abcdef\
          \xa6offset\xcf\xff\xff\xff\xff\xff\xff\xff\xff"
    ]
);
golden!(cancel, ClientRequest::Cancel { order_id: "o1" }, &[b"CANCEL", b"\x81\xa8order_id\xa2o1"]);
golden!(discard, ClientRequest::Discard, &[b"DISCARD", b"\x80"]);
golden!(
    stats,
    ClientRequest::Stats { request_id: None, product_id: None, detail: false },
    &[b"STATS", b"\x80"]
);
golden!(
    native_stats,
    ClientRequest::Stats { request_id: Some(9), product_id: Some("p"), detail: true },
    &[b"STATS", b"\x83\xaarequest_id\x09\xaaproduct_id\xa1p\xa6detail\xc3"]
);
golden!(
    orders,
    ClientRequest::Orders {
        address: "shm:a",
        segment_id: 300,
        slot_size: 65536,
        product_id: "p",
        orders: vec![(1, 0, 40), (2, 65536, 300)]
    },
    &[
        b"ORDERS",
        b"\x95\xa5shm:a\xcd\x01,\xce\x00\x01\x00\x00\xa1p\x96\x01\x00(\x02\xce\x00\x01\x00\x00\xcd\x01,"
    ]
);
golden!(
    cancels,
    ClientRequest::Cancels { request_id: 7, orders: vec![1, 2, 300] },
    &[b"CANCELS", b"\x92\x07\x93\x01\x02\xcd\x01,"]
);
golden!(
    lanes,
    ClientRequest::Lanes {
        address: "m",
        segment_id: 65536,
        lanes: vec![
            AnnouncedLane { product_id: "p", lane: 3, generation: 7 },
            AnnouncedLane { product_id: "q", lane: NO_LANE, generation: 0 },
        ],
    },
    &[b"LANES", b"\x93\xa1m\xce\x00\x01\x00\x00\x92\x93\xa1p\x03\x07\x93\xa1q\xce\xff\xff\xff\xff\x00"]
);

golden!(
    supplier_hello,
    SupplierRequest::Hello { product_ids: vec!["a.*", "b"], name: None },
    &[b"HELLO", b"\x81\xabproduct_ids\x92\xa3a.*\xa1b"]
);
golden!(
    native_supplier_hello,
    SupplierRequest::Hello { product_ids: vec!["a"], name: Some("t0") },
    &[b"HELLO", b"\x82\xabproduct_ids\x91\xa1a\xa4name\xa2t0"]
);
golden!(ready, SupplierRequest::Ready { credit: None }, &[b"READY", b"\x80"]);
golden!(native_ready, SupplierRequest::Ready { credit: Some(64) }, &[b"READY", b"\x81\xa6credit@"]);
golden!(
    done,
    SupplierRequest::Done { order_id: "o1", success: true },
    &[b"DONE", b"\x82\xa8order_id\xa2o1\xa7success\xc3"]
);
golden!(
    done_without_success,
    SupplierRequest::Done { order_id: FORTY, success: false },
    &[b"DONE", b"\x82\xa8order_id\xd9(xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\xa7success\xc2"]
);
golden!(
    dones,
    SupplierRequest::Dones { done: vec![1, 1 << 40], failed: vec![(3, "boom")], returned: vec![4] },
    &[b"DONES", b"\x93\x92\x01\xcf\x00\x00\x01\x00\x00\x00\x00\x00\x91\x92\x03\xa4boom\x91\x04"]
);
golden!(
    unattached,
    SupplierRequest::Unattached(vec![LANE]),
    &[b"UNATTACHED", b"\x91\x94\xa1m\xcd\x01,\x03\x07"]
);
golden!(attached, SupplierRequest::Attached(vec![LANE]), &[b"ATTACHED", b"\x91\x94\xa1m\xcd\x01,\x03\x07"]);
golden!(
    medium_of_a_client,
    ClientRequest::Medium(MediumProfile { kind: MediumKind::Shm, host: 300, slot_size: 65536 }),
    &[b"MEDIUM", b"\x93\x01\xcd\x01,\xce\x00\x01\x00\x00"]
);
golden!(
    medium_of_a_supplier,
    SupplierRequest::Medium(MediumProfile { kind: MediumKind::Tickets, host: 1, slot_size: 7 }),
    &[b"MEDIUM", b"\x93\x04\x01\x07"]
);
golden!(goodbye, SupplierRequest::Goodbye, &[b"GOODBYE", b"\x80"]);

golden!(fulfilled, ToClient::Fulfilled { order_id: "o1" }, &[b"FULFILLED", b"\x81\xa8order_id\xa2o1"]);
golden!(failed, ToClient::Failed { order_id: "o1" }, &[b"FAILED", b"\x81\xa8order_id\xa2o1"]);
golden!(
    results,
    ToClient::Results {
        done: vec![1, 2],
        ended: vec![(3, EndCode::Failed, "boom"), (4, EndCode::Invalid, "")]
    },
    &[b"RESULTS", b"\x92\x92\x01\x02\x92\x93\x03\x01\xa4boom\x93\x04\x02\xa0"]
);
golden!(
    supply,
    ToClient::Supply(vec![Supply {
        product_id: "p",
        lane_suppliers: 3,
        wire_suppliers: 300,
        softs_suppliers: 2
    }]),
    &[b"SUPPLY", b"\x91\x94\xa1p\x03\xcd\x01,\x02"]
);
golden!(late, ToClient::Late(vec![1, 300]), &[b"LATE", b"\x92\x01\xcd\x01,"]);

golden!(
    work,
    ToSupplier::Work { order_id: "o1", product_id: "teacher/7", address: MEDIUM, offset: 4096 },
    &[
        b"WORK",
        b"\x84\xa8order_id\xa2o1\xaaproduct_id\xa9teacher/7\xa7address\xb3sl_0123456789abcdef\xa6offset\xcd\x10\x00"
    ]
);
golden!(
    works,
    ToSupplier::Works(vec![
        WorkGroup {
            product_id: "p",
            address: "shm:a",
            segment_id: 300,
            slot_size: 65536,
            leases: vec![(1, 0, 40), (2, 65536, 300)],
        },
        WorkGroup { product_id: "q", address: "b", segment_id: 0, slot_size: 0, leases: vec![] },
    ]),
    &[
        b"WORKS",
        b"\x92\x95\xa1p\xa5shm:a\xcd\x01,\xce\x00\x01\x00\x00\x96\x01\x00(\x02\xce\x00\x01\x00\x00\xcd\x01,\x95\xa1q\xa1b\x00\x00\x90"
    ]
);
golden!(
    attach,
    ToSupplier::Attach(vec![LaneOffer { name: LANE, product_id: "p" }]),
    &[b"ATTACH", b"\x91\x95\xa1m\xcd\x01,\x03\x07\xa1p"]
);
golden!(detach, ToSupplier::Detach(vec![LANE]), &[b"DETACH", b"\x91\x94\xa1m\xcd\x01,\x03\x07"]);
golden!(terminate, ToSupplier::Terminate, &[b"TERMINATE", b"\x80"]);

golden!(reply_ok, ToClient::Reply(Reply::ok()), &[b"\x82\xa2ok\xc3\xa5error\xc0"]);
golden!(
    reply_error,
    ToSupplier::Reply(Reply::error("Queue full for product_id")),
    &[b"\x82\xa2ok\xc2\xa5error\xb9Queue full for product_id"]
);
golden!(
    reply_to_hello,
    ToSupplier::Reply(Reply { peer_id: Some(300), ..Reply::ok() }),
    &[b"\x83\xa2ok\xc3\xa5error\xc0\xa7peer_id\xcd\x01,"]
);
golden!(
    reply_to_a_native_hello,
    ToClient::Reply(Reply { peer_id: Some(300), max_order_attempts: Some(5), ..Reply::ok() }),
    &[b"\x84\xa2ok\xc3\xa5error\xc0\xa7peer_id\xcd\x01,\xb2max_order_attempts\x05"]
);
golden!(
    reply_to_discard,
    ToClient::Reply(Reply { cancelled: Some(vec!["o1", "o2"]), ..Reply::ok() }),
    &[b"\x84\xa2ok\xc3\xa5error\xc0\xa9cancelled\x02\xadcancelled_ids\x92\xa2o1\xa2o2"]
);
golden!(
    reply_to_discard_of_nothing,
    ToClient::Reply(Reply { cancelled: Some(vec![]), ..Reply::ok() }),
    &[b"\x84\xa2ok\xc3\xa5error\xc0\xa9cancelled\x00\xadcancelled_ids\x90"]
);
golden!(
    reply_to_cancels,
    ToClient::Reply(Reply { request_id: Some(7), cancelled_orders: Some(vec![1, 300]), ..Reply::ok() }),
    &[b"\x84\xa2ok\xc3\xa5error\xc0\xaarequest_id\x07\xadcancelled_ids\x92\x01\xcd\x01,"]
);
golden!(
    reply_to_stats,
    ToClient::Reply(Reply {
        stats: Some(Stats {
            pending_orders: 1,
            available_suppliers: 2,
            connected_clients: 3,
            connected_suppliers: 4,
            total_completed: 70000,
            product_ids: vec!["a.*".into(), "b".into()],
        }),
        ..Reply::ok()
    }),
    &[b"\x88\xa2ok\xc3\xa5error\xc0\xaepending_orders\x01\xb3available_suppliers\x02\xb1connected_clients\x03\
        \xb3connected_suppliers\x04\xaftotal_completed\xce\x00\x01\x11p\xabproduct_ids\x92\xa3a.*\xa1b"]
);
golden!(
    reply_with_diagnosis,
    ToClient::Reply(Reply {
        request_id: Some(9),
        stats: Some(Stats {
            pending_orders: 1,
            available_suppliers: 2,
            connected_clients: 3,
            connected_suppliers: 4,
            total_completed: 5,
            product_ids: vec![],
        }),
        diagnosis: Some(Box::new(Diagnosis {
            matching_suppliers: 1,
            busy_suppliers: 1,
            busiest_s: 2.5,
            queued: 3,
            unable_suppliers: 2,
            unable: "x".into()
        })),
        ..Reply::ok()
    }),
    &[b"\x8a\xa2ok\xc3\xa5error\xc0\xaarequest_id\x09\xaepending_orders\x01\xb3available_suppliers\x02\
        \xb1connected_clients\x03\xb3connected_suppliers\x04\xaftotal_completed\x05\xabproduct_ids\x90\
        \xa9diagnosis\x86\xb2matching_suppliers\x01\xaebusy_suppliers\x01\
        \xa9busiest_s\xcb@\x04\x00\x00\x00\x00\x00\x00\xa6queued\x03\
        \xb0unable_suppliers\x02\xa6unable\xa1x"]
);

golden!(
    reply_with_detail,
    ToClient::Reply(Reply {
        detail: Some(Box::new(Detail {
            clients: vec![
                ClientDetail {
                    peer_id: 1,
                    address: Some("m".into()),
                    segment_id: Some(9),
                    orders: 2,
                    leased: 1,
                    lanes: vec![LaneDetail { product_id: "p".into(), lane: 3, generation: 7 }],
                },
                ClientDetail { peer_id: 2, ..ClientDetail::default() },
            ],
            suppliers: vec![SupplierDetail {
                peer_id: 4,
                name: "t0".into(),
                patterns: vec!["a.*".into()],
                dialect: Dialect::Native,
                leases: 5,
                busy_s: 2.5,
                attached: 6,
            }],
            products: vec![ProductDetail { product_id: "p".into(), queued: 1, leased: 2, suppliers: 3 }],
        })),
        ..Reply::ok()
    }),
    &[b"\x83\xa2ok\xc3\xa5error\xc0\xa6detail\x83\
        \xa7clients\x92\x86\xa7peer_id\x01\xa7address\xa1m\xaasegment_id\x09\xa6orders\x02\xa6leased\x01\xa5lanes\x91\x93\xa1p\x03\x07\
        \x84\xa7peer_id\x02\xa6orders\x00\xa6leased\x00\xa5lanes\x90\
        \xa9suppliers\x91\x87\xa7peer_id\x04\xa4name\xa2t0\xa8patterns\x91\xa3a.*\xa7dialect\xa6native\
        \xa6leases\x05\xa6busy_s\xcb@\x04\x00\x00\x00\x00\x00\x00\xa8attached\x06\
        \xa8products\x91\x94\xa1p\x01\x02\x03"]
);

/// The payload of a CANCELS message of these orders, without what stands before the list.
fn list_of(orders: Vec<u64>) -> Vec<u8> {
    let mut message = Message::new();
    ClientRequest::Cancels { request_id: 0, orders }.encode(&mut message);
    message.frames().last().map_or(Vec::new(), |payload| payload[2..].to_vec())
}

#[test]
fn integers_have_the_shortest_form() {
    let golden: [(u64, &[u8]); 10] = [
        (0, b"\x00"),
        (127, b"\x7f"),
        (128, b"\xcc\x80"),
        (255, b"\xcc\xff"),
        (256, b"\xcd\x01\x00"),
        (65535, b"\xcd\xff\xff"),
        (65536, b"\xce\x00\x01\x00\x00"),
        (u32::MAX.into(), b"\xce\xff\xff\xff\xff"),
        (1 << 32, b"\xcf\x00\x00\x00\x01\x00\x00\x00\x00"),
        (u64::MAX, b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff"),
    ];
    for (n, bytes) in golden {
        assert_eq!(list_of(vec![n])[1..], *bytes, "{n}");
    }
}

#[test]
fn arrays_and_strings_have_the_shortest_form() {
    let arrays: [(usize, &[u8]); 4] =
        [(15, b"\x9f"), (16, b"\xdc\x00\x10"), (65535, b"\xdc\xff\xff"), (65536, b"\xdd\x00\x01\x00\x00")];
    for (len, head) in arrays {
        let list = list_of(vec![7; len]);
        assert_eq!((&list[..head.len()], list.len()), (head, head.len() + len));
    }
    let strings: [(usize, &[u8]); 6] = [
        (31, b"\xbf"),
        (32, b"\xd9\x20"),
        (255, b"\xd9\xff"),
        (256, b"\xda\x01\x00"),
        (65535, b"\xda\xff\xff"),
        (65536, b"\xdb\x00\x01\x00\x00"),
    ];
    for (len, head) in strings {
        let mut message = Message::new();
        ClientRequest::Cancel { order_id: &"x".repeat(len) }.encode(&mut message);
        let payload = message.frames().last().unwrap();
        let value = &payload[b"\x81\xa8order_id".len()..];
        assert_eq!((&value[..head.len()], value.len()), (head, head.len() + len));
    }
}
