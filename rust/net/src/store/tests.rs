//! A store with real sockets: what ends a call, and which ends meet.

use std::thread;
use std::time::Duration;

use softs_proto::store::{Reply, Request};

use super::{StoreClient, StoreServer};
use crate::Endpoint;
use crate::NetError;
use crate::certificates::{OTHER_TOKEN, TOKEN, credentials};
use crate::waited::Waited;

const WATCHDOG: Duration = Duration::from_secs(60);

fn server(token: Option<&str>) -> StoreServer {
    let endpoint: Endpoint = "tcp://127.0.0.1:0".parse().unwrap();
    let credentials = token.map(|token| credentials(&[token]));
    StoreServer::start(&endpoint, credentials, 1 << 20).unwrap()
}

fn client(server: &StoreServer, token: Option<&str>) -> Result<StoreClient, NetError> {
    let (endpoint, credentials) =
        (server.endpoint().parse().unwrap(), token.map(|token| credentials(&[token])));
    StoreClient::connect(endpoint, credentials, WATCHDOG, &mut || false).map(|client| client.ready().unwrap())
}

/// The value of a key; nothing if the time was over.
fn get(client: &StoreClient, key: &[u8], timeout: Duration) -> Result<Option<Vec<u8>>, NetError> {
    let take = |reply: Reply<'_>| match reply {
        Reply::Value(value) => value.to_vec(),
        other => panic!("{other:?}"),
    };
    client.ask(&Request::Get(key), timeout, &mut || false, take).map(Waited::ready)
}

fn set(client: &StoreClient, key: &[u8], value: &[u8]) {
    let done =
        client.ask(&Request::Set(key, value), WATCHDOG, &mut || false, |reply| reply == Reply::Found(true));
    assert_eq!(done.unwrap(), Waited::Ready(true));
}

#[test]
fn calls_that_wait_hold_up_no_others_of_the_same_client() {
    for token in [None, Some(TOKEN)] {
        let server = server(token);
        let client = client(&server, token).unwrap();
        thread::scope(|scope| {
            let waiting: Vec<_> = (0..3_u8)
                .map(|key| {
                    let client = &client;
                    scope.spawn(move || get(client, &[key], WATCHDOG))
                })
                .collect();
            assert_eq!(get(&client, b"never", Duration::from_millis(20)).unwrap(), None);
            for key in 0..3_u8 {
                set(&client, &[key], &vec![key; 100_000]);
            }
            for (key, value) in waiting.into_iter().enumerate() {
                assert_eq!(value.join().unwrap().unwrap().unwrap(), vec![key as u8; 100_000]);
            }
        });
    }
}

#[test]
fn a_store_that_ends_ends_the_calls_that_wait() {
    let server = server(Some(TOKEN));
    let client = client(&server, Some(TOKEN)).unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| get(&client, b"never", WATCHDOG));
        // It waits, or has not asked yet; either way it is told.
        thread::sleep(Duration::from_millis(50));
        server.close();
        let error = waiting.join().unwrap().unwrap_err();
        assert!(matches!(error, NetError::Lost { .. } | NetError::NoStore { .. }), "{error}");
    });
}

#[test]
fn a_client_waits_for_a_store_that_begins_later() {
    let first = server(None);
    let endpoint: Endpoint = first.endpoint().parse().unwrap();
    first.close();
    thread::scope(|scope| {
        let client = scope.spawn(|| StoreClient::connect(endpoint.clone(), None, WATCHDOG, &mut || false));
        thread::sleep(Duration::from_millis(120));
        let _second = StoreServer::start(&endpoint, None, 1 << 20).unwrap();
        assert!(client.join().unwrap().unwrap().ready().is_some());
    });
}

#[test]
fn a_name_that_is_not_known_yet_is_looked_up_again() {
    let endpoint: Endpoint = "tcp://host.invalid:29402".parse().unwrap();
    let error = StoreClient::connect(endpoint, None, Duration::from_millis(300), &mut || false).unwrap_err();
    assert!(matches!(error, NetError::NoStore { .. }), "{error}");
}

#[test]
fn ends_with_other_tokens_and_plain_ones_are_refused_at_once() {
    for (own, other) in [(TOKEN, Some(OTHER_TOKEN)), (TOKEN, None)] {
        let server = server(Some(own));
        match client(&server, other) {
            Err(error) => assert!(matches!(error, NetError::NoStore { .. }), "{error}"),
            // A plain end hears it when it asks.
            Ok(client) => {
                let error = get(&client, b"key", WATCHDOG).unwrap_err();
                assert!(matches!(error, NetError::Lost { .. }), "{error}");
            }
        }
    }
    let plain = server(None);
    let error = client(&plain, Some(TOKEN)).unwrap_err();
    assert!(matches!(error, NetError::NoStore { .. }), "{error}");
}
