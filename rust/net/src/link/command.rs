//! What the owner of a link tells its thread, which it wakes by the eventfd.

#[derive(Debug)]
pub(super) enum Command {
    Drain,
    Stop,
}
