//! `softs_fast._core`: what Python sees of the Rust crates. Converts, drops the GIL, calls; decides nothing.
//! Documented for users in `python/softs_fast/_core.pyi`.

mod broker;
mod client;
mod control;
mod credentials;
mod errors;
mod flow;
mod link;
mod log;
mod mediums;
mod memory;
mod mesh;
mod process;
mod store;
mod supplier;

use pyo3::prelude::*;

/// The native half of softs-fast.
#[pymodule(gil_used = false)]
mod _core {
    #[pymodule_export]
    use crate::broker::{Broker, Viewer};
    #[pymodule_export]
    use crate::client::{Ahead, Client, GatherPipeline};
    #[pymodule_export]
    use crate::control::{ControlServer, ControlStudent, ControlSubscriber};
    #[pymodule_export]
    use crate::flow::{FlowClient, FlowServer, RowReader, RowServer};
    #[pymodule_export]
    use crate::link::HostLink;
    #[pymodule_export]
    use crate::mediums::lane_stats::lane_stats;
    #[pymodule_export]
    use crate::mediums::segment::{Segment, sweep};
    #[pymodule_export]
    use crate::memory::buffer::Lease;
    #[pymodule_export]
    use crate::memory::codec::{Codec, TopK};
    #[pymodule_export]
    use crate::memory::futex::{count_change, wake};
    #[pymodule_export]
    use crate::memory::ragged::RaggedLayout;
    #[pymodule_export]
    use crate::memory::rows::copy_rows;
    #[pymodule_export]
    use crate::mesh::Mesh;
    #[pymodule_export]
    use crate::process::{end_after, is_alive, is_ours, this_process};
    #[pymodule_export]
    use crate::store::{StoreClient, StoreServer};
    #[pymodule_export]
    use crate::supplier::Supplier;

    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
