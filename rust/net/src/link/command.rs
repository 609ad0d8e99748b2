//! What the owner of a link tells its thread.

use std::ops::RangeInclusive;

use softs_proto::client::LaneRef;
use softs_proto::link::{HostId, Ticket};
use softs_proto::supplier::LaneId;

use super::egress::Product;
use crate::Endpoint;
use crate::lanes::client::ClientLanes;

/// What the owner tells the thread, which it wakes by the eventfd.
#[derive(Debug)]
pub(super) enum Command {
    Serve {
        product: u32,
        lanes: Box<ClientLanes>,
        lane: LaneRef,
        memory: Product,
        lengths: RangeInclusive<u64>,
    },
    Admit {
        ticket: Ticket,
        host: HostId,
        address: Endpoint,
        product: u32,
    },
    Bring {
        host: HostId,
        address: Endpoint,
        ticket: Ticket,
        lengths: RangeInclusive<u64>,
        slot_size: u64,
        lanes: Vec<LaneId>,
    },
    Drain,
    Stop,
}
