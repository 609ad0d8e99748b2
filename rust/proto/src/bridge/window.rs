//! How many samples of a bridge may be on order at the other host.
//!
//! `max(2 for each supplier there, rate x time of a sample x 1.25)`, never more than the slots there, nor more than the
//! share of the client's slots. The time of a sample is the mean from its claim to its last byte. That includes the time
//! in queues, which a larger window makes longer: of it 20 ms count at most, which threads may need to be scheduled. So a
//! queue grows by 20 ms in 10 s at most, which is how long the least time of a sample is remembered. While the rate still rises, the window held it up: then it is four times what the rate justifies, as otherwise it would take
//! some 50 round trips to a window of thousands.

use std::time::{Duration, Instant};

use super::message::Offer;

/// Samples for each supplier at least: it makes one while the other is on its way.
const PER_SUPPLIER: u32 = 2;
const RESERVE: f64 = 1.25;
/// The same while the rate is so much above that of the measurement before.
const RISING: f64 = 1.25;
const RISING_RESERVE: f64 = 4.0;
/// A rate is measured for this long at least.
const LEAST_TIME: Duration = Duration::from_millis(1);
/// So much more than the least time of a sample counts.
const SLACK: Duration = Duration::from_millis(20);
/// The least time is remembered for so long.
const MEMORY: Duration = Duration::from_secs(10);

/// The window of one bridge.
#[derive(Debug, Default)]
pub(super) struct Window {
    /// Samples that arrived since the measurement began, and their times together.
    arrived: u32,
    took: Duration,
    began: Option<Instant>,
    /// Samples per second.
    rate: f64,
    /// Samples that the rate justifies.
    measured: f64,
    /// The time of a sample at the last measurement.
    time: Duration,
    /// The least time of a sample, and when it was taken.
    least: Option<(Duration, Instant)>,
}

impl Window {
    /// A sample has arrived, so long after it was claimed.
    pub(super) fn arrived(&mut self, now: Instant, took: Duration) {
        self.arrived += 1;
        self.took += took;
        if self.least.is_none_or(|(least, at)| took <= least || now >= at + MEMORY) {
            self.least = Some((took, now));
        }
    }

    /// How many samples may be on order.
    ///
    /// `share`: slots of the client that may be.
    pub(super) fn len(&mut self, now: Instant, offer: Offer, share: u32) -> u32 {
        let passed = now.saturating_duration_since(*self.began.get_or_insert(now));
        if passed >= self.time.max(LEAST_TIME) && self.arrived > 0 {
            let most = self.least.map_or(SLACK, |(least, _)| least + SLACK);
            self.time = (self.took / self.arrived).min(most);
            let rate = f64::from(self.arrived) / passed.as_secs_f64();
            let reserve = if rate > self.rate * RISING { RISING_RESERVE } else { RESERVE };
            // One measurement in which threads stood still does not undo those before.
            self.measured = (rate * self.time.as_secs_f64() * reserve).max(self.measured / 2.0);
            (self.began, self.arrived, self.took, self.rate) = (Some(now), 0, Duration::ZERO, rate);
        }
        // What has no supplier waits at home, where others may serve it.
        if offer.suppliers == 0 {
            return 0;
        }
        let least = offer.suppliers.saturating_mul(PER_SUPPLIER);
        least.max(self.measured.ceil() as u32).min(offer.slots).min(share)
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "virtual time has to start somewhere")]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const OFFER: Offer = Offer { suppliers: 8, slots: 4096 };

    /// The window after a time in which a host makes up to `most` samples in a millisecond, each at home `delay`
    /// milliseconds after its turn.
    fn settled(offer: Offer, delay: usize, most: usize, share: u32, ms: u32) -> u32 {
        let (mut window, mut now) = (Window::default(), Instant::now());
        let (mut queued, mut open) = (VecDeque::new(), 0);
        let mut on_way = VecDeque::from(vec![Vec::new(); delay]);
        for _ in 0..ms {
            let len = window.len(now, offer, share) as usize;
            queued.extend(std::iter::repeat_n(now, len.saturating_sub(open)));
            open = open.max(len);
            on_way.push_back(queued.drain(..queued.len().min(most)).collect());
            let arrived: Vec<Instant> = on_way.pop_front().unwrap();
            open -= arrived.len();
            arrived.into_iter().for_each(|since| window.arrived(now, now - since));
            now += MS;
        }
        window.len(now, offer, share)
    }

    #[test]
    fn it_covers_the_round_trip_and_a_call_at_the_rate_that_there_is() {
        // 100 ms of 10 samples each, and a quarter more.
        let len = settled(OFFER, 100, 10, u32::MAX, 9_000);
        assert!((1_100..=1_600).contains(&len), "{len}");
        let len = settled(OFFER, 3, 10, u32::MAX, 2_000);
        assert!((30..=300).contains(&len), "{len}");
    }

    #[test]
    fn it_covers_a_long_line_after_ten_round_trips() {
        let len = settled(Offer { slots: 8192, ..OFFER }, 100, 50, u32::MAX, 1_050);
        assert!(len >= 4_600, "{len}");
    }

    #[test]
    fn samples_that_wait_in_a_queue_do_not_make_it_longer_and_longer() {
        // The line takes a tenth of what the window allowed while it rose.
        let len = settled(Offer { slots: 100_000, ..OFFER }, 50, 4, u32::MAX, 9_000);
        assert!((250..=400).contains(&len), "{len}");
    }

    #[test]
    fn a_time_that_has_become_longer_is_learned() {
        let (mut window, start) = (Window::default(), Instant::now());
        window.arrived(start, MS);
        window.arrived(start + MEMORY - MS, 9 * MS);
        assert_eq!(window.least.unwrap().0, MS);
        window.arrived(start + MEMORY, 9 * MS);
        assert_eq!(window.least.unwrap().0, 9 * MS);
    }

    #[test]
    fn two_for_each_supplier_and_never_more_than_there_is_room_for() {
        assert_eq!(settled(OFFER, 100, 1, u32::MAX, 1), 16);
        assert_eq!(settled(Offer { suppliers: 0, ..OFFER }, 1, 10, u32::MAX, 10), 0);
        assert_eq!(settled(Offer { slots: 100, ..OFFER }, 100, 10, u32::MAX, 20_000), 100);
        assert_eq!(settled(OFFER, 100, 10, 60, 20_000), 60);
        assert_eq!(settled(Offer { suppliers: u32::MAX, slots: u32::MAX }, 1, 1, 60, 1), 60);
    }
}
