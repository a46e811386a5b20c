//! Plain access patterns: the micro-benchmarks that every table of Outrider begins with.

use super::Row;

/// The rows.
pub fn rows() -> Vec<Row> {
    Vec::new()
}
