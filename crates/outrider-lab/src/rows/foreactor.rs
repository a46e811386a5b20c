//! Foreactor: its figures.

use super::Row;

/// The rows.
pub fn rows() -> Vec<Row> {
    Vec::new()
}
