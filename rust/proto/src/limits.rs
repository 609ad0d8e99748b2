//! Bounds on what a peer may send or cause this end to hold (`docs/wire.md`, section 1).

use std::time::Duration;

/// Bytes of one frame.
pub const MAX_FRAME_BYTES: usize = 1 << 20;
/// Bytes of one message, all its frames together.
pub const MAX_MESSAGE_BYTES: usize = 1 << 20;
/// Frames of one message.
pub const MAX_FRAMES: usize = 16;
/// Bytes of one ZMTP command.
pub const MAX_COMMAND_BYTES: usize = 64 << 10;
/// Bytes of the context of a PING.
pub const MAX_PING_CONTEXT_BYTES: usize = 16;
/// Time a peer has for greeting and READY.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes that may wait for a peer that does not read.
pub const MAX_UNSENT_BYTES: usize = 64 << 20;
/// Orders that one client may have open at the broker.
pub const MAX_ORDERS_PER_CLIENT: usize = 65_536;
/// Bytes of a product id, an order id or an address.
pub const MAX_ID_BYTES: usize = 1024;
/// Patterns of one supplier.
pub const MAX_PATTERNS: usize = 4096;
/// Leases that one supplier may hold.
pub const MAX_CREDIT: u32 = 1024;
/// Bytes of an error text; longer ones are cut.
pub const MAX_ERROR_TEXT_BYTES: usize = 8 << 10;
/// Products that one client may announce.
pub const MAX_ANNOUNCED: usize = 64;
/// Lanes that one supplier serves.
pub const MAX_LANES_PER_SUPPLIER: usize = 4096;
/// Clients, and suppliers, of the statistics in detail.
pub const MAX_DETAIL_PEERS: usize = 256;
/// Patterns of one supplier in the statistics in detail.
pub const MAX_DETAIL_PATTERNS: usize = 8;
/// Orders of absent clients that a broker keeps for LATE.
pub const MAX_LATE_ORDERS: usize = 4096;
/// Those of one client.
pub const MAX_LATE_ORDERS_PER_CLIENT: usize = 1024;
/// Products of the statistics in detail.
pub const MAX_DETAIL_PRODUCTS: usize = 256;
/// Bytes of the configuration of a model, as msgpack: what a frame holds, less the rest of the message.
pub const MAX_MODEL_CFG_BYTES: usize = MAX_FRAME_BYTES - (4 << 10);
/// Students that hold a seat at the control channel.
pub const MAX_STUDENTS: usize = 4096;
/// Links to other hosts at one control channel.
pub const MAX_LINKS: usize = 64;
/// Bytes of answers that may wait for a peer of the control channel that does not read.
pub const MAX_UNSENT_CONTROL_BYTES: usize = 8 << 20;
/// The highest number of a model; it fits into 64 signed bits with room to count on.
pub const MAX_GENERATION: u64 = 1 << 62;
/// Hosts with which one host may have links.
pub const MAX_LINKED_HOSTS: usize = 4096;
/// Connections of links that were accepted and have not ended their handshake.
pub const MAX_LINK_HANDSHAKES: usize = 4096;
/// Those of one address.
pub const MAX_LINK_HANDSHAKES_PER_ADDRESS: usize = 64;
/// Connections of one session between two hosts.
pub const MAX_LINK_CONNECTIONS: u32 = 4;
/// Bytes of the slots of a product that another host may order: 1 TiB.
pub const MAX_BRIDGED_BYTES: u64 = 1 << 40;
/// Ragged tensors of a sample that another host may order.
pub const MAX_RAGGED_TENSORS: usize = 128;
/// Products of one host that others may order: each has memory of its own.
pub const MAX_BRIDGED_PRODUCTS: usize = 256;
/// Bridges of one session at once.
pub const MAX_BRIDGES: usize = 4096;
/// Orders that a host may want of another one and has no answer to, of one bridge.
pub const MAX_WANTED: usize = 65_536;
/// Entries of one WANT, CANCEL or RETURN.
pub const MAX_TAGS: usize = 16_384;
/// Bytes of frames of a link, other than samples, that are made before the socket takes them; at least one frame is.
pub const MAX_UNSENT_FRAMES: usize = 64 << 10;
/// Bytes of a sample in one frame of a link.
pub const MAX_PIECE_BYTES: usize = 256 << 10;
