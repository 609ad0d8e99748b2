//! A bounded run of the fuzzer; `cargo run -p softs-proto --release --example fuzz` goes on from there.

#[path = "fuzz/flow.rs"]
mod flow;
#[path = "fuzz/harness.rs"]
mod harness;
#[path = "fuzz/link.rs"]
mod link;
#[path = "fuzz/rng.rs"]
mod rng;

#[test]
fn broken_input_is_refused_or_understood() {
    harness::run(0..200_000);
}

#[test]
fn broken_frames_of_a_flow_are_refused_or_understood() {
    flow::run(0..100_000);
}

#[test]
fn broken_frames_of_a_link_are_refused_or_understood() {
    link::run(0..100_000);
}
