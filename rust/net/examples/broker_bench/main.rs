//! Measures a broker: orders per second, round trips, growth, memory, idle cost. One JSON object on standard output.
//!
//! ```text
//! broker_bench [--quick]                        our broker, in a process of its own
//! broker_bench [--quick] --endpoints FRONT BACK FRONT BACK FRONT BACK FRONT BACK
//!                                               another broker that speaks the softs dialect, with the same load; one
//!                                               fresh broker for each of its measurements: 1, 8, 32 clients, round trips
//! broker_bench --broker FRONT BACK               only a broker: prints its endpoints, stops when standard input ends
//! broker_bench --echo                            only the other end of a raw round trip, over the socket that is its input
//! broker_bench --supplier BACK DIALECT ORDERS    only a supplier, which leaves after so many orders
//! ```
//!
//! Round trips (`round_trip_*`) are made between processes that are bound to a core each, or all to one where this
//! process is bound to one (`taskset -c 3 broker_bench`); their `added_to_raw` is defined at [`sync::report`].

mod child;
mod dealer;
mod json;
mod load;
mod outcome;
mod peer;
mod placement;
mod sync;
mod times;
mod waiting;

use std::io::{Read, Write};
use std::time::Duration;

use child::Child;
use json::Object;
use load::{Load, Parties};
use outcome::{Failure, Outcome};
use placement::Placement;
use softs_net::{BrokerHandle, BrokerOptions};
use softs_proto::Dialect::{self, Native, Softs};
use softs_proto::broker::Config;
use sync::Placed;

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let after = |name: &str| arguments.iter().position(|argument| argument == name);
    let two = |at: usize| match &arguments[at + 1..] {
        [front, back, ..] => Ok((front.clone(), back.clone())),
        _ => Err(Failure::from("two endpoints belong behind the option")),
    };
    if let Some(at) = after("--broker") {
        let (front, back) = two(at)?;
        return be_a_broker(&front, &back);
    }
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--echo"] => return peer::be_an_echo(),
        ["--supplier", endpoint, dialect, orders] => return peer::be_a_supplier(endpoint, dialect, orders),
        _ => {}
    }
    let plan = Plan::new(after("--quick").is_some());
    let mut report = Object::new();
    report.number("cores", std::thread::available_parallelism()?.get() as f64);
    report.text("length", if plan.is_quick { "quick" } else { "full" });
    match after("--endpoints") {
        Some(at) => {
            let pairs = [two(at)?, two(at + 2)?, two(at + 4)?, two(at + 6)?];
            plan.measure_other(&pairs, &mut report)?;
        }
        None => plan.measure_ours(&mut report)?,
    }
    writeln!(std::io::stdout(), "{report}")?;
    Ok(())
}

fn be_a_broker(front: &str, back: &str) -> Outcome<()> {
    let config = Config { max_queue_per_product: 1_000_000, ..Config::default() };
    let mut options = BrokerOptions::new(front.parse()?, back.parse()?, config);
    options.allow_remote = true;
    let broker = BrokerHandle::start(options)?;
    let (front, back) = broker.endpoints();
    writeln!(std::io::stdout(), "{front} {back}")?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// How long and how large everything is.
struct Plan {
    is_quick: bool,
    throughput: Duration,
    trips: usize,
    idle: Duration,
    many: u64,
    idle_clients: usize,
}

impl Plan {
    fn new(is_quick: bool) -> Self {
        let full = |full, quick| if is_quick { quick } else { full };
        Self {
            is_quick,
            throughput: Duration::from_millis(full(3000, 300)),
            trips: full(50_000, 2000) as usize,
            idle: Duration::from_millis(full(5000, 500)),
            many: full(100_000, 10_000),
            idle_clients: full(1000, 100) as usize,
        }
    }

    fn measure_ours(&self, report: &mut Object) -> Outcome<()> {
        report.object("orders_per_s", |out| {
            for (name, client, supplier) in
                [("softs", Softs, Softs), ("softs_to_native", Softs, Native), ("native", Native, Native)]
            {
                out.object(name, |out| {
                    for clients in [1, 8, 32] {
                        let broker = Child::start()?;
                        let load = self.load(&broker.endpoints, (client, clients), (supplier, 8));
                        out.number(&format!("{clients}_clients"), load.orders_per_s()?);
                    }
                    Ok(())
                })?;
            }
            Ok(())
        })?;
        let turns = Placement::turns()?;
        let brokers = turns
            .iter()
            .map(|turn| Placement::at(&turn.broker, Child::start))
            .collect::<Outcome<Vec<_>>>()?;
        let turns: Vec<_> = turns
            .iter()
            .zip(&brokers)
            .map(|(placement, broker)| Placed { placement, endpoints: &broker.endpoints })
            .collect();
        for (name, dialect) in [("round_trip_softs", Softs), ("round_trip_native", Native)] {
            report.object(name, |out| sync::report(&turns, dialect, self.trips, out))?;
        }
        report.object("growth", |out| self.growth(out))?;
        report.object("memory", |out| self.memory(out))?;
        report.object("idle", |out| self.idle(out))
    }

    fn measure_other(&self, endpoints: &[(String, String); 4], report: &mut Object) -> Outcome<()> {
        report.object("orders_per_s", |out| {
            out.object("softs", |out| {
                for (clients, endpoints) in [1, 8, 32].into_iter().zip(endpoints) {
                    let load = self.load(endpoints, (Softs, clients), (Softs, 8));
                    out.number(&format!("{clients}_clients"), load.orders_per_s()?);
                }
                Ok(())
            })
        })?;
        let placements = Placement::turns()?;
        let turns: Vec<_> =
            placements.iter().map(|placement| Placed { placement, endpoints: &endpoints[3] }).collect();
        report.object("round_trip_softs", |out| sync::report(&turns, Softs, self.trips, out))
    }

    fn load<'a>(
        &self,
        endpoints: &'a (String, String),
        (client, n_clients): (Dialect, usize),
        (supplier, n_suppliers): (Dialect, usize),
    ) -> Load<'a> {
        Load {
            endpoints,
            clients: Parties { dialect: client, count: n_clients },
            suppliers: Parties { dialect: supplier, count: n_suppliers },
            window: 64,
            duration: self.throughput,
        }
    }

    /// What a synchronous order and a flood of them cost beside few and many others that wait.
    fn growth(&self, out: &mut Object) -> Outcome<()> {
        let backgrounds =
            [("10_queued", 10, 1), ("many_queued", self.many, 1), ("many_products", self.many, self.many)];
        out.number("many", self.many as f64);
        let placement = Placement::turns()?.swap_remove(0);
        for (name, orders, products) in backgrounds {
            let broker = Placement::at(&placement.broker, Child::start)?;
            let waiting = load::Background::place(&broker.endpoints.0, orders, products)?;
            out.object(name, |out| {
                let turn = Placed { placement: &placement, endpoints: &broker.endpoints };
                out.times("order_us", &sync::orders(&turn, Native, self.trips)?);
                let load = self.load(&broker.endpoints, (Native, 8), (Native, 8));
                out.number("orders_per_s", load.orders_per_s()?);
                Ok(())
            })?;
            drop(waiting);
        }
        Ok(())
    }

    fn memory(&self, out: &mut Object) -> Outcome<()> {
        let broker = Child::start()?;
        let before = broker.rss_bytes()?;
        let clients = load::Background::clients(&broker.endpoints.0, self.idle_clients, 64)?;
        let after = broker.rss_bytes()?;
        out.number("clients", self.idle_clients as f64);
        out.number("orders_each", 64.0);
        out.number("empty_broker_bytes", before as f64);
        out.number("added_bytes", after.saturating_sub(before) as f64);
        out.number("bytes_per_client", after.saturating_sub(before) as f64 / self.idle_clients as f64);
        drop(clients);
        Ok(())
    }

    fn idle(&self, out: &mut Object) -> Outcome<()> {
        let broker = Child::start()?;
        let clients = load::Background::clients(&broker.endpoints.0, self.idle_clients, 1)?;
        // Its last answer may be here before its thread has gone to sleep.
        std::thread::sleep(self.idle / 10);
        let (cpu, switches) = (broker.cpu()?, broker.switches()?);
        std::thread::sleep(self.idle);
        out.number("clients", self.idle_clients as f64);
        out.number("seconds", self.idle.as_secs_f64());
        out.number("cpu_us", (broker.cpu()? - cpu).as_secs_f64() * 1e6);
        out.number("wake_ups", (broker.switches()? - switches) as f64);
        drop(clients);
        Ok(())
    }
}
