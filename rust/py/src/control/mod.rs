//! `_core.ControlServer`, `_core.ControlStudent`, `_core.ControlSubscriber`.

mod server;
mod student;
mod subscriber;

pub(crate) use server::ControlServer;
pub(crate) use student::ControlStudent;
pub(crate) use subscriber::ControlSubscriber;
