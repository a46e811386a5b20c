//! Sources of foresight. Each watches or is told something and says what will be read next; none of them knows
//! how that is fetched.

mod clustered;
pub mod dense;
pub mod mapped;
pub mod predict;
mod skip_sequential;
pub mod tiled;
