//! Random runs with seeds: workers join, talk, are lost at any byte, and others take their numbers.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use softs_proto::broker::PeerId;
use softs_proto::flow::{AskError, AskId, Event, Master, Worker};
use softs_proto::streams::{End, StreamMachine};

use crate::pair::{connect, master, to_master, to_worker, worker_of};

/// xorshift64*: runs are the same on every machine.
struct Rng(u64);

impl Rng {
    fn new(seed: u64) -> Self {
        Self((seed ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9) | 1)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) * n) >> 32
    }
}

/// One life of a worker.
struct Life {
    id: PeerId,
    number: u32,
    worker: Worker,
    /// What it sent, in order, and how much of it the owner of the master has received.
    sent: Vec<Vec<u8>>,
    received: usize,
    /// What the owner sent to this life, and not received yet.
    expected: VecDeque<Vec<u8>>,
    is_broken: bool,
}

struct World {
    rng: Rng,
    master: Master,
    lives: Vec<Life>,
    /// The life that the owner believes to have a number, by what it received.
    known: HashMap<u32, usize>,
    asks: Vec<AskId>,
    answered: usize,
    next: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let (lives, known, asks) = (Vec::new(), HashMap::new(), Vec::new());
        Self { rng: Rng::new(seed), master: master(), lives, known, asks, answered: 0, next: 0 }
    }

    fn step(&mut self) {
        match self.rng.below(100) {
            0..8 => self.begin(),
            8..12 => self.lose(),
            12..22 => self.take(),
            22..35 => self.send(),
            35..50 => self.reply(),
            50..55 => self.ask(),
            _ => self.carry(),
        }
        while let Some(id) = self.master.poll_ending() {
            self.master.disconnect(id, End::Refused);
            if let Some(life) = self.lives.iter_mut().find(|life| life.id == id) {
                life.worker.disconnect("ended");
                life.is_broken = true;
            }
        }
    }

    fn begin(&mut self) {
        self.next += 1;
        let number = self.rng.below(3) as u32;
        let id = connect(&mut self.master, self.next);
        let worker = worker_of(number, self.lives.len() as u32);
        let (sent, expected) = (Vec::new(), VecDeque::new());
        self.lives.push(Life { id, number, worker, sent, received: 0, expected, is_broken: false });
    }

    fn any(&mut self) -> Option<usize> {
        let open: Vec<_> = (0..self.lives.len()).filter(|&i| !self.lives[i].is_broken).collect();
        if open.is_empty() { None } else { Some(open[self.rng.below(open.len() as u64) as usize]) }
    }

    fn lose(&mut self) {
        let Some(i) = self.any() else { return };
        self.master.disconnect(self.lives[i].id, End::Ordinary);
        self.lives[i].worker.disconnect("lost");
        self.lives[i].is_broken = true;
    }

    fn carry(&mut self) {
        let Some(i) = self.any() else { return };
        let most = 1 + self.rng.below(200) as usize;
        let life = &mut self.lives[i];
        if self.rng.below(2) == 0 {
            to_master(&mut self.master, life.id, &mut life.worker, most);
        } else {
            to_worker(&mut self.master, life.id, &mut life.worker, most);
        }
        for payload in life.worker.take_received() {
            assert_eq!(Some(payload), life.expected.pop_front(), "in order, of this life");
        }
    }

    fn send(&mut self) {
        let number = self.rng.below(3) as u32;
        let payload = vec![self.rng.below(256) as u8; self.rng.below(300) as usize];
        match (self.master.send(number, &payload), self.known.get(&number)) {
            (Ok(_), Some(&i)) => self.lives[i].expected.push_back(payload),
            (Ok(_), None) => panic!("sent to a worker that the owner does not know"),
            (Err(_), _) => {}
        }
    }

    fn reply(&mut self) {
        let Some(i) = self.any() else { return };
        let life = &mut self.lives[i];
        let payload = vec![self.rng.below(256) as u8; self.rng.below(300) as usize];
        if life.worker.send(&payload).is_ok() {
            life.sent.push(payload);
        }
        life.worker.publish(Instant::now(), "spec", &life.number.to_le_bytes()).unwrap();
    }

    fn ask(&mut self) {
        let number = self.rng.below(3) as u32;
        if let Ok((ask, _)) = self.master.ask(number, "spec") {
            self.asks.push(ask);
        }
    }

    fn take(&mut self) {
        for event in self.master.take_events().0 {
            match event {
                Event::Joined { worker, pid, .. } => {
                    assert_eq!(self.lives[pid as usize].number, worker);
                    assert_eq!(self.known.insert(worker, pid as usize), None, "{worker} joined twice");
                }
                Event::Received { worker, payload } => {
                    let life = &mut self.lives[self.known[&worker]];
                    assert_eq!(payload, life.sent[life.received], "in order, of this life");
                    life.received += 1;
                }
                Event::Left { worker, .. } => {
                    let i = self.known.remove(&worker).expect("left without having joined");
                    assert!(self.lives[i].is_broken);
                }
            }
        }
        self.asks.retain(|ask| match self.master.take_answer(*ask) {
            None => true,
            Some(Ok(found)) => {
                assert_eq!(found.value.len(), 4);
                self.answered += 1;
                false
            }
            Some(Err(AskError::NotSent(_))) => panic!("it was sent"),
            Some(Err(AskError::Left { .. } | AskError::NotPublished { .. })) => false,
        });
    }

    /// Ends everything and checks that nothing is left open.
    fn finish(&mut self) {
        for i in 0..self.lives.len() {
            if !self.lives[i].is_broken {
                self.master.disconnect(self.lives[i].id, End::Ordinary);
                self.lives[i].is_broken = true;
            }
        }
        self.take();
        assert!(self.known.is_empty() && self.asks.is_empty());
    }
}

#[test]
fn random_lives_of_workers_keep_every_rule() {
    let mut answered = 0;
    for seed in 0..2000 {
        let mut world = World::new(seed);
        for _ in 0..400 {
            world.step();
        }
        world.finish();
        answered += world.answered;
    }
    assert!(answered > 1000, "only {answered} questions were answered");
}
