//! Round trips of one peer that does nothing else meanwhile, with a broker and without.

use std::os::fd::OwnedFd;
use std::time::Instant;

use softs_proto::Dialect;
use softs_proto::wire::{ClientRequest, ToClient};

use crate::dealer::Dealer;
use crate::json::Object;
use crate::outcome::Outcome;
use crate::peer::{Answerer, RAW_BYTES, hop_in, hop_out};
use crate::placement::Placement;
use crate::times::Times;

/// What is compared is measured in turns, so that whatever else the machine does meets all of it.
const ROUNDS: usize = 5;

/// A broker for each of the [`Placement::turns`].
pub(crate) struct Placed<'a> {
    pub(crate) placement: &'a Placement,
    pub(crate) endpoints: &'a (String, String),
}

/// The same exchange between two peers, directly and through the broker, over all of `turns`.
///
/// `added_to_raw` is the time that the broker adds, in units of the direct exchange:
/// (order through the broker - request and answer over one socket) / request and answer over one socket.
pub(crate) fn report(turns: &[Placed<'_>], dialect: Dialect, trips: usize, out: &mut Object) -> Outcome<()> {
    let trips = trips / ROUNDS;
    let (mut raws, mut requests, mut orders) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        raws.push(mean(turns, |turn| raw(turn.placement, trips))?);
        requests.push(mean(turns, |turn| self::requests(turn, dialect, trips))?);
        orders.push(mean(turns, |turn| self::orders(turn, dialect, trips))?);
    }
    let (raw, order) = (middle(&raws), middle(&orders));
    out.text("placement", turns.first().map_or("none", |turn| turn.placement.name));
    out.times("raw_us", &raw);
    out.times("request_us", &middle(&requests));
    out.times("order_us", &order);
    out.number("added_us", order.p50_us - raw.p50_us);
    out.number("added_to_raw", (order.p50_us - raw.p50_us) / raw.p50_us);
    Ok(())
}

/// The mean over all turns, median and tail each by itself.
fn mean(turns: &[Placed<'_>], measure: impl Fn(&Placed<'_>) -> Outcome<Times>) -> Outcome<Times> {
    let all = turns.iter().map(measure).collect::<Outcome<Vec<_>>>()?;
    let mean = |of: fn(&Times) -> f64| all.iter().map(of).sum::<f64>() / all.len() as f64;
    Ok(Times { p50_us: mean(|times| times.p50_us), p99_us: mean(|times| times.p99_us) })
}

/// The middle of all rounds, median and tail each by itself.
fn middle(rounds: &[Times]) -> Times {
    let middle = |of: fn(&Times) -> f64| {
        let mut values: Vec<_> = rounds.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    Times { p50_us: middle(|times| times.p50_us), p99_us: middle(|times| times.p99_us) }
}

/// Calls `trip` many times and measures each; the first tenth does not count.
fn times(trips: usize, mut trip: impl FnMut() -> Outcome<()>) -> Outcome<Times> {
    let mut all = Vec::with_capacity(trips);
    for _ in 0..trips {
        let start = Instant::now();
        trip()?;
        all.push(start.elapsed());
    }
    let measured = &mut all[trips / 10..];
    measured.sort_unstable();
    let at = |part: f64| measured[((measured.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e6;
    Ok(Times { p50_us: at(0.5), p99_us: at(0.99) })
}

/// There and back between client and supplier over one Unix socket: two hops without a broker.
fn raw(placement: &Placement, trips: usize) -> Outcome<Times> {
    let (other, socket) = Placement::at(&placement.supplier, Answerer::echo)?;
    let socket = OwnedFd::from(socket);
    let times = Placement::at(&placement.client, || {
        let mut bytes = [0; RAW_BYTES];
        times(trips, || {
            hop_out(&socket, &bytes)?;
            if hop_in(&socket, &mut bytes)? { Ok(()) } else { Err("the echo has ended".into()) }
        })
    })?;
    drop(socket);
    other.join()?;
    Ok(times)
}

/// A client asks the broker, which answers: HELLO, the cheapest of questions.
fn requests(turn: &Placed<'_>, dialect: Dialect, trips: usize) -> Outcome<Times> {
    let mut client = Dealer::client(&turn.endpoints.0, dialect)?;
    Placement::at(&turn.placement.client, || {
        times(trips, || {
            client.ask(&ClientRequest::Hello { nonce: None });
            client.flush()?;
            client.answer()
        })
    })
}

/// One order at a time through the broker to a supplier and back: four hops.
pub(crate) fn orders(turn: &Placed<'_>, dialect: Dialect, trips: usize) -> Outcome<Times> {
    let Placed { placement, endpoints } = turn;
    let mut client = Dealer::client(&endpoints.0, dialect)?;
    let supplier = Placement::at(&placement.supplier, || Answerer::supplier(&endpoints.1, dialect, trips))?;
    let times = Placement::at(&placement.client, || {
        let mut order = 0;
        times(trips, || {
            order += 1;
            order_one(&mut client, order)
        })
    })?;
    supplier.join()?;
    Ok(times)
}

fn order_one(client: &mut Dealer, n: u64) -> Outcome<()> {
    let order_id = format!("c1-{n}");
    match client.dialect {
        Dialect::Native => client.ask(&ClientRequest::Orders {
            address: "sl_sync",
            segment_id: 0,
            slot_size: 64,
            product_id: "p",
            orders: vec![(n, 0, 0)],
        }),
        Dialect::Softs => client.ask(&ClientRequest::Order {
            order_id: &order_id,
            product_id: "p",
            address: "sl_sync",
            offset: 0,
        }),
    }
    client.flush()?;
    let mut is_done = false;
    while !is_done {
        client.wait()?;
        client.for_each_message(|message| {
            match message {
                ToClient::Fulfilled { .. } => is_done = true,
                ToClient::Results { done, .. } if done == [n] => is_done = true,
                ToClient::Reply(reply) if reply.ok => {}
                other => return Err(format!("{other:?}").into()),
            }
            Ok(())
        })?;
    }
    Ok(())
}
