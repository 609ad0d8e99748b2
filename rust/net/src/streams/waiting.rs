//! Waiting for what a thread changes under a lock.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use super::signals::{Signals, Watch};
use crate::runtime::mutex::{lock, wait_for};
pub(crate) use crate::transport::connecting::SLICE;
use crate::transport::socket::timespec;
use crate::waited::Waited;

/// Tells waiting calls that something has changed.
#[derive(Debug, Default)]
pub(crate) struct Changed {
    condvar: Condvar,
    /// Of the calls that wait for a signal too.
    doorbells: Mutex<Vec<Arc<OwnedFd>>>,
}

impl Changed {
    /// To be called after each change, without the lock of what has changed.
    pub(crate) fn notify(&self) {
        self.condvar.notify_all();
        for doorbell in lock(&self.doorbells).iter() {
            // It fails only when the counter is full, and then it can be read as it is.
            let _rung = rustix::io::write(doorbell, &1_u64.to_ne_bytes());
        }
    }
}

/// A doorbell that rings from now on until it is dropped.
struct Doorbell<'a> {
    changed: &'a Changed,
    descriptor: Arc<OwnedFd>,
}

impl<'a> Doorbell<'a> {
    /// `None` if there are no more descriptors.
    fn of(changed: &'a Changed) -> Option<Self> {
        let descriptor = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?);
        lock(&changed.doorbells).push(Arc::clone(&descriptor));
        Some(Self { changed, descriptor })
    }
}

impl Drop for Doorbell<'_> {
    fn drop(&mut self) {
        lock(&self.changed.doorbells).retain(|doorbell| !Arc::ptr_eq(doorbell, &self.descriptor));
    }
}

/// Waits until `check` finds something; without a time-out for ever. While nothing happens it sleeps: after the first slice
/// it has signals watched, which takes system calls, and checks for them once per slice only where nothing can watch them.
pub(crate) fn wait_until<S, T>(
    state: &Mutex<S>,
    changed: &Changed,
    timeout: Option<Duration>,
    signals: &mut dyn Signals,
    check: impl FnMut(&mut S) -> Option<T>,
) -> Waited<T> {
    let mut wait = Wait { state, changed, check, begun: Instant::now(), timeout };
    if let Some(waited) = wait.for_at_most(Some(SLICE)) {
        return waited;
    }
    match (signals.watch(), Doorbell::of(changed)) {
        (Watch::Elsewhere, _) => wait.for_at_most(None).unwrap_or(Waited::TimedOut),
        (Watch::Descriptor(descriptor), Some(doorbell)) => {
            let waited = wait.for_signals(&doorbell, &descriptor, signals);
            signals.unwatch();
            waited
        }
        (watch, _) => {
            if let Watch::Descriptor(_) = watch {
                signals.unwatch();
            }
            wait.in_slices(signals)
        }
    }
}

struct Wait<'a, S, C> {
    state: &'a Mutex<S>,
    changed: &'a Changed,
    check: C,
    begun: Instant,
    timeout: Option<Duration>,
}

impl<S, T, C: FnMut(&mut S) -> Option<T>> Wait<'_, S, C> {
    /// `None`: the slice is over.
    fn for_at_most(&mut self, slice: Option<Duration>) -> Option<Waited<T>> {
        let most = self.left().into_iter().chain(slice).min();
        let found = wait_for(self.state, &self.changed.condvar, most, &mut self.check);
        let is_over = || self.left().is_some_and(|left| left.is_zero());
        found.map(Waited::Ready).or_else(|| is_over().then_some(Waited::TimedOut))
    }

    /// `descriptor` can be read when a signal has come. It came perhaps before it was watched.
    fn for_signals(
        &mut self,
        doorbell: &Doorbell<'_>,
        descriptor: &OwnedFd,
        signals: &mut dyn Signals,
    ) -> Waited<T> {
        // Signal handlers may use what is locked, so not under the lock.
        while !signals.interrupted() {
            // The doorbell rings for all that changes after this.
            if let Some(found) = (self.check)(&mut lock(self.state)) {
                return Waited::Ready(found);
            }
            let left = self.left();
            if left.is_some_and(|left| left.is_zero()) {
                return Waited::TimedOut;
            }
            let mut sources = [
                PollFd::from_borrowed_fd(doorbell.descriptor.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(descriptor.as_fd(), PollFlags::IN),
            ];
            // A signal that interrupts it is looked for, too.
            let _ready = poll(&mut sources, left.map(timespec).as_ref());
            for source in [&*doorbell.descriptor, descriptor] {
                let _taken = rustix::io::read(source, &mut [0; 64]);
            }
        }
        Waited::Interrupted
    }

    fn in_slices(&mut self, signals: &mut dyn Signals) -> Waited<T> {
        loop {
            if signals.interrupted() {
                return Waited::Interrupted;
            }
            if let Some(waited) = self.for_at_most(Some(SLICE)) {
                return waited;
            }
        }
    }

    fn left(&self) -> Option<Duration> {
        self.timeout.map(|timeout| timeout.saturating_sub(self.begun.elapsed()))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::mpsc;
    use std::thread;

    use super::*;
    use crate::flow::pipe;
    use crate::streams::signals::NoSignals;

    /// Signals that come when their pipe is written to; the third handler raises.
    struct Raised {
        watch: Cell<Option<Watch>>,
        n_checks: usize,
        raises_at: usize,
        unwatched: bool,
    }

    impl Raised {
        fn new(watch: Watch, raises_at: usize) -> Self {
            Self { watch: Cell::new(Some(watch)), n_checks: 0, raises_at, unwatched: false }
        }
    }

    impl Signals for Raised {
        fn interrupted(&mut self) -> bool {
            self.n_checks += 1;
            self.n_checks == self.raises_at
        }

        fn watch(&mut self) -> Watch {
            self.watch.take().unwrap()
        }

        fn unwatch(&mut self) {
            self.unwatched = true;
        }
    }

    fn wait(changed: &Changed, state: &Mutex<u32>, signals: &mut dyn Signals) -> Waited<u32> {
        wait_until(state, changed, None, signals, |value| (*value > 0).then_some(*value))
    }

    #[test]
    fn a_change_ends_a_wait_in_each_way_to_wait() {
        for way in 0..3 {
            let (changed, state) = (Changed::default(), Mutex::new(0));
            let (reader, _writer) = pipe().unwrap();
            let watch = [Watch::Elsewhere, Watch::Descriptor(reader), Watch::Unknown].into_iter().nth(way);
            let mut signals = Raised::new(watch.unwrap(), usize::MAX);
            thread::scope(|scope| {
                scope.spawn(|| {
                    // Longer than the first slice.
                    thread::sleep(SLICE * 2);
                    *state.lock().unwrap() = 7;
                    changed.notify();
                });
                assert_eq!(wait(&changed, &state, &mut signals), Waited::Ready(7));
            });
            assert_eq!(signals.unwatched, way == 1);
            assert!(changed.doorbells.lock().unwrap().is_empty());
            assert!(way != 0 || signals.n_checks == 0, "signals of another thread were checked");
        }
    }

    #[test]
    fn a_handler_that_raises_ends_a_wait_and_others_do_not() {
        let (changed, state) = (Changed::default(), Mutex::new(0));
        let (reader, writer) = pipe().unwrap();
        // The first check is for signals that came before.
        let mut signals = Raised::new(Watch::Descriptor(reader), 3);
        let (done, is_done) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(move || {
                while is_done.recv_timeout(SLICE).is_err() {
                    rustix::io::write(&writer, b"x").unwrap();
                }
            });
            assert_eq!(wait(&changed, &state, &mut signals), Waited::Interrupted);
            done.send(()).unwrap();
        });
        assert_eq!((signals.n_checks, signals.unwatched), (3, true));
    }

    #[test]
    fn the_time_is_over_in_each_way_to_wait() {
        for slices in [0, 1, 3] {
            let (changed, state) = (Changed::default(), Mutex::new(()));
            let (reader, _writer) = pipe().unwrap();
            let timeout = Some(SLICE / 2 * slices);
            for mut signals in [Raised::new(Watch::Descriptor(reader), 0), Raised::new(Watch::Unknown, 0)] {
                let waited = wait_until(&state, &changed, timeout, &mut signals, |()| None::<()>);
                assert_eq!(waited, Waited::TimedOut);
            }
            let waited = wait_until(&state, &changed, timeout, &mut NoSignals, |()| None::<()>);
            assert_eq!(waited, Waited::TimedOut);
        }
    }
}
