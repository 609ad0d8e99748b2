//! Values of rows between hosts: [`RowServer`] serves those of one segment, [`RowReader`] reads them. What they decide is
//! `softs_proto::flow::rows`.
//!
//! The server has one thread, so a process serves its rows also while its Python computes. A reader has none: it
//! reads in the thread of its caller.

mod reader;
mod server;

pub use reader::RowReader;
pub use server::RowServer;
