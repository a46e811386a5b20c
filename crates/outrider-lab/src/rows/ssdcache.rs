//! Device-aware readahead for SSD-cached disks: its workloads.

use super::Row;

/// The rows.
pub fn rows() -> Vec<Row> {
    Vec::new()
}
