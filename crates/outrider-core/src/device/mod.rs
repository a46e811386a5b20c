//! Devices: what a request costs (`model`), and which disk of several holds what (`layout`).

mod layout;
mod model;

pub use layout::{Layout, Watch};
pub use model::{AWAY_US, DeviceModel, InFlight, READAHEAD};
