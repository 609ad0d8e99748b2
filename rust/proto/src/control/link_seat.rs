//! The end of a link: hears what runs on its host, and has its broker follow another host.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::model::{Model, Running};
use crate::wire::{ControlReply, ControlRequest, Follow, LinkedState, Message};

/// Workers of a broker that was restarted connect again later than the link may. A STOP waits so long for them.
const RETURN_TIME: Duration = Duration::from_secs(1);
/// A broker that has not answered for so long is worth a warning.
const PATIENCE: Duration = Duration::from_secs(5);

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
    /// The STOP of which no broker has said that it was carried out, and from when on it may be sent.
    stop: Option<u64>,
    stop_at: Option<Instant>,
    news: Option<Running>,
    /// The broker of this connection has said what runs.
    is_answered: bool,
    /// When it is too long that none has, and whether that was told.
    warn_at: Option<Instant>,
    is_told: bool,
    /// What the broker has said instead.
    refusal: Option<String>,
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
    pub fn handle_connected(&mut self, now: Instant) {
        self.is_connected = true;
        self.due = [true, self.followed != Followed::default(), self.stop.is_some()];
        self.stop_at = Some(now + RETURN_TIME);
    }

    /// It is gone.
    pub fn handle_disconnected(&mut self) {
        (self.is_connected, self.is_answered) = (false, false);
        self.due = [false; 3];
    }

    /// A message of the broker.
    pub fn handle_message(&mut self, frames: &[&[u8]]) {
        match LinkedState::decode(frames) {
            Ok(LinkedState { model, is_own, leader, stop, is_stopped, link_stop }) => {
                let model = model.map(|model| Arc::new(model.into()));
                // A leader of this host has workers of its own.
                if self.stop == Some(link_stop) || leader.is_some() {
                    self.drop_stop();
                }
                self.news = Some(Running { model, is_own, leader, stop, is_stopped });
                (self.is_answered, self.is_told, self.warn_at, self.refusal) = (true, false, None, None);
            }
            Err(error) => {
                let reply =
                    ControlReply::decode(frames).ok().and_then(|reply| reply.error.map(str::to_owned));
                self.refusal = Some(reply.unwrap_or_else(|| error.to_string()));
                self.is_answered = false;
            }
        }
    }

    /// Puts the next message into `out`, which it clears; whether there is one.
    pub fn poll_transmit(&mut self, now: Instant, out: &mut Message) -> bool {
        out.clear();
        let Some(next) = self.next(now) else { return false };
        self.due[next] = false;
        let Followed { host, is_led, model, above } = &self.followed;
        match next {
            LINK => ControlRequest::Link,
            FOLLOW => {
                let model = model.as_deref().map(Model::as_ref);
                ControlRequest::Follow(Follow { host, is_led: *is_led, model, above: *above })
            }
            _ => ControlRequest::Stop { nonce: self.stop },
        }
        .encode(out);
        true
    }

    /// Whether there is something to send.
    #[must_use]
    pub fn wants_transmit(&self, now: Instant) -> bool {
        self.next(now).is_some()
    }

    /// When [`Self::wants_transmit`] and [`Self::poll_silence`] should be asked even if nothing happens.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let stop_at = self.stop_at.filter(|_| self.due[STOP]);
        stop_at.into_iter().chain(self.warn_at.filter(|_| !self.is_told)).min()
    }

    /// Has the broker follow this from now on, and each later one. Another model cancels a STOP that is still to be sent.
    pub fn follow(&mut self, followed: Followed) {
        // That of a leader that has left is none.
        if followed.model.is_some() && followed.model != self.followed.model {
            self.drop_stop();
        }
        self.followed = followed;
        self.due[FOLLOW] = self.is_connected;
    }

    /// The leader of the followed host has stopped its workers: this broker is to be told, or the next one.
    pub fn stop_workers(&mut self, stop: u64) {
        self.stop = Some(stop);
        self.due[STOP] = self.is_connected;
    }

    /// What runs on this host, if that has changed.
    pub fn take_news(&mut self) -> Option<Running> {
        self.news.take()
    }

    /// Why no broker carries models, once that has been so for some seconds; again only after one has.
    pub fn poll_silence(&mut self, now: Instant) -> Option<String> {
        if self.is_answered || self.is_told || now < *self.warn_at.get_or_insert(now + PATIENCE) {
            return None;
        }
        self.is_told = true;
        let refusal = self.refusal.as_ref().map(|refusal| format!("it answers: {refusal}"));
        Some(refusal.unwrap_or_else(|| "it does not answer".to_owned()))
    }

    fn next(&self, now: Instant) -> Option<usize> {
        let is_held = self.stop_at.is_some_and(|at| now < at);
        (0..self.due.len()).find(|&i| self.due[i] && !(i == STOP && is_held))
    }

    fn drop_stop(&mut self) {
        self.stop = None;
        self.due[STOP] = false;
    }
}
