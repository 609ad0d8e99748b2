//! Which processor runs which party. Left to the scheduler, one and the same round trip takes between 11 and 30 us on a
//! machine of four cores, depending on which of them share a core.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::outcome::Outcome;

/// The processors of the three parties to a round trip. A process that is started inside [`Placement::at`] stays where
/// it was started.
pub(crate) struct Placement {
    pub(crate) name: &'static str,
    pub(crate) client: CpuSet,
    pub(crate) broker: CpuSet,
    pub(crate) supplier: CpuSet,
}

impl Placement {
    /// A core for each of them, or the same for all where this process was given only one; of two, no choice is a fair
    /// one.
    ///
    /// Two cores may be close to each other and a third one far away, so each party gets each core in turn: over all
    /// turns, a message between client and supplier goes the same ways as one to or from the broker.
    pub(crate) fn turns() -> Outcome<Vec<Self>> {
        let all = sched_getaffinity(None)?;
        let cpus: Vec<_> = (0..CpuSet::MAX_CPU).filter(|cpu| all.is_set(*cpu)).collect();
        let place = |name, [client, broker, supplier]: [CpuSet; 3]| Self { name, client, broker, supplier };
        Ok(match *cpus {
            // The first processor is where a machine tends to have its interrupts.
            [.., a, b, c] => {
                [[a, b, c], [b, c, a], [c, a, b]].map(|cpus| place("a core each", cpus.map(only))).into()
            }
            [one] => vec![place("one core", [one; 3].map(only))],
            _ => vec![place("left to the scheduler", [all; 3])],
        })
    }

    /// Runs `start` on `cpus`; processes that it starts inherit them.
    pub(crate) fn at<T>(cpus: &CpuSet, start: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
        let before = sched_getaffinity(None)?;
        sched_setaffinity(None, cpus)?;
        let started = start();
        sched_setaffinity(None, &before)?;
        started
    }
}

fn only(cpu: usize) -> CpuSet {
    let mut cpus = CpuSet::new();
    cpus.set(cpu);
    cpus
}
