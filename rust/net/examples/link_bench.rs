//! The link between two hosts, without delay, plain and with TLS: from a supplier of one broker to a client of another
//! one, beside a bare TCP connection, in turns. All of it runs on this machine: the link has four threads, the
//! connection has two.
//!
//! `link_bench [ROUNDS]` prints one line of JSON: the samples of a second of each way, by size, as medians over rounds.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use softs_net::client::{Client, Slots, Waited, nonce};
use softs_net::link::LinkOptions;
use softs_net::supplier::{Batch, LanePolicy, Options, Supplier, Task};
use softs_net::tls::Credentials;
use softs_net::{BrokerHandle, BrokerOptions, Endpoint, HostLink, SPIN};
use softs_proto::client::Config as ClientConfig;
use softs_proto::supplier::{Config, Weights};
use softs_proto::wire::{MediumKind, MediumProfile};
use softs_shm::{Segment, host_id};

#[path = "../tests/certificates/mod.rs"]
mod certificates;

type Outcome<T> = Result<T, Box<dyn Error>>;

const SIZES: [usize; 4] = [64, 48 << 10, 600_000, 4 << 20];
const ROUNDS: usize = 5;
/// Of one way in one round; the first part of it is not counted.
const TIME: Duration = Duration::from_millis(600);
const WARM_UP: Duration = Duration::from_millis(150);
/// Slots of the client.
const WINDOW_BYTES: usize = 64 << 20;
const MOST_SLOTS: usize = 4096;
const PRODUCT: &str = "p";
const PATIENCE: Duration = Duration::from_secs(10);
/// Orders that one call of the generator serves.
const CALL: Batch = Batch { max: 32, wait: Duration::ZERO };

fn main() -> Outcome<()> {
    let rounds = std::env::args().nth(1).map_or(Ok(ROUNDS), |rounds| rounds.parse())?;
    let mut rates = vec![[const { Vec::new() }; 3]; SIZES.len()];
    for _ in 0..rounds {
        for (rates, size) in rates.iter_mut().zip(SIZES) {
            for (rates, way) in rates.iter_mut().zip([raw, plain_link, tls_link]) {
                rates.push(way(size)?);
            }
        }
    }
    let mut lines = Vec::new();
    for (rates, size) in rates.iter_mut().zip(SIZES) {
        let [raw, link, tls] = rates.each_mut().map(|rates| {
            rates.sort_by(f64::total_cmp);
            rates[rates.len() / 2]
        });
        lines.push(format!("\"{size}\": {{\"raw\": {raw:.0}, \"link\": {link:.0}, \"link_tls\": {tls:.0}}}"));
    }
    writeln!(std::io::stdout(), "{{{}}}", lines.join(", "))?;
    Ok(())
}

/// Samples per second, where `taken` takes some and says how many. What comes before the first ones, and for some time
/// afterwards, is not counted.
fn rate(mut taken: impl FnMut() -> Outcome<u64>) -> Outcome<f64> {
    while taken()? == 0 {}
    let begun = Instant::now();
    let (mut counted_from, mut n) = (None, 0);
    while begun.elapsed() < TIME {
        let more = taken()?;
        match counted_from {
            None if begun.elapsed() >= WARM_UP => counted_from = Some(Instant::now()),
            None => {}
            Some(_) => n += more,
        }
    }
    let counted = counted_from.map_or(TIME, |from| from.elapsed());
    Ok(n as f64 / counted.as_secs_f64())
}

/// A bare connection. Small samples are written many at a time.
fn raw(size: usize) -> Outcome<f64> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut sender = TcpStream::connect(listener.local_addr()?)?;
    let (mut receiver, _) = listener.accept()?;
    sender.set_nodelay(true)?;
    let sending = thread::spawn(move || {
        let unit = size.max(64 << 10);
        let bytes = vec![7; WINDOW_BYTES / unit * unit];
        while bytes.chunks(unit).all(|one| sender.write_all(one).is_ok()) {}
    });
    let unit = size.max(256 << 10);
    let (mut slots, mut n_bytes, mut at) = (vec![0; WINDOW_BYTES / unit * unit], 0, 0);
    let rate = rate(|| {
        let end = (at / unit + 1) * unit;
        let got = receiver.read(&mut slots[at..end])?;
        n_bytes += got;
        at = (at + got) % slots.len();
        let n = n_bytes / size;
        n_bytes %= size;
        Ok(n as u64)
    })?;
    drop(receiver);
    sending.join().map_err(|_| "the sender has failed")?;
    Ok(rate)
}

fn plain_link(size: usize) -> Outcome<f64> {
    link(size, None)
}

fn tls_link(size: usize) -> Outcome<f64> {
    link(size, Some(&certificates::credentials(&[certificates::TOKEN])))
}

fn link(size: usize, credentials: Option<&Credentials>) -> Outcome<f64> {
    let medium = MediumProfile { kind: MediumKind::Shm, host: host_id(), slot_size: size as u64 };
    let (here, there) = (Host::new()?, Host::new()?);
    let far = HostLink::start(there.options(Some("tcp://127.0.0.1:0".parse()?), None), credentials.cloned())?;
    let near = HostLink::start(here.options(None, far.endpoint().cloned()), credentials.cloned())?;

    // It only says that samples are made: what making them costs is not the link's.
    let config = Config { product_ids: vec![PRODUCT.to_owned()], name: String::new(), medium };
    let options =
        Options { lanes: LanePolicy::Shm, slot_size: size as u64, weights: Weights::default(), spin: SPIN };
    let supplier = Arc::new(Supplier::new(there.backend.clone(), config, options)?);
    let making = {
        let supplier = Arc::clone(&supplier);
        thread::spawn(move || {
            while let Some(task) = supplier.next(CALL) {
                match task {
                    Task::Lane(_) => supplier.publish(Ok(())),
                    Task::Wire(_) => supplier.finish(Ok(())),
                }
            }
        })
    };

    let n_slots = (WINDOW_BYTES / size).clamp(8, MOST_SLOTS) as u32;
    let segment = Arc::new(Segment::create_shm(None, size as u64, u64::from(n_slots))?);
    let config = ClientConfig {
        address: segment.address().to_owned(),
        slot_size: size as u64,
        n_slots,
        segment_id: segment.segment_id(),
        medium,
        nonce: nonce()?,
        ..ClientConfig::default()
    };
    let client = Client::new(here.frontend.clone(), config, Slots::in_segment(&segment)?, SPIN);
    let mut slots = Vec::new();
    let rate = rate(|| {
        match client.request_samples(PRODUCT, n_slots as usize / 4, &mut slots, PATIENCE, &mut || false) {
            Waited::Ready(()) => {
                let n = slots.len() as u64;
                client.release_slots(&slots)?;
                slots.clear();
                Ok(n)
            }
            _ => Err("no sample has come".into()),
        }
    })?;
    near.stop();
    far.stop();
    supplier.stop();
    making.join().map_err(|_| "the supplier has failed")?;
    supplier.close();
    client.close();
    segment.unlink()?;
    Ok(rate)
}

/// A host with a broker.
struct Host {
    _broker: BrokerHandle,
    frontend: Endpoint,
    backend: Endpoint,
}

impl Host {
    fn new() -> Outcome<Self> {
        let (frontend, backend) = ("ipc://*".parse()?, "ipc://*".parse()?);
        let broker = BrokerHandle::start(BrokerOptions::new(frontend, backend, Default::default()))?;
        let (frontend, backend) = broker.endpoints();
        Ok(Self { frontend: frontend.parse()?, backend: backend.parse()?, _broker: broker })
    }

    fn options(&self, listen: Option<Endpoint>, connect: Option<Endpoint>) -> LinkOptions {
        let (frontend, backend) = (self.frontend.clone(), self.backend.clone());
        LinkOptions {
            listen,
            connect: Vec::from_iter(connect),
            frontend,
            backend,
            control: None,
            connections: None,
        }
    }
}
