//! A DEALER as bare as can be, of either dialect: what is measured is the broker, not the driver.

use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use softs_proto::Dialect;
use softs_proto::wire::{ClientRequest, Message, SupplierRequest, ToClient, ToSupplier};
use softs_proto::zmtp::{Codec, Event, Role};

use crate::outcome::{Failure, Outcome};
use crate::waiting::spin_then_wait;

/// The READY command of a libzmq DEALER: without the property that makes a peer a native one.
const SOFTS_READY: &[u8] =
    b"\x04\x29\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x00";

pub(crate) struct Dealer {
    fd: OwnedFd,
    codec: Codec,
    message: Message,
    buffer: Box<[u8]>,
    pub(crate) dialect: Dialect,
}

impl Dealer {
    /// Connects and shakes hands.
    pub(crate) fn connect(endpoint: &str, dialect: Dialect) -> Outcome<Self> {
        let fd: OwnedFd = match endpoint.split_once("://") {
            Some(("ipc", path)) => match path.strip_prefix('@') {
                Some(name) => UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)?.into(),
                None => UnixStream::connect(path)?.into(),
            },
            Some(("tcp", address)) => {
                let stream = TcpStream::connect(address)?;
                stream.set_nodelay(true)?;
                stream.into()
            }
            _ => return Err(format!("{endpoint} is no endpoint").into()),
        };
        let buffer = vec![0; 64 << 10].into_boxed_slice();
        let mut dealer =
            Self { fd, codec: Codec::new(Role::Dealer), message: Message::new(), buffer, dialect };
        dealer.flush()?;
        let mut is_introduced = false;
        loop {
            let is_ready = match dealer.codec.poll()? {
                Some(Event::Ready { .. }) => true,
                Some(_) => return Err("something else before READY".into()),
                None => false,
            };
            if dialect == Dialect::Softs && !is_introduced && !dealer.codec.output().is_empty() {
                dealer.codec.advance_output(dealer.codec.output().len());
                send_all(&dealer.fd, SOFTS_READY)?;
                is_introduced = true;
            }
            dealer.flush()?;
            if is_ready {
                return Ok(dealer);
            }
            dealer.receive(RecvFlags::empty())?;
        }
    }

    /// Connects and sends HELLO as a client.
    pub(crate) fn client(endpoint: &str, dialect: Dialect) -> Outcome<Self> {
        let mut client = Self::connect(endpoint, dialect)?;
        client.ask(&ClientRequest::Hello { nonce: None });
        client.flush()?;
        client.answer()?;
        Ok(client)
    }

    /// Connects, sends HELLO as a supplier of product `p`, and READY for `credit` orders.
    pub(crate) fn supplier(endpoint: &str, dialect: Dialect, credit: u64) -> Outcome<Self> {
        let mut supplier = Self::connect(endpoint, dialect)?;
        supplier.say(&SupplierRequest::Hello { product_ids: vec!["p"], name: None });
        supplier.flush()?;
        supplier.answer()?;
        match dialect {
            Dialect::Native => supplier.say(&SupplierRequest::Ready { credit: Some(credit) }),
            Dialect::Softs => supplier.say(&SupplierRequest::Ready { credit: None }),
        }
        supplier.flush()?;
        Ok(supplier)
    }

    /// Sends GOODBYE and waits until the broker has read it.
    pub(crate) fn leave(&mut self) -> Outcome<()> {
        self.say(&SupplierRequest::Goodbye);
        self.flush()?;
        self.answer()
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Queues a client's request.
    pub(crate) fn ask(&mut self, request: &ClientRequest<'_>) {
        self.message.clear();
        request.encode(&mut self.message);
        self.codec.send(&self.message);
    }

    /// Queues a supplier's request.
    pub(crate) fn say(&mut self, request: &SupplierRequest<'_>) {
        self.message.clear();
        request.encode(&mut self.message);
        self.codec.send(&self.message);
    }

    /// Writes everything, and waits where the broker does not read.
    pub(crate) fn flush(&mut self) -> Outcome<()> {
        while !self.codec.output().is_empty() {
            let n = rustix::net::send(&self.fd, self.codec.output(), SendFlags::NOSIGNAL)?;
            self.codec.advance_output(n);
        }
        Ok(())
    }

    /// Waits for one answer.
    pub(crate) fn answer(&mut self) -> Outcome<()> {
        loop {
            match self.codec.poll()? {
                Some(Event::Message(frames)) => {
                    return match ToClient::decode(frames.as_slice()) {
                        Ok(ToClient::Reply(reply)) if reply.ok => Ok(()),
                        other => Err(format!("expected an answer, got {other:?}").into()),
                    };
                }
                Some(_) => return Err("READY twice".into()),
                None => {
                    self.wait()?;
                    self.read()?;
                }
            }
        }
    }

    /// Waits until the broker has sent something.
    pub(crate) fn wait(&self) -> Outcome<()> {
        spin_then_wait(self.fd.as_fd())
    }

    /// What the broker has sent to this client, if anything; calls `hear` for each message.
    pub(crate) fn hear(&mut self, hear: impl FnMut(ToClient<'_>) -> Outcome<()>) -> Outcome<()> {
        self.read()?;
        let mut hear = hear;
        while let Some(event) = self.codec.poll()? {
            if let Event::Message(frames) = event {
                hear(ToClient::decode(frames.as_slice())?)?;
            }
        }
        Ok(())
    }

    /// As [`Dealer::hear`], for a supplier.
    pub(crate) fn work(&mut self, work: impl FnMut(ToSupplier<'_>) -> Outcome<()>) -> Outcome<()> {
        self.read()?;
        let mut work = work;
        while let Some(event) = self.codec.poll()? {
            if let Event::Message(frames) = event {
                work(ToSupplier::decode(frames.as_slice())?)?;
            }
        }
        Ok(())
    }

    fn read(&mut self) -> Outcome<()> {
        match self.receive(RecvFlags::DONTWAIT) {
            Err(error) if error.downcast_ref() == Some(&Errno::AGAIN) => Ok(()),
            outcome => outcome,
        }
    }

    fn receive(&mut self, flags: RecvFlags) -> Outcome<()> {
        let (n, _) = rustix::net::recv(&self.fd, &mut *self.buffer, flags)?;
        if n == 0 {
            return Err("the broker closed the connection".into());
        }
        self.codec.receive(&self.buffer[..n]);
        Ok(())
    }
}

fn send_all(fd: &OwnedFd, mut bytes: &[u8]) -> Result<(), Failure> {
    while !bytes.is_empty() {
        let n = rustix::net::send(fd, bytes, SendFlags::NOSIGNAL)?;
        bytes = &bytes[n..];
    }
    Ok(())
}
