//! RocksDB, LevelDB, SQLite, Snappy and Filebench's personalities under the papers' loads.
//!
//! The papers' data sets and memories are scaled down by the same factor, so that their ratio stays, to what a stock
//! run reads from the emulated nvme in one to five seconds.

mod filebench;
mod leveldb;
mod rocksdb;
mod snappy;
mod sqlite;

use super::make::run;
use super::{Maker, Row};
use crate::output::Outcome;

/// All of them.
pub fn rows() -> Vec<Row> {
    [
        rocksdb::rows(),
        filebench::rows(),
        snappy::rows(),
        sqlite::rows(),
        leveldb::rows(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// An argument list from words that blanks separate; none of them has a blank in it.
fn line(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// `1 thread`, `4 threads`.
fn of_threads(n: u64) -> String {
    format!("{n} thread{}", if n == 1 { "" } else { "s" })
}

/// Loads a store of keys and values as the data set's words say (keys, bytes of a value) into `base` with `driver`, and
/// clones it to `run`, which loads may change. `more` are further flags of the driver's.
fn load_and_clone(maker: &Maker, driver: &str, more: &[&str]) -> Outcome {
    let driver = maker.tools.drivers.join(driver);
    run(std::process::Command::new(&driver)
        .arg("load")
        .arg(maker.path("base"))
        .args(["--keys", maker.word(0)?, "--value", maker.word(1)?])
        .args(more))?;
    run(std::process::Command::new(&driver)
        .arg("clone")
        .args([maker.path("base"), maker.path("run")]))
}
