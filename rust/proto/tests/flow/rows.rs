//! Rows between hosts: a reader gets the bytes of the values that it asks for, or learns that they are gone.

use std::sync::Arc;

use softs_proto::broker::PeerId;
use softs_proto::flow::Handshake;
use softs_proto::flow::rows::{
    Answers, MAX_REQUESTS, MAX_VALUES, Memory, PIECE_BYTES, RowHolder, Served, Serving, ToReader, Value,
    Wanted, Why,
};
use softs_proto::framing::{HEADER_BYTES, Outbox};
use softs_proto::streams::StreamMachine;

use crate::pair::{end, frame};

const SEGMENT: [u8; 16] = [7; 16];

/// A segment in which values can be freed.
struct Segment(Vec<u8>);

impl Memory for Segment {
    fn copy(&mut self, at: u64, out: &mut [u8]) -> bool {
        let bytes = self.0.get(at as usize..).and_then(|rest| rest.get(..out.len()));
        bytes.map(|bytes| out.copy_from_slice(bytes)).is_some()
    }
}

impl Segment {
    /// Values of these sizes, one behind the other.
    fn of(sizes: &[usize]) -> (Self, Vec<Value>) {
        let (mut bytes, mut values) = (Vec::new(), Vec::new());
        for (i, &size) in sizes.iter().enumerate() {
            let (offset, serial) = (bytes.len() as u64, 2 * i as u64 + 1);
            bytes.extend((0..size).map(|k| (k * 7 + i + k / 251) as u8));
            bytes.resize(bytes.len().next_multiple_of(8), 0);
            bytes.extend_from_slice(&serial.to_ne_bytes());
            bytes.resize(bytes.len().next_multiple_of(64), 0);
            values.push(Value { offset, bytes: size as u64, serial });
        }
        (Self(bytes), values)
    }

    fn bytes_of(&self, values: &[Value]) -> Vec<u8> {
        let of = |value: &Value| &self.0[value.offset as usize..][..value.bytes as usize];
        values.iter().flat_map(of).copied().collect()
    }

    fn free(&mut self, value: &Value) {
        let seal = (value.offset + value.bytes.next_multiple_of(8)) as usize;
        self.0[seal..seal + 8].fill(0);
    }

    fn serving(&self) -> Serving {
        Serving::new(Served { segment: SEGMENT, bytes: self.0.len() as u64 })
    }
}

/// Takes at most `most` bytes out.
fn taken(outbox: &mut Outbox, most: usize) -> Vec<u8> {
    let bytes = outbox.bytes()[..outbox.len().min(most)].to_vec();
    outbox.advance(bytes.len());
    bytes
}

fn read(segment: [u8; 16], values: &[Value]) -> Vec<u8> {
    frame(|out| Wanted { segment, values: values.to_vec() }.encode(out))
}

fn ask(serving: &mut Serving, answers: &mut Answers, values: &[Value]) {
    answers.expect(values.iter().map(|value| value.bytes).sum());
    serving.receive(&read(SEGMENT, values));
}

fn end_of(serving: &mut Serving) -> String {
    let bytes = serving.outbox().bytes();
    assert_eq!(bytes[HEADER_BYTES - 1], 8, "END");
    String::from_utf8(bytes[HEADER_BYTES..].to_vec()).unwrap()
}

#[test]
fn values_of_all_sizes_arrive_in_pieces_of_any_size() {
    let sizes = [0, 1, 63, 64, 65, 0, PIECE_BYTES - 9, PIECE_BYTES, 2 * PIECE_BYTES + 17, 3, 0];
    let (mut segment, values) = Segment::of(&sizes);
    let expected = segment.bytes_of(&values);
    for step in [1009, 100_000, usize::MAX] {
        let (mut serving, mut answers, mut found) = (segment.serving(), Answers::default(), Vec::new());
        ask(&mut serving, &mut answers, &values);
        let mut turns = 0;
        while answers.n_open() > 0 {
            serving.fill(&mut segment);
            assert!(serving.outbox().len() <= PIECE_BYTES + 2 * HEADER_BYTES);
            let bytes = taken(serving.outbox(), step);
            answers.receive(&bytes, &mut |some| found.extend_from_slice(some)).unwrap();
            turns += 1;
            assert!(turns < 100_000);
        }
        assert!(found == expected, "in steps of {step}");
        serving.fill(&mut segment);
        assert!(serving.outbox().is_empty());
    }
}

#[test]
fn a_row_that_is_freed_at_any_moment_is_never_taken_for_the_row() {
    for moment in 0..6 {
        let (mut segment, values) = Segment::of(&[100, 3 * PIECE_BYTES, 200]);
        let (mut serving, mut answers, mut found) = (segment.serving(), Answers::default(), 0);
        ask(&mut serving, &mut answers, &values);
        for turn in 0..6 {
            if turn == moment {
                segment.free(&values[1]);
            }
            serving.fill(&mut segment);
            let bytes = taken(serving.outbox(), usize::MAX);
            answers.receive(&bytes, &mut |some| found += some.len()).unwrap();
        }
        // Four pieces have the value in them.
        match answers.gone() {
            Some(gone) => assert!(moment < 4 && gone == (Why::Freed, 1), "{gone:?}"),
            None => assert!(moment >= 4 && answers.n_open() == 0, "moment {moment}"),
        }
    }
}

#[test]
fn another_segment_and_values_outside_of_this_one_are_refused() {
    let (mut segment, values) = Segment::of(&[100, 8]);
    let (mut serving, mut answers) = (segment.serving(), Answers::default());
    serving.receive(&read([8; 16], &values));
    answers.expect(108);
    serving.fill(&mut segment);
    answers.receive(&taken(serving.outbox(), usize::MAX), &mut |_| panic!("bytes")).unwrap();
    assert_eq!(answers.gone().map(|(why, _)| why), Some(Why::OtherSegment));
    let size = segment.0.len() as u64;
    for (offset, bytes) in
        [(8, 8), (size, 0), (0, size), (64, u64::MAX), (u64::MAX - 63, 64), (0, size - 7), (0, u64::MAX - 3)]
    {
        let mut serving = segment.serving();
        serving.receive(&read(SEGMENT, &[Value { offset, bytes, serial: 1 }]));
        let why = end_of(&mut serving);
        assert!(why.contains("is not in a segment of"), "{offset} {bytes}: {why}");
        assert!(!serving.wants_bytes());
    }
}

#[test]
fn a_reader_is_told_why_before_its_connection_ends() {
    let (segment, values) = Segment::of(&[PIECE_BYTES]);
    let served = Served { segment: SEGMENT, bytes: segment.0.len() as u64 };
    let (id, mut holder) = (PeerId(1), RowHolder::new(served, segment, Arc::default()));
    holder.connect(id, String::new());
    holder.receive(id, &read(SEGMENT, &values));
    assert_eq!(taken(holder.outbox(id).unwrap(), 10).len(), 10);
    holder.receive(id, &read(SEGMENT, &[Value { offset: 8, bytes: 8, serial: 1 }]));
    assert!(!holder.outbox(id).unwrap().is_empty());
    assert_eq!(holder.poll_ending(), None, "a piece and END are to be written");
    while !taken(holder.outbox(id).unwrap(), usize::MAX).is_empty() {}
    assert_eq!(holder.poll_ending(), Some(id));
}

#[test]
fn a_reader_that_asks_and_does_not_read_holds_a_bounded_amount() {
    let (mut segment, values) = Segment::of(&[100; 3]);
    let (mut serving, mut answers) = (segment.serving(), Answers::default());
    let many: Vec<_> = values.iter().copied().cycle().take(MAX_VALUES).collect();
    for _ in 0..MAX_REQUESTS {
        assert!(serving.wants_bytes());
        ask(&mut serving, &mut answers, &many);
        serving.fill(&mut segment);
    }
    assert!(!serving.wants_bytes(), "its connection is not read");
    // What had been read already waits as bytes, and is handled later.
    ask(&mut serving, &mut answers, &values);
    let bound = 2 * (MAX_REQUESTS + 1) * (MAX_VALUES * 24 + 1024) + 2 * PIECE_BYTES;
    assert!(serving.held() < bound, "{} of {bound}", serving.held());
    let mut bytes = 0;
    while answers.n_open() > 1 {
        serving.fill(&mut segment);
        answers.receive(&taken(serving.outbox(), usize::MAX), &mut |some| bytes += some.len()).unwrap();
    }
    assert_eq!(bytes, MAX_REQUESTS * MAX_VALUES * 100);
    assert!(serving.wants_bytes());
}

#[test]
fn what_was_not_asked_for_ends_the_connection_of_a_reader() {
    for (bytes, why) in [
        (frame(|out| ToReader::Bytes(&[1; 9]).encode(out)), "not asked for"),
        (frame(|out| ToReader::Done.encode(out)), "out of turn"),
        (frame(|out| Handshake::Welcome(0).encode(out)), "out of turn"),
        (end("it is over"), "it is over"),
        (vec![0xff, 0xff, 0xff, 0x7f, 6], "may come here"),
        (vec![0, 0, 0, 0, 77], "kind 77"),
        (vec![0, 0, 0, 0, 6], "not asked for"),
    ] {
        let mut answers = Answers::default();
        answers.expect(8);
        let error = answers.receive(&bytes, &mut |_| panic!("{why}")).unwrap_err();
        assert!(error.contains(why), "{error}");
    }
}
