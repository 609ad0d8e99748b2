//! A student's end: takes its seat on every connection, and carries requests over to the next connection until they are
//! answered.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use super::model::Model;
use crate::log::{Level, LogRecord};
use crate::wire::{ControlReply, ControlRequest, Message, ModelRef};

/// Names a request until its outcome is taken or it is abandoned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request(u64);

/// How a request ended: the present generation, or why the broker has not carried it out.
pub type Outcome = Result<u64, String>;

/// One student, over all its connections.
#[derive(Debug, Default)]
pub struct Student {
    rank: u32,
    slot_size: u64,
    nonce: u64,
    known: Option<Model>,
    /// Its last STOP that was carried out, unless there is another model since.
    stop: Option<u64>,
    /// A generation that a request may have caused although its answer was lost; the next one must be higher.
    above: u64,
    seat: Seat,
    /// Carried out one after the other.
    requests: VecDeque<Pending>,
    outcomes: FxHashMap<Request, Outcome>,
    n_requests: u64,
    log: VecDeque<LogRecord>,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Seat {
    /// There is no connection.
    #[default]
    Absent,
    /// HELLO is to be sent.
    Due,
    /// HELLO is sent.
    Asked,
    Taken(u64),
    Refused(String),
}

#[derive(Debug)]
struct Pending {
    id: Request,
    order: Order,
    /// On this connection.
    is_sent: bool,
    /// On any connection.
    was_sent: bool,
    /// No caller waits for it any more.
    is_abandoned: bool,
}

#[derive(Debug)]
enum Order {
    SetModel { nonce: u64, model_id: String, model_cfg: Vec<u8> },
    Stop { nonce: u64 },
}

impl Student {
    /// A student that is not connected. `nonce` is random: brokers know it by this from one connection to the next.
    #[must_use]
    pub fn new(rank: u32, slot_size: u64, nonce: u64) -> Self {
        Self { rank, slot_size, nonce, ..Self::default() }
    }

    /// A connection to a broker is up.
    pub fn handle_connected(&mut self) {
        self.seat = Seat::Due;
    }

    /// The connection is lost: unanswered requests will be sent to the next broker.
    pub fn handle_disconnected(&mut self) {
        self.seat = Seat::Absent;
        self.requests.retain(|pending| !pending.is_abandoned);
        for pending in &mut self.requests {
            pending.is_sent = false;
        }
    }

    /// A message of the broker. It only answers, and in the order of the requests, of which one at most is open.
    pub fn handle_message(&mut self, frames: &[&[u8]]) {
        let reply = ControlReply::decode(frames);
        let reply = match &reply {
            Ok(reply) => reply.clone(),
            Err(error) => ControlReply::refused(&error.0),
        };
        if self.seat == Seat::Asked {
            self.seated(&reply);
        } else if self.requests.front().is_some_and(|front| front.is_sent)
            && let Some(pending) = self.requests.pop_front()
        {
            self.answered(pending, &reply);
        }
    }

    /// Puts the next message into `out`, which it clears; whether there is one.
    pub fn poll_transmit(&mut self, out: &mut Message) -> bool {
        out.clear();
        if self.seat == Seat::Due {
            self.seat = Seat::Asked;
            ControlRequest::Hello {
                rank: self.rank,
                slot_size: self.slot_size,
                nonce: Some(self.nonce),
                known: self.known.as_ref().map(Model::as_ref),
                stop: self.stop,
            }
            .encode(out);
            return true;
        }
        let is_seated = matches!(self.seat, Seat::Taken(_));
        let Some(front) = self.requests.front_mut().filter(|front| is_seated && !front.is_sent) else {
            return false;
        };
        (front.is_sent, front.was_sent) = (true, true);
        match &front.order {
            Order::SetModel { nonce, model_id, model_cfg } => {
                ControlRequest::SetModel { nonce: Some(*nonce), above: self.above, model_id, model_cfg }
            }
            Order::Stop { nonce } => ControlRequest::Stop { nonce: Some(*nonce) },
        }
        .encode(out);
        true
    }

    /// The next line of log.
    pub fn poll_log(&mut self) -> Option<LogRecord> {
        self.log.pop_front()
    }

    /// Asks for the seat again, if it was refused.
    pub fn claim(&mut self) {
        if matches!(self.seat, Seat::Refused(_)) {
            self.seat = Seat::Due;
        }
    }

    /// The number that the broker gave this student, or why it did not; `None` before it has answered.
    #[must_use]
    pub fn seat(&self) -> Option<Result<u64, &str>> {
        match &self.seat {
            Seat::Taken(number) => Some(Ok(*number)),
            Seat::Refused(text) => Some(Err(text)),
            Seat::Absent | Seat::Due | Seat::Asked => None,
        }
    }

    /// The newest model that this student knows.
    #[must_use]
    pub fn known(&self) -> Option<&Model> {
        self.known.as_ref()
    }

    /// A model that was published. It replaces the known one, also if its generation is lower.
    pub fn note_model(&mut self, model: Model) {
        self.stop.take_if(|_| self.known.as_ref() != Some(&model));
        self.known = Some(model);
    }

    /// Asks for a switch, as soon as there is a broker.
    pub fn set_model(&mut self, model_id: String, model_cfg: Vec<u8>) -> Request {
        self.request(Order::SetModel { nonce: self.next_nonce(), model_id, model_cfg })
    }

    /// Asks for the end of all workers, as soon as there is a broker.
    pub fn stop_workers(&mut self) -> Request {
        self.request(Order::Stop { nonce: self.next_nonce() })
    }

    /// How a request ended, once.
    pub fn take_outcome(&mut self, request: Request) -> Option<Outcome> {
        self.outcomes.remove(&request)
    }

    /// No caller waits for this request any more: it is not sent, or not again.
    pub fn abandon(&mut self, request: Request) {
        self.outcomes.remove(&request);
        let Some(at) = self.requests.iter().position(|pending| pending.id == request) else { return };
        if self.requests[at].was_sent {
            // A broker may have carried it out, and students may have received it.
            self.above = self.above.max(self.generation() + 1);
        }
        if self.requests[at].is_sent {
            self.requests[at].is_abandoned = true;
        } else {
            self.requests.remove(at);
        }
    }

    fn request(&mut self, order: Order) -> Request {
        self.claim();
        let id = Request(self.n_requests);
        self.n_requests += 1;
        let pending = Pending { id, order, is_sent: false, was_sent: false, is_abandoned: false };
        self.requests.push_back(pending);
        id
    }

    fn next_nonce(&self) -> u64 {
        self.nonce.wrapping_add(self.n_requests)
    }

    fn generation(&self) -> u64 {
        self.known.as_ref().map_or(0, |model| model.generation)
    }

    fn seated(&mut self, reply: &ControlReply<'_>) {
        if let (true, Some(number)) = (reply.ok, reply.peer_id) {
            self.seat = Seat::Taken(number);
            if let (Some(generation @ 1..), Some((model_id, model_cfg))) = (reply.generation, reply.model) {
                self.note_model(ModelRef { generation, model_id, model_cfg }.into());
            }
            return;
        }
        let text = reason(reply);
        self.log
            .push_back(LogRecord { level: Level::Warning, text: format!("no seat at the broker: {text}") });
        for pending in self.requests.drain(..) {
            self.outcomes.insert(pending.id, Err(text.clone()));
        }
        self.seat = Seat::Refused(text);
    }

    fn answered(&mut self, pending: Pending, reply: &ControlReply<'_>) {
        let outcome = match (reply.ok, pending.order, reply.generation) {
            (true, Order::SetModel { model_id, model_cfg, .. }, Some(generation @ 1..)) => {
                self.note_model(Model { generation, model_id, model_cfg });
                Ok(generation)
            }
            (true, Order::Stop { nonce }, _) => {
                self.stop = Some(nonce);
                Ok(self.generation())
            }
            _ => Err(reason(reply)),
        };
        if !pending.is_abandoned {
            self.outcomes.insert(pending.id, outcome);
        }
    }
}

fn reason(reply: &ControlReply<'_>) -> String {
    reply.error.unwrap_or("the broker's answer lacks a field").to_owned()
}
