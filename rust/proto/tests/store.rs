//! Stores: each reply is that of `torch.distributed.Store`, whatever other peers ask at the same time, and broken frames
//! end a connection.

#[path = "fuzz/rng.rs"]
mod rng;

use std::collections::{BTreeMap, BTreeSet};

use rng::Rng;
use softs_proto::broker::PeerId;
use softs_proto::framing::{FrameReader, Outbox};
use softs_proto::store::{Answer, MAX_KEY_BYTES, MAX_VALUE_BYTES, Reply, Request, StoreMachine};
use softs_proto::streams::{End, StreamMachine};

const MOST_BYTES: usize = 1 << 20;

fn store(peers: u64) -> StoreMachine {
    let mut store = StoreMachine::new(MOST_BYTES);
    (0..peers).for_each(|id| store.connect(PeerId(id), String::new()));
    store
}

fn frame(request: &Request<'_>) -> Vec<u8> {
    let mut out = Outbox::default();
    request.encode(&mut out);
    out.into_bytes()
}

/// What the store has for a peer, as text; nothing if it waits.
fn reply(store: &mut StoreMachine, id: u64) -> Result<Option<String>, String> {
    let mut answer = Answer::default();
    let outbox = store.outbox(PeerId(id)).expect("it is connected");
    answer.receive(outbox.bytes());
    outbox.advance(outbox.len());
    answer.poll().map(|reply| reply.map(|reply| format!("{reply:?}")))
}

fn ask(store: &mut StoreMachine, id: u64, request: &Request<'_>) -> Result<Option<String>, String> {
    store.receive(PeerId(id), &frame(request));
    reply(store, id)
}

fn said(reply: &Reply<'_>) -> Result<Option<String>, String> {
    Ok(Some(format!("{reply:?}")))
}

/// What a store of one thread would answer; nothing while keys are missing.
fn model(values: &mut BTreeMap<Vec<u8>, Vec<u8>>, request: &Request<'_>) -> Option<String> {
    let found = |keys: &[&[u8]]| keys.iter().all(|&key| values.contains_key(key));
    let reply = match request {
        Request::Set(key, value) => {
            values.insert(key.to_vec(), value.to_vec());
            Reply::Found(true)
        }
        Request::Get(key) => return values.get(*key).map(|value| format!("{:?}", Reply::Value(value))),
        Request::Add(key, amount) => {
            let text = values.get(*key).map_or("0".into(), |value| String::from_utf8_lossy(value));
            let number = text.parse::<i64>();
            let Ok(number) = number else {
                return Some(format!(
                    "{:?}",
                    Reply::Refused("the value of this key is no number".to_owned())
                ));
            };
            values.insert(key.to_vec(), (number + amount).to_string().into_bytes());
            Reply::Number(number + amount)
        }
        Request::CompareSet(key, expected, desired) => {
            let present = values.get(*key).map_or(&[][..], Vec::as_slice);
            if present == *expected {
                values.insert(key.to_vec(), desired.to_vec());
            }
            let value = values.get(*key).map_or(*expected, Vec::as_slice);
            return Some(format!("{:?}", Reply::Value(value)));
        }
        Request::Check(keys) => Reply::Found(found(keys)),
        Request::Wait(keys) => return found(keys).then(|| format!("{:?}", Reply::Found(true))),
        Request::Delete(key) => Reply::Found(values.remove(*key).is_some()),
        Request::Count => Reply::Number(values.len() as i64),
    };
    Some(format!("{reply:?}"))
}

const KEYS: [&[u8]; 4] = [b"a", b"b", b"c", b""];
const VALUES: [&[u8]; 4] = [b"", b"12", b"x", b"-3"];

fn any_request(rng: &mut Rng) -> Request<'static> {
    let (key, value) = (KEYS[rng.below(4)], VALUES[rng.below(4)]);
    let keys = |rng: &mut Rng| (0..rng.below(4)).map(|_| KEYS[rng.below(4)]).collect();
    match rng.below(8) {
        0 => Request::Set(key, value),
        1 => Request::Get(key),
        2 => Request::Add(key, rng.below(9) as i64 - 4),
        3 => Request::CompareSet(key, VALUES[rng.below(4)], value),
        4 => Request::Check(keys(rng)),
        5 => Request::Wait(keys(rng)),
        6 => Request::Delete(key),
        _ => Request::Count,
    }
}

#[test]
fn replies_are_those_of_a_model_and_those_that_wait_get_theirs_with_the_last_key() {
    for seed in 0..2000 {
        let mut rng = Rng::new(seed);
        let (mut store, mut values) = (store(3), BTreeMap::new());
        // What each peer waits for: the request, and the keys that had no value since then.
        let mut waiting: BTreeMap<u64, (Request<'_>, BTreeSet<&[u8]>)> = BTreeMap::new();
        for _ in 0..60 {
            let id = rng.below(3) as u64;
            if waiting.contains_key(&id) {
                if rng.below(4) == 0 {
                    store.disconnect(PeerId(id), End::Ordinary);
                    store.connect(PeerId(id), String::new());
                    waiting.remove(&id);
                }
                continue;
            }
            let request = any_request(&mut rng);
            let expected = model(&mut values, &request);
            assert_eq!(ask(&mut store, id, &request), Ok(expected.clone()), "{seed}: {request:?}");
            if expected.is_none() {
                let keys = match &request {
                    Request::Get(key) => vec![*key],
                    Request::Wait(keys) => keys.clone(),
                    other => panic!("{other:?} waits"),
                };
                let missing = keys.into_iter().filter(|&key| !values.contains_key(key)).collect();
                waiting.insert(id, (request, missing));
            }
            for (_, missing) in waiting.values_mut() {
                missing.retain(|&key| !values.contains_key(key));
            }
            let told: BTreeSet<_> = std::iter::from_fn(|| store.poll_output()).collect();
            let done: Vec<_> = waiting.extract_if(.., |_, (_, missing)| missing.is_empty()).collect();
            assert_eq!(told, done.iter().map(|(id, _)| PeerId(*id)).collect(), "{seed}");
            for (id, (request, _)) in done {
                let expected = match request {
                    Request::Get(key) => Reply::Value(&values[key]),
                    _ => Reply::Found(true),
                };
                assert_eq!(reply(&mut store, id), said(&expected), "{seed}: {request:?}");
            }
        }
        let bytes: usize = values.iter().map(|(key, value)| key.len() + value.len() + 128).sum();
        assert_eq!(store.bytes(), bytes, "{seed}");
    }
}

#[test]
fn a_store_that_is_full_says_so_and_keeps_what_it_has() {
    let mut store = store(1);
    let half = vec![7; MOST_BYTES / 2];
    assert_eq!(ask(&mut store, 0, &Request::Set(b"a", &half)), said(&Reply::Found(true)));
    for request in [Request::Set(b"b", &half), Request::CompareSet(b"b", b"", &half)] {
        let refused = ask(&mut store, 0, &request).unwrap().unwrap();
        assert!(refused.contains("the store is full"), "{refused}");
    }
    assert_eq!(ask(&mut store, 0, &Request::Count), said(&Reply::Number(1)));
    // In place of what was there it fits.
    assert_eq!(ask(&mut store, 0, &Request::Set(b"a", &[1; 9])), said(&Reply::Found(true)));
    assert_eq!(ask(&mut store, 0, &Request::Set(b"b", &half)), said(&Reply::Found(true)));
}

#[test]
fn a_second_request_before_the_reply_ends_the_connection() {
    let mut store = store(2);
    assert_eq!(ask(&mut store, 0, &Request::Get(b"never")), Ok(None));
    let why = ask(&mut store, 0, &Request::Count).unwrap_err();
    assert!(why.contains("before the reply"), "{why}");
    assert_eq!(store.poll_ending(), Some(PeerId(0)));
    assert!(!store.wants_bytes(PeerId(0)) && store.wants_bytes(PeerId(1)));
}

#[test]
fn requests_of_a_peer_that_does_not_read_leave_one_reply() {
    let mut store = store(1);
    let value = vec![7; 1 << 16];
    assert_eq!(ask(&mut store, 0, &Request::Set(b"a", &value)), said(&Reply::Found(true)));
    store.receive(PeerId(0), &frame(&Request::Get(b"a")).repeat(1000));
    assert!(store.outbox(PeerId(0)).unwrap().len() < 2 * value.len());
    assert_eq!(store.poll_ending(), Some(PeerId(0)));
}

#[test]
fn keys_and_values_that_are_too_long_end_the_connection() {
    let (key, value) = (vec![1; MAX_KEY_BYTES + 1], vec![1; MAX_VALUE_BYTES + 1]);
    for request in [
        Request::Set(&key, b""),
        Request::Set(b"", &value),
        Request::Get(&key),
        Request::Add(&key, 1),
        Request::CompareSet(b"", &value, b""),
        Request::Wait(vec![b"", &key]),
        Request::Delete(&key),
    ] {
        let why = ask(&mut store(1), 0, &request).unwrap_err();
        assert!(why.contains("malformed"), "{why}");
    }
}

#[test]
fn broken_frames_end_a_connection_or_are_understood() {
    for seed in 0..20_000 {
        let mut rng = Rng::new(seed);
        let mut frames = Outbox::default();
        (0..=rng.below(3)).for_each(|_| any_request(&mut rng).encode(&mut frames));
        let bytes = rng.damaged(frames.bytes());
        let mut reader = FrameReader::new(4096);
        reader.receive(&bytes);
        while let Ok(Some((kind, payload))) = reader.poll() {
            if let Ok(request) = Request::decode(kind, payload) {
                let mut again = Outbox::default();
                request.encode(&mut again);
                assert_eq!(&again.bytes()[5..], payload, "{seed}");
            }
            if let Ok(reply) = Reply::decode(kind, payload) {
                let mut again = Outbox::default();
                reply.encode(&mut again);
                assert_eq!(&again.bytes()[5..], payload, "{seed}");
            }
        }
        let mut store = store(1);
        for piece in bytes.chunks(1 + rng.below(30)) {
            if store.wants_bytes(PeerId(0)) {
                store.receive(PeerId(0), piece);
            }
        }
        let mut answer = Answer::default();
        answer.receive(&bytes);
        while let Ok(Some(_)) = answer.poll() {}
    }
}
