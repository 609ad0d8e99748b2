//! How many samples of a bridge may be on order at the other host.
//!
//! Two for each supplier there, or `rate x time of a sample x 1.25 + burst` if that is more; never more than
//! the slots there, nor more than the share of the client's slots. As in BBR (Cardwell et al., 2016), the time of a sample
//! is taken without the queues that the window itself makes: the mean from the claim to the last byte, of which the least
//! of the last 10 to 20 s and 20 ms count at most. Every 10 s the window shrinks until queues are empty, so that the least
//! time is one without them. At the beginning, while the rate rises, the window held it up: then it is four times what
//! the rate justifies, as otherwise it would take some 50 round trips to a window of thousands. A burst is what arrives at
//! once beyond the rate and one for each supplier, as the samples of one call of a supplier do: without as many more, the next
//! call would find only some of them, and the rate would fall with each. The largest of the last 10 to 20 s counts, but not
//! while queues are emptied. Both are guesses, and take no slots from suppliers of other hosts: a stream in order soon waits
//! for a host that has too few orders, so all hosts would make as few samples as that one. Several connections are where
//! lost packets slow each of them down: most samples take some round trips there, whatever the window is, so the least
//! time counts as often as there are connections.

use std::time::{Duration, Instant};

use super::message::Offer;

/// Samples for each supplier at least: it makes one while the other is on its way.
const PER_SUPPLIER: u32 = 2;
const RESERVE: f64 = 1.25;
/// The same while the rate is so much above that of the measurement before.
const RISING: f64 = 1.25;
const RISING_RESERVE: f64 = 4.0;
/// After so many measurements that find no such rise it is over.
const FLAT: u32 = 2;
/// The same of the least time while queues are to be emptied.
const DRAINING_RESERVE: f64 = 0.75;
/// A rate is measured for this long at least.
const LEAST_TIME: Duration = Duration::from_millis(1);
/// So much more than the least time of a sample counts: threads may need it to be scheduled.
const SLACK: Duration = Duration::from_millis(20);
/// The least time is remembered for so long at least.
const MEMORY: Duration = Duration::from_secs(10);

/// The window of one bridge.
#[derive(Debug)]
pub(super) struct Window {
    /// Samples that arrived since the measurement began, and their times together.
    arrived: u32,
    took: Duration,
    began: Option<Instant>,
    last: Option<Instant>,
    /// The window, and whether orders have filled it since then.
    len: u32,
    was_full: bool,
    /// Samples per second.
    rate: f64,
    /// The rate to which it rose last, and measurements since then.
    risen_to: f64,
    flat: u32,
    /// Samples that the rate justifies, and those while it rises.
    measured: f64,
    rising: f64,
    /// The time of a sample at the last measurement.
    time: Duration,
    /// The least time of a sample, in the memory that is filled and in the one before.
    least: [Duration; 2],
    filled_since: Option<Instant>,
    /// Samples of the burst that arrives, and its beginning.
    burst: u32,
    burst_began: Option<Instant>,
    /// The largest burst, in the memory that is filled and in the one before.
    bursts: [f64; 2],
    /// Suppliers at the last measurement.
    suppliers: u32,
}

impl Default for Window {
    fn default() -> Self {
        Self {
            arrived: 0,
            took: Duration::ZERO,
            began: None,
            last: None,
            len: 0,
            was_full: false,
            rate: 0.0,
            risen_to: 0.0,
            flat: 0,
            measured: 0.0,
            rising: 0.0,
            time: Duration::ZERO,
            least: [Duration::MAX; 2],
            filled_since: None,
            burst: 0,
            burst_began: None,
            bursts: [0.0; 2],
            suppliers: 0,
        }
    }
}

impl Window {
    /// A sample was claimed, with which so many are on order.
    pub(super) fn claimed(&mut self, open: usize) {
        self.was_full |= open >= self.len as usize;
    }

    /// A sample has arrived, so long after it was claimed.
    pub(super) fn arrived(&mut self, now: Instant, took: Duration) {
        self.arrived += 1;
        self.took += took;
        self.last = Some(now);
        if now >= *self.filled_since.get_or_insert(now) + MEMORY {
            self.filled_since = Some(now);
            self.least = [Duration::MAX, self.least[0]];
            self.bursts = [0.0, self.bursts[0]];
        }
        self.least[0] = self.least[0].min(took);
        self.note_burst(now);
    }

    fn note_burst(&mut self, now: Instant) {
        let Some(began) = self.burst_began else { return };
        let mut expected = self.rate * now.saturating_duration_since(began).as_secs_f64();
        if f64::from(self.burst) <= expected {
            (self.burst, self.burst_began, expected) = (0, Some(now), 0.0);
        }
        self.burst += 1;
        self.bursts[0] = self.bursts[0].max(f64::from(self.burst) - expected);
    }

    /// How many samples may be on order.
    ///
    /// `n_suppliers`: of all hosts that serve the client. `share`: slots of it that may be on order. `connections`: of the
    /// session.
    pub(super) fn len(
        &mut self,
        now: Instant,
        offer: Offer,
        (n_suppliers, share): (u64, u32),
        connections: u32,
    ) -> u32 {
        let least = self.least[0].min(self.least[1]);
        let began = *self.began.get_or_insert(now);
        // From arrival to arrival: as many calls end in any other time of this length, or one more.
        let last = self.last.unwrap_or(began);
        let passed = last.saturating_duration_since(began);
        if passed >= self.time.max(LEAST_TIME) && self.arrived > 0 {
            self.measure(passed, least.saturating_mul(connections), offer.suppliers);
            (self.began, self.burst, self.burst_began) = (Some(last), 0, Some(last));
        }
        // What has no supplier waits at home, where others may serve it.
        if offer.suppliers == 0 {
            return 0;
        }
        // Twice the time empties the queues, and brings samples that were ordered without them.
        let is_draining = self.least[1] != Duration::MAX
            && self.filled_since.is_some_and(|since| now < since + 2 * self.time);
        let justified = match is_draining {
            true => self.rate * least.as_secs_f64() * DRAINING_RESERVE,
            false => {
                // That all suppliers end a call of one sample at once says nothing about calls.
                let burst = (self.bursts[0].max(self.bursts[1]) - f64::from(offer.suppliers)).max(0.0);
                let guessed = self.rising.max(self.measured + burst);
                self.measured.max(guessed.min(spare(offer.suppliers, n_suppliers, share)))
            }
        };
        let floor = offer.suppliers.saturating_mul(PER_SUPPLIER);
        self.len = floor.max(justified.ceil() as u32).min(offer.slots).min(share);
        self.len
    }

    fn measure(&mut self, passed: Duration, least: Duration, suppliers: u32) {
        let mean = self.took / self.arrived;
        self.time = mean.min(least.saturating_add(SLACK));
        let rate = f64::from(self.arrived) / passed.as_secs_f64();
        if suppliers > self.suppliers {
            self.flat = 0;
        }
        // Where samples wait in queues, it is not the window that holds the rate up.
        let is_held_up = mean <= least.mul_f64(RISING) + SLACK;
        let has_risen = self.flat < FLAT && is_held_up && rate > self.risen_to * RISING;
        if has_risen {
            self.risen_to = rate;
        }
        // Where orders did not fill the window, it says nothing about what is possible.
        if self.was_full && self.flat < FLAT {
            self.flat = if has_risen { 0 } else { self.flat + 1 };
        }
        if self.flat < FLAT {
            // What is beyond a rate that rises yet is no burst.
            self.bursts[0] = 0.0;
        }
        let justified = rate * self.time.as_secs_f64();
        self.rising = match self.flat < FLAT {
            true if has_risen => justified * RISING_RESERVE,
            true => self.rising,
            false => 0.0,
        };
        // One measurement in which threads stood still does not undo those before.
        let kept = if self.was_full && self.flat >= FLAT { self.measured / 2.0 } else { self.measured };
        self.measured = (justified * RESERVE).max(kept);
        (self.arrived, self.took, self.was_full) = (0, Duration::ZERO, false);
        (self.rate, self.suppliers) = (rate, suppliers);
    }
}

/// Slots that the client can spare for a host with `here` of all suppliers.
fn spare(here: u32, all: u64, share: u32) -> f64 {
    let (here, all) = (f64::from(here), all as f64);
    if here < all { f64::from(share) * here / all } else { f64::from(share) }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "virtual time has to start somewhere")]
mod tests {
    use std::collections::{BTreeSet, VecDeque};

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
            let len = window.len(now, offer, (offer.suppliers.into(), share), 1) as usize;
            queued.extend(std::iter::repeat_n(now, len.saturating_sub(open)));
            if len > open {
                open = len;
                window.claimed(open);
            }
            on_way.push_back(queued.drain(..queued.len().min(most)).collect());
            let arrived: Vec<Instant> = on_way.pop_front().unwrap();
            open -= arrived.len();
            arrived.into_iter().for_each(|since| window.arrived(now, now - since));
            now += MS;
        }
        window.len(now, offer, (offer.suppliers.into(), share), 1)
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

    /// The window after some seconds in which most samples take 60 to 120 ms, and each tenth 20 ms, however many are on order.
    fn behind_losses(connections: u32) -> u32 {
        let (mut window, mut now, mut on_way) = (Window::default(), Instant::now(), VecDeque::new());
        let (mut n, mut len) = (0, 0);
        for _ in 0..5_000 {
            len = window.len(now, OFFER, (OFFER.suppliers.into(), 2_000), connections);
            while on_way.len() < len as usize {
                n += 1;
                on_way.push_back((now, if n % 10 == 0 { 20 } else { 60 + n * 37 % 60 } * MS));
                window.claimed(on_way.len());
            }
            now += MS;
            let is_here = |(since, took): &(Instant, Duration)| *since + *took <= now;
            on_way.iter().filter(|one| is_here(one)).for_each(|(_, took)| window.arrived(now, *took));
            on_way.retain(|one| !is_here(one));
        }
        len
    }

    #[test]
    fn samples_that_wait_behind_losses_keep_all_connections_busy() {
        assert_eq!(behind_losses(1), 2 * OFFER.suppliers);
        assert!(behind_losses(4) > 1_000);
    }

    #[test]
    fn samples_that_wait_in_a_queue_do_not_make_it_longer_and_longer() {
        // The line takes a tenth of what the window allowed while it rose.
        let len = settled(Offer { slots: 100_000, ..OFFER }, 50, 4, u32::MAX, 9_000);
        assert!((250..=400).contains(&len), "{len}");
    }

    #[test]
    fn a_queue_is_no_longer_after_ten_minutes_than_after_ten_seconds() {
        let len = settled(Offer { slots: 100_000, ..OFFER }, 50, 4, u32::MAX, 600_000);
        // Queues that fill again after they were emptied count as a small burst.
        assert!((200..=450).contains(&len), "{len}");
    }

    /// Hosts with so many suppliers each, which make all that wait, 64 at most, in calls of `call_ms`, for an ordered stream
    /// with `n_slots`: what they make after half a minute as a part of what they could, and the longest window of a host.
    fn in_calls_of(call_ms: usize, hosts: usize, suppliers: usize, n_slots: usize) -> (f64, u32) {
        let n_all = (hosts * suppliers) as u64;
        let offer = Offer { suppliers: suppliers as u32, slots: 4096 };
        let host = || (Window::default(), VecDeque::new(), vec![(0, Vec::new()); suppliers]);
        let mut all: Vec<_> = (0..hosts).map(|_| host()).collect();
        let (mut now, mut ordered, mut first) = (Instant::now(), 0, 0);
        let (mut here, mut made, mut most) = (BTreeSet::new(), 0, 0);
        for ms in 0..90_000 {
            // Another host is the first one in each turn.
            all.rotate_left(1);
            for (window, queued, calls) in &mut all {
                let len = window.len(now, offer, (n_all, n_slots as u32), 1);
                most = most.max(len);
                let open = queued.len() + calls.iter().map(|(_, call)| call.len()).sum::<usize>();
                let n = (len as usize).saturating_sub(open).min(first + n_slots - ordered);
                if n > 0 {
                    queued.extend((ordered..ordered + n).map(|number| (number, now)));
                    ordered += n;
                    window.claimed(open + n);
                }
                for (end, call) in calls.iter_mut().filter(|(end, _)| *end <= ms) {
                    made += if ms < 30_000 { 0 } else { call.len() };
                    for (number, since) in call.drain(..) {
                        here.insert(number);
                        window.arrived(now, now - since);
                    }
                    (*end, *call) = (ms + call_ms, queued.drain(..queued.len().min(64)).collect());
                }
            }
            while here.remove(&first) {
                first += 1;
            }
            now += MS;
        }
        (made as f64 / (n_all as usize * 64 * (60_000 / call_ms)) as f64, most)
    }

    #[test]
    fn a_call_of_many_samples_finds_as_many_as_the_one_before() {
        for (call_ms, hosts, suppliers, n_slots) in
            [(10, 1, 1, 1024), (50, 1, 1, 1024), (200, 1, 1, 1024), (50, 2, 2, 1024), (200, 4, 1, 1024)]
        {
            let (part, _) = in_calls_of(call_ms, hosts, suppliers, n_slots);
            assert!(part >= 0.97, "{part} of the samples in calls of {call_ms} ms of {hosts} x {suppliers}");
        }
    }

    #[test]
    fn what_is_guessed_takes_no_slots_that_other_hosts_need() {
        let (_, most) = in_calls_of(200, 1, 1, 512);
        assert!(most >= 128, "{most}");
        let (part, most) = in_calls_of(50, 2, 2, 512);
        assert!(part >= 0.95 && most <= 256, "{part}, {most}");
        let spares =
            [(1, 1, 512), (8, 8, 512), (2, 4, 512), (1, 0, 512)].map(|(here, all, n)| spare(here, all, n));
        assert_eq!(spares, [512.0, 512.0, 256.0, 512.0]);
    }

    #[test]
    fn samples_of_as_many_suppliers_that_come_together_are_no_burst() {
        let (mut window, mut now) = (Window::default(), Instant::now());
        for _ in 0..400 {
            now += 50 * MS;
            (0..8).for_each(|_| window.arrived(now, 100 * MS));
            window.claimed(usize::MAX);
            window.len(now, OFFER, (8, 1024), 1);
        }
        // What is made in 100 ms, and a quarter more.
        assert!((20..=21).contains(&window.len), "{}", window.len);
    }

    #[test]
    fn a_rate_that_goes_up_and_down_is_not_taken_for_one_that_rises() {
        let (mut window, mut now) = (Window::default(), Instant::now());
        let mut most = 0;
        for at in 0..400 {
            // 20 or 60 samples in 100 ms, each of 100 ms.
            let n = if at % 2 == 0 { 20 } else { 60 };
            now += 120 * MS;
            (0..n).for_each(|_| window.arrived(now, 100 * MS));
            window.claimed(usize::MAX);
            let len = window.len(now, OFFER, (OFFER.suppliers.into(), u32::MAX), 1);
            most = if at < 4 { 0 } else { most.max(len) };
        }
        // Of 60 samples a quarter more, and another burst of them; four times as many are 200.
        assert!(most <= 140, "{most}");
    }

    #[test]
    fn a_pause_of_the_student_leaves_it_as_it_was() {
        let (mut window, mut now) = (Window::default(), Instant::now());
        let mut run = |n: usize, open: usize| {
            now += 100 * MS;
            (0..n).for_each(|_| window.arrived(now, 100 * MS));
            window.claimed(open);
            window.len(now, OFFER, (OFFER.suppliers.into(), u32::MAX), 1)
        };
        let lens: Vec<_> = (0..10).map(|_| run(1000, usize::MAX)).collect();
        assert!(lens[9] >= 1_000, "{lens:?}");
        (0..10).for_each(|_| assert_eq!(run(1, 5), lens[9]));
        run(1, usize::MAX);
        assert!(run(1, usize::MAX) < lens[9], "the host has become slow");
    }

    #[test]
    fn a_time_that_has_become_longer_is_learned() {
        let (mut window, start) = (Window::default(), Instant::now());
        window.arrived(start, MS);
        window.arrived(start + MEMORY - MS, 9 * MS);
        assert_eq!(window.least, [MS, Duration::MAX]);
        window.arrived(start + MEMORY, 9 * MS);
        assert_eq!(window.least, [9 * MS, MS]);
        window.arrived(start + 2 * MEMORY, 8 * MS);
        assert_eq!(window.least, [8 * MS, 9 * MS]);
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
