//! The link as a peer of its broker's control channel: what runs on this host, and which leader it follows.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use softs_proto::Dialect;
use softs_proto::control::LinkSeat;
use softs_proto::link::HostId;
use softs_proto::log::{Level, LogRecord};
use softs_proto::wire::Message;

use super::ingress::Machine;
use crate::Endpoint;
use crate::transport::broker_link::{BrokerLink, PeerMachine, Waitable};

impl PeerMachine for LinkSeat {
    fn handle_connected(&mut self, _now: Instant, _dialect: Dialect) {
        LinkSeat::handle_connected(self);
    }
    fn handle_disconnected(&mut self) {
        LinkSeat::handle_disconnected(self);
    }
    fn handle_message(&mut self, _now: Instant, frames: &[&[u8]]) {
        LinkSeat::handle_message(self, frames);
    }
    fn wants_transmit(&self, _now: Instant) -> bool {
        LinkSeat::wants_transmit(self)
    }
    fn poll_transmit(&mut self, _now: Instant, out: &mut Message) -> bool {
        LinkSeat::poll_transmit(self, out)
    }
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }
    fn poll_log(&mut self) -> Option<LogRecord> {
        LinkSeat::poll_log(self)
    }
}

/// Without a control channel there is no connection, and this host has no models.
#[derive(Debug)]
pub(super) struct Models {
    broker: Option<BrokerLink<LinkSeat>>,
}

impl Models {
    pub(super) fn new(control: Option<&Endpoint>, now: Instant) -> Self {
        let connect = |at: &Endpoint| BrokerLink::new(LinkSeat::new(), at.clone(), now, Duration::ZERO);
        Self { broker: control.map(connect) }
    }

    /// Hears the broker; lines for the log.
    pub(super) fn hear(&mut self, now: Instant, machine: &mut Machine) -> Vec<String> {
        let Some(broker) = &mut self.broker else { return Vec::new() };
        broker.turn(now);
        if let Some(runs) = broker.machine.take_news() {
            machine.models().set_here(now, runs);
        }
        if broker.machine.take_stop() {
            machine.models().stop_others();
        }
        // That it is connected is told once, by the supplier.
        let warnings = broker.take_log().into_iter().filter(|record| record.level == Level::Warning);
        warnings.map(|record| record.text).collect()
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
        let (followed, stops) = (machine.models().take_followed(), machine.models().take_stop());
        if let Some(broker) = &mut self.broker
            && (followed.is_some() || stops)
        {
            followed.into_iter().for_each(|followed| broker.machine.follow(followed));
            if stops {
                broker.machine.stop_workers();
            }
            broker.transmit(now);
        }
        std::iter::from_fn(|| machine.models().poll_log()).map(|record| record.text).collect()
    }

    pub(super) fn waitable(&self) -> Option<Waitable> {
        self.broker.as_ref().map(BrokerLink::waitable)
    }
}
