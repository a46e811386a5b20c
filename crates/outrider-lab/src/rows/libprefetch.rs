//! libprefetch (USENIX ATC '09): its figures.

use super::Row;

/// The rows.
pub fn rows() -> Vec<Row> {
    Vec::new()
}
