//! Segments: creation, attaching, access to the slots, names and the sweep.

mod access;
mod allocate;
mod control_block;
mod create;
mod gather;
mod handle;
mod lane_layout;
mod layout;
mod map;
mod names;
mod open;
mod ragged;
mod ragged_layout;
mod slot_lock;
mod sweep;
mod view;

#[cfg(test)]
mod overwrite_tests;
#[cfg(test)]
mod ragged_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod ticket_tests;

#[cfg(all(test, not(feature = "loom")))]
pub(crate) use access::write_all;
#[cfg(not(feature = "loom"))]
pub(crate) use control_block::SEGMENT_ID_AT;
pub use control_block::{LAYOUT_VERSION, MAGIC};
pub use gather::Rows;
pub use handle::Segment;
pub(crate) use lane_layout::MAX_SLOTS;
#[cfg(not(feature = "loom"))]
pub(crate) use lane_layout::{
    CELL_LEN, ERROR_LEN, ERRORS_AT, HEADER_LEN, LANE_LEN, LANES_AT, LaneLayout, N_ERRORS, SUPPLIER_LEN,
    SUPPLIERS_AT,
};
pub use lane_layout::{MAX_SUPPLIERS, MOST_OPEN, N_LANES};
pub use layout::BLOCK_LEN;
#[cfg(not(feature = "loom"))]
pub(crate) use map::Map;
pub use names::Names;
#[cfg(not(feature = "loom"))]
pub(crate) use names::SHM_DIR;
pub use open::AttachPolicy;
pub use ragged::RaggedRows;
pub use ragged_layout::{RaggedLayout, RaggedTensor};
pub use sweep::sweep;
pub use view::SlotView;
