//! The link as a client of its broker, for one product that other hosts order: how many suppliers there are, and the
//! lane in which they find the orders.

use std::collections::VecDeque;
use std::sync::Arc;

use super::sample_layout::SampleLayout;
use crate::Dialect;
use crate::client::LaneRef;
use crate::log::{Level, LogRecord};
use crate::wire::{AnnouncedLane, ClientRequest, MediumProfile, Message, NO_LANE, ToClient};

/// A product that a host orders, and that was not ordered before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Its number at this end.
    pub number: u32,
    /// Its name.
    pub product: Arc<str>,
    /// Bytes of its samples.
    pub layout: SampleLayout,
}

/// The state machine. It announces the product without a lane at first, so a product without suppliers takes no memory.
#[derive(Debug)]
pub struct Demand {
    product: Arc<str>,
    medium: MediumProfile,
    nonce: u64,
    /// Where the lane is: address and number of the segment, and the lane in it.
    lane: Option<(Arc<str>, u64, LaneRef)>,
    is_connected: bool,
    due: [bool; 3],
    /// Suppliers that serve the lane, or would serve one.
    n_suppliers: u32,
    log: VecDeque<LogRecord>,
}

const MEDIUM: usize = 0;
const HELLO: usize = 1;
const LANES: usize = 2;

impl Demand {
    /// Not connected. `nonce`: random.
    #[must_use]
    pub fn new(product: Arc<str>, medium: MediumProfile, nonce: u64) -> Self {
        let (lane, log) = (None, VecDeque::new());
        Self { product, medium, nonce, lane, is_connected: false, due: [false; 3], n_suppliers: 0, log }
    }

    /// Suppliers that can make it through a lane, as the broker says.
    #[must_use]
    pub fn n_suppliers(&self) -> u32 {
        self.n_suppliers
    }

    /// Orders are in this lane of a segment from now on.
    pub fn set_lane(&mut self, address: Arc<str>, segment_id: u64, lane: LaneRef) {
        self.lane = Some((address, segment_id, lane));
        self.due[LANES] = self.is_connected;
    }

    /// A connection to a broker is up; one of softs has no lanes.
    pub fn handle_connected(&mut self, dialect: Dialect) {
        self.is_connected = dialect == Dialect::Native;
        self.due = [self.is_connected; 3];
    }

    /// The connection ended. The lane goes on.
    pub fn handle_disconnected(&mut self) {
        self.is_connected = false;
        self.due = [false; 3];
    }

    /// A message of the broker.
    pub fn handle_message(&mut self, frames: &[&[u8]]) {
        match ToClient::decode(frames) {
            Ok(ToClient::Supply(supplies)) => {
                let of_it = supplies.iter().rfind(|supply| supply.product_id == &*self.product);
                if let Some(supply) = of_it {
                    // Without a lane all are counted as suppliers by wire; those of softs serve none.
                    let by_wire = supply.wire_suppliers.saturating_sub(supply.softs_suppliers);
                    self.n_suppliers = supply.lane_suppliers + if self.lane.is_none() { by_wire } else { 0 };
                }
            }
            Ok(ToClient::Reply(reply)) if !reply.ok => {
                self.warn(format!(
                    "the broker refuses the link: {}",
                    reply.error.unwrap_or("no reason given")
                ));
            }
            Ok(_) => {}
            Err(error) => self.warn(format!("message of the broker not understood: {error}")),
        }
    }

    /// Whether there is something to send.
    #[must_use]
    pub fn wants_transmit(&self) -> bool {
        self.due.contains(&true)
    }

    /// Fills `out` with the next message for the broker; `false` when there is none.
    pub fn poll_transmit(&mut self, out: &mut Message) -> bool {
        out.clear();
        let Some(first) = self.due.iter().position(|due| *due) else { return false };
        self.due[first] = false;
        match first {
            MEDIUM => ClientRequest::Medium(self.medium).encode(out),
            HELLO => ClientRequest::Hello { nonce: Some(self.nonce) }.encode(out),
            _ => {
                let (address, segment_id, lane) = match &self.lane {
                    Some((address, segment_id, lane)) => (&**address, *segment_id, *lane),
                    None => ("", 0, LaneRef { index: NO_LANE, generation: 0 }),
                };
                let LaneRef { index: lane, generation } = lane;
                let lanes = vec![AnnouncedLane { product_id: &self.product, lane, generation }];
                ClientRequest::Lanes { address, segment_id, lanes }.encode(out);
            }
        }
        true
    }

    /// The next line of the log.
    pub fn poll_log(&mut self) -> Option<LogRecord> {
        self.log.pop_front()
    }

    fn warn(&mut self, text: String) {
        self.log.push_back(LogRecord { level: Level::Warning, text });
    }
}
