//! Round trips of one peer that does nothing else meanwhile.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use softs_proto::Dialect;
use softs_proto::wire::{ClientRequest, SupplierRequest, ToClient, ToSupplier};

use crate::Outcome;
use crate::dealer::Dealer;

/// Bytes of a message of the raw comparison; an ORDER with its frames has about as many.
const RAW_BYTES: usize = 64;

/// Median and tail of many round trips.
pub(crate) struct Times {
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
}

/// Calls `trip` many times and looks at how long each took; the first tenth does not count.
fn times(trips: usize, mut trip: impl FnMut(u64) -> Outcome<()>) -> Outcome<Times> {
    let mut all = Vec::with_capacity(trips);
    for n in 0..trips {
        let start = Instant::now();
        trip(n as u64)?;
        all.push(start.elapsed());
    }
    let measured = &mut all[trips / 10..];
    measured.sort_unstable();
    let at = |part: f64| measured[((measured.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e6;
    Ok(Times { p50_us: at(0.5), p99_us: at(0.99) })
}

/// There and back between two threads over a Unix socket: two hops without a broker.
pub(crate) fn raw(trips: usize) -> Outcome<Times> {
    let (mut here, mut there) = UnixStream::pair()?;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut bytes = [0; RAW_BYTES];
            while there.read_exact(&mut bytes).is_ok() && there.write_all(&bytes).is_ok() {}
        });
        let mut bytes = [0; RAW_BYTES];
        let times = times(trips, |_| {
            here.write_all(&bytes)?;
            Ok(here.read_exact(&mut bytes)?)
        });
        drop(here);
        times
    })
}

/// A client asks the broker, which answers: HELLO, the cheapest of questions.
pub(crate) fn requests(endpoints: &(String, String), dialect: Dialect, trips: usize) -> Outcome<Times> {
    let mut client = Dealer::client(&endpoints.0, dialect)?;
    times(trips, |_| {
        client.ask(&ClientRequest::Hello);
        client.flush()?;
        client.answer()
    })
}

/// One order at a time through the broker to a supplier and back: four hops.
pub(crate) fn orders(endpoints: &(String, String), dialect: Dialect, trips: usize) -> Outcome<Times> {
    let mut client = Dealer::client(&endpoints.0, dialect)?;
    let mut supplier = Dealer::supplier(&endpoints.1, dialect, 1)?;
    std::thread::scope(|scope| {
        let serving = scope.spawn(move || {
            for _ in 0..trips {
                serve_one(&mut supplier)?;
            }
            supplier.leave()
        });
        let times = times(trips, |n| order_one(&mut client, n + 1))?;
        serving.join().map_err(|_| "the supplier panicked")??;
        Ok(times)
    })
}

fn order_one(client: &mut Dealer, n: u64) -> Outcome<()> {
    match client.dialect {
        Dialect::Native => client.ask(&ClientRequest::Orders {
            address: "sl_sync",
            slot_size: 64,
            product_id: "p",
            orders: vec![(n, 0)],
        }),
        Dialect::Softs => client.ask(&ClientRequest::Order {
            order_id: &format!("{n:032x}"),
            product_id: "p",
            address: "sl_sync",
            offset: 0,
        }),
    }
    client.flush()?;
    let mut is_done = false;
    while !is_done {
        client.hear(true, |said| {
            match said {
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

fn serve_one(supplier: &mut Dealer) -> Outcome<()> {
    let mut lease = None;
    let mut order = None;
    while lease.is_none() && order.is_none() {
        supplier.work(true, |said| {
            match said {
                ToSupplier::Works(groups) => lease = Some(groups[0].leases[0].0),
                ToSupplier::Work { order_id, .. } => order = Some(order_id.to_owned()),
                ToSupplier::Reply(reply) if reply.ok => {}
                other => return Err(format!("{other:?}").into()),
            }
            Ok(())
        })?;
    }
    if let Some(lease) = lease {
        supplier.say(&SupplierRequest::Dones { done: vec![lease], failed: vec![], returned: vec![] });
    }
    if let Some(order) = order {
        supplier.say(&SupplierRequest::Done { order_id: &order, success: true });
        supplier.say(&SupplierRequest::Ready { credit: None });
    }
    supplier.flush()
}
