//! The threads of a pipeline while nothing is submitted. One test alone in its process, as it finds threads by their
//! names.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use softs_net::Endpoint;
use softs_net::client::{Client, GatherPipeline, OwnedRows, PipelineBatch, Slots, nonce};
use softs_proto::client::Config;
use softs_shm::{ForeignBytes, Segment};

const WATCHDOG: Duration = Duration::from_secs(60);
/// How long nothing happens.
const PAUSE: Duration = Duration::from_millis(500);
/// How often a thread that waits for samples checks whether it is to end.
const SLICE: Duration = Duration::from_millis(50);
/// Sleeps on the way into a pause and out of it.
const MARGIN: u128 = 6;

#[test]
fn threads_are_blocked_while_nothing_is_submitted() {
    let segment = Arc::new(Segment::create_shm(None, 8, 4).unwrap());
    let config = Config {
        address: segment.address().to_owned(),
        slot_size: 8,
        n_slots: 4,
        segment_id: segment.segment_id(),
        nonce: nonce().unwrap(),
        ..Config::default()
    };
    let absent: Endpoint = "ipc:///nonexistent/softs".parse().unwrap();
    let slots = Slots::in_segment(&segment).unwrap();
    let client = Arc::new(Client::new(absent, config, slots, softs_net::SPIN));

    let empty = GatherPipeline::new(Arc::clone(&client), Arc::clone(&segment), 0);
    submit(&empty, 0);
    assert_eq!(threads().len(), 0, "a pipeline without threads starts none");
    let pipeline = GatherPipeline::new(Arc::clone(&client), Arc::clone(&segment), 3);
    assert_eq!(threads().len(), 0, "none before the first batch");

    submit(&pipeline, 1);
    assert!(pipeline.wait(WATCHDOG, &mut || false).unwrap().is_some());
    settle(0);
    let before = threads();
    std::thread::sleep(PAUSE);
    assert_eq!(threads(), before, "a thread woke up for nothing");

    // One thread waits for samples, which do not come; the others have nothing to do.
    submit(&pipeline, 0);
    settle(1);
    let (began, before) = (Instant::now(), threads());
    std::thread::sleep(PAUSE);
    let (after, n_slices) = (threads(), began.elapsed().as_millis() / SLICE.as_millis());
    let mut woken: Vec<_> = after.iter().zip(&before).map(|(after, before)| after.1 - before.1).collect();
    woken.sort_unstable();
    assert_eq!(woken[..2], [0, 0], "a thread without work woke up");
    assert!(u128::from(woken[2]) <= n_slices + MARGIN, "{} wake-ups in {n_slices} slices", woken[2]);

    assert_eq!(pipeline.stop().len(), 1);
    // The kernel shows a thread that was joined for a moment more.
    let deadline = Instant::now() + WATCHDOG;
    while !threads().is_empty() {
        assert!(Instant::now() < deadline, "{:?} are left", threads());
        std::thread::sleep(Duration::from_millis(1));
    }
    client.close();
    segment.unlink().unwrap();
}

/// Submits a batch of one row, which is filled already or not.
fn submit(pipeline: &GatherPipeline, done: usize) {
    let memory: &'static mut [u8] = Box::leak(vec![0; 8].into_boxed_slice());
    // SAFETY: M6: leaked memory, which nothing else refers to.
    let out = unsafe { ForeignBytes::new(NonNull::from(memory), &()) };
    let rows = vec![OwnedRows { start: 0, row_len: 8, out, decoder: None }];
    pipeline.submit(PipelineBatch::new("p".to_owned(), 1, rows, None, Box::new(())), done).unwrap();
}

/// Waits until there are three threads, all but `n_awake` of which have not been woken for a while.
fn settle(n_awake: usize) {
    let deadline = Instant::now() + WATCHDOG;
    let (mut before, mut n_quiet) = (threads(), 0);
    while n_quiet < 3 {
        assert!(Instant::now() < deadline, "the threads never come to rest: {before:?}");
        std::thread::sleep(Duration::from_millis(20));
        let now = threads();
        let is_quiet = now.len() == 3
            && before.len() == 3
            && now.iter().zip(&before).filter(|(now, before)| now != before).count() <= n_awake;
        n_quiet = if is_quiet { n_quiet + 1 } else { 0 };
        before = now;
    }
}

/// The threads of pipelines, and how often each was blocked.
fn threads() -> Vec<(String, u64)> {
    let mut found = Vec::new();
    for task in fs::read_dir("/proc/self/task").unwrap() {
        let path = task.unwrap().path();
        let Ok(status) = fs::read_to_string(path.join("status")) else { continue };
        let field = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_whitespace().nth(1).unwrap().to_owned()
        };
        if field("Name:") == "softs-gather" {
            found.push((field("Pid:"), field("voluntary_ctxt_switches:").parse().unwrap()));
        }
    }
    found.sort();
    found
}
