//! The messages of `docs/wire.md`: msgpack payloads to and from typed values, for both ends of both dialects.
//!
//! Decoding borrows from the frames, checks every length against [`crate::limits`] and allocates only for lists, never
//! more than the frame itself can hold.

mod control;
mod control_encode;
mod control_link;
mod decode;
mod detail;
mod encode;
mod envelope;
mod error;
mod lane_types;
mod lanes;
mod lists;
mod medium_profile;
mod message;
mod pushes;
mod reader;
mod reply;
mod requests;
mod writer;

pub use control::{
    ControlReply, ControlRequest, ControlStats, Follow, ModelRef, NO_MODEL_CFG, Publication, check_model,
};
pub use control_link::LinkedState;
pub use detail::{ClientDetail, Detail, LaneDetail, ProductDetail, SupplierDetail};
pub use error::WireError;
pub use lane_types::{AnnouncedLane, LaneName, LaneOffer, NO_LANE, Supply};
pub use medium_profile::{MediumKind, MediumProfile};
pub use message::Message;
pub use pushes::{EndCode, REFUSED, ToClient, ToSupplier, WorkGroup};
pub use reply::{Diagnosis, Reply, Stats};
pub use requests::{ClientRequest, SupplierRequest};
