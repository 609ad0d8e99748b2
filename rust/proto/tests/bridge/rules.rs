//! What a bridge does in order: windows, claims and their fates, slots of the egress.

use std::sync::Arc;
use std::time::Instant;

use softs_proto::bridge::{Fate, HOLD_TIME, Message, Offer, Output, UNUSED_TIME};
use softs_proto::broker::PeerId;
use softs_proto::client::Ending;
use softs_proto::framing::Outbox;
use softs_proto::limits::{MAX_BRIDGED_PRODUCTS, MAX_BRIDGES};
use softs_proto::link::HostId;

use crate::pair::{
    ACCEPTED, DIALLED, INGRESS, LENGTH, PRODUCT, Pair, TEACHER, fixed, layout, machine, product, ragged,
    student, teacher,
};

#[test]
fn a_sample_goes_from_slot_to_slot_in_pieces_and_arrival_is_completion() {
    let ((first, lanes, _), (second, theirs)) = (student(5), teacher(2, 4));
    let mut pair = Pair::bridged(first, second);
    assert_eq!(pair.claim(&lanes), 2, "two for the one supplier");
    pair.pump();
    assert_eq!(theirs.take_placed(), [(0, 100), (1, 101)], "the same sequence numbers");
    let made = theirs.claim(TEACHER).unwrap();
    theirs.publish(&made, Ok(()));
    pair.teach();
    pair.pump();
    assert_eq!(pair.ended(), [(100, Fate::Written(LENGTH))]);
    assert_eq!(pair.stored.values().copied().collect::<Vec<_>>(), [LENGTH]);
    // The slot there is free again, and one more may be wanted.
    assert_eq!(pair.claim(&lanes), 1);
    pair.pump();
    assert_eq!(theirs.take_placed(), [(0, 102)]);
}

#[test]
fn a_slot_is_not_used_again_before_the_kernel_has_its_bytes() {
    let ((first, lanes, _), (second, theirs)) = (student(5), teacher(2, 1));
    let mut pair = Pair::bridged(first, second);
    assert_eq!(pair.claim(&lanes), 1, "there is one slot");
    pair.pump();
    theirs.publish(&theirs.claim(TEACHER).unwrap(), Ok(()));
    pair.teach();
    let mut pieces = Vec::new();
    while let Some(Output::Piece(piece)) = pair.ends[1].poll_output(ACCEPTED) {
        pieces.push(piece);
    }
    let ranges: Vec<_> = pieces.iter().map(|piece| (piece.from, piece.to, piece.is_last)).collect();
    assert_eq!(ranges, [(0, 262_144, false), (262_144, 524_288, false), (524_288, LENGTH, true)]);
    let want = |pair: &mut Pair| {
        pair.ends[1].handle_lanes(PRODUCT, &mut |_| Ok(LENGTH));
        theirs.take_placed().len()
    };
    assert_eq!(want(&mut pair), 1, "the first");
    pieces[..2].iter().for_each(|piece| pair.ends[1].sent(piece));
    assert!(!theirs.is_on_order(0));
    pair.ends[1].sent(&pieces[2]);
}

#[test]
fn orders_that_no_supplier_has_begun_with_come_home_when_suppliers_there_wait() {
    let ((first, lanes, _), (second, theirs)) = (student(5), teacher(2, 4));
    let mut pair = Pair::bridged(first, second);
    pair.claim(&lanes);
    pair.pump();
    let started = theirs.claim(TEACHER).unwrap();
    let (now, there) = (pair.now, HostId(2));
    pair.ends[0].handle_idle_suppliers(now, there, 0, 5);
    pair.pump();
    assert_eq!(pair.ended(), [(101, Fate::Returned)], "the other one has begun");
    assert_eq!(pair.claim(&lanes), 0, "the waiting suppliers have some time");
    assert_eq!(pair.ends[0].next_at(), Some(now + HOLD_TIME));
    pair.now += HOLD_TIME;
    assert_eq!(pair.claim(&lanes), 1);
    // What was not sent yet does not even travel.
    pair.ends[0].handle_idle_suppliers(pair.now, there, 0, 1);
    assert_eq!(pair.ended().len(), 1);
    theirs.publish(&started, Ok(()));
    pair.teach();
    pair.pump();
    assert_eq!(pair.ended(), [(100, Fate::Written(LENGTH))]);
}

#[test]
fn an_order_that_comes_home_for_waiting_suppliers_is_taken_by_no_other_bridge() {
    let ((first, lanes, _), (second, _)) = (student(1), teacher(2, 4));
    let mut pair = Pair::bridged(first, second);
    let there = HostId(2);
    pair.ends[0].add_ingress(there, &product(), &layout());
    pair.pump();
    let room = |pair: &mut Pair| pair.ends[0].room(pair.now, there, 1).orders;
    for is_sent in [true, false] {
        assert_eq!(pair.claim(&lanes), 1);
        if is_sent {
            pair.pump();
        }
        pair.ends[0].handle_idle_suppliers(pair.now, there, 0, 1);
        if is_sent {
            assert_eq!(room(&mut pair), 2, "nothing is back yet");
            pair.pump();
        }
        let Some((claim, Fate::Returned)) = pair.ends[0].poll_ended() else { panic!("it is back") };
        lanes.unclaim(&claim);
        assert_eq!(room(&mut pair), 0);
        pair.now += HOLD_TIME;
        assert_eq!(room(&mut pair), 2);
    }
}

#[test]
fn the_other_suppliers_of_a_client_keep_their_share() {
    let ((first, lanes, _), (second, _)) = (student(9), teacher(2, 4));
    let mut pair = Pair::bridged(first, second);
    pair.ends[0].set_share(HostId(2), 0, 1, 1);
    assert_eq!(pair.claim(&lanes), 1);
}

#[test]
fn failures_are_told_and_lost_suppliers_are_replaced_three_times() {
    let ((first, lanes, _), (second, theirs)) = (student(5), teacher(2, 4));
    let mut pair = Pair::bridged(first, second);
    pair.claim(&lanes);
    pair.pump();
    let made = theirs.claim(TEACHER).unwrap();
    theirs.publish(&made, Err(&"why ".repeat(4000)));
    for _ in 0..3 {
        let lost = theirs.claim(TEACHER).unwrap();
        assert_eq!(lost.sequence, 101, "placed again");
        theirs.end(&lost, Ending::Lost);
        pair.teach();
    }
    pair.pump();
    let ended = pair.ended();
    let texts: Vec<_> = ended
        .iter()
        .map(|(sequence, fate)| match fate {
            Fate::Failed(text) => (*sequence, text.len(), &text[..4]),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(texts, [(100, 8 << 10, "why "), (101, 31, "3 su")]);
}

#[test]
fn a_sample_of_a_wrong_length_fails_where_it_was_made() {
    let ((first, lanes, _), (second, theirs)) = (student(5), teacher(2, 4));
    let mut pair = Pair::bridged(first, second);
    pair.claim(&lanes);
    pair.pump();
    theirs.publish(&theirs.claim(TEACHER).unwrap(), Ok(()));
    pair.ends[1].handle_lanes(PRODUCT, &mut |_| Ok(LENGTH + 1));
    pair.pump();
    assert!(matches!(&pair.ended()[..], [(100, Fate::Failed(why))] if why.contains("600001 bytes")));
}

#[test]
fn a_ragged_sample_crosses_with_the_bytes_that_it_has() {
    let ((first, lanes, _), (second, theirs)) = (student(5), teacher(2, 4));
    let mut pair = Pair::bridged_by(&ragged(), first, second);
    assert_eq!(pair.claim(&lanes), 2);
    pair.pump();
    for _ in 0..2 {
        theirs.publish(&theirs.claim(TEACHER).unwrap(), Ok(()));
    }
    let lengths = [262_145, 8];
    pair.ends[1].handle_lanes(PRODUCT, &mut |slot| Ok(lengths[slot as usize]));
    pair.pump();
    assert_eq!(pair.ended(), [(100, Fate::Written(262_145)), (101, Fate::Written(8))]);
    assert_eq!(pair.stored.values().copied().collect::<Vec<_>>(), lengths);
}

#[test]
fn a_ragged_sample_without_a_length_that_it_may_have_fails_where_it_was_made() {
    for (measured, why) in [
        (Ok(7), "a sample of 7 bytes, and 8..=600000 may be"),
        (Ok(LENGTH + 1), "a sample of 600001 bytes"),
        (Err("tensor \"0\" has length -1"), "tensor \"0\" has length -1"),
    ] {
        let ((first, lanes, _), (second, theirs)) = (student(5), teacher(2, 4));
        let mut pair = Pair::bridged_by(&ragged(), first, second);
        pair.claim(&lanes);
        pair.pump();
        theirs.publish(&theirs.claim(TEACHER).unwrap(), Ok(()));
        pair.ends[1].handle_lanes(PRODUCT, &mut |_| measured.map_err(str::to_owned));
        pair.pump();
        assert!(matches!(&pair.ended()[..], [(100, Fate::Failed(told))] if told.contains(why)), "{why}");
    }
}

#[test]
fn samples_of_other_layouts_are_another_product() {
    let ((first, ..), (second, _)) = (student(5), teacher(2, 4));
    let mut pair = Pair::new(first, second.machine);
    for layout in [layout(), ragged(), layout()] {
        assert!(pair.ends[0].add_ingress(HostId(2), &product(), &layout).is_some());
    }
    pair.pump();
    let asked: Vec<_> = std::iter::from_fn(|| pair.ends[1].poll_asked()).map(|asked| asked.layout).collect();
    assert_eq!(asked, [layout(), ragged()]);
}

#[test]
fn the_end_of_a_session_returns_all_claims_and_empties_the_egress() {
    let ((first, lanes, _), (second, theirs)) = (student(5), teacher(2, 4));
    let mut pair = Pair::bridged(first, second);
    pair.claim(&lanes);
    pair.pump();
    let started = theirs.claim(TEACHER).unwrap();
    let now = pair.now;
    pair.ends[0].disconnected(now, DIALLED, "cut");
    assert_eq!(pair.ended(), [(100, Fate::Returned), (101, Fate::Returned)]);
    assert_eq!(pair.claim(&lanes), 0);
    pair.ends[1].disconnected(now, ACCEPTED, "cut");
    assert_eq!(theirs.open_orders(), [(0, 100)], "what was begun stays until it ends");
    theirs.publish(&started, Ok(()));
    pair.teach();
    assert_eq!(pair.ends[1].poll_output(ACCEPTED), None);
    assert!(theirs.open_orders().is_empty());
}

#[test]
fn each_host_has_one_order_in_turn() {
    let (teachers, theirs) = teacher(2, 1);
    let (mut second, now) = (teachers.machine, Instant::now());
    let mut students: Vec<_> = [1, 5]
        .into_iter()
        .map(|host| {
            let mut first = machine(host);
            first.sessions().want(now);
            let (_, name) = first.sessions().poll_dial(now).unwrap();
            assert!(second.sessions().accepted(now, PeerId(2 * host)));
            first.sessions().connected(name);
            (first, name, PeerId(2 * host))
        })
        .collect();
    let wire = |second: &mut crate::pair::Machine,
                students: &mut Vec<(crate::pair::Machine, PeerId, PeerId)>| {
        for _ in 0..4 {
            for (first, name, theirs) in students.iter_mut() {
                while let Some(softs_proto::bridge::Output::Frames(bytes)) = first.poll_output(*name) {
                    second.receive(now, *theirs, &mut &bytes[..]);
                }
                while let Some(softs_proto::bridge::Output::Frames(bytes)) = second.poll_output(*theirs) {
                    first.receive(now, *name, &mut &bytes[..]);
                }
            }
        }
    };
    wire(&mut second, &mut students);
    for (first, ..) in &mut students {
        assert_eq!(first.add_ingress(HostId(2), &product(), &layout()), Some(0));
    }
    wire(&mut second, &mut students);
    assert_eq!(second.poll_asked().unwrap().number, PRODUCT);
    second.set_lane(PRODUCT, teachers.lanes, teachers.lane, teachers.n_slots);
    wire(&mut second, &mut students);
    for (n, (first, ..)) in students.iter_mut().enumerate() {
        for i in 0..3 {
            let sequence = 10 * n as u64 + i;
            let claim = crate::lane_model::Claim::new(0, sequence, "p", 1);
            first.claimed(now, HostId(2), 0, claim, sequence);
        }
    }
    wire(&mut second, &mut students);
    let mut order = Vec::new();
    while let Some(made) = theirs.claim(TEACHER) {
        order.push(made.sequence);
        theirs.publish(&made, Err("no"));
        second.handle_lanes(PRODUCT, &mut |_| Ok(LENGTH));
        wire(&mut second, &mut students);
    }
    assert_eq!(order, [0, 10, 1, 11, 2, 12]);
}

#[test]
fn a_host_that_stops_gives_back_what_it_has_not_begun() {
    let ((first, lanes, _), (second, theirs)) = (student(5), teacher(2, 4));
    let mut pair = Pair::bridged(first, second);
    pair.claim(&lanes);
    pair.pump();
    let started = theirs.claim(TEACHER).unwrap();
    pair.ends[1].drain();
    pair.pump();
    assert_eq!(pair.ended(), [(101, Fate::Returned)]);
    pair.now += HOLD_TIME;
    assert_eq!(pair.claim(&lanes), 0, "it offers nothing any more");
    theirs.publish(&started, Ok(()));
    pair.teach();
    pair.pump();
    assert_eq!(pair.ended(), [(100, Fate::Written(LENGTH))]);
}

#[test]
fn a_bridge_ends_with_its_session_and_what_it_ordered_is_kept_for_the_next_one() {
    let ((first, ..), (second, _)) = (student(5), teacher(2, 4));
    let mut pair = Pair::bridged(first, second);
    let cut = pair.now;
    for end in 0..2 {
        pair.ends[end].disconnected(cut, [DIALLED, ACCEPTED][end], "cut");
    }
    assert_eq!(pair.ends[0].add_ingress(HostId(2), &product(), &layout()), None, "without a session");
    let at = pair.ends[0].next_at().unwrap();
    assert!(pair.ends[1].drop_unused(at).is_empty());
    let (_, name) = pair.ends[0].sessions().poll_dial(at).unwrap();
    pair.ends[0].sessions().connected(name);
    pair.ends[1].sessions().accepted(at, PeerId(4));
    let wire = |ends: &mut [crate::pair::Machine; 2]| {
        for _ in 0..4 {
            while let Some(Output::Frames(bytes)) = ends[0].poll_output(name) {
                ends[1].receive(at, PeerId(4), &mut &bytes[..]);
            }
            while let Some(Output::Frames(bytes)) = ends[1].poll_output(PeerId(4)) {
                ends[0].receive(at, name, &mut &bytes[..]);
            }
        }
    };
    wire(&mut pair.ends);
    assert_eq!(pair.ends[0].add_ingress(HostId(2), &product(), &layout()), Some(0));
    wire(&mut pair.ends);
    assert_eq!(pair.ends[1].poll_asked(), None, "its lane is there");
    assert_eq!(pair.ends[0].room(at, HostId(2), 0).orders, 2);
    // Not while it is in use, and not before its time.
    assert!(pair.ends[1].drop_unused(at + 2 * UNUSED_TIME).is_empty());
    pair.ends[1].disconnected(at, PeerId(4), "cut");
    assert!(pair.ends[1].drop_unused(at).is_empty());
    assert_eq!(pair.ends[1].drop_unused(at + UNUSED_TIME), [PRODUCT]);
    assert!(pair.ends[1].lanes(PRODUCT).is_none());
}

#[test]
fn what_has_no_suppliers_takes_no_orders() {
    let ((first, lanes, _), (second, _)) = (student(5), teacher(2, 4));
    let mut pair = Pair::new(first, second.machine);
    let (now, there) = (pair.now, HostId(2));
    assert_eq!(pair.ends[0].add_ingress(there, &product(), &layout()), Some(0));
    pair.pump();
    assert!(pair.ends[0].take_offers() && !pair.ends[0].take_offers());
    assert_eq!((pair.ends[0].n_suppliers(there, 0), pair.ends[0].room(now, there, 0).orders), (0, 0));
    // What comes all the same goes back.
    let claim = lanes.claim(INGRESS).unwrap();
    pair.ends[0].claimed(now, there, 0, claim, 100);
    pair.pump();
    assert_eq!(pair.ended(), [(100, Fate::Returned)]);
    pair.ends[1].set_lane(PRODUCT, second.lanes, second.lane, second.n_slots);
    pair.pump();
    assert!(pair.ends[0].take_offers());
    let later = now + HOLD_TIME;
    assert_eq!((pair.ends[0].n_suppliers(there, 0), pair.ends[0].room(later, there, 0).orders), (1, 2));
}

#[test]
fn an_order_that_is_to_come_home_does_once_its_supplier_is_lost() {
    let ((first, lanes, _), (second, theirs)) = (student(5), teacher(2, 4));
    let mut pair = Pair::bridged(first, second);
    pair.claim(&lanes);
    pair.pump();
    let started = theirs.claim(TEACHER).unwrap();
    let now = pair.now;
    pair.ends[0].give_back(now, HostId(2), 0);
    pair.pump();
    assert_eq!(pair.ended(), [(101, Fate::Returned)]);
    theirs.end(&started, Ending::Lost);
    pair.teach();
    pair.pump();
    assert_eq!(pair.ended(), [(100, Fate::Returned)]);
    assert!(theirs.open_orders().is_empty());
}

#[test]
fn products_are_bounded() {
    let ((first, ..), (second, _)) = (student(5), teacher(2, 4));
    let mut pair = Pair::new(first, second.machine);
    for n in 0..=MAX_BRIDGED_PRODUCTS {
        let name = Arc::from(n.to_string());
        assert!(pair.ends[0].add_ingress(HostId(2), &name, &fixed(1)).is_some());
    }
    pair.pump();
    assert_eq!(std::iter::from_fn(|| pair.ends[1].poll_asked()).count(), MAX_BRIDGED_PRODUCTS);
    let (host, bridge, why) = pair.ends[0].poll_refused().unwrap();
    assert_eq!((host, bridge as usize), (HostId(2), MAX_BRIDGED_PRODUCTS));
    assert!(why.contains("as many products"), "{why}");
    assert_eq!(pair.ends[0].poll_refused(), None);
}

#[test]
fn a_bridge_that_no_client_uses_is_over_once_its_claims_have_ended() {
    let ((first, lanes, _), (second, theirs)) = (student(5), teacher(2, 4));
    let mut pair = Pair::bridged(first, second);
    assert_eq!(pair.claim(&lanes), 2);
    pair.pump();
    let begun = theirs.claim(TEACHER).unwrap();
    let now = pair.now;
    pair.ends[0].remove_ingress(now, HostId(2), 0);
    pair.pump();
    assert_eq!(pair.ended(), [(101, Fate::Returned)], "no supplier has begun with it");
    assert_eq!(pair.claim(&lanes), 0);
    theirs.publish(&begun, Ok(()));
    pair.teach();
    pair.pump();
    assert_eq!(pair.ended(), [(100, Fate::Written(LENGTH))]);
    // Another one may follow in this session.
    assert_eq!(pair.ends[0].add_ingress(HostId(2), &product(), &layout()), Some(1));
    pair.pump();
    assert_eq!(pair.ends[0].room(now, HostId(2), 1).orders, 2);
}

#[test]
fn an_offer_that_has_crossed_the_end_of_its_bridge_is_nothing() {
    let ((first, ..), (second, _)) = (student(5), teacher(2, 4));
    let mut pair = Pair::bridged(first, second);
    let (now, mut offer) = (pair.now, Outbox::default());
    pair.ends[0].remove_ingress(now, HostId(2), 0);
    assert!(pair.ends[0].poll_output(DIALLED).is_some());
    Message::Offer(Offer { suppliers: 3, slots: 4 }).encode(0, &mut offer);
    pair.ends[0].receive(now, DIALLED, &mut offer.bytes());
    assert_eq!(pair.end_of(0), None);
}

#[test]
fn a_session_has_so_many_bridges_at_once() {
    let ((first, ..), (second, _)) = (student(5), teacher(2, 4));
    let mut pair = Pair::bridged(first, second);
    let (now, there) = (pair.now, HostId(2));
    for bridge in 1..MAX_BRIDGES as u32 {
        assert_eq!(pair.ends[0].add_ingress(there, &product(), &layout()), Some(bridge));
    }
    assert_eq!(pair.ends[0].add_ingress(there, &product(), &layout()), None);
    pair.ends[0].remove_ingress(now, there, 7);
    pair.pump();
    let next = pair.ends[0].add_ingress(there, &product(), &layout());
    assert_eq!(next, Some(MAX_BRIDGES as u32), "no number twice");
    pair.pump();
    assert_eq!((pair.end_of(0), pair.end_of(1)), (None, None));
}

#[test]
fn a_bridge_that_ends_keeps_no_thread_awake() {
    let ((first, lanes, _), (second, theirs)) = (student(5), teacher(2, 4));
    let mut pair = Pair::bridged(first, second);
    pair.claim(&lanes);
    pair.pump();
    let _begun = theirs.claim(TEACHER).unwrap();
    let now = pair.now;
    pair.ends[0].remove_ingress(now, HostId(2), 0);
    pair.pump();
    assert_eq!(pair.ended(), [(101, Fate::Returned)]);
    assert!(pair.ends[0].next_at().is_none_or(|at| at > now + HOLD_TIME));
}

#[test]
fn a_host_may_have_two_bridges_to_one_product() {
    let ((first, lanes, _), (second, theirs)) = (student(5), teacher(2, 4));
    let mut pair = Pair::bridged(first, second);
    let now = pair.now;
    assert_eq!(pair.ends[0].add_ingress(HostId(2), &product(), &layout()), Some(1));
    pair.pump();
    for bridge in [0, 1] {
        let room = pair.ends[0].room(now, HostId(2), bridge).orders;
        assert_eq!(room, 2);
        for _ in 0..room {
            let claim = lanes.claim(INGRESS).unwrap();
            let sequence = claim.sequence;
            pair.ends[0].claimed(now, HostId(2), bridge, claim, sequence);
        }
    }
    pair.pump();
    while let Some(made) = theirs.claim(TEACHER) {
        theirs.publish(&made, Ok(()));
    }
    pair.teach();
    pair.pump();
    assert_eq!(pair.ended().len(), 4);
}
