//! The supplier itself: its threads' shared state, its lanes, and one step of its event loop.

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use softs_proto::log::{Level, LogRecord};
use softs_proto::supplier::{Config, Supplier as Machine};

use super::lane_scheduler::LaneScheduler;
use super::shared::{Shared, State};
use super::task::Options;
use super::watchdog;
use crate::error::NetError;
use crate::transport::broker_link::BrokerLink;
use crate::transport::endpoint::Endpoint;

/// A supplier that is busy with lanes checks this often whether their clients are alive.
const LIVENESS_INTERVAL: Duration = Duration::from_millis(100);
/// Records about lanes that wait to be taken; more are dropped.
const MAX_RECORDS: usize = 256;

/// A supplier of one broker. One thread calls [`Supplier::next`] and what ends its tasks; any thread may call
/// [`Supplier::stop`].
#[derive(Debug)]
pub struct Supplier {
    pub(super) shared: Arc<Shared>,
    /// Locked before `shared.link`. Not locked while the generator runs, nor in sleep.
    pub(super) scheduler: Mutex<LaneScheduler>,
    pub(super) watchdog: Mutex<Option<JoinHandle<()>>>,
}

impl Supplier {
    /// A supplier that is not connected yet.
    ///
    /// # Errors
    /// The system is out of file descriptors or threads.
    pub fn new(endpoint: Endpoint, config: Config, options: Options) -> Result<Self, NetError> {
        let os_error = |what: &str, why: std::io::Error| NetError::Os {
            endpoint: endpoint.as_str().to_owned(),
            what: what.to_owned(),
            why: why.to_string(),
        };
        let stopping = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| os_error("create an event descriptor", e.into()))?;
        let now = Instant::now();
        let link = BrokerLink::new(Machine::new(config), endpoint.clone(), now, options.spin);
        let shared = Arc::new(Shared {
            link: Mutex::new(State { link, log: Vec::new() }),
            call_begun: Condvar::new(),
            watchdog_sleeps: AtomicBool::new(false),
            lane_call: AtomicU64::new(0),
            epoch: now,
            stop: AtomicBool::new(false),
            stopping,
        });
        let watchdog = std::thread::Builder::new()
            .name("softs-watchdog".to_owned())
            .spawn({
                let shared = shared.clone();
                move || watchdog::run(&shared)
            })
            .map_err(|e| os_error("start a thread", e))?;
        let Options { lanes, slot_size, weights, spin } = options;
        let scheduler = Mutex::new(LaneScheduler::new(lanes, slot_size, weights, spin, now));
        Ok(Self { shared, scheduler, watchdog: Mutex::new(Some(watchdog)) })
    }

    /// Runs one step of the link to the broker, and attaches and detaches lanes as it requests.
    pub(super) fn turn(&self, scheduler: &mut LaneScheduler, state: &mut State) {
        let now = scheduler.now;
        let State { link, log } = state;
        link.turn(now);
        scheduler.turned_at = Some(now);
        scheduler.follow(&mut link.machine, |id, why| {
            if log.len() < MAX_RECORDS {
                let text = format!(
                    "cannot serve the lanes of {:?}, its orders come by the broker: {why}",
                    id.address
                );
                log.push(LogRecord { level: Level::Info, text });
            }
        });
        if scheduler.has_lanes() && now.saturating_duration_since(scheduler.checked_at) >= LIVENESS_INTERVAL {
            scheduler.check(&mut link.machine);
        }
        // Reports the lanes that it does not serve: their clients wait for that.
        link.transmit(now);
        scheduler.wire_waits = link.machine.has_work();
    }

    pub(super) fn scheduler(&self) -> MutexGuard<'_, LaneScheduler> {
        self.scheduler.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
