//! The other side of a round trip, in a process of its own: an echo without a broker, or a supplier of one order at a
//! time.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use rustix::net::{RecvFlags, SendFlags};
use softs_proto::Dialect;
use softs_proto::wire::{SupplierRequest, ToSupplier};

use crate::dealer::Dealer;
use crate::outcome::Outcome;
use crate::waiting::spin_then_wait;

/// Bytes of a message of the raw comparison; an ORDER with its frames has about as many.
pub(crate) const RAW_BYTES: usize = 64;
/// A process that answers; killed when dropped, if it has not ended by itself.
pub(crate) struct Answerer(Child);

impl Answerer {
    /// Sends back what it gets through the socket.
    pub(crate) fn echo() -> Outcome<(Self, UnixStream)> {
        let (here, there) = UnixStream::pair()?;
        let process = command(&["--echo"])?.stdin(OwnedFd::from(there)).spawn()?;
        Ok((Self(process), here))
    }

    /// Supplies so many orders and leaves.
    pub(crate) fn supplier(endpoint: &str, dialect: Dialect, orders: usize) -> Outcome<Self> {
        let name = match dialect {
            Dialect::Native => "native",
            Dialect::Softs => "softs",
        };
        let mut process = command(&["--supplier", endpoint, name, &orders.to_string()])?.spawn()?;
        let output = process.stdout.take().ok_or("no standard output")?;
        let this = Self(process);
        match BufReader::new(output).read_line(&mut String::new())? {
            0 => Err("the supplier did not start".into()),
            _ => Ok(this),
        }
    }

    /// Waits until it has ended by itself.
    pub(crate) fn join(mut self) -> Outcome<()> {
        let status = self.0.wait()?;
        if status.success() { Ok(()) } else { Err(format!("the other side ended with {status}").into()) }
    }
}

impl Drop for Answerer {
    fn drop(&mut self) {
        // Both fail only when it has ended before.
        let _killed = self.0.kill();
        let _ended = self.0.wait();
    }
}

fn command(arguments: &[&str]) -> Outcome<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped());
    Ok(command)
}

/// The process of [`Answerer::echo`].
pub(crate) fn be_an_echo() -> Outcome<()> {
    let socket = std::io::stdin().as_fd().try_clone_to_owned()?;
    let mut bytes = [0; RAW_BYTES];
    while hop_in(&socket, &mut bytes)? {
        hop_out(&socket, &bytes)?;
    }
    Ok(())
}

/// The process of [`Answerer::supplier`].
pub(crate) fn be_a_supplier(endpoint: &str, dialect: &str, orders: &str) -> Outcome<()> {
    let dialect = if dialect == "native" { Dialect::Native } else { Dialect::Softs };
    let mut supplier = Dealer::supplier(endpoint, dialect, 1)?;
    writeln!(std::io::stdout(), "ready")?;
    for _ in 0..orders.parse()? {
        serve_one(&mut supplier)?;
    }
    supplier.leave()
}

/// One message of the raw comparison; `false` at the end.
pub(crate) fn hop_in(socket: &OwnedFd, bytes: &mut [u8; RAW_BYTES]) -> Outcome<bool> {
    spin_then_wait(socket.as_fd())?;
    match rustix::net::recv(socket, &mut *bytes, RecvFlags::DONTWAIT)?.0 {
        0 => Ok(false),
        RAW_BYTES => Ok(true),
        n => Err(format!("{n} bytes of {RAW_BYTES}").into()),
    }
}

/// One message of the raw comparison.
pub(crate) fn hop_out(socket: &OwnedFd, bytes: &[u8; RAW_BYTES]) -> Outcome<()> {
    match rustix::net::send(socket, bytes, SendFlags::NOSIGNAL)? {
        RAW_BYTES => Ok(()),
        n => Err(format!("{n} bytes of {RAW_BYTES}").into()),
    }
}

/// Exchanges what a supplier of its dialect does: that of softs waits for the answer to DONE before it is READY again.
fn serve_one(supplier: &mut Dealer) -> Outcome<()> {
    let (mut lease, mut order) = (None, None);
    while lease.is_none() && order.is_none() {
        supplier.wait()?;
        supplier.work(|message| {
            match message {
                ToSupplier::Works(groups) => lease = Some(groups[0].leases[0].0),
                ToSupplier::Work { order_id, .. } => order = Some(order_id.to_owned()),
                other => return Err(format!("{other:?}").into()),
            }
            Ok(())
        })?;
    }
    if let Some(lease) = lease {
        supplier.send(&SupplierRequest::Dones { done: vec![lease], failed: vec![], returned: vec![] });
        supplier.flush()?;
    }
    if let Some(order) = order {
        supplier.send(&SupplierRequest::Done { order_id: &order, success: true });
        supplier.flush()?;
        supplier.answer()?;
        supplier.send(&SupplierRequest::Ready { credit: None });
        supplier.flush()?;
    }
    Ok(())
}
