//! The link as a client of its broker.

use softs_proto::Dialect::{Native, Softs};
use softs_proto::bridge::Demand;
use softs_proto::client::LaneRef;
use softs_proto::wire::{
    AnnouncedLane, ClientRequest, MediumKind, MediumProfile, Message, NO_LANE, Supply, ToClient,
};

const MEDIUM: MediumProfile = MediumProfile { kind: MediumKind::Linked, host: 7, slot_size: 64 };

/// What it says to its broker; LANES alone, if `is_new` says that MEDIUM and HELLO come first.
fn announced(demand: &mut Demand, is_new: bool) -> (String, u64, u32) {
    let mut messages = Vec::new();
    let mut out = Message::new();
    assert!(demand.wants_transmit());
    while demand.poll_transmit(&mut out) {
        messages.push(out.clone());
    }
    assert!(!demand.wants_transmit());
    let frames: Vec<Vec<&[u8]>> = messages.iter().map(|message| message.frames().collect()).collect();
    let mut requests = frames.iter().map(|frames| ClientRequest::decode(frames).unwrap());
    if is_new {
        assert_eq!(requests.next(), Some(ClientRequest::Medium(MEDIUM)));
        assert_eq!(requests.next(), Some(ClientRequest::Hello { nonce: Some(5) }));
    }
    let Some(ClientRequest::Lanes { address, segment_id, lanes }) = requests.next() else { panic!() };
    let [AnnouncedLane { product_id: "p", lane, .. }] = lanes[..] else { panic!("{lanes:?}") };
    assert_eq!(requests.next(), None);
    (address.to_owned(), segment_id, lane)
}

fn supplied(demand: &mut Demand, lane_suppliers: u32, wire_suppliers: u32, softs_suppliers: u32) -> u32 {
    let mut out = Message::new();
    ToClient::Supply(vec![Supply { product_id: "p", lane_suppliers, wire_suppliers, softs_suppliers }])
        .encode(&mut out);
    demand.handle_message(&out.frames().collect::<Vec<_>>());
    demand.n_suppliers()
}

#[test]
fn it_announces_the_product_first_and_its_lane_once_there_is_one() {
    let mut demand = Demand::new("p".into(), MEDIUM, 5);
    assert!(!demand.wants_transmit());
    demand.handle_connected(Native);
    assert_eq!(announced(&mut demand, true), (String::new(), 0, NO_LANE));
    assert_eq!(supplied(&mut demand, 0, 3, 1), 2, "one of softs serves no lane");
    demand.set_lane("m".into(), 9, LaneRef { index: 2, generation: 1 });
    assert_eq!(announced(&mut demand, false), ("m".to_owned(), 9, 2));
    assert_eq!(supplied(&mut demand, 1, 2, 1), 1, "the others have refused it");
    // To the next broker all is said again.
    demand.handle_disconnected();
    assert!(!demand.wants_transmit());
    demand.handle_connected(Native);
    assert_eq!(announced(&mut demand, true), ("m".to_owned(), 9, 2));
    demand.handle_disconnected();
    demand.handle_connected(Softs);
    assert!(!demand.wants_transmit());
    demand.handle_message(&[b"junk"]);
    assert!(demand.poll_log().unwrap().text.contains("not understood"));
}
