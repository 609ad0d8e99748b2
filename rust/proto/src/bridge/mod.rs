//! Samples between two hosts (`docs/wire.md`, section 8). A bridge is one product from a teachers' host to a student's.
//!
//! On the student's host an *ingress* claims orders in lanes, as a supplier there does, and wants their samples from the
//! other host by a tag. On the teachers' host the *egress* of the product places them in a lane of its own, as a client
//! there does, and sends what suppliers have written. Bytes of a sample pass through neither: [`Bridges`] says which of
//! them go where.
//!
//! * **N1** An egress is served by suppliers of its host only, an ingress serves clients of its host only. Brokers see to
//!   that ([`crate::wire::MediumKind`]); a host has no link to itself.
//! * **N2** A claim ends once: written, failed, or returned. Those of a session are returned when its connection is
//!   closed, so before the next session begins. A claim is moved in and moved out.
//! * **N3** Tags are of one session; nothing of another connection is taken.
//! * **N4** Bytes are stored only for a tag that a WANT of this session has posted, within the length of its order.
//! * **N5** What a peer can make this end hold is bounded, by the limits in `docs/wire.md`.
//! * **N6** An order keeps its sequence number, whatever host serves it and how often it is tried.
//! * **N7** The pieces of a tag come in order without gaps and have in sum the length of the order; of a sample with ragged
//!   tensors, the one that its own lengths say. Anything else ends the session.
//!
//! Which model a host runs, and which leader it follows, is decided by [`Models`].

mod demand;
mod egress;
mod exchange;
mod host;
mod ingress;
mod message;
mod model_frames;
mod models;
mod output;
mod remote;
mod sample_layout;
mod window;

pub use demand::{Asked, Demand};
pub use host::{Bridges, UNUSED_TIME};
pub use ingress::{Fate, HOLD_TIME, SlotMemory};
pub use message::{Message, Numbers, Offer, PIECE_HEADER_BYTES, piece_header, shape};
pub use models::{Models, VACANCY};
pub use output::{Output, Piece};
pub use sample_layout::{RaggedTensor, SampleLayout};
