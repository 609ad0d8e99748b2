//! What all hosts of a simulation share: options, chance, numbers that are used once, and the report.

use std::collections::VecDeque;

use softs_proto::wire::{MediumKind, MediumProfile};

use crate::model::{Bug, Options, Random};
use crate::report::Report;

#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) options: Options,
    pub(crate) random: Random,
    pub(crate) report: Report,
    /// What is due for the program beside the simulation: on which host, and the tag that it gave.
    pub(crate) due: VecDeque<(usize, u64)>,
    n_names: u64,
}

impl Context {
    pub(crate) fn new(options: Options) -> Self {
        let due = options.guided.then_some((0, 0)).into_iter().collect();
        Self { random: Random::new(options.seed), options, report: Report::default(), due, n_names: 0 }
    }

    /// A number that nothing else has.
    pub(crate) fn name(&mut self) -> u64 {
        self.n_names += 1;
        self.n_names
    }

    pub(crate) fn medium(&self, host: usize, kind: MediumKind) -> MediumProfile {
        // A link serves slots of any size.
        let slot_size = if kind == MediumKind::Link { 0 } else { self.options.sample_bytes };
        MediumProfile { kind, host: host as u64 + 1, slot_size }
    }

    /// Whether a mistake happens now.
    pub(crate) fn has(&mut self, bug: Bug, one_in: u64) -> bool {
        self.options.bug == Some(bug) && self.random.one_in(one_in)
    }
}
