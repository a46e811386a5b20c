//! Sources of foresight. Each watches or is told something and says what will be read next; none of them knows
//! how that is fetched.

pub mod dense;
pub mod field;
pub mod mapped;
mod near;
pub mod predict;
mod skip;
