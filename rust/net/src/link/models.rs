//! The link as a peer of its broker's control channel: what runs on this host, and which leader it follows.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use softs_proto::Dialect;
use softs_proto::control::LinkSeat;
use softs_proto::link::HostId;
use softs_proto::log::LogRecord;
use softs_proto::wire::Message;

use super::ingress::Machine;
use crate::runtime::log_queue::Throttle;
use crate::transport::broker_link::{BrokerLink, PeerMachine, Waitable};
use crate::{Endpoint, NetError};

impl PeerMachine for LinkSeat {
    fn handle_connected(&mut self, now: Instant, _dialect: Dialect) {
        LinkSeat::handle_connected(self, now);
    }
    fn handle_disconnected(&mut self) {
        LinkSeat::handle_disconnected(self);
    }
    fn handle_message(&mut self, _now: Instant, frames: &[&[u8]]) {
        LinkSeat::handle_message(self, frames);
    }
    fn wants_transmit(&self, now: Instant) -> bool {
        LinkSeat::wants_transmit(self, now)
    }
    fn poll_transmit(&mut self, now: Instant, out: &mut Message) -> bool {
        LinkSeat::poll_transmit(self, now, out)
    }
    fn poll_timeout(&self) -> Option<Instant> {
        LinkSeat::poll_timeout(self)
    }
    fn poll_log(&mut self) -> Option<LogRecord> {
        None
    }
}

/// Without a control channel there is no connection, and this host has no models.
#[derive(Debug)]
pub(super) struct Models {
    broker: Option<BrokerLink<LinkSeat>>,
    /// Lines that other hosts cause, which strangers and each other must not swallow.
    refusals: Throttle,
    complaints: Throttle,
}

impl Models {
    pub(super) fn new(control: Option<&Endpoint>, now: Instant) -> Self {
        let connect = |at: &Endpoint| BrokerLink::new(LinkSeat::new(), at.clone(), now, Duration::ZERO);
        Self { broker: control.map(connect), refusals: Throttle::default(), complaints: Throttle::default() }
    }

    /// Hears the broker; a line for the log if none has answered for too long.
    pub(super) fn hear(&mut self, now: Instant, machine: &mut Machine) -> Option<String> {
        let broker = self.broker.as_mut()?;
        broker.turn(now);
        if let Some(runs) = broker.machine.take_news() {
            machine.models().set_here(now, runs);
        }
        // When it came and went is told once, by the supplier.
        broker.take_log();
        let silence = broker.machine.poll_silence(now)?;
        let why = match broker.error() {
            Some(NetError::NoBroker { why, .. } | NetError::Lost { why, .. }) => why,
            Some(error) => error.to_string(),
            None => silence,
        };
        let endpoint = broker.endpoint();
        Some(format!(
            "no control channel at {endpoint}: {why}; until one answers, models and stop_workers() do not cross between this host and others, samples do; name the control endpoint of this host's broker (--control), or start that broker"
        ))
    }

    /// Has the broker do what follows from what hosts say, each of which is at some place; lines for the log.
    pub(super) fn tell(
        &mut self,
        now: Instant,
        machine: &mut Machine,
        places: &BTreeMap<HostId, String>,
    ) -> Vec<String> {
        let name = |host| places.get(&host).map_or("another place", String::as_str).to_owned();
        machine.settle_models(now, name);
        let (followed, stop) = (machine.models().take_followed(), machine.models().take_stop());
        if let Some(broker) = &mut self.broker
            && (followed.is_some() || stop.is_some())
        {
            followed.into_iter().for_each(|followed| broker.machine.follow(followed));
            stop.into_iter().for_each(|stop| broker.machine.stop_workers(stop));
            broker.transmit(now);
        }
        let refusals = std::iter::from_fn(|| machine.models().poll_log());
        let mut lines: Vec<_> = refusals.filter_map(|record| self.refusals.pass(now, record.text)).collect();
        let complaints = std::iter::from_fn(|| machine.models().poll_complaint());
        lines.extend(complaints.filter_map(|text| self.complaints.pass(now, text)));
        lines
    }

    pub(super) fn waitable(&self) -> Option<Waitable> {
        self.broker.as_ref().map(BrokerLink::waitable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_without_a_control_channel_says_after_some_seconds_what_does_not_work() {
        let nowhere: Endpoint = "ipc://@softs-fast-no-control-channel".parse().unwrap();
        let (mut machine, now) = (Machine::new(HostId(1)), Instant::now());
        let mut models = Models::new(Some(&nowhere), now);
        assert_eq!(models.hear(now, &mut machine), None);
        let line = models.hear(now + Duration::from_secs(5), &mut machine).unwrap();
        for part in [
            "no control channel at ipc://@softs-fast-no-control-channel: connection refused",
            "models and stop_workers() do not cross between this host and others, samples do",
            "name the control endpoint of this host's broker (--control)",
        ] {
            assert!(line.contains(part), "{line}");
        }
        assert_eq!(models.hear(now + Duration::from_secs(60), &mut machine), None, "once");
    }
}
