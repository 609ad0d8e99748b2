//! Entries of the table: suppliers that were removed from it, that run another program, or that cannot be woken.

use std::sync::Arc;

use super::tests::Client;
use super::{Ending, Finished, LaneSupplier};
use crate::Identity;

#[test]
fn a_supplier_that_was_removed_from_the_table_claims_nothing() {
    let mut client = Client::new(8);
    let lane = client.lanes.open_lane().unwrap();
    let removed = client.supplier();
    assert!(removed.join(lane));
    let entry = client.lanes.suppliers()[0];
    client.lanes.supplier_ended(&entry);
    let next = client.supplier();
    assert_eq!(next.index(), removed.index(), "its index has a new holder");
    assert!(next.join(lane) && client.lanes.place(lane, 0, 7));
    assert!(removed.claim(lane).is_none(), "the claim would be the other one's");
    assert!(!removed.join(lane) && !removed.is_registered());
    let claim = next.claim(lane).unwrap();
    assert_eq!(claim.sequence(), 7);
    drop(removed);
    assert_eq!(client.lanes.suppliers().len(), 1, "it frees no entry but its own");
    assert!(next.publish(claim, Ok(())));
}

#[test]
fn a_supplier_that_closed_its_segment_with_a_claim_is_found() {
    let mut client = Client::new(8);
    let lane = client.lanes.open_lane().unwrap();
    let (idle, supplier) = (client.supplier(), client.supplier());
    assert!(supplier.join(lane) && client.lanes.place(lane, 3, 0));
    let claim = supplier.claim(lane).unwrap();
    let entries = client.lanes.suppliers();
    assert!(!entries.iter().any(|entry| client.lanes.has_closed(entry)));
    // As `exec` does: the process is there still.
    supplier.die();
    let closed = |client: &Client| entries.iter().map(|e| client.lanes.has_closed(e)).collect::<Vec<_>>();
    assert_eq!(closed(&client), [false, true]);
    client.lanes.supplier_ended(&entries[1]);
    assert_eq!(client.polled(), [Finished { slot: 3, ending: Ending::Lost }]);
    drop((claim, idle));
    assert_eq!(closed(&client), [false, false], "they are not in the table");
    let next = client.supplier();
    assert_eq!(
        (next.index(), closed(&client)),
        (0, vec![false, false]),
        "nor is the next one taken for them"
    );
}

#[test]
fn a_supplier_in_the_process_of_the_client_needs_no_lock() {
    let client = Client::new(8);
    let supplier =
        LaneSupplier::attach(Arc::clone(&client.segment), Identity::current().unwrap(), 9).unwrap();
    assert!(!client.lanes.has_closed(&client.lanes.suppliers()[0]));
    drop(supplier);
}

#[test]
fn a_supplier_learns_that_its_client_can_wake_it() {
    let client = Client::new(8);
    let supplier = client.supplier();
    let entry = client.lanes.suppliers()[0];
    assert!(!supplier.is_reached());
    client.lanes.note_reached(&entry);
    assert!(supplier.is_reached());
    drop(supplier);
    let next = client.supplier();
    assert!(!next.is_reached(), "the entry was the other one's");
    client.lanes.note_reached(&entry);
    assert!(!next.is_reached());
}
