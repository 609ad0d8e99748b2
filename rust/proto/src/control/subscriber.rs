//! A subscriber's end: subscribes on every connection, and keeps the newest of what it receives until it is taken.

use std::collections::VecDeque;

use super::model::Model;
use crate::log::{Level, LogRecord};
use crate::wire::{Message, Publication};

/// What was published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// The workers run this model from now on.
    Model(Model),
    /// The workers end.
    Stop,
}

/// One subscriber, over all its connections.
#[derive(Debug, Default)]
pub struct Subscriber {
    is_due: bool,
    /// Each kind once, the latest last.
    news: VecDeque<News>,
    complaint: Option<LogRecord>,
}

impl Subscriber {
    /// A subscriber that is not connected.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A broker is there.
    pub fn handle_connected(&mut self) {
        self.is_due = true;
    }

    /// It is gone.
    pub fn handle_disconnected(&mut self) {
        self.is_due = false;
    }

    /// Something was published.
    pub fn handle_message(&mut self, frames: &[&[u8]]) {
        match Publication::decode(frames) {
            Ok(Publication::Model(model)) => {
                self.news.retain(|news| *news == News::Stop);
                self.news.push_back(News::Model(model.into()));
            }
            Ok(Publication::Stop) => {
                self.news.retain(|news| *news != News::Stop);
                self.news.push_back(News::Stop);
            }
            Err(error) => {
                let text = format!("what the broker published cannot be read: {error}");
                self.complaint = Some(LogRecord { level: Level::Warning, text });
            }
        }
    }

    /// Puts the next message into `out`, which it clears; whether there is one.
    pub fn poll_transmit(&mut self, out: &mut Message) -> bool {
        out.clear();
        if self.is_due {
            // To everything, in the form that every ZMTP 3 knows.
            out.frame(|out| out.push(1));
        }
        std::mem::take(&mut self.is_due)
    }

    /// The next line of log.
    pub fn poll_log(&mut self) -> Option<LogRecord> {
        self.complaint.take()
    }

    /// The oldest of what was heard and not taken.
    pub fn take_news(&mut self) -> Option<News> {
        self.news.pop_front()
    }
}
