//! The end of a link: hears what runs on its host, and has its broker follow another host.

use std::sync::Arc;

use super::model::{Model, Running};
use crate::log::{Level, LogRecord};
use crate::wire::{ControlReply, ControlRequest, Follow, LinkedState, Message};

/// What the broker is to follow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Followed {
    /// The other host, for the log.
    pub host: String,
    /// Whether its leader is there.
    pub is_led: bool,
    /// Its model.
    pub model: Option<Arc<Model>>,
    /// The highest generation that any other host has had.
    pub above: u64,
}

/// A link, over all its connections to a broker.
#[derive(Debug, Default)]
pub struct LinkSeat {
    is_connected: bool,
    /// LINK, FOLLOW and STOP are to be sent.
    due: [bool; 3],
    followed: Followed,
    news: Option<Running>,
    /// Stops that this connection has heard of.
    n_stops: Option<u64>,
    stopped: bool,
    complaint: Option<LogRecord>,
}

const LINK: usize = 0;
const FOLLOW: usize = 1;
const STOP: usize = 2;

impl LinkSeat {
    /// Not connected, and follows nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A broker is there.
    pub fn handle_connected(&mut self) {
        self.is_connected = true;
        self.due = [true, self.followed != Followed::default(), false];
        self.n_stops = None;
    }

    /// It is gone.
    pub fn handle_disconnected(&mut self) {
        self.is_connected = false;
        self.due = [false; 3];
    }

    /// A message of the broker.
    pub fn handle_message(&mut self, frames: &[&[u8]]) {
        match LinkedState::decode(frames) {
            Ok(state) => {
                let model = state.model.map(|model| Arc::new(model.into()));
                self.news = Some(Running { model, is_own: state.is_own, has_leader: state.has_leader });
                let before = self.n_stops.replace(state.n_stops);
                self.stopped |= before.is_some_and(|before| before < state.n_stops);
            }
            Err(error) => {
                let reply =
                    ControlReply::decode(frames).ok().and_then(|reply| reply.error.map(str::to_owned));
                let why = reply.unwrap_or_else(|| error.to_string());
                let text = format!("the broker carries no models to other hosts: {why}");
                self.complaint = Some(LogRecord { level: Level::Warning, text });
            }
        }
    }

    /// Puts the next message into `out`, which it clears; whether there is one.
    pub fn poll_transmit(&mut self, out: &mut Message) -> bool {
        out.clear();
        let Some(first) = self.due.iter().position(|due| *due) else { return false };
        self.due[first] = false;
        let Followed { host, is_led, model, above } = &self.followed;
        match first {
            LINK => ControlRequest::Link,
            FOLLOW => {
                let model = model.as_deref().map(Model::as_ref);
                ControlRequest::Follow(Follow { host, is_led: *is_led, model, above: *above })
            }
            _ => ControlRequest::Stop,
        }
        .encode(out);
        true
    }

    /// Whether there is something to send.
    #[must_use]
    pub fn wants_transmit(&self) -> bool {
        self.due.contains(&true)
    }

    /// Has the broker follow this from now on, and each later one.
    pub fn follow(&mut self, followed: Followed) {
        self.followed = followed;
        self.due[FOLLOW] = self.is_connected;
    }

    /// The leader of the followed host has stopped its workers. It is not kept for a later broker.
    pub fn stop_workers(&mut self) {
        self.due[STOP] = self.is_connected;
    }

    /// What runs on this host, if that has changed.
    pub fn take_news(&mut self) -> Option<Running> {
        self.news.take()
    }

    /// Whether students of this host have stopped its workers since the last call.
    pub fn take_stop(&mut self) -> bool {
        std::mem::take(&mut self.stopped)
    }

    /// The next line of log.
    pub fn poll_log(&mut self) -> Option<LogRecord> {
        self.complaint.take()
    }
}
