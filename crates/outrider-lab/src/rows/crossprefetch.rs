//! CrossPrefetch (ASPLOS '24): its microbenchmarks.

use super::Row;

/// The rows.
pub fn rows() -> Vec<Row> {
    Vec::new()
}
