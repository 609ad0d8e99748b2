//! The link between two hosts, with what `softs_proto::link` leaves to a driver.

pub mod tls;
