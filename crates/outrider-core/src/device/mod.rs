//! Devices: what a request costs (`model`), where files lie (`layout`), and who else reads from them (`sharing`).

mod bulk;
mod extents;
mod layout;
mod model;
pub(crate) mod sharing;

pub use bulk::{Bulk, Link, ROOM, TRIES};
pub use extents::{Extents, Placement, Stretch};
pub use layout::{Layout, Watch};
pub use model::{AWAY_US, DeviceModel, HALF_SEEK, InFlight, READAHEAD, Seeks, WINDOWS};
pub use sharing::{AHEAD, Sharing};
