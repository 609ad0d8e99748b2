//! How the stream is cut into pieces makes no difference, on either side.

use proptest::collection::vec;
use proptest::prelude::*;
use softs_proto::wire::Message;
use softs_proto::zmtp::{Codec, Event, Role};

/// Moves all output of `from` to `to` in pieces of these sizes, and collects the messages.
fn transfer(from: &mut Codec, to: &mut Codec, sizes: &mut impl Iterator<Item = usize>) -> Vec<Vec<Vec<u8>>> {
    let mut messages = Vec::new();
    while !from.output().is_empty() {
        let size = sizes.next().unwrap_or(1).min(from.output().len());
        to.receive(&from.output()[..size]);
        from.advance_output(size);
        while let Some(event) = to.poll().expect("a valid stream") {
            if let Event::Message(frames) = event {
                messages.push(frames.as_slice().iter().map(|frame| frame.to_vec()).collect());
            }
        }
    }
    messages
}

proptest! {
    #[test]
    fn pipelined_messages_arrive_whole_and_in_order(
        messages in vec(vec(prop_oneof![vec(any::<u8>(), 0..20), vec(any::<u8>(), 250..260), vec(any::<u8>(), 0..9000)], 1..16), 0..20),
        sizes in vec(prop_oneof![1_usize..4, 1_usize..300, 1_usize..70_000], 1..50),
        early in 0_usize..20,
    ) {
        let (mut router, mut dealer) = (Codec::new(Role::Router), Codec::new(Role::Dealer));
        let sizes = &mut sizes.iter().copied().cycle();
        let mut arrived = Vec::new();
        for (i, frames) in messages.iter().enumerate() {
            if i == early {
                // The handshake happens somewhere among the messages: greetings, READY, READY.
                transfer(&mut router, &mut dealer, sizes);
                arrived.extend(transfer(&mut dealer, &mut router, sizes));
                transfer(&mut router, &mut dealer, sizes);
            }
            let mut message = Message::new();
            for frame in frames {
                message.frame(|out| out.extend_from_slice(frame));
            }
            dealer.send(&message);
        }
        for _ in 0..2 {
            transfer(&mut router, &mut dealer, sizes);
            arrived.extend(transfer(&mut dealer, &mut router, sizes));
        }
        prop_assert_eq!(arrived, messages);
        prop_assert!(router.memory() <= 8192 && dealer.memory() <= 8192);
    }
}
