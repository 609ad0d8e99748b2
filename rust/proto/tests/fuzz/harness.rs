//! A small mutational fuzzer for all that comes from a peer: valid encodings are broken in typical ways and must be
//! refused or understood, never more. A case is its seed.

use softs_proto::Dialect;
use softs_proto::limits::{MAX_COMMAND_BYTES, MAX_FRAMES, MAX_MESSAGE_BYTES};
use softs_proto::wire::{
    AnnouncedLane, ClientDetail, ClientRequest, ControlReply, ControlRequest, Detail, Diagnosis, EndCode,
    Follow, LaneDetail, LaneName, LaneOffer, LinkedState, MediumKind, MediumProfile, Message, ModelRef,
    ProductDetail, Publication, Reply, Stats, SupplierDetail, SupplierRequest, Supply, ToClient, ToSupplier,
    WorkGroup,
};
use softs_proto::zmtp::{Codec, Event, Role, ZmtpError};

use crate::rng::Rng;

/// Runs the cases of these seeds.
///
/// # Panics
/// If a property does not hold; the seed is on standard error then.
pub(crate) fn run(seeds: std::ops::Range<u64>) {
    let corpus = corpus();
    for seed in seeds {
        let _tell = TellSeed(seed);
        let mut rng = Rng::new(seed);
        if rng.below(3) == 0 {
            fuzz_codec(&mut rng, &corpus);
        } else {
            fuzz_decoders(&mut rng, &corpus);
        }
    }
}

/// Names the failing case.
struct TellSeed(u64);

impl Drop for TellSeed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failing case: cargo run -p softs-proto --release --example fuzz -- --seed {}", self.0);
        }
    }
}

type FrameList = Vec<Vec<u8>>;

fn bytes_of<T>(list: &Vec<T>) -> usize {
    list.capacity() * size_of::<T>()
}

fn reply_bytes(reply: &Reply<'_>) -> usize {
    reply.cancelled.as_ref().map_or(0, bytes_of)
        + reply.cancelled_orders.as_ref().map_or(0, bytes_of)
        + reply.stats.as_ref().map_or(0, |stats| bytes_of(&stats.product_ids))
        + reply.detail.as_deref().map_or(0, detail_bytes)
}

fn detail_bytes(detail: &Detail) -> usize {
    bytes_of(&detail.clients)
        + bytes_of(&detail.suppliers)
        + bytes_of(&detail.products)
        + detail.clients.iter().map(|client| bytes_of(&client.lanes)).sum::<usize>()
        + detail.suppliers.iter().map(|supplier| bytes_of(&supplier.patterns)).sum::<usize>()
}

fn client_request_bytes(value: &ClientRequest<'_>) -> usize {
    match value {
        ClientRequest::Orders { orders, .. } => bytes_of(orders),
        ClientRequest::Cancels { orders, .. } => bytes_of(orders),
        ClientRequest::Lanes { lanes, .. } => bytes_of(lanes),
        _ => 0,
    }
}

fn supplier_request_bytes(value: &SupplierRequest<'_>) -> usize {
    match value {
        SupplierRequest::Hello { product_ids, .. } => bytes_of(product_ids),
        SupplierRequest::Dones { done, failed, returned } => {
            bytes_of(done) + bytes_of(failed) + bytes_of(returned)
        }
        SupplierRequest::Unattached(names) | SupplierRequest::Attached(names) => bytes_of(names),
        _ => 0,
    }
}

fn to_client_bytes(value: &ToClient<'_>) -> usize {
    match value {
        ToClient::Reply(reply) => reply_bytes(reply),
        ToClient::Late(orders) => bytes_of(orders),
        ToClient::Supply(supply) => bytes_of(supply),
        ToClient::Results { done, ended } => bytes_of(done) + bytes_of(ended),
        _ => 0,
    }
}

fn to_supplier_bytes(value: &ToSupplier<'_>) -> usize {
    match value {
        ToSupplier::Reply(reply) => reply_bytes(reply),
        ToSupplier::Attach(offers) => bytes_of(offers),
        ToSupplier::Detach(names) => bytes_of(names),
        ToSupplier::Works(groups) => {
            bytes_of(groups) + groups.iter().map(|group| bytes_of(&group.leases)).sum::<usize>()
        }
        _ => 0,
    }
}

/// What borrows all that it holds.
fn no_bytes<T>(_value: &T) -> usize {
    0
}

/// What was understood holds no more memory than its bytes justify, and means the same after another round.
macro_rules! check_decoder {
    ($type:ident, $list_bytes:ident, $frames:expr) => {
        if let Ok(decoded) = $type::decode($frames) {
            let (held, size) =
                ($list_bytes(&decoded), $frames.iter().map(|frame| frame.len()).sum::<usize>());
            assert!(held <= 64 + 32 * size, "{held} bytes of lists from {size}");
            let (mut first, mut second) = (Message::new(), Message::new());
            decoded.encode(&mut first);
            let again: Vec<_> = first.frames().collect();
            $type::decode(&again).expect("our own encoding must be understood").encode(&mut second);
            assert_eq!(first, second);
        }
    };
}

/// Breaks the frames of one message and gives them to all decoders.
fn fuzz_decoders(rng: &mut Rng, corpus: &[FrameList]) {
    let mut frames = corpus[rng.below(corpus.len())].clone();
    let payload = frames.len() - 1;
    for _ in 0..rng.below(6) {
        let donor = &corpus[rng.below(corpus.len())];
        mutate(rng, &mut frames[payload], &donor[donor.len() - 1]);
    }
    match rng.below(16) {
        0 => mutate(rng, &mut frames[0], b"ORDERS"),
        1 => frames.truncate(1),
        2 => frames.push(b"further".to_vec()),
        _ => {}
    }
    let frames: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
    check_decoder!(ClientRequest, client_request_bytes, &frames);
    check_decoder!(SupplierRequest, supplier_request_bytes, &frames);
    check_decoder!(ToClient, to_client_bytes, &frames);
    check_decoder!(ToSupplier, to_supplier_bytes, &frames);
    check_decoder!(ControlRequest, no_bytes, &frames);
    check_decoder!(ControlReply, no_bytes, &frames);
    check_decoder!(Publication, no_bytes, &frames);
    check_decoder!(LinkedState, no_bytes, &frames);
}

/// Breaks a stream that starts with a handshake, and cuts it into random pieces.
fn fuzz_codec(rng: &mut Rng, corpus: &[FrameList]) {
    let role = [Role::Router, Role::Dealer, Role::Publisher, Role::Subscriber][rng.below(4)];
    let (mut stream, handshake) = (Vec::new(), handshake(role));
    stream.extend_from_slice(&handshake);
    let mut sent = Vec::new();
    for _ in 0..rng.below(8) {
        let frames = &corpus[rng.below(corpus.len())];
        write_message(rng, &mut stream, frames);
        sent.push(frames.clone());
    }
    let mutations = rng.below(5);
    for _ in 0..mutations {
        // Mostly behind the handshake, which else would be all that is ever tested.
        let kept = if rng.below(4) == 0 { 0 } else { handshake.len() };
        let mut tail = stream.split_off(kept.min(stream.len()));
        mutate(rng, &mut tail, &handshake);
        stream.extend(tail);
    }
    let (received, error) = drive(rng, role, &stream);
    if mutations == 0 {
        assert_eq!((received, error), (sent, None), "an unbroken stream must arrive as it was sent");
    }
}

/// The messages that a codec finds in a stream, and the error that ended it.
fn drive(rng: &mut Rng, role: Role, stream: &[u8]) -> (Vec<FrameList>, Option<ZmtpError>) {
    let mut codec = Codec::new(role);
    let (mut rest, mut received) = (stream, Vec::new());
    let scale = rng.below(3);
    let largest = 1 + rng.below([3, 100, 5000][scale]);
    while !rest.is_empty() {
        let (piece, later) = rest.split_at(rest.len().min(1 + rng.below(largest)));
        rest = later;
        codec.receive(piece);
        loop {
            match codec.poll() {
                Ok(Some(Event::Message(frames))) => {
                    let frames: FrameList = frames.as_slice().iter().map(|frame| frame.to_vec()).collect();
                    let bytes: usize = frames.iter().map(Vec::len).sum();
                    assert!((1..=MAX_FRAMES).contains(&frames.len()) && bytes <= MAX_MESSAGE_BYTES);
                    received.push(frames);
                }
                Ok(Some(Event::Ready { .. })) => assert!(received.is_empty(), "READY after a message"),
                Ok(Some(Event::Subscription { prefix, .. })) => {
                    assert!(role == Role::Publisher && prefix.len() < MAX_MESSAGE_BYTES);
                }
                Ok(None) => break,
                Err(error) => {
                    check_failed(&mut codec, &error);
                    return (received, Some(error));
                }
            }
        }
        let bound = 2 * (MAX_MESSAGE_BYTES + MAX_COMMAND_BYTES + piece.len()) + stream.len();
        assert!(codec.memory() <= bound, "{} bytes held", codec.memory());
        codec.advance_output(rng.below(codec.unsent() + 1));
    }
    (received, None)
}

/// A codec that gave up repeats why, and takes nothing in.
fn check_failed(codec: &mut Codec, error: &ZmtpError) {
    codec.advance_output(codec.unsent());
    for _ in 0..3 {
        codec.receive(&[0; 5000]);
        codec.send(&Message::new());
        assert_eq!(codec.poll().as_ref().err(), Some(error));
    }
    assert_eq!(codec.unsent(), 0);
    assert!(!codec.is_ready() && codec.memory() < 20_000, "{} bytes held after an error", codec.memory());
}

/// One change of the kinds that find bugs: bits, lengths, pieces moved, removed or taken from elsewhere.
fn mutate(rng: &mut Rng, bytes: &mut Vec<u8>, donor: &[u8]) {
    let at = rng.below(bytes.len() + 1);
    let len = rng.below(1 + (bytes.len() - at).min(16));
    match rng.below(9) {
        0 if at < bytes.len() => bytes[at] ^= 1 << rng.below(8),
        1 if at < bytes.len() => bytes[at] = MARKERS[rng.below(MARKERS.len())],
        2 => drop(bytes.drain(at..at + len)),
        3 => bytes.truncate(at),
        4 => {
            let piece = bytes[at..at + len].to_vec();
            bytes.splice(at..at, piece);
        }
        5 => {
            let from = rng.below(donor.len() + 1);
            let piece = &donor[from..donor.len().min(from + rng.below(40))];
            bytes.splice(at..at + len, piece.iter().copied());
        }
        6 => {
            let piece: Vec<u8> = (0..1 + rng.below(9)).map(|_| rng.next() as u8).collect();
            bytes.splice(at..at, piece);
        }
        7 => {
            // A length where there may be one, of any width.
            let length = LENGTHS[rng.below(LENGTHS.len())].to_be_bytes();
            let width = [1, 2, 4, 8][rng.below(4)].min(bytes.len() - at);
            bytes[at..at + width].copy_from_slice(&length[8 - width..]);
        }
        _ => {
            let head = [MARKERS[rng.below(MARKERS.len())]];
            bytes.splice(at..at, head);
        }
    }
}

/// First bytes that mean something in msgpack or in a frame.
const MARKERS: [u8; 30] = [
    0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0, 0xc1, 0xc3,
    0xc4, 0xc9, 0xca, 0xcf, 0xd3, 0xd4, 0xd8, 0xdb, 0xdc, 0xdd, 0xde, 0xdf, 0xff,
];
const LENGTHS: [u64; 12] = [
    0,
    1,
    16,
    17,
    255,
    256,
    65_536,
    65_537,
    MAX_MESSAGE_BYTES as u64,
    MAX_MESSAGE_BYTES as u64 + 1,
    i64::MAX as u64,
    u64::MAX,
];

/// The first bytes of a peer of a codec of this role.
fn handshake(role: Role) -> Vec<u8> {
    let mut peer = Codec::new(match role {
        Role::Router => Role::Dealer,
        Role::Dealer => Role::Router,
        Role::Publisher => Role::Subscriber,
        Role::Subscriber => Role::Publisher,
    });
    let mut codec = Codec::new(role);
    let mut sent = Vec::new();
    for _ in 0..2 {
        sent.extend_from_slice(peer.output());
        codec.receive(peer.output());
        peer.advance_output(peer.unsent());
        codec.poll().expect("a valid peer");
        peer.receive(codec.output());
        codec.advance_output(codec.unsent());
        peer.poll().expect("a valid codec");
    }
    sent.extend_from_slice(peer.output());
    sent
}

/// Frames with headers of either width, and now and then a command before one.
fn write_message(rng: &mut Rng, out: &mut Vec<u8>, frames: &[Vec<u8>]) {
    for (i, frame) in frames.iter().enumerate() {
        match rng.below(12) {
            0 => out.extend_from_slice(b"\x04\x0a\x04PING\x00\x00abc"),
            1 => out.extend_from_slice(b"\x06\0\0\0\0\0\0\0\x06\x05OTHER"),
            _ => {}
        }
        let more = u8::from(i + 1 < frames.len());
        match u8::try_from(frame.len()) {
            Ok(len) if rng.below(4) > 0 => out.extend_from_slice(&[more, len]),
            _ => {
                out.push(more | 2);
                out.extend_from_slice(&(frame.len() as u64).to_be_bytes());
            }
        }
        out.extend_from_slice(frame);
    }
}

/// Every kind of message, small and with lists.
fn control_corpus() -> Vec<FrameList> {
    let model = ModelRef {
        generation: 7,
        model_id: "layer_5",
        model_cfg: b"\x82\xa1a\x93\x01\xc0\xc3\xa1b\xc4\x02xy",
    };
    let requests = [
        ControlRequest::Hello {
            rank: 0,
            slot_size: 600_000,
            nonce: Some(u64::MAX),
            known: Some(model),
            stop: Some(1),
        },
        ControlRequest::Hello { rank: 3, slot_size: 64, nonce: None, known: None, stop: None },
        ControlRequest::SetModel { nonce: Some(1), above: 4, model_id: "m", model_cfg: model.model_cfg },
        ControlRequest::Stop { nonce: Some(1) },
        ControlRequest::Link,
        ControlRequest::Follow(Follow {
            host: "tcp://host:4700",
            is_led: true,
            model: Some(model),
            above: 4,
        }),
        ControlRequest::Stats,
    ];
    let model_of_now = Some((model.model_id, model.model_cfg));
    let replies = [
        ControlReply {
            ok: true,
            peer_id: Some(1),
            generation: Some(7),
            model: model_of_now,
            ..ControlReply::default()
        },
        ControlReply::refused("no"),
    ];
    let mut corpus = Vec::new();
    corpus.extend(requests.iter().map(|message| frames(|out| message.encode(out))));
    corpus.extend(replies.iter().map(|message| frames(|out| message.encode(out))));
    corpus.extend(
        [Publication::Model(model), Publication::Stop]
            .iter()
            .map(|message| frames(|out| message.encode(out))),
    );
    let state = LinkedState {
        model: Some(model),
        is_own: true,
        leader: Some(1),
        stop: 2,
        is_stopped: true,
        link_stop: 3,
    };
    corpus.push(frames(|out| state.encode(out)));
    corpus
}

fn corpus() -> Vec<FrameList> {
    let triples: Vec<_> = (0..32).map(|i| (1000 + i, i << 16, 70 * i)).collect();
    let numbers: Vec<_> = (0..40).map(|i| 1 << i).collect();
    let (order_id, product_id, address, offset) = ("order-1", "teacher/7", "sl_0123456789abcdef", 4096);
    let stats =
        Stats { total_completed: 1 << 33, product_ids: vec!["a.*".into(), "b".into()], ..Stats::default() };
    let lane = AnnouncedLane { product_id, lane: 3, generation: 70_000 };
    let name = LaneName { address, segment_id: 1 << 60, lane: 3, generation: 70_000 };
    let supply = Supply { product_id, lane_suppliers: 4, wire_suppliers: 300, softs_suppliers: 2 };
    let detail = Detail {
        clients: vec![client_detail(address, product_id); 2],
        suppliers: vec![supplier_detail(product_id); 2],
        products: vec![product_detail(product_id); 2],
    };
    let diagnosis = Diagnosis { busiest_s: 2.5, ..Diagnosis::default() };
    let reply =
        Reply { peer_id: Some(300), request_id: Some(1 << 40), max_order_attempts: Some(5), ..Reply::ok() };
    let replies = [
        reply.clone(),
        Reply::error("Queue full for product_id"),
        Reply { cancelled: Some(vec!["o1", "o2"]), ..Reply::ok() },
        Reply { cancelled: Some(vec![]), ..Reply::ok() },
        Reply { cancelled_orders: Some(numbers.clone()), ..reply.clone() },
        Reply {
            stats: Some(stats),
            diagnosis: Some(Box::new(diagnosis)),
            detail: Some(Box::new(detail)),
            ..reply
        },
    ];
    let client = [
        ClientRequest::Hello { nonce: Some(1 << 50) },
        ClientRequest::Order { order_id, product_id, address, offset },
        ClientRequest::Cancel { order_id },
        ClientRequest::Discard,
        ClientRequest::Stats { request_id: Some(9), product_id: Some(product_id), detail: true },
        ClientRequest::Orders {
            address,
            segment_id: u64::MAX,
            slot_size: 1 << 20,
            product_id,
            orders: triples.clone(),
        },
        ClientRequest::Cancels { request_id: 7, orders: numbers.clone() },
        ClientRequest::Lanes { address, segment_id: 1 << 60, lanes: vec![lane; 3] },
        ClientRequest::Medium(MediumProfile { kind: MediumKind::Shm, host: u64::MAX, slot_size: 9 }),
    ];
    let supplier = [
        SupplierRequest::Hello { product_ids: vec!["a.*", "b"], name: Some("t0") },
        SupplierRequest::Ready { credit: Some(64) },
        SupplierRequest::Done { order_id, success: true },
        SupplierRequest::Dones { done: numbers.clone(), failed: vec![(3, "boom")], returned: vec![4] },
        SupplierRequest::Goodbye,
        SupplierRequest::Unattached(vec![name; 3]),
        SupplierRequest::Attached(vec![name; 3]),
        SupplierRequest::Medium(MediumProfile { kind: MediumKind::Tcp, host: u64::MAX, slot_size: 9 }),
    ];
    let to_client = [
        ToClient::Fulfilled { order_id },
        ToClient::Failed { order_id },
        ToClient::Late(numbers.clone()),
        ToClient::Supply(vec![supply; 3]),
        ToClient::Results {
            done: numbers,
            ended: vec![(3, EndCode::Failed, "boom"), (4, EndCode::Invalid, "")],
        },
    ];
    let leases = vec![(1, 65536, 300); 3];
    let group = WorkGroup { product_id, address, segment_id: u64::MAX, slot_size: 65536, leases };
    let to_supplier = [
        ToSupplier::Work { order_id, product_id, address, offset },
        ToSupplier::Works(vec![group.clone(), group]),
        ToSupplier::Terminate,
        ToSupplier::Attach(vec![LaneOffer { name, product_id }; 3]),
        ToSupplier::Detach(vec![name; 3]),
    ];
    let mut corpus = Vec::new();
    corpus.extend(client.iter().map(|message| frames(|out| message.encode(out))));
    corpus.extend(supplier.iter().map(|message| frames(|out| message.encode(out))));
    corpus.extend(to_client.iter().map(|message| frames(|out| message.encode(out))));
    corpus.extend(to_supplier.iter().map(|message| frames(|out| message.encode(out))));
    corpus.extend(replies.iter().map(|reply| frames(|out| reply.encode(out))));
    corpus.extend(control_corpus());
    corpus
}

fn client_detail(address: &str, product_id: &str) -> ClientDetail {
    let lane = LaneDetail { product_id: product_id.into(), lane: 3, generation: 70_000 };
    ClientDetail {
        peer_id: 9,
        address: Some(address.into()),
        segment_id: Some(u64::MAX),
        orders: 300,
        leased: 2,
        lanes: vec![lane; 2],
    }
}

fn product_detail(product_id: &str) -> ProductDetail {
    ProductDetail { product_id: product_id.into(), queued: 300, leased: 2, suppliers: 1 }
}

fn supplier_detail(pattern: &str) -> SupplierDetail {
    SupplierDetail {
        peer_id: 10,
        name: "t0".into(),
        patterns: vec![pattern.into(); 2],
        dialect: Dialect::Native,
        leases: 5,
        busy_s: 2.5,
        attached: 6,
    }
}

fn frames(encode: impl FnOnce(&mut Message)) -> FrameList {
    let mut message = Message::new();
    encode(&mut message);
    message.frames().map(<[u8]>::to_vec).collect()
}
