//! Sources of foresight. Each watches or is told something and says what will be read next; none of them knows
//! how that is fetched.
//!
//! Most watch the reads of one descriptor (`recogniser`): streams, lines of tiles and reads that skip have them first ([`Detector`]), and then [`SOURCES`].

mod clustered;
mod counter;
pub mod credit;
pub mod dense;
mod detector;
pub mod mapped;
mod recogniser;
mod skip_sequential;
mod stream;
mod streams;
mod tiled;

pub use detector::Detector;
pub use recogniser::{
    Arrival, Claim, Expected, Foresight, Limits, New, Passed, Read, Recogniser, Source, between,
};
pub use stream::Stream;
pub use streams::Streams;

/// The sources that look at reads of no stream, in order of precedence.
pub const SOURCES: &[New] = &[|| Box::<clustered::Clustered>::default()];
