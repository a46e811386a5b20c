//! RocksDB, LevelDB and other stores under the papers' loads.

use super::Row;

/// The rows.
pub fn rows() -> Vec<Row> {
    Vec::new()
}
