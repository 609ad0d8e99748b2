//! How many samples of a bridge may be on order at the other host.
//!
//! `max(2 for each supplier there, rate x (round trip + longest call) x 1.25)`, never more than the slots there, nor
//! more than the share of the client's slots. While the rate still rises, the window held it up: then it is four times
//! what the rate justifies, as otherwise it would take some 50 round trips to a window of thousands.

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

/// The window of one bridge.
#[derive(Debug, Default)]
pub(super) struct Window {
    /// Samples that arrived since the measurement began.
    arrived: u64,
    began: Option<Instant>,
    /// Samples per second.
    rate: f64,
    /// Samples that the rate justifies.
    measured: f64,
}

impl Window {
    /// Samples have arrived.
    pub(super) fn arrived(&mut self, n: u64) {
        self.arrived += n;
    }

    /// How many samples may be on order.
    ///
    /// `share`: slots of the client that may be.
    pub(super) fn len(&mut self, now: Instant, offer: Offer, rtt: Duration, share: u32) -> u32 {
        let period = rtt + Duration::from_micros(offer.longest_call_us.into());
        let time = now.saturating_duration_since(*self.began.get_or_insert(now));
        if time >= period.max(LEAST_TIME) {
            let rate = self.arrived as f64 / time.as_secs_f64();
            let reserve = if rate > self.rate * RISING { RISING_RESERVE } else { RESERVE };
            self.measured = rate * period.as_secs_f64() * reserve;
            (self.began, self.arrived, self.rate) = (Some(now), 0, rate);
        }
        let least = offer.suppliers.saturating_mul(PER_SUPPLIER);
        // What has no supplier waits at home, where others may serve it.
        if offer.suppliers == 0 {
            0
        } else {
            least.max(self.measured.ceil() as u32).min(offer.slots).min(share)
        }
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "virtual time has to start somewhere")]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const OFFER: Offer = Offer { suppliers: 8, slots: 4096, longest_call_us: 2_000 };

    /// The window after a time in which a host makes up to `most` samples in a millisecond, each at home `rtt` after
    /// it was wanted.
    fn settled(offer: Offer, rtt: Duration, most: u32, share: u32, ms: u32) -> u32 {
        let (mut window, mut now) = (Window::default(), Instant::now());
        let delay = (rtt + MS * offer.longest_call_us.div_ceil(1000)).as_millis() as usize;
        let (mut on_way, mut queued, mut open) = (vec![0; delay], 0, 0);
        for _ in 0..ms {
            let len = window.len(now, offer, rtt, share);
            let wanted = len.saturating_sub(open);
            queued += wanted;
            open += wanted;
            let made = queued.min(most);
            queued -= made;
            on_way.push(made);
            let arrived = on_way.remove(0);
            open -= arrived;
            window.arrived(arrived.into());
            now += MS;
        }
        window.len(now, offer, rtt, share)
    }

    #[test]
    fn it_covers_the_round_trip_at_the_rate_that_there_is() {
        // 100 ms and 2 ms of 10 samples each, and a quarter more.
        let len = settled(OFFER, 100 * MS, 10, u32::MAX, 20_000);
        assert!((1_100..=1_600).contains(&len), "{len}");
        let len = settled(OFFER, MS, 10, u32::MAX, 2_000);
        assert!((16..=60).contains(&len), "{len}");
    }

    #[test]
    fn it_covers_a_long_line_after_ten_round_trips() {
        let len = settled(Offer { slots: 8192, ..OFFER }, 100 * MS, 50, u32::MAX, 1_050);
        assert!(len >= 4_600, "{len}");
    }

    #[test]
    fn two_for_each_supplier_and_never_more_than_there_is_room_for() {
        assert_eq!(settled(OFFER, 100 * MS, 1, u32::MAX, 1), 16);
        assert_eq!(settled(Offer { suppliers: 0, ..OFFER }, MS, 10, u32::MAX, 10), 0);
        assert_eq!(settled(Offer { slots: 100, ..OFFER }, 100 * MS, 10, u32::MAX, 20_000), 100);
        assert_eq!(settled(OFFER, 100 * MS, 10, 60, 20_000), 60);
        let hostile = Offer { suppliers: u32::MAX, slots: u32::MAX, longest_call_us: u32::MAX };
        assert_eq!(settled(hostile, MS, 1, 60, 1), 60);
    }
}
