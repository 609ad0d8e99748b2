//! Every message as Python's `msgpack` packs it, and everything that can be wrong with one.

use softs_proto::limits::{MAX_GENERATION, MAX_ID_BYTES, MAX_MODEL_CFG_BYTES};
use softs_proto::wire::{
    ControlReply, ControlRequest, ControlStats, Follow, LinkedState, Message, ModelRef, Publication,
    WireError, check_model,
};

use super::{CFG, model};

fn frames(encode: impl FnOnce(&mut Message)) -> Vec<Vec<u8>> {
    let mut message = Message::new();
    encode(&mut message);
    message.frames().map(<[u8]>::to_vec).collect()
}

fn request(request: ControlRequest<'_>, expected: [&[u8]; 2]) {
    assert_eq!(frames(|out| request.encode(out)), expected);
    assert_eq!(ControlRequest::decode(&expected), Ok(request));
}

fn refused(command: &[u8], payload: &[u8]) -> String {
    match ControlRequest::decode(&[command, payload]) {
        Err(WireError(text)) => text,
        Ok(understood) => panic!("{understood:?}"),
    }
}

#[test]
fn hello() {
    let plain = ControlRequest::Hello { rank: 3, slot_size: 300, nonce: None, known: None, stop: None };
    request(plain, [b"HELLO", b"\x82\xa4rank\x03\xa9slot_size\xcd\x01\x2c"]);
    request(
        ControlRequest::Hello { rank: 0, slot_size: 1, nonce: Some(256), known: Some(model(7, "m")), stop: None },
        [
            b"HELLO",
            b"\x86\xa4rank\x00\xa9slot_size\x01\xa5nonce\xcd\x01\x00\xaageneration\x07\xa8model_id\xa1m\xa9model_cfg\x81\xa1x\x01",
        ],
    );
    let stopped = ControlRequest::Hello { rank: 3, slot_size: 5, nonce: None, known: None, stop: Some(8) };
    request(stopped, [b"HELLO", b"\x83\xa4rank\x03\xa9slot_size\x05\xa4stop\x08"]);
    // Generation 0 is no model, whatever else is there.
    let none = b"\x84\xa4rank\x03\xa9slot_size\xcd\x01\x2c\xaageneration\x00\xa8model_id\xa0";
    assert_eq!(ControlRequest::decode(&[b"HELLO", none]), Ok(plain));
}

#[test]
fn set_model() {
    request(
        ControlRequest::SetModel { nonce: Some(1), above: 4, model_id: "layer_5", model_cfg: CFG },
        [b"SET_MODEL", b"\x84\xa5nonce\x01\xa5above\x04\xa8model_id\xa7layer_5\xa9model_cfg\x81\xa1x\x01"],
    );
    // As a script with a DEALER of its own may send it.
    let short = ControlRequest::SetModel { nonce: None, above: 0, model_id: "m", model_cfg: b"\xc0" };
    assert_eq!(ControlRequest::decode(&[b"SET_MODEL", b"\x81\xa8model_id\xa1m"]), Ok(short));
}

#[test]
fn stop_and_stats() {
    request(ControlRequest::Stop { nonce: None }, [b"STOP", b"\x80"]);
    request(ControlRequest::Stop { nonce: Some(1) }, [b"STOP", b"\x81\xa5nonce\x01"]);
    request(ControlRequest::Stats, [b"STATS", b"\x80"]);
    assert_eq!(ControlRequest::decode(&[b"STOP", b""]), Ok(ControlRequest::Stop { nonce: None }));
    let more = b"\x81\xa5other\xc0";
    assert_eq!(ControlRequest::decode(&[b"STOP", more]), Ok(ControlRequest::Stop { nonce: None }));
}

#[test]
fn answers() {
    let seat = ControlReply {
        ok: true,
        peer_id: Some(2),
        generation: Some(7),
        model: Some(("m", CFG)),
        ..ControlReply::default()
    };
    let bytes: &[u8] =
        b"\x86\xa2ok\xc3\xa5error\xc0\xa7peer_id\x02\xaageneration\x07\xa8model_id\xa1m\xa9model_cfg\x81\xa1x\x01";
    assert_eq!(frames(|out| seat.encode(out)), [bytes]);
    assert_eq!(ControlReply::decode(&[bytes]), Ok(seat));
    let no = ControlReply::refused("no");
    assert_eq!(frames(|out| no.encode(out)), [b"\x82\xa2ok\xc2\xa5error\xa2no"]);
    assert_eq!(ControlReply::decode(&[b"\x82\xa2ok\xc2\xa5error\xa2no"]), Ok(no));
}

#[test]
fn statistics() {
    let stats = ControlStats {
        generation: 7,
        model_id: "m".to_owned(),
        model_cfg: CFG.to_vec(),
        leader: true,
        slot_size: 64,
        students: vec![0, 300],
        subscribers: 2,
        waiting_s: 1.5,
    };
    let reply = ControlReply { ok: true, stats: Some(stats), ..ControlReply::default() };
    let bytes: &[u8] =
        b"\x89\xa2ok\xc3\xa5error\xc0\xaageneration\x07\xa8model_id\xa1m\xa6leader\xc3\xa9slot_size\x40\
        \xa8students\x92\x00\xcd\x01\x2c\xabsubscribers\x02\xa9waiting_s\xcb\x3f\xf8\0\0\0\0\0\0";
    assert_eq!(frames(|out| reply.encode(out)), [bytes]);
}

#[test]
fn publications() {
    let published = Publication::Model(model(7, "m"));
    let expected: [&[u8]; 2] =
        [b"MODEL", b"\x83\xaageneration\x07\xa8model_id\xa1m\xa9model_cfg\x81\xa1x\x01"];
    assert_eq!(frames(|out| published.encode(out)), expected);
    assert_eq!(Publication::decode(&expected), Ok(published));
    assert_eq!(frames(|out| Publication::Stop.encode(out)), [&b"STOP"[..], b"\x80"]);
    for payload in
        [&b"\x80"[..], b"\x81\xaageneration\x07", b"\x83\xaageneration\x00\xa8model_id\xa1m\xa9model_cfg\xc0"]
    {
        assert!(Publication::decode(&[b"MODEL", payload]).is_err(), "{}", payload.escape_ascii());
    }
    assert!(Publication::decode(&[b"OTHER", b"\x80"]).is_err());
}

#[test]
fn a_configuration_is_one_value_as_it_stands() {
    for cfg in [&b"\xc0"[..], b"\x07", b"\x82\xa1a\x93\x01\xc0\xc3\xa1b\xc4\x02xy", b"\xc7\x01\x05z"] {
        let message = ControlRequest::SetModel { nonce: None, above: 0, model_id: "m", model_cfg: cfg };
        let frames = frames(|out| message.encode(out));
        let frames: Vec<_> = frames.iter().map(Vec::as_slice).collect();
        assert_eq!(ControlRequest::decode(&frames), Ok(message));
        assert_eq!(check_model("m", cfg), Ok(()));
    }
    // None is nil.
    let none = ModelRef { generation: 1, model_id: "m", model_cfg: b"" };
    assert!(frames(|out| Publication::Model(none).encode(out))[1].ends_with(b"model_cfg\xc0"));
}

#[test]
fn what_cannot_be_sent_is_refused_before() {
    for (model_id, cfg, why) in [
        ("m", vec![], "cut off"),
        ("m", vec![0xc1], "cut off"),
        ("m", vec![0x81, 0xa1, b'x'], "cut off"),
        ("m", vec![0x01, 0x01], "1 bytes after its end"),
        ("m", [&[0xc6, 0, 0x10, 0, 0][..], &[0; 1 << 20]].concat(), "at most 1044480 allowed"),
    ] {
        let error = check_model(model_id, &cfg).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
    let error = check_model(&"x".repeat(MAX_ID_BYTES + 1), CFG).unwrap_err().to_string();
    assert!(error.contains("1025 bytes, at most 1024"), "{error}");
    let len = MAX_MODEL_CFG_BYTES as u32 - 5;
    let longest = [&[0xc6][..], &len.to_be_bytes(), &vec![0; len as usize]].concat();
    assert_eq!(check_model(&"x".repeat(MAX_ID_BYTES), &longest), Ok(()));
    // And it fits, with the longest of everything else.
    let model_id = &"x".repeat(MAX_ID_BYTES);
    let known = Some(ModelRef { generation: MAX_GENERATION, model_id, model_cfg: &longest });
    let hello = ControlRequest::Hello {
        rank: u32::MAX,
        slot_size: u64::MAX,
        nonce: Some(u64::MAX),
        known,
        stop: Some(u64::MAX),
    };
    assert!(frames(|out| hello.encode(out)).iter().map(Vec::len).sum::<usize>() <= 1 << 20);
}

#[test]
fn malformed_requests_are_answered_with_what_is_wrong() {
    for (command, payload, why) in [
        (&b"NOPE"[..], &b"\x80"[..], "unknown command \"NOPE\""),
        (b"HELLO", b"\x80", "missing \"rank\", \"slot_size\""),
        (b"HELLO", b"\xc1", "not msgpack"),
        (b"HELLO", b"\x93\x00\x00\x00", "need a map, have an array"),
        (b"HELLO", b"\x82\xa4rank\x00\xa9slot_size\x01\x00", "1 bytes after its end"),
        (b"HELLO", b"\x82\xa4rank\xff\xa9slot_size\x01", "rank: need a non-negative integer, have -1"),
        (b"HELLO", b"\x82\xa4rank\xcf\0\0\0\x01\0\0\0\0\xa9slot_size\x01", "need at most 4294967295"),
        (b"HELLO", b"\x83\xa4rank\x00\xa9slot_size\x01\xa5other\x01", "unknown field \"other\""),
        (
            b"HELLO",
            b"\x83\xa4rank\x00\xa9slot_size\x01\xaageneration\x05",
            "missing \"model_id\", \"model_cfg\"",
        ),
        (
            b"HELLO",
            b"\x83\xa4rank\x00\xa9slot_size\x01\xaageneration\xcf\xff\xff\xff\xff\xff\xff\xff\xff",
            "generation: need at most 4611686018427387904",
        ),
        (b"SET_MODEL", b"\x80", "missing \"model_id\""),
        (b"SET_MODEL", b"\x81\xa8model_id\x05", "model_id: need a str"),
        (b"SET_MODEL", b"\x81\xa8model_id\xa2\xff\xfe", "not UTF-8"),
        (b"SET_MODEL", b"\x82\xa8model_id\xa1m\xa9model_cfg\xdf\xff\xff\xff\xff", "cut off"),
        (b"STOP", b"\x01", "need a map"),
        (b"STATS", b"\x81\xa1a", "cut off"),
    ] {
        let text = refused(command, payload);
        assert!(text.contains(why), "{text}");
    }
    assert!(ControlRequest::decode(&[b"STOP"]).is_err());
    assert!(ControlRequest::decode(&[]).is_err());
    assert!(ControlReply::decode(&[b"\x80"]).is_err());
    assert!(ControlReply::decode(&[b"\x81\xa2ok\xc3", b""]).is_err());
}

#[test]
fn depth_costs_nothing() {
    let mut payload = b"\x82\xa8model_id\xa1m\xa9model_cfg".to_vec();
    payload.extend(std::iter::repeat_n(0x91, 1_000_000));
    payload.push(0xc0);
    assert!(ControlRequest::decode(&[b"SET_MODEL", &payload]).is_ok());
}

#[test]
fn what_links_and_brokers_say() {
    request(ControlRequest::Link, [b"LINK", b"\x80"]);
    let follow = |is_led, model| ControlRequest::Follow(Follow { host: "h", is_led, model, above: 2 });
    request(follow(false, None), [b"FOLLOW", b"\x83\xa5above\x02\xa4host\xa1h\xa3led\xc2"]);
    request(
        follow(true, Some(model(7, "m"))),
        [
            b"FOLLOW",
            b"\x86\xa5above\x02\xa4host\xa1h\xa3led\xc3\xaageneration\x07\xa8model_id\xa1m\xa9model_cfg\x81\xa1x\x01",
        ],
    );
    assert!(refused(b"FOLLOW", b"\x81\xa4host\xa1h").contains("led"));
    let state = LinkedState {
        model: Some(model(7, "m")),
        is_own: true,
        leader: Some(5),
        stop: 3,
        is_stopped: true,
        link_stop: 4,
    };
    let expected: [&[u8]; 2] = [
        b"STATE",
        b"\x88\xa3own\xc3\xa6leader\x05\xa4stop\x03\xa7stopped\xc3\xa9link_stop\x04\xaageneration\x07\xa8model_id\xa1m\xa9model_cfg\x81\xa1x\x01",
    ];
    assert_eq!(frames(|out| state.encode(out)), expected);
    assert_eq!(LinkedState::decode(&expected), Ok(state));
    let no_leader = b"\x85\xa3own\xc2\xa6leader\x00\xa4stop\x00\xa7stopped\xc2\xa9link_stop\x00";
    assert_eq!(LinkedState::decode(&[b"STATE", no_leader]).unwrap().leader, None);
    for wrong in [&b"\x80"[..], b"\x82\xa3own\xc3\xa6leader\x01", b"\xc1"] {
        assert!(LinkedState::decode(&[b"STATE", wrong]).is_err(), "{wrong:?}");
    }
    assert!(LinkedState::decode(&[b"MODEL", b"\x80"]).is_err());
}
