//! Random runs of clients and suppliers of both dialects, checked after every step against what may never happen.

mod checks;
mod lanes;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use softs_proto::Dialect::{self, Native, Softs};
use softs_proto::ServerMachine;
use softs_proto::broker::{Config, PeerId, Side};
use softs_proto::wire::{ClientRequest, SupplierRequest};

use crate::peers::{Net, Work, sequence_of};

const SEEDS: u64 = 300;
const STEPS: usize = 1500;
const KINDS: u64 = 4;
const SLOTS: u64 = 12;

/// xorshift64*; a seed names a life.
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % n
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        (!from.is_empty()).then(|| from[self.below(from.len() as u64) as usize])
    }
}

/// (address, offset).
type Slot = (String, u64);

struct Client {
    dialect: Dialect,
    next_order: u64,
    /// Open orders: product and slot. A softs id is its number in decimal.
    open: BTreeMap<u64, (String, Slot)>,
    /// Orders of a softs client that are not answered yet.
    asked: Vec<u64>,
    /// The same for cancellations.
    cancelled: Vec<u64>,
    /// Its name in orders to softs suppliers, once it sent one.
    nonce: Option<u64>,
    /// Orders that suppliers answered although they did not have them.
    late: Vec<u64>,
    announcement: lanes::Announcement,
}

struct Supplier {
    dialect: Dialect,
    kinds: BTreeSet<u64>,
    registered: bool,
    window: usize,
    held: BTreeMap<String, Work>,
    attachments: lanes::Attachments,
    /// Failures in a row, at least, by product.
    failures: BTreeMap<String, u32>,
}

impl Supplier {
    fn may_be_backed_off(&self, product: &str) -> bool {
        self.failures.get(product).is_some_and(|&failures| failures >= 3)
    }

    fn free(&self) -> bool {
        self.registered
            && match self.dialect {
                Softs => self.window > 0 && self.held.is_empty(),
                Native => self.held.len() < self.window,
            }
    }

    fn makes(&self, product: &str) -> bool {
        self.kinds.iter().any(|kind| product.starts_with(&format!("k{kind}.")))
    }
}

struct Life {
    net: Net,
    rng: Rng,
    clients: BTreeMap<PeerId, Client>,
    suppliers: BTreeMap<PeerId, Supplier>,
    /// Leases that suppliers have reported done, by product and slot, less the results that came.
    written: BTreeMap<(String, Slot), i64>,
    used_leases: BTreeSet<u64>,
    completed: u64,
    lost_clients: u64,
}

impl Life {
    fn new(seed: u64) -> Self {
        let mut rng = Rng(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        let config = Config {
            max_queue_per_product: 1 + rng.below(12) as usize,
            max_order_attempts: 1 + rng.below(4) as u32,
            ..Config::default()
        };
        Self {
            net: Net::new(config),
            rng,
            clients: BTreeMap::new(),
            suppliers: BTreeMap::new(),
            written: BTreeMap::new(),
            used_leases: BTreeSet::new(),
            completed: 0,
            lost_clients: 0,
        }
    }

    fn dialect(&mut self) -> Dialect {
        if self.rng.below(2) == 0 { Softs } else { Native }
    }

    fn some_client(&mut self) -> Option<PeerId> {
        let peers: Vec<_> = self.clients.keys().copied().collect();
        self.rng.pick(&peers)
    }

    fn some_supplier(&mut self) -> Option<PeerId> {
        let peers: Vec<_> = self.suppliers.keys().copied().collect();
        self.rng.pick(&peers)
    }

    fn step(&mut self) {
        match self.rng.below(100) {
            0..4 if self.clients.len() < 6 => self.new_client(),
            4..10 if self.suppliers.len() < 6 => {
                let dialect = self.dialect();
                let peer = self.net.connect(Side::Backend, dialect);
                let supplier = Supplier {
                    dialect,
                    kinds: BTreeSet::new(),
                    registered: false,
                    window: 0,
                    held: BTreeMap::new(),
                    attachments: lanes::Attachments::default(),
                    failures: BTreeMap::new(),
                };
                self.suppliers.insert(peer, supplier);
                self.hello(peer);
            }
            10..11 => {
                if let Some(peer) = self.some_client() {
                    self.kill_client(peer);
                }
            }
            11..13 => {
                if let Some(peer) = self.some_supplier() {
                    self.net.kill(peer);
                    self.suppliers.remove(&peer);
                }
            }
            13..14 => {
                if let Some(peer) = self.some_supplier() {
                    self.hello(peer);
                }
            }
            14..15 => {
                if let Some(peer) = self.some_supplier() {
                    self.net.tell(peer, SupplierRequest::Goodbye);
                    let supplier = self.suppliers.get_mut(&peer).unwrap();
                    (supplier.registered, supplier.window) = (false, 0);
                    self.forget_refusals();
                }
            }
            15..37 => self.order(),
            37..40 => self.announce(),
            40..48 => self.cancel(),
            48..60 => self.ready(),
            60..95 => self.answer(),
            95..97 => {
                let peer = if self.rng.below(2) == 0 { self.some_client() } else { self.some_supplier() };
                if let Some(peer) = peer {
                    self.net.send(peer, &[b"NONSENSE", b"\xc1"]);
                }
            }
            97..98 => self.lie(),
            98..99 => self.announce(),
            _ if self.rng.below(2) == 0 => self.refuse(),
            _ => self.accept(),
        }
        // Some turns of the loop see many events.
        if self.rng.below(4) != 0 {
            self.receive();
            self.check();
        }
    }

    fn new_client(&mut self) {
        let dialect = self.dialect();
        let peer = self.net.client(dialect);
        if self.rng.below(2) == 0 {
            self.net.ask(peer, ClientRequest::Hello { nonce: None });
        }
        let nonce = (dialect == Native && self.rng.below(2) == 0).then_some(peer.0 << 40);
        if nonce.is_some() {
            self.net.ask(peer, ClientRequest::Hello { nonce });
        }
        let client = Client {
            dialect,
            next_order: 0,
            open: BTreeMap::new(),
            asked: vec![],
            cancelled: vec![],
            nonce,
            late: vec![],
            announcement: lanes::Announcement::default(),
        };
        self.clients.insert(peer, client);
    }

    fn kill_client(&mut self, peer: PeerId) {
        // First receives what was decided until now: what it has not received belongs to no client.
        self.receive();
        self.net.kill(peer);
        self.clients.remove(&peer);
        self.lost_clients += 1;
        self.forget_refusals();
    }

    fn hello(&mut self, peer: PeerId) {
        let kinds: BTreeSet<u64> = (0..=self.rng.below(3)).map(|_| self.rng.below(KINDS)).collect();
        let mut patterns: Vec<String> = kinds.iter().map(|kind| format!(r"k{kind}\..*")).collect();
        if self.rng.below(4) == 0 {
            let all: String = kinds.iter().map(u64::to_string).collect();
            patterns = vec![format!(r"k[{all}]\.c\d+")];
        }
        let product_ids = patterns.iter().map(String::as_str).collect();
        self.net.tell(peer, SupplierRequest::Hello { product_ids, name: None });
        let supplier = self.suppliers.get_mut(&peer).unwrap();
        (supplier.kinds, supplier.registered) = (kinds, true);
        self.forget_refusals();
    }

    fn order(&mut self) {
        let Some(peer) = self.some_client() else { return };
        // The product names its client, so that a lease does too; some addresses belong to all clients (W2).
        let product = format!("k{}.c{}", self.rng.below(KINDS), peer.0);
        let address = match self.rng.below(5) {
            0 => "shared".to_owned(),
            _ => format!("m{}", peer.0),
        };
        let n = match self.rng.below(3) {
            0 => 1 + self.rng.below(8),
            _ => 1,
        };
        let offsets: Vec<u64> = (0..n).map(|_| 64 * self.rng.below(SLOTS)).collect();
        let client = self.clients.get_mut(&peer).unwrap();
        let first = client.next_order;
        let numbers: Vec<(u64, u64)> = (first..).zip(offsets).collect();
        client.next_order += n;
        for &(number, offset) in &numbers {
            client.open.insert(number, (product.clone(), (address.clone(), offset)));
        }
        match client.dialect {
            Native => {
                let orders = numbers.into_iter().map(|(n, offset)| (n, offset, sequence_of(n))).collect();
                let request = ClientRequest::Orders {
                    address: &address,
                    segment_id: 0,
                    slot_size: 64,
                    product_id: &product,
                    orders,
                };
                self.net.ask(peer, request);
            }
            Softs => {
                for (number, offset) in numbers {
                    client.asked.push(number);
                    let order_id = &*number.to_string();
                    let request =
                        ClientRequest::Order { order_id, product_id: &product, address: &address, offset };
                    self.net.ask(peer, request);
                }
                // So that the next frame without a name is the answer to these.
                self.receive();
            }
        }
    }

    fn cancel(&mut self) {
        let Some(peer) = self.some_client() else { return };
        let all = self.rng.below(3) == 0;
        self.receive();
        let client = self.clients.get_mut(&peer).unwrap();
        let numbers: Vec<u64> = client.open.keys().copied().collect();
        let one = self.rng.pick(&numbers);
        match (client.dialect, all, one) {
            (Softs, true, _) => self.net.ask(peer, ClientRequest::Discard),
            (Native, true, _) => self.net.ask(peer, ClientRequest::Cancels { request_id: 1, orders: vec![] }),
            (Softs, false, Some(number)) => {
                client.cancelled.push(number);
                self.net.ask(peer, ClientRequest::Cancel { order_id: &number.to_string() });
                self.receive();
            }
            (Native, false, Some(number)) => {
                let orders = vec![number, number + 1, 1 << 60];
                self.net.ask(peer, ClientRequest::Cancels { request_id: 1, orders });
            }
            (_, false, None) => {}
        }
    }

    fn ready(&mut self) {
        let Some(peer) = self.some_supplier() else { return };
        self.receive();
        let supplier = self.suppliers.get_mut(&peer).unwrap();
        let window = match supplier.dialect {
            Softs => {
                self.net.ready(peer);
                1
            }
            Native => {
                let credit = self.rng.below(6);
                self.net.credit(peer, credit);
                credit as usize
            }
        };
        if supplier.registered {
            supplier.window = window;
        }
    }

    /// A supplier ends some of its leases.
    fn answer(&mut self) {
        self.receive();
        let Some(peer) = self.some_supplier() else { return };
        let supplier = self.suppliers.get_mut(&peer).unwrap();
        let (mut done, mut failed, mut returned) = (vec![], vec![], vec![]);
        let names: Vec<String> = supplier.held.keys().cloned().collect();
        let mut failed_products = vec![];
        for name in names {
            let fate = self.rng.below(10);
            if fate == 9 {
                continue;
            }
            let work = supplier.held.remove(&name).unwrap();
            let product = work.product_id.clone();
            let key = (work.product_id, (work.address, work.offset));
            let success = fate < 6;
            if (6..8).contains(&fate) || (!success && supplier.dialect == Softs) {
                failed_products.push(product);
            } else if success {
                supplier.failures.remove(&product);
            }
            if success {
                *self.written.entry(key).or_default() += 1;
            }
            if supplier.dialect == Softs {
                self.net.done(peer, &name, success);
                continue;
            }
            let lease = name.parse().unwrap();
            match fate {
                0..6 => done.push(lease),
                6..8 => failed.push((lease, "bad luck")),
                _ => returned.push(lease),
            }
        }
        // The broker takes those that are done first.
        for product in failed_products {
            *supplier.failures.entry(product).or_default() += 1;
        }
        if supplier.dialect == Native {
            self.net.dones(peer, &done, &failed, &returned);
        }
        self.net.advance(Duration::from_millis(self.rng.below(20)));
    }

    /// A supplier answers for leases that it does not have.
    fn lie(&mut self) {
        let Some(peer) = self.some_supplier() else { return };
        self.receive();
        let guess = 1 + self.rng.below(self.used_leases.len() as u64 + 10);
        let supplier = &self.suppliers[&peer];
        match supplier.dialect {
            Native if !supplier.held.contains_key(&guess.to_string()) => {
                self.net.dones(peer, &[guess], &[(guess, "no")], &[guess]);
            }
            Softs if !supplier.held.contains_key("1") => self.net.done(peer, "1", true),
            _ => {}
        }
        let of_client = self.some_client().and_then(|client| Some((client, self.clients[&client].nonce?)));
        if let Some((client, nonce)) = of_client
            && self.suppliers[&peer].dialect == Softs
        {
            let id = format!("{nonce:016x}-{guess}");
            if self.suppliers[&peer].held.contains_key(&id) {
                return;
            }
            self.net.done(peer, &id, true);
            let client = self.clients.get_mut(&client).unwrap();
            if !client.open.contains_key(&guess) {
                client.late.push(guess);
            }
        }
    }

    /// Suppliers for everything: all orders end.
    fn finish(mut self) {
        self.receive();
        let helper = self.net.connect(Side::Backend, Native);
        self.net.tell(helper, SupplierRequest::Hello { product_ids: vec![".*"], name: None });
        self.net.credit(helper, 1000);
        let kinds = (0..KINDS).collect();
        let supplier = Supplier {
            dialect: Native,
            kinds,
            registered: true,
            window: 1000,
            held: BTreeMap::new(),
            attachments: lanes::Attachments::default(),
            failures: BTreeMap::new(),
        };
        self.suppliers.insert(helper, supplier);
        let mut turns = 0;
        loop {
            self.receive();
            self.check();
            if self.suppliers.values().all(|supplier| supplier.held.is_empty()) {
                if self.net.broker.poll_timeout().is_none() {
                    break;
                }
                self.net.advance(Duration::from_secs(1));
                continue;
            }
            self.answer();
            turns += 1;
            assert!(turns < 10_000, "it never ends");
        }
        for (peer, client) in &self.clients {
            assert!(client.open.is_empty(), "{peer:?} still waits for {:?}", client.open);
        }
        assert_eq!(self.net.broker.stats().pending_orders, 0);
        let peers: Vec<_> = self.clients.keys().chain(self.suppliers.keys()).copied().collect();
        for peer in peers {
            self.net.kill(peer);
        }
        assert!(self.net.broker.is_empty());
    }
}

#[test]
fn no_random_life_breaks_an_invariant() {
    let mut completed = 0;
    for seed in 0..SEEDS {
        let mut life = Life::new(seed);
        let run = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
            for _ in 0..STEPS {
                life.step();
            }
            let (completed, lost) = (life.completed, life.lost_clients);
            life.finish();
            (completed, lost)
        }));
        let Ok((n, lost)) = run else { panic!("seed {seed}") };
        assert!(n > 0 && lost > 0, "seed {seed} tests nothing");
        completed += n;
    }
    assert!(completed > 100 * SEEDS, "{completed} orders completed");
}
