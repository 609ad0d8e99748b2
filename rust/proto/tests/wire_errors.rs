//! What is refused, what is accepted, and which error the peer gets.

use softs_proto::limits::{MAX_ANNOUNCED, MAX_ERROR_TEXT_BYTES, MAX_ID_BYTES, MAX_PATTERNS};
use softs_proto::wire::{
    AnnouncedLane, ClientRequest, EndCode, MediumKind, MediumProfile, Message, Reply, Stats, SupplierRequest,
    ToClient, ToSupplier,
};

fn client(command: &[u8], payload: &[u8]) -> String {
    ClientRequest::decode(&[command, payload]).expect_err("must be refused").0
}

fn supplier(command: &[u8], payload: &[u8]) -> String {
    SupplierRequest::decode(&[command, payload]).expect_err("must be refused").0
}

fn to_client(frames: &[&[u8]]) -> String {
    ToClient::decode(frames).expect_err("must be refused").0
}

fn to_supplier(frames: &[&[u8]]) -> String {
    ToSupplier::decode(frames).expect_err("must be refused").0
}

/// A msgpack string of 16 bits of length.
fn long_str(len: usize) -> Vec<u8> {
    let mut bytes = vec![0xda];
    bytes.extend_from_slice(&u16::try_from(len).unwrap_or(u16::MAX).to_be_bytes());
    bytes.resize(3 + len, b'x');
    bytes
}

#[test]
fn too_few_frames() {
    assert_eq!(ClientRequest::decode(&[]).unwrap_err().0, "expected at least 2 frames, got 0");
    assert_eq!(ClientRequest::decode(&[b"HELLO"]).unwrap_err().0, "expected at least 2 frames, got 1");
    assert_eq!(SupplierRequest::decode(&[b"READY"]).unwrap_err().0, "expected at least 2 frames, got 1");
    assert_eq!(to_client(&[]), "expected at least 2 frames, got 0");
    assert_eq!(to_supplier(&[]), "expected at least 2 frames, got 0");
}

#[test]
fn further_frames_do_not_matter_and_no_payload_is_an_empty_map() {
    assert_eq!(
        ClientRequest::decode(&[b"HELLO", b"\x80", b"junk"]),
        Ok(ClientRequest::Hello { nonce: None })
    );
    assert_eq!(ClientRequest::decode(&[b"DISCARD", b""]), Ok(ClientRequest::Discard));
    assert_eq!(ToSupplier::decode(&[b"TERMINATE", b"", b"", b""]), Ok(ToSupplier::Terminate));
    assert_eq!(client(b"CANCEL", b""), "CANCEL: missing \"order_id\"");
    assert_eq!(client(b"ORDERS", b""), "ORDERS: payload: need an array, have a map");
}

#[test]
fn unknown_commands_are_named_in_short() {
    assert_eq!(client(b"BUY", b"\x80"), "unknown command \"BUY\"");
    assert_eq!(supplier(b"\xff\n", b"\x80"), "unknown command \"\\xff\\n\"");
    assert_eq!(to_client(&[b"WORK", b"\x80"]), "unknown command \"WORK\"");
    assert_eq!(to_supplier(&[b"RESULTS", b"\x80"]), "unknown command \"RESULTS\"");
    assert!(client(&[b'X'; 5000], b"\x80").len() < 100);
}

#[test]
fn strict_messages_name_every_wrong_field() {
    assert_eq!(
        client(b"ORDER", b"\x80"),
        "ORDER: missing \"order_id\", \"product_id\", \"address\", \"offset\""
    );
    assert_eq!(
        client(b"ORDER", b"\x82\xa6offset\x01\xa7address\xa1a"),
        "ORDER: missing \"order_id\", \"product_id\""
    );
    assert_eq!(client(b"ORDER", b"\x81\xa5extra\x01"), "ORDER: unknown field \"extra\"");
    assert_eq!(client(b"CANCEL", b"\x81\xa5extra\x01"), "CANCEL: unknown field \"extra\"");
    assert_eq!(supplier(b"DONE", b"\x81\xa5extra\x01"), "DONE: unknown field \"extra\"");
    assert_eq!(supplier(b"DONE", b"\x81\xa7success\xc3"), "DONE: missing \"order_id\"");
    assert_eq!(to_client(&[b"FAILED", b"\x80"]), "FAILED: missing \"order_id\"");
    assert_eq!(to_supplier(&[b"WORK", b"\x81\xa5extra\x01"]), "WORK: unknown field \"extra\"");
}

#[test]
fn wrong_types_are_named() {
    let cases: [(&[u8], &str); 12] = [
        (b"\x81\xa6offset\xff", "need a non-negative integer, have -1"),
        (
            b"\x81\xa6offset\xd3\x80\x00\x00\x00\x00\x00\x00\x00",
            "need a non-negative integer, have -9223372036854775808",
        ),
        (b"\x81\xa6offset\xc3", "need a non-negative integer, have a bool"),
        (b"\x81\xa6offset\xca\x00\x00\x00\x00", "need a non-negative integer, have a float"),
        (b"\x81\xa6offset\xcb\x00\x00\x00\x00\x00\x00\x00\x00", "need a non-negative integer, have a float"),
        (b"\x81\xa6offset\xa11", "need a non-negative integer, have a str"),
        (b"\x81\xa6offset\xc4\x011", "need a non-negative integer, have bin"),
        (b"\x81\xa6offset\xc0", "need a non-negative integer, have nil"),
        (b"\x81\xa6offset\x90", "need a non-negative integer, have an array"),
        (b"\x81\xa6offset\x80", "need a non-negative integer, have a map"),
        (b"\x81\xa6offset\xd4\x00\x00", "need a non-negative integer, have an extension"),
        (b"\x81\xa6offset\xc7\x01\x00\x00", "need a non-negative integer, have an extension"),
    ];
    for (payload, text) in cases {
        assert_eq!(client(b"ORDER", payload), format!("ORDER: offset: {text}"));
    }
    assert_eq!(client(b"CANCEL", b"\x81\xa8order_id\x07"), "CANCEL: order_id: need a str, have an integer");
    assert_eq!(client(b"CANCEL", b"\x81\xa8order_id\xc4\x01o"), "CANCEL: order_id: need a str, have bin");
    assert_eq!(client(b"CANCEL", b"\x81\xa8order_id\xa1\xff"), "CANCEL: order_id: not UTF-8");
    assert_eq!(client(b"CANCEL", b"\x81\x01\x02"), "CANCEL: a key: need a str, have an integer");
    assert_eq!(client(b"CANCEL", b"\x90"), "CANCEL: payload: need a map, have an array");
    assert_eq!(client(b"HELLO", b"\xc0"), "HELLO: payload: need a map, have nil");
    for not_bool in [&b"\x01"[..], b"\x00", b"\xc0", b"\xa4true"] {
        let payload = [b"\x82\xa8order_id\xa1o\xa7success", not_bool].concat();
        assert!(supplier(b"DONE", &payload).starts_with("DONE: success: need a bool, have "));
    }
}

#[test]
fn integers_may_have_any_encoding_that_is_not_negative() {
    for (offset, value) in [
        (&b"\x7f"[..], 127),
        (b"\xcc\x05", 5),
        (b"\xcd\x00\x05", 5),
        (b"\xce\x00\x00\x00\x05", 5),
        (b"\xcf\x00\x00\x00\x00\x00\x00\x00\x05", 5),
        (b"\xd0\x05", 5),
        (b"\xd1\x01\x00", 256),
        (b"\xd2\x00\x01\x00\x00", 65536),
        (b"\xd3\x7f\xff\xff\xff\xff\xff\xff\xff", i64::MAX as u64),
    ] {
        let payload = [b"\x84\xa8order_id\xa0\xaaproduct_id\xa0\xa7address\xa0\xa6offset", offset].concat();
        let order = ClientRequest::Order { order_id: "", product_id: "", address: "", offset: value };
        assert_eq!(ClientRequest::decode(&[b"ORDER", &payload]), Ok(order));
    }
}

#[test]
fn the_last_of_two_equal_keys_wins() {
    let payload = b"\x82\xa8order_id\xa1a\xa8order_id\xa1b";
    assert_eq!(ClientRequest::decode(&[b"CANCEL", payload]), Ok(ClientRequest::Cancel { order_id: "b" }));
    let payload = b"\x82\xabproduct_ids\x92\xa1a\xa1b\xabproduct_ids\x91\xa1c";
    let hello = SupplierRequest::Hello { product_ids: vec!["c"], name: None };
    assert_eq!(SupplierRequest::decode(&[b"HELLO", payload]), Ok(hello));
}

#[test]
fn success_is_true_unless_sent_otherwise() {
    let done = SupplierRequest::Done { order_id: "o", success: true };
    assert_eq!(SupplierRequest::decode(&[b"DONE", b"\x81\xa8order_id\xa1o"]), Ok(done));
}

#[test]
fn lenient_messages_do_not_check_other_fields() {
    let junk = b"\x82\xa4junk\x93\xc0\x81\x01\x02\xc4\x01\xff\xa4more\xca\x00\x00\x00\x00";
    assert_eq!(ClientRequest::decode(&[b"HELLO", junk]), Ok(ClientRequest::Hello { nonce: None }));
    assert_eq!(ClientRequest::decode(&[b"DISCARD", junk]), Ok(ClientRequest::Discard));
    let stats = ClientRequest::Stats { request_id: None, product_id: None, detail: false };
    assert_eq!(ClientRequest::decode(&[b"STATS", junk]), Ok(stats));
    assert_eq!(SupplierRequest::decode(&[b"GOODBYE", junk]), Ok(SupplierRequest::Goodbye));
    assert_eq!(SupplierRequest::decode(&[b"READY", junk]), Ok(SupplierRequest::Ready { credit: None }));
    let hello = SupplierRequest::Hello { product_ids: vec![], name: None };
    assert_eq!(SupplierRequest::decode(&[b"HELLO", junk]), Ok(hello));
    assert_eq!(ToSupplier::decode(&[b"TERMINATE", junk]), Ok(ToSupplier::Terminate));
}

#[test]
fn ids_have_a_limit() {
    let mut payload = b"\x81\xa8order_id".to_vec();
    payload.extend(long_str(MAX_ID_BYTES));
    assert!(ClientRequest::decode(&[b"CANCEL", &payload]).is_ok());
    let cases: [(&[u8], &[u8]); 3] =
        [(b"\xa8order_id", b"order_id"), (b"\xaaproduct_id", b"product_id"), (b"\xa7address", b"address")];
    for (key, name) in cases {
        let payload = [b"\x81", key, &long_str(MAX_ID_BYTES + 1)].concat();
        let text = format!("ORDER: {}: 1025 bytes, at most 1024 allowed", name.escape_ascii());
        assert_eq!(client(b"ORDER", &payload), text);
    }
    let payload = [b"\x81\xabproduct_ids\x91", &long_str(MAX_ID_BYTES + 1)[..]].concat();
    assert_eq!(supplier(b"HELLO", &payload), "HELLO: product_ids: 1025 bytes, at most 1024 allowed");
    let payload = [b"\x95", &long_str(MAX_ID_BYTES + 1)[..], b"\x00\xa0\x90"].concat();
    assert_eq!(client(b"ORDERS", &payload), "ORDERS: address: 1025 bytes, at most 1024 allowed");
}

#[test]
fn a_supplier_has_a_limited_number_of_patterns() {
    let mut product_ids = vec!["a"; MAX_PATTERNS];
    let mut message = Message::new();
    SupplierRequest::Hello { product_ids: product_ids.clone(), name: None }.encode(&mut message);
    assert!(SupplierRequest::decode(&message.frames().collect::<Vec<_>>()).is_ok());
    product_ids.push("a");
    message.clear();
    SupplierRequest::Hello { product_ids, name: None }.encode(&mut message);
    let error = SupplierRequest::decode(&message.frames().collect::<Vec<_>>()).unwrap_err();
    assert_eq!(error.0, "HELLO: product_ids: 4097 patterns, at most 4096 allowed");
}

#[test]
fn announced_lengths_are_not_believed() {
    for array in [&b"\xdc\xff\xff"[..], b"\xdd\xff\xff\xff\xff"] {
        let payload = [b"\x92\x07", array, b"\x01"].concat();
        let error = client(b"CANCELS", &payload);
        assert!(
            error.starts_with("CANCELS: orders: ") && error.ends_with(" elements announced, 1 bytes left"),
            "{error}"
        );
    }
    assert_eq!(
        client(b"CANCEL", b"\xdf\xff\xff\xff\xff"),
        "CANCEL: payload: 4294967295 elements announced, 0 bytes left"
    );
    assert_eq!(
        client(b"HELLO", b"\x81\xa1x\xdd\xff\xff\xff\xff"),
        "HELLO: x: the payload is cut off or is not msgpack"
    );
    for str in [&b"\xdb\xff\xff\xff\xff"[..], b"\xda\xff\xff", b"\xd9\xff", b"\xbf"] {
        let payload = [b"\x81\xa8order_id", str, b"x"].concat();
        assert_eq!(client(b"CANCEL", &payload), "CANCEL: order_id: the payload is cut off or is not msgpack");
    }
}

#[test]
fn nothing_may_follow_the_payload_or_be_cut_from_it() {
    assert_eq!(client(b"HELLO", b"\x80\x80"), "HELLO: payload: 1 bytes after its end");
    assert_eq!(client(b"CANCELS", b"\x92\x01\x90\xc0"), "CANCELS: payload: 1 bytes after its end");
    let whole: &[u8] = b"\x84\xa8order_id\xa2o1\xaaproduct_id\xa1p\xa7address\xa1a\xa6offset\xcd\x10\x00";
    assert!(ClientRequest::decode(&[b"ORDER", whole]).is_ok());
    for len in 1..whole.len() {
        assert!(ClientRequest::decode(&[b"ORDER", &whole[..len]]).is_err(), "cut to {len} bytes");
    }
    assert_eq!(
        client(b"CANCEL", b"\x81\xa8order_id\xc1"),
        "CANCEL: order_id: the payload is cut off or is not msgpack"
    );
}

#[test]
fn depth_costs_no_stack() {
    let mut payload = b"\x81\xa1x".to_vec();
    payload.resize(1 << 20, 0x91);
    payload.push(0xc0);
    assert_eq!(ClientRequest::decode(&[b"HELLO", &payload]), Ok(ClientRequest::Hello { nonce: None }));
}

#[test]
fn native_arrays_have_a_shape() {
    assert_eq!(client(b"ORDERS", b"\x94\xa0\x00\x00\xa0"), "ORDERS: payload: need 5 elements, have 4");
    assert_eq!(
        client(b"ORDERS", b"\x95\xa0\x00\x00\xa0\x92\x01\x02"),
        "ORDERS: orders: need triples, have 2 numbers"
    );
    assert_eq!(
        client(b"ORDERS", b"\x95\xa0\xa0\x00\xa0\x90"),
        "ORDERS: segment_id: need a non-negative integer, have a str"
    );
    assert_eq!(
        client(b"ORDERS", b"\x95\xa0\x00\xa0\xa0\x90"),
        "ORDERS: slot_size: need a non-negative integer, have a str"
    );
    assert_eq!(
        client(b"CANCELS", b"\x92\x07\x91\xff"),
        "CANCELS: orders: need a non-negative integer, have -1"
    );
    assert_eq!(supplier(b"DONES", b"\x92\x90\x90"), "DONES: payload: need 3 elements, have 2");
    assert_eq!(supplier(b"DONES", b"\x93\x90\x91\x91\x01\x90"), "DONES: failed: need 2 elements, have 1");
    assert_eq!(
        supplier(b"READY", b"\x81\xa6credit\xa1x"),
        "READY: credit: need a non-negative integer, have a str"
    );
    assert_eq!(
        to_client(&[b"RESULTS", b"\x92\x90\x91\x93\x01\x04\xa0"]),
        "RESULTS: ended: need a code from 1 to 3, have 4"
    );
    assert_eq!(
        to_client(&[b"RESULTS", b"\x92\x90\x91\x93\x01\x00\xa0"]),
        "RESULTS: ended: need a code from 1 to 3, have 0"
    );
    assert_eq!(
        to_supplier(&[b"WORKS", b"\x91\x94\xa0\xa0\x00\x00"]),
        "WORKS: group: need 5 elements, have 4"
    );
}

#[test]
fn lanes_have_a_shape_and_a_limit() {
    assert_eq!(client(b"LANES", b"\x92\xa1m\x01"), "LANES: payload: need 3 elements, have 2");
    assert_eq!(
        client(b"LANES", b"\x93\xa1m\x01\x91\x93\xa1p\xcf\x00\x00\x00\x01\x00\x00\x00\x00\x01"),
        "LANES: lane: need at most 4294967295, have 4294967296"
    );
    assert_eq!(
        client(b"LANES", b"\x93\xa1m\x01\x91\x93\xa1p\x01\xff"),
        "LANES: generation: need a non-negative integer, have -1"
    );
    let mut message = Message::new();
    for n in [MAX_ANNOUNCED, MAX_ANNOUNCED + 1] {
        let lanes = vec![AnnouncedLane { product_id: "p", lane: 1, generation: 1 }; n];
        message.clear();
        ClientRequest::Lanes { address: "m", segment_id: 1, lanes }.encode(&mut message);
        let decoded = ClientRequest::decode(&message.frames().collect::<Vec<_>>());
        assert_eq!(decoded.is_ok(), n == MAX_ANNOUNCED);
        if let Err(error) = decoded {
            assert_eq!(error.0, "LANES: lanes: 65 elements, at most 64 allowed");
        }
    }
    let long = [b"\x93", &long_str(MAX_ID_BYTES + 1)[..], b"\x01\x90"].concat();
    assert_eq!(client(b"LANES", &long), "LANES: address: 1025 bytes, at most 1024 allowed");
    assert_eq!(
        supplier(b"UNATTACHED", b"\x91\x93\xa1m\x01\x02"),
        "UNATTACHED: lanes: need 4 elements, have 3"
    );
    assert_eq!(to_supplier(&[b"DETACH", b"\x90\x90"]), "DETACH: payload: 1 bytes after its end");
    assert_eq!(
        to_supplier(&[b"ATTACH", b"\x91\x95\xa1m\x01\x02\x03\x04"]),
        "ATTACH: product_id: need a str, have an integer"
    );
    assert_eq!(to_client(&[b"SUPPLY", b"\x91\x93\xa1p\x01\x02"]), "SUPPLY: supply: need 4 elements, have 3");
    assert_eq!(to_client(&[b"LATE", b"\x91\xa1x"]), "LATE: orders: need a non-negative integer, have a str");
    assert_eq!(
        client(b"HELLO", b"\x81\xa5nonce\xa1x"),
        "HELLO: nonce: need a non-negative integer, have a str"
    );
    assert_eq!(client(b"STATS", b"\x81\xa6detail\x01"), "STATS: detail: need a bool, have an integer");
}

#[test]
fn texts_are_cut_at_a_character() {
    let text = "ä".repeat(MAX_ERROR_TEXT_BYTES);
    let mut message = Message::new();
    ToClient::Results { done: vec![], ended: vec![(1, EndCode::Failed, &text)] }.encode(&mut message);
    ToClient::Reply(Reply::error(&text)).encode(&mut message);
    let frames: Vec<_> = message.frames().collect();
    assert!(frames[1].len() < MAX_ERROR_TEXT_BYTES + 16 && frames[2].len() < MAX_ERROR_TEXT_BYTES + 32);
    let cut = &text[..MAX_ERROR_TEXT_BYTES];
    let results = ToClient::Results { done: vec![], ended: vec![(1, EndCode::Failed, cut)] };
    assert_eq!(ToClient::decode(&frames[..2]), Ok(results));
    assert_eq!(ToClient::decode(&frames[2..]), Ok(ToClient::Reply(Reply::error(cut))));

    // A peer that does not cut is cut here; one byte more shifts the limit into the middle of a character.
    let uncut = format!("x{text}");
    let payload =
        [&b"\x82\xa2ok\xc2\xa5error\xda"[..], &(uncut.len() as u16).to_be_bytes()[..], uncut.as_bytes()]
            .concat();
    let reply = Reply::error(&uncut[..MAX_ERROR_TEXT_BYTES - 1]);
    assert_eq!(ToClient::decode(&[&payload]), Ok(ToClient::Reply(reply)));
}

#[test]
fn replies_may_have_fields_that_we_do_not_know() {
    let reply = b"\x84\xa2ok\xc3\xa6future\x92\x01\x80\xa9cancelled\x02\xa5error\xc0";
    assert_eq!(ToClient::decode(&[reply]), Ok(ToClient::Reply(Reply::ok())));
    assert_eq!(ToSupplier::decode(&[reply]), Ok(ToSupplier::Reply(Reply::ok())));
}

#[test]
fn mediums_have_a_shape_and_later_kinds() {
    assert_eq!(client(b"MEDIUM", b"\x92\x01\x02"), "MEDIUM: payload: need 3 elements, have 2");
    assert_eq!(
        supplier(b"MEDIUM", b"\x93\x01\xa0\x02"),
        "MEDIUM: host: need a non-negative integer, have a str"
    );
    let later = SupplierRequest::decode(&[b"MEDIUM", b"\x93\x09\x02\x03"]).unwrap();
    let profile = MediumProfile { kind: MediumKind::Unknown, host: 2, slot_size: 3 };
    assert_eq!(later, SupplierRequest::Medium(profile));
}

#[test]
fn replies_are_checked() {
    assert_eq!(to_client(&[b"\x80"]), "reply: missing \"ok\"");
    assert_eq!(to_client(&[b"\x81\xa2ok\x01"]), "reply: ok: need a bool, have an integer");
    assert_eq!(to_client(&[b"\x81\xa5error\x01"]), "reply: error: need a str or nil, have an integer");
    assert_eq!(to_client(&[b""]), "reply: payload: the payload is cut off or is not msgpack");
    assert_eq!(to_client(&[b"\x80\x00"]), "reply: payload: 1 bytes after its end");
    assert_eq!(
        to_client(&[b"\x82\xa2ok\xc3\xaepending_orders\x01"]),
        "reply: missing \"available_suppliers\", \"connected_clients\", \"connected_suppliers\", \
         \"total_completed\", \"product_ids\""
    );
    assert_eq!(
        to_client(&[b"\x82\xa2ok\xc3\xa9diagnosis\x81\xa6queued\x01"]),
        "reply: missing \"matching_suppliers\", \"busy_suppliers\", \"busiest_s\", \"unable_suppliers\", \"unable\""
    );
    assert_eq!(
        to_client(&[b"\x82\xa2ok\xc3\xadcancelled_ids\x92\x01\xa1a"]),
        "reply: cancelled_ids: need a non-negative integer, have a str"
    );
}

#[test]
fn an_empty_list_of_cancelled_orders_belongs_to_the_dialect_that_counts() {
    let native = Reply { cancelled_orders: Some(vec![]), ..Reply::ok() };
    assert_eq!(ToClient::decode(&[b"\x82\xa2ok\xc3\xadcancelled_ids\x90"]), Ok(ToClient::Reply(native)));
    let softs = Reply { cancelled: Some(vec![]), ..Reply::ok() };
    let reply = b"\x83\xa2ok\xc3\xadcancelled_ids\x90\xa9cancelled\x00";
    assert_eq!(ToClient::decode(&[reply]), Ok(ToClient::Reply(softs)));
}

#[test]
fn statistics_come_in_any_order() {
    let reply =
        b"\x87\xabproduct_ids\x90\xaftotal_completed\x05\xb3connected_suppliers\x04\xb1connected_clients\x03\
        \xb3available_suppliers\x02\xaepending_orders\x01\xa2ok\xc3";
    let stats = Stats {
        pending_orders: 1,
        available_suppliers: 2,
        connected_clients: 3,
        connected_suppliers: 4,
        total_completed: 5,
        product_ids: vec![],
    };
    let reply_read = Reply { stats: Some(stats), ..Reply::ok() };
    assert_eq!(ToClient::decode(&[reply]), Ok(ToClient::Reply(reply_read)));
}
