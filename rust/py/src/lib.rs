//! `softs_fast._core`: what Python sees of the Rust crates. Converts, drops the GIL, calls; decides nothing.
//! Documented for users in `python/softs_fast/_core.pyi`.

mod ahead;
mod broker;
mod buffer;
mod client;
mod codec;
mod control;
mod errors;
mod lane_stats;
mod log;
mod process;
mod segment;
mod stats;
mod supplier;
mod tcp_medium;
mod viewer;
mod word;

use pyo3::prelude::*;

/// The native half of softs-fast.
#[pymodule(gil_used = false)]
mod _core {
    #[pymodule_export]
    use crate::ahead::Ahead;
    #[pymodule_export]
    use crate::broker::Broker;
    #[pymodule_export]
    use crate::buffer::Lease;
    #[pymodule_export]
    use crate::client::Client;
    #[pymodule_export]
    use crate::codec::{Codec, TopK};
    #[pymodule_export]
    use crate::control::{ControlServer, ControlStudent, ControlSubscriber};
    #[pymodule_export]
    use crate::lane_stats::lane_stats;
    #[pymodule_export]
    use crate::segment::{Segment, sweep};
    #[pymodule_export]
    use crate::supplier::Supplier;
    #[pymodule_export]
    use crate::tcp_medium::{TcpMediumServer, TcpMediumWriter};
    #[pymodule_export]
    use crate::viewer::Viewer;
    #[pymodule_export]
    use crate::word::{count_change, wake};

    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
