//! What a host may do by the role in its certificate.

use softs_proto::link::{HostId, Rights};

use crate::pair::{ACCEPTED, DIALLED, Pair, layout, machine, product};

const STUDENT: Rights = Rights { serves: false, is_rank: false, ..Rights::ALL };
const TEACHER: Rights = Rights { orders: false, is_rank: false, ..Rights::ALL };

#[test]
fn orders_of_a_host_that_may_not_order_are_refused_with_the_role_it_needs() {
    let mut pair = Pair::new(machine(1), machine(2));
    pair.ends[1].sessions().restrict(ACCEPTED, TEACHER);
    for bridge in 0..2 {
        assert_eq!(pair.ends[0].add_ingress(HostId(2), &product(), &layout()), Some(bridge));
        pair.pump();
        assert_eq!(pair.ends[1].poll_asked(), None);
        let (host, refused, why) = pair.ends[0].poll_refused().unwrap();
        assert_eq!((host, refused), (HostId(2), bridge));
        assert!(why.ends_with("it needs the role student"), "{why}");
    }
    assert_eq!(pair.end_of(1), None, "the other direction goes on");
    assert_eq!(pair.ends[1].add_ingress(HostId(1), &product(), &layout()), Some(0));
}

#[test]
fn nothing_is_ordered_at_a_host_that_may_not_serve() {
    let mut pair = Pair::new(machine(1), machine(2));
    pair.ends[0].sessions().restrict(DIALLED, STUDENT);
    assert_eq!(pair.ends[0].add_ingress(HostId(2), &product(), &layout()), None);
    assert_eq!(pair.ends[1].add_ingress(HostId(1), &product(), &layout()), Some(0));
}
