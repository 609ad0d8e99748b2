//! The process that has the values, with all that ask for them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use rustc_hash::FxHashMap;

use super::message::{REQUEST_BYTES, Reply, Request};
use crate::broker::PeerId;
use crate::framing::{FrameReader, Outbox};
use crate::streams::{End, Stop, StreamMachine, next_frame, push_end};

/// What one key is taken to cost beside its bytes and those of its value.
const KEY_COST: usize = 128;

/// The state machine of the process that has the values. A request waits for keys until the connection ends: a peer gives
/// it up by ending that.
#[derive(Debug, Default)]
pub struct StoreMachine {
    /// Bytes of all keys and values, at most.
    most_bytes: usize,
    /// By a hash that a peer cannot foresee.
    values: HashMap<Vec<u8>, Vec<u8>>,
    bytes: usize,
    peers: FxHashMap<PeerId, Peer>,
    /// Those that wait for keys.
    n_waiting: usize,
    answered: Vec<PeerId>,
    ending: Vec<PeerId>,
}

#[derive(Debug)]
struct Peer {
    reader: FrameReader,
    outbox: Outbox,
    waiting: Option<Waiting>,
    is_ending: bool,
}

/// A request that waits.
#[derive(Debug)]
struct Waiting {
    /// Keys without a value since then.
    missing: Vec<Vec<u8>>,
    wants_value: bool,
}

impl StoreMachine {
    /// Without values; of keys and values together it holds `most_bytes` at most.
    #[must_use]
    pub fn new(most_bytes: usize) -> Self {
        Self { most_bytes, ..Self::default() }
    }

    /// Bytes that its keys and values take.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn handle_frames(&mut self, id: PeerId, reader: &mut FrameReader) -> Result<(), Stop> {
        while let Some((kind, payload)) = next_frame(reader)? {
            self.handle(id, &Request::decode(kind, payload)?)?;
        }
        Ok(())
    }

    /// Answers a request, or has it wait; the error ends the connection.
    fn handle(&mut self, id: PeerId, request: &Request<'_>) -> Result<(), String> {
        // So at most one reply waits for a peer that does not read.
        if self.peers.get(&id).is_none_or(|peer| peer.waiting.is_some() || !peer.outbox.is_empty()) {
            return Err("a request came before the reply to another one".to_owned());
        }
        match *request {
            Request::Set(key, value) => {
                let stored = self.store(key, value.to_vec()).map(|()| Reply::Found(true));
                self.reply(id, &stored.unwrap_or_else(Reply::Refused));
            }
            Request::Add(key, amount) => {
                let sum = self.add(key, amount).map(Reply::Number);
                self.reply(id, &sum.unwrap_or_else(Reply::Refused));
            }
            Request::CompareSet(key, expected, desired) => {
                let is_alike = match self.values.get(key) {
                    Some(present) => present == expected,
                    None => expected.is_empty(),
                };
                match if is_alike { self.store(key, desired.to_vec()) } else { Ok(()) } {
                    // As torch's stores do: without a value the expected one is returned.
                    Ok(()) => {
                        let present = self.values.get(key).cloned().unwrap_or_else(|| expected.to_vec());
                        self.reply(id, &Reply::Value(&present));
                    }
                    Err(why) => self.reply(id, &Reply::Refused(why)),
                }
            }
            Request::Check(ref keys) => {
                let found = keys.iter().all(|&key| self.values.contains_key(key));
                self.reply(id, &Reply::Found(found));
            }
            Request::Delete(key) => {
                let removed = self.values.remove(key);
                if let Some(value) = &removed {
                    self.bytes -= cost(key, value);
                }
                self.reply(id, &Reply::Found(removed.is_some()));
            }
            Request::Count => {
                let n = i64::try_from(self.values.len()).unwrap_or(i64::MAX);
                self.reply(id, &Reply::Number(n));
            }
            Request::Get(key) => self.wait(id, &[key], true),
            Request::Wait(ref keys) => self.wait(id, keys, false),
        }
        Ok(())
    }

    fn wait(&mut self, id: PeerId, keys: &[&[u8]], wants_value: bool) {
        let missing: Vec<Vec<u8>> =
            keys.iter().filter(|&&key| !self.values.contains_key(key)).map(|&key| key.to_vec()).collect();
        if missing.is_empty() {
            let value = keys.first().filter(|_| wants_value).and_then(|&key| self.values.get(key)).cloned();
            self.reply(id, &value.as_deref().map_or(Reply::Found(true), Reply::Value));
        } else if let Some(peer) = self.peers.get_mut(&id) {
            peer.waiting = Some(Waiting { missing, wants_value });
            self.n_waiting += 1;
        }
    }

    fn add(&mut self, key: &[u8], amount: i64) -> Result<i64, String> {
        let text = self.values.get(key).map_or(Ok("0"), |value| std::str::from_utf8(value));
        let number = text.ok().and_then(|text| text.parse::<i64>().ok());
        let number = number.ok_or("the value of this key is no number")?;
        let sum = number.checked_add(amount).ok_or("the sum has more than 64 bits")?;
        self.store(key, sum.to_string().into_bytes()).map(|()| sum)
    }

    fn store(&mut self, key: &[u8], value: Vec<u8>) -> Result<(), String> {
        let old = self.values.get(key).map_or(0, |old| cost(key, old));
        let bytes = self.bytes - old + cost(key, &value);
        if bytes > self.most_bytes {
            return Err(format!("the store is full: it holds {} bytes at most", self.most_bytes));
        }
        self.bytes = bytes;
        match self.values.entry(key.to_vec()) {
            Entry::Occupied(mut entry) => drop(entry.insert(value)),
            Entry::Vacant(entry) => {
                entry.insert(value);
                self.tell(key);
            }
        }
        Ok(())
    }

    /// Answers those that wait for a key which has a value now.
    fn tell(&mut self, key: &[u8]) {
        if self.n_waiting == 0 {
            return;
        }
        for (&id, peer) in &mut self.peers {
            let Some(waiting) = &mut peer.waiting else { continue };
            waiting.missing.retain(|missing| missing != key);
            if waiting.missing.is_empty() {
                let value = self.values.get(key).filter(|_| waiting.wants_value);
                value.map_or(Reply::Found(true), |value| Reply::Value(value)).encode(&mut peer.outbox);
                peer.waiting = None;
                self.n_waiting -= 1;
                self.answered.push(id);
            }
        }
    }

    fn reply(&mut self, id: PeerId, reply: &Reply<'_>) {
        if let Some(peer) = self.peers.get_mut(&id) {
            reply.encode(&mut peer.outbox);
        }
    }
}

fn cost(key: &[u8], value: &[u8]) -> usize {
    key.len() + value.len() + KEY_COST
}

impl StreamMachine for StoreMachine {
    fn connect(&mut self, id: PeerId, _name: String) {
        let reader = FrameReader::new(REQUEST_BYTES);
        self.peers.insert(id, Peer { reader, outbox: Outbox::default(), waiting: None, is_ending: false });
    }

    fn disconnect(&mut self, id: PeerId, _end: End) {
        if self.peers.remove(&id).is_some_and(|peer| peer.waiting.is_some()) {
            self.n_waiting -= 1;
        }
    }

    fn receive(&mut self, id: PeerId, bytes: &[u8]) {
        let Some(peer) = self.peers.get_mut(&id).filter(|peer| !peer.is_ending) else { return };
        let mut reader = std::mem::take(&mut peer.reader);
        reader.receive(bytes);
        let handled = self.handle_frames(id, &mut reader);
        let Some(peer) = self.peers.get_mut(&id) else { return };
        peer.reader = reader;
        if let Err(Stop::Told(why) | Stop::Refused(why)) = handled {
            push_end(&mut peer.outbox, &why);
            peer.is_ending = true;
            self.ending.push(id);
        }
    }

    fn outbox(&mut self, id: PeerId) -> Option<&mut Outbox> {
        self.peers.get_mut(&id).map(|peer| &mut peer.outbox)
    }

    fn wants_bytes(&self, id: PeerId) -> bool {
        self.peers.get(&id).is_some_and(|peer| !peer.is_ending)
    }

    fn poll_output(&mut self) -> Option<PeerId> {
        self.answered.pop()
    }

    fn poll_ending(&mut self) -> Option<PeerId> {
        self.ending.pop()
    }

    fn end_all(&mut self, why: &str) {
        for peer in self.peers.values_mut() {
            push_end(&mut peer.outbox, why);
        }
    }
}
