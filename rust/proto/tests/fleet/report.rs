//! What has happened in a simulation, in numbers.

use std::fmt::Write;

use crate::model::{MS, Time};

/// Width of the steps of a series.
pub(crate) const STEP: Time = 100 * MS;

#[derive(Debug, Default)]
pub(crate) struct Report {
    /// Samples handed out, and sessions of students' hosts, by step.
    pub(crate) samples: Vec<u64>,
    sessions: Vec<u64>,
    pub(crate) n_sessions: u64,
    pub(crate) n_sessions_begun: u64,
    pub(crate) n_handed_out: u64,
    /// Calls of suppliers that have made a sample.
    pub(crate) n_made: u64,
    pub(crate) n_through_links: u64,
    pub(crate) n_returned: u64,
    pub(crate) n_refused: u64,
    pub(crate) n_dropped_connections: u64,
    /// Frames of links other than samples.
    pub(crate) n_frames: u64,
    pub(crate) most_products: usize,
    pub(crate) n_events: u64,
    pub(crate) first_at: Option<Time>,
    /// The longest time in which a student got nothing, after its first sample.
    pub(crate) longest_pause: Time,
    digest: u64,
}

impl Report {
    pub(crate) fn handed_out(&mut self, now: Time, host: usize, client: usize, sequence: u64) {
        let step = (now / STEP) as usize;
        if self.samples.len() <= step {
            self.samples.resize(step + 1, 0);
        }
        self.samples[step] += 1;
        self.n_handed_out += 1;
        self.first_at.get_or_insert(now);
        for number in [now, host as u64, client as u64, sequence] {
            self.digest = (self.digest ^ number).wrapping_mul(0x0100_0000_01b3).rotate_left(29);
        }
    }

    /// Notes how many sessions there are now.
    pub(crate) fn look(&mut self, now: Time) {
        self.sessions.resize((now / STEP) as usize + 1, self.n_sessions);
    }

    /// The same for the same run.
    pub(crate) fn digest(&self) -> u64 {
        self.digest ^ self.n_events.rotate_left(32)
    }

    /// As JSON, behind what the caller has to say.
    #[allow(dead_code, reason = "what the example prints")]
    pub(crate) fn json(&self, scenario: &str, facts: &[(&str, f64)]) -> String {
        let mut out = format!("{{\"scenario\": \"{scenario}\", ");
        let own: &[(&str, f64)] = &[
            ("step_ms", (STEP / MS) as f64),
            ("sessions_begun", self.n_sessions_begun as f64),
            ("handed_out", self.n_handed_out as f64),
            ("made", self.n_made as f64),
            ("through_links", self.n_through_links as f64),
            ("returned", self.n_returned as f64),
            ("refused_bridges", self.n_refused as f64),
            ("dropped_connections", self.n_dropped_connections as f64),
            ("link_frames", self.n_frames as f64),
            ("most_products", self.most_products as f64),
            ("events", self.n_events as f64),
            ("first_sample_ms", self.first_at.map_or(-1.0, |at| at as f64 / MS as f64)),
            ("longest_pause_ms", self.longest_pause as f64 / MS as f64),
        ];
        for (name, value) in facts.iter().chain(own) {
            // A string takes what is written to it.
            let _written = write!(out, "\"{name}\": {value}, ");
        }
        let digest = self.digest();
        let _written = write!(
            out,
            "\"digest\": \"{digest:016x}\", \"samples\": {:?}, \"sessions\": {:?}}}",
            self.samples, self.sessions
        );
        out
    }
}
