//! Devices: what a request costs (`model`), and where files lie (`layout`).

mod extents;
mod layout;
mod model;

pub use extents::{Extents, Placement};
pub use layout::{Layout, Watch};
pub use model::{AWAY_US, DeviceModel, InFlight, READAHEAD, Seeks};
