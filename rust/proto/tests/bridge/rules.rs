//! What a bridge does in order: windows, claims and their fates, slots of the egress.

use std::time::{Duration, Instant};

use softs_proto::bridge::{Fate, HOLD_TIME, Message, Offer, Output};
use softs_proto::broker::PeerId;
use softs_proto::client::Ending;
use softs_proto::framing::Outbox;
use softs_proto::limits::MAX_BRIDGES;
use softs_proto::link::{HostId, RETURN_TIME, TICKET_TIME, Ticket};

use crate::pair::{
    ACCEPTED, DIALLED, INGRESS, LENGTH, PRODUCT, Pair, TEACHER, machine, student, teacher, ticket,
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
        pair.ends[1].handle_lanes(PRODUCT, &mut |_| LENGTH);
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
fn the_other_suppliers_of_a_client_keep_their_share() {
    let ((first, lanes, _), (second, _)) = (student(9), teacher(2, 4));
    let mut pair = Pair::bridged(first, second);
    pair.ends[0].set_share(HostId(2), 0, 1);
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
    pair.ends[1].handle_lanes(PRODUCT, &mut |_| LENGTH + 1);
    pair.pump();
    assert!(matches!(&pair.ended()[..], [(100, Fate::Failed(why))] if why.contains("600001 bytes")));
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
    let (mut second, theirs) = teacher(2, 1);
    let now = std::time::Instant::now();
    let mut students: Vec<_> = [1, 5]
        .into_iter()
        .map(|host| {
            assert!(second.admit(now, ticket(host as u8), HostId(host), PRODUCT));
            let mut first = machine(host);
            first.add_ingress(now, HostId(2), ticket(host as u8), LENGTH..=LENGTH).unwrap();
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
                    second.receive(now, *theirs, &mut &bytes[..], |_, _, _| {});
                }
                while let Some(softs_proto::bridge::Output::Frames(bytes)) = second.poll_output(*theirs) {
                    first.receive(now, *name, &mut &bytes[..], |_, _, _| {});
                }
            }
        }
    };
    wire(&mut second, &mut students);
    second.handle_lanes(PRODUCT, &mut |_| LENGTH);
    wire(&mut second, &mut students);
    for (n, (first, ..)) in students.iter_mut().enumerate() {
        for i in 0..3 {
            let sequence = 10 * n as u64 + i;
            let claim = crate::lane_model::Claim { slot: 0, sequence, product: "p".to_owned(), owner: 1 };
            first.claimed(now, HostId(2), 0, claim, sequence);
        }
    }
    wire(&mut second, &mut students);
    let mut order = Vec::new();
    while let Some(made) = theirs.claim(TEACHER) {
        order.push(made.sequence);
        theirs.publish(&made, Err("no"));
        second.handle_lanes(PRODUCT, &mut |_| LENGTH);
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
fn a_bridge_needs_a_ticket_and_keeps_it_over_sessions() {
    let ((mut first, ..), (second, _)) = (student(5), teacher(2, 4));
    let now = std::time::Instant::now();
    first.add_ingress(now, HostId(2), ticket(1), LENGTH..=LENGTH).unwrap();
    let mut pair = Pair::bridged_as(first, second, 1);
    let (host, bridge, why) = pair.ends[0].poll_refused().unwrap();
    assert_eq!((host, bridge, &why[..]), (HostId(2), 0, "this ticket opens nothing here"));
    let later = now + Duration::from_secs(3600);
    for end in 0..2 {
        pair.ends[end].disconnected(later, [DIALLED, ACCEPTED][end], "cut");
    }
    let at = pair.ends[0].next_at().unwrap();
    let (_, name) = pair.ends[0].sessions().poll_dial(at).unwrap();
    pair.ends[0].sessions().connected(name);
    pair.ends[1].sessions().accepted(at, PeerId(4));
    for _ in 0..4 {
        while let Some(softs_proto::bridge::Output::Frames(bytes)) = pair.ends[0].poll_output(name) {
            pair.ends[1].receive(at, PeerId(4), &mut &bytes[..], |_, _, _| {});
        }
        while let Some(softs_proto::bridge::Output::Frames(bytes)) = pair.ends[1].poll_output(PeerId(4)) {
            pair.ends[0].receive(at, name, &mut &bytes[..], |_, _, _| {});
        }
    }
    assert_eq!(pair.ends[0].room(at, HostId(2), 1), 2, "an hour later, without the broker");
    assert_eq!(pair.ends[0].poll_refused().unwrap().1, 0);
    assert_eq!(pair.ends[0].poll_refused(), None);
}

#[test]
fn a_host_has_no_bridge_to_itself() {
    let now = std::time::Instant::now();
    assert_eq!(machine(1).add_ingress(now, HostId(1), ticket(1), 1..=1), None);
    assert!(!machine(1).admit(now, ticket(1), HostId(1), PRODUCT));
}

#[test]
fn a_bridge_that_no_client_uses_is_over_once_its_claims_have_ended() {
    let ((first, lanes, _), (second, theirs)) = (student(5), teacher(2, 4));
    let mut pair = Pair::bridged(first, second);
    assert_eq!(pair.claim(&lanes), 2);
    pair.pump();
    let begun = theirs.claim(TEACHER).unwrap();
    let (now, hosts) = (pair.now, [HostId(2), HostId(1)]);
    pair.ends[0].remove_ingress(now, HostId(2), 0);
    pair.pump();
    assert_eq!(pair.ended(), [(101, Fate::Returned)], "no supplier has begun with it");
    assert_eq!(pair.claim(&lanes), 0);
    theirs.publish(&begun, Ok(()));
    pair.teach();
    pair.pump();
    assert_eq!(pair.ended(), [(100, Fate::Written(LENGTH))]);
    // Neither end has a reason for another session, and the ticket is void.
    for (end, host) in hosts.into_iter().enumerate() {
        pair.ends[end].handle_timeout(now);
        assert!(!pair.ends[end].sessions().is_wanted(host));
    }
    assert_eq!(pair.ends[0].add_ingress(now, HostId(2), ticket(9), LENGTH..=LENGTH), Some(1));
    pair.pump();
    assert!(pair.ends[0].poll_refused().unwrap().2.contains("opens nothing"));
    // One by a ticket of its own is served, in the session that there is.
    assert!(pair.ends[1].admit(now, ticket(8), HostId(1), PRODUCT));
    assert_eq!(pair.ends[0].add_ingress(now, HostId(2), ticket(8), LENGTH..=LENGTH), Some(2));
    pair.pump();
    assert_eq!(pair.ends[0].room(now, HostId(2), 2), 2);
}

#[test]
fn an_offer_that_has_crossed_the_end_of_its_bridge_is_nothing() {
    let ((first, ..), (second, _)) = (student(5), teacher(2, 4));
    let mut pair = Pair::bridged(first, second);
    let (now, mut offer) = (pair.now, Outbox::default());
    pair.ends[0].remove_ingress(now, HostId(2), 0);
    assert!(pair.ends[0].poll_output(DIALLED).is_some());
    Message::Offer(Offer { suppliers: 3, slots: 4 }).encode(0, &mut offer);
    pair.ends[0].receive(now, DIALLED, &mut offer.bytes(), |_, _, _| {});
    assert_eq!(pair.end_of(0), None);
}

#[test]
fn without_a_session_a_bridge_is_over_at_once_and_a_ticket_with_its_time() {
    let (now, mut first) = (Instant::now(), machine(1));
    assert_eq!(first.add_ingress(now, HostId(2), ticket(9), LENGTH..=LENGTH), Some(0));
    assert!(first.admit(now, ticket(8), HostId(3), PRODUCT));
    first.remove_ingress(now, HostId(2), 0);
    first.handle_timeout(now);
    assert_eq!([2, 3].map(|host| first.sessions().is_wanted(HostId(host))), [false, true]);
    first.handle_timeout(now + TICKET_TIME);
    assert!(!first.sessions().is_wanted(HostId(3)));
}

#[test]
fn a_host_that_never_comes_back_is_dialled_for_the_time_of_its_tickets_only() {
    let ((first, ..), (second, _)) = (student(5), teacher(2, 4));
    let Pair { now, mut ends, .. } = Pair::bridged(first, second);
    let teachers = &mut ends[1];
    teachers.handle_timeout(now + 2 * RETURN_TIME);
    let cut = now + 2 * RETURN_TIME;
    teachers.disconnected(cut, ACCEPTED, "gone");
    teachers.handle_timeout(cut + RETURN_TIME / 2);
    assert!(teachers.sessions().is_wanted(HostId(1)));
    teachers.handle_timeout(cut + RETURN_TIME);
    assert!(!teachers.sessions().is_wanted(HostId(1)));
}

#[test]
fn hosts_without_tickets_are_not_dialled_whether_they_made_room_or_found_none() {
    let (now, mut second) = (Instant::now(), machine(2));
    let ticket = |n: usize| Ticket((n as u128).to_le_bytes());
    assert!((0..MAX_BRIDGES).all(|n| second.admit(now, ticket(n), HostId(5), PRODUCT)));
    assert!(!second.admit(now, ticket(MAX_BRIDGES), HostId(6), PRODUCT));
    second.handle_timeout(now);
    assert_eq!([5, 6].map(|host| second.sessions().is_wanted(HostId(host))), [true, false]);
    let later = now + TICKET_TIME;
    assert!(second.admit(later, ticket(MAX_BRIDGES), HostId(7), PRODUCT));
    second.handle_timeout(later);
    assert_eq!([5, 7].map(|host| second.sessions().is_wanted(HostId(host))), [false, true]);
}

#[test]
fn a_host_to_which_a_session_has_no_number_left_is_not_dialled() {
    let ((first, ..), (second, _)) = (student(5), teacher(2, 4));
    let mut pair = Pair::bridged(first, second);
    let (now, there) = (pair.now, HostId(2));
    for bridge in 0..MAX_BRIDGES as u32 {
        if bridge > 0 {
            let next = pair.ends[0].add_ingress(now, there, ticket(9), LENGTH..=LENGTH);
            assert_eq!(next, Some(bridge));
        }
        pair.ends[0].remove_ingress(now, there, bridge);
        pair.pump();
    }
    pair.ends[0].handle_timeout(now);
    assert_eq!(pair.ends[0].add_ingress(now, there, ticket(9), LENGTH..=LENGTH), None);
    pair.ends[0].handle_timeout(now);
    assert!(!pair.ends[0].sessions().is_wanted(there));
}

#[test]
fn two_clients_of_a_host_have_a_bridge_each_to_one_product() {
    let ((mut first, lanes, _), (mut second, theirs)) = (student(5), teacher(2, 4));
    let now = Instant::now();
    assert!(second.admit(now, ticket(8), HostId(1), PRODUCT));
    assert_eq!(first.add_ingress(now, HostId(2), ticket(8), LENGTH..=LENGTH), Some(0));
    let mut pair = Pair::bridged_as(first, second, 1);
    for bridge in [0, 1] {
        let room = pair.ends[0].room(now, HostId(2), bridge);
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
