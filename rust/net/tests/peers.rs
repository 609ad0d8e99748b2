//! Client, supplier and broker over real sockets in one process.
#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use softs_net::client::{Client, Slots, Waited};
use softs_net::supplier::{Batch, Options, Supplier, Task};
use softs_net::{BrokerHandle, BrokerOptions, Endpoint};
use softs_proto::broker::Config as BrokerConfig;
use softs_proto::client::Config as ClientConfig;
use softs_proto::supplier::Config as SupplierConfig;

/// No test waits longer: it hangs.
const WATCHDOG: Duration = Duration::from_secs(20);

struct Market {
    directory: std::path::PathBuf,
    broker: Option<BrokerHandle>,
}

impl Market {
    fn new(name: &str) -> Self {
        let directory = std::env::temp_dir().join(format!("softs-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let mut market = Self { directory, broker: None };
        market.start_broker();
        market
    }

    fn endpoint(&self, side: &str) -> Endpoint {
        format!("ipc://{}/{side}", self.directory.display()).parse().unwrap()
    }

    fn start_broker(&mut self) {
        let options = BrokerOptions::new(self.endpoint("f"), self.endpoint("b"), BrokerConfig::default());
        self.broker = Some(BrokerHandle::start(options).unwrap());
    }

    fn stop_broker(&mut self) {
        self.broker = None;
    }

    fn client(&self, n_slots: u32) -> Client {
        let config =
            ClientConfig { address: "sl_x".into(), slot_size: 8, n_slots, ..ClientConfig::default() };
        Client::new(self.endpoint("f"), config, Slots::default(), softs_net::SPIN)
    }

    fn supplier(&self, call: impl Fn() + Send + 'static) -> Running {
        let config =
            SupplierConfig { product_ids: vec!["p.*".into()], name: "t".into(), ..SupplierConfig::default() };
        let supplier = Arc::new(Supplier::new(self.endpoint("b"), config, Options::default()).unwrap());
        assert!(matches!(supplier.hello(WATCHDOG, &mut || false), Waited::Ready(Ok(_))));
        let calls = Arc::new(AtomicUsize::new(0));
        let thread = std::thread::spawn({
            let (supplier, calls) = (supplier.clone(), calls.clone());
            move || {
                let one = Batch { max: 1, wait: Duration::ZERO };
                while let Some(task) = supplier.next(one) {
                    assert!(matches!(task, Task::Wire(_)), "it serves no lanes");
                    call();
                    calls.fetch_add(1, Ordering::Relaxed);
                    let may_write = supplier.may_write();
                    let result = if may_write { Ok(()) } else { Err("the broker is gone".to_owned()) };
                    supplier.finish(result);
                }
            }
        });
        Running { supplier, calls, thread: Some(thread) }
    }
}

impl Drop for Market {
    fn drop(&mut self) {
        self.broker = None;
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

struct Running {
    supplier: Arc<Supplier>,
    calls: Arc<AtomicUsize>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.supplier.stop();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
        self.supplier.close();
    }
}

fn sample(client: &Client, product: &str) -> u32 {
    match client.request_sample(product, WATCHDOG, &mut || false) {
        Waited::Ready(slot) => slot,
        other => panic!(
            "no sample of {product}: {other:?}, {:?}, {:?}",
            client.connection_error(),
            client.failure(product)
        ),
    }
}

#[test]
fn thousands_of_samples_one_by_one() {
    let market = Market::new("many");
    let (client, supplier) = (market.client(8), market.supplier(|| {}));
    for _ in 0..5000 {
        let slot = sample(&client, "p1");
        client.release_slot(u64::from(slot)).unwrap();
    }
    let calls = supplier.calls.load(Ordering::Relaxed);
    assert!((5000..=5008).contains(&calls), "{calls} calls: ahead by at most the slots");
}

#[test]
fn everything_goes_on_after_the_broker_was_replaced() {
    let mut market = Market::new("restart");
    let (client, _supplier) =
        (market.client(4), market.supplier(|| std::thread::sleep(Duration::from_millis(1))));
    for _ in 0..5 {
        for _ in 0..20 {
            let slot = sample(&client, "p1");
            client.release_slot(u64::from(slot)).unwrap();
        }
        market.stop_broker();
        market.start_broker();
    }
}

#[test]
fn a_long_call_does_not_hold_up_the_orders_of_others() {
    let market = Market::new("long");
    let client = market.client(8);
    let first = market.supplier(|| {});
    // The only supplier gets all orders; while it is stuck, a second one appears and must get what waits behind.
    for _ in 0..200 {
        let slot = sample(&client, "p1");
        client.release_slot(u64::from(slot)).unwrap();
    }
    drop(first);
    let (release, released) = mpsc::channel::<()>();
    let _stuck = market.supplier(move || {
        let _ = released.recv();
    });
    // Ends before the supplier does, which waits for its call.
    let _release = release;
    assert!(matches!(
        client.request_sample("p2", Duration::from_millis(100), &mut || false),
        Waited::TimedOut
    ));
    let _quick = market.supplier(|| {});
    for _ in 0..50 {
        let slot = sample(&client, "p2");
        client.release_slot(u64::from(slot)).unwrap();
    }
}

#[test]
fn a_client_without_broker_times_out_and_says_why() {
    let mut market = Market::new("absent");
    market.stop_broker();
    let client = market.client(1);
    assert_eq!(client.request_sample("p", Duration::from_millis(50), &mut || false), Waited::TimedOut);
    assert!(client.connection_error().unwrap().to_string().contains("no broker at"));
    assert_eq!(client.request_sample("p", WATCHDOG, &mut || true), Waited::Interrupted);
}

#[test]
fn calls_of_many_threads_share_one_client() {
    let market = Market::new("threads");
    let _supplier = market.supplier(|| {});
    let client = market.client(16);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let client = &client;
            scope.spawn(move || {
                let product = format!("p{thread}");
                for _ in 0..200 {
                    let slot = sample(client, &product);
                    client.release_slot(u64::from(slot)).unwrap();
                }
            });
        }
    });
}
