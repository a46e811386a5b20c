//! Foreactor's rows on LevelDB: Gets under YCSB (its section 6.3).
//!
//! The paper reads 200 MB in all from a store of about 1 GB; here it is a fifth of 256 MB. Every load runs on a clone
//! that is made anew before each run, because LevelDB writes whenever it opens a store, and moves tables when they
//! were looked at in vain too often.
//!
//! The paper says that a Get makes up to 16 calls of pread, not how its store came to be. Its prototype does
//! (github.com/josehu07/foreactor, realapps/leveldb/scripts/prepare.py, commit 09dec88; what is set of LevelDB is in ycsbcli-src/ycsbcli.cpp beside it):
//! YCSB's keys, which are hashed, are loaded until the store is as large as wanted, and compaction comes to rest; with compaction
//! switched off half a memtable is put on top again and again, until level 0 has twelve tables, at which LevelDB takes no
//! more writes; Gets run with compaction off. Memtable and tables have LevelDB's sizes, 4 and 2 MiB, for every size of values, and there is no filter. So every Get looks into
//! the twelve newest tables first, nearly always in vain. These rows' stores are made that way. The sizes are the
//! script's, so level 0 has 24 MiB here as there, of 256 MiB instead of 1 GB; `small-tables` scales it like the rest. `compacted` is the
//! store as LevelDB leaves it by itself.

use super::{line, load_and_clone};
use crate::output::Outcome;
use crate::rows::words::data;
use crate::rows::{Data, Maker, Row, Workload};

const DRIVER: &str = "{drivers}/outrider-leveldb";
/// The same with LevelDB's source and a foreaction graph for Get.
const WITH_GRAPH: &str = "{drivers}/outrider-leveldb-graph";
/// Bytes of values in a store.
const STORE: u64 = 256 << 20;
/// Bytes of values that the Gets of a run return.
const READ: u64 = STORE / 5;
/// Bytes of a value where the paper does not vary it.
const RECORD: u64 = 1024;
/// YCSB's exponent where the paper does not vary it.
const ZIPF: f64 = 0.99;
/// Bytes of values in each of the twelve tables of level 0: half a memtable of LevelDB's default size, whatever a value's size is.
const LEVEL_0: u64 = 2 << 20;
/// Operations, so that small records do not make a run long, nor large ones short.
const OPS: std::ops::RangeInclusive<u64> = 1000..=6000;

/// The words of the key are records, bytes of a value, and bytes of values in a table of level 0 (0: as compaction leaves it). `base`, which is never
/// changed, and `run`, a clone of it.
fn store(value: u64, level_0: u64) -> Data {
    data(
        &format!("leveldb:{}:{value}:{level_0}", STORE / value),
        2 * STORE,
        make,
    )
}

fn make(maker: &Maker) -> Outcome {
    load_and_clone(maker, "outrider-leveldb", &["--level0", maker.word(2)?])
}

/// A load, of which all but the records' size are YCSB-C's with one client unless said otherwise.
struct Gets {
    value: u64,
    /// Bytes of values in a table of level 0; 0 is a store that is compacted, and goes on being.
    level_0: u64,
    letter: char,
    threads: u64,
    zipf: f64,
    more: &'static str,
}

impl Default for Gets {
    fn default() -> Self {
        Self {
            value: RECORD,
            level_0: LEVEL_0,
            letter: 'c',
            threads: 1,
            zipf: ZIPF,
            more: "",
        }
    }
}

impl Gets {
    fn work(&self) -> Workload {
        let Self {
            value,
            level_0,
            letter,
            threads,
            zipf,
            more,
        } = self;
        let ops = (READ / value).clamp(*OPS.start(), *OPS.end());
        let keys = STORE / value;
        let compaction = if *level_0 == 0 { "on" } else { "off" };
        let run = |driver| {
            line(&format!(
                "{driver} run {{data}}/run --keys {keys} --value {value} --load ycsb-{letter} --ops {ops} \
                 --threads {threads} --zipf {zipf} --compaction {compaction} {more}"
            ))
        };
        Workload {
            reset: Some(line(&format!("{DRIVER} clone {{data}}/base {{data}}/run"))),
            // A table that is mapped is not read.
            graph: more.is_empty().then(|| vec![run(WITH_GRAPH)]),
            ..Workload::one(run(DRIVER))
        }
    }

    fn row(&self, name: String, about: &str, percent: u64) -> Row {
        Row::new(
            name,
            format!("Foreactor {about}"),
            store(self.value, self.level_0),
            self.work(),
        )
        .memory(STORE * percent / 100)
        .on(&["nvme"])
    }
}

/// Fig. 8a, 8b, 9 and 10a to c.
pub fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    // Less than 10 % of the store would not hold the process.
    for percent in [10, 25, 50, 100] {
        // Section 6.4, at 1 KB records: 130.60 to 197.43 MB/s, which is the 34 % less latency of the introduction.
        let paper = (percent == 10).then_some(197.43 / 130.60);
        let mut row = Gets::default()
            .row(
                format!("fa-fig8a-leveldb-memory-{percent}"),
                &format!("Fig. 8a, LevelDB Get, 1 KiB records, memory {percent} % of the data"),
                percent,
            )
            .point("fa-fig8a", "1 KiB records", percent.to_string(), paper);
        row.devices = &["nvme", "remote"];
        if percent == 10 {
            row.short = &["nvme"];
        }
        rows.push(row);
    }
    // Not in the paper: other shapes of the store.
    for (level_0, name, about) in [
        (LEVEL_0 / 4, "small-tables", "tables of level 0 scaled too"),
        (0, "compacted", "a store that is compacted"),
    ] {
        let gets = Gets {
            level_0,
            ..Gets::default()
        };
        let mut row = gets
            .row(
                format!("fa-fig8a-leveldb-{name}-10"),
                &format!("Fig. 8a, LevelDB Get, {about}, memory 10 % of the data"),
                10,
            )
            .point("fa-fig8a", name, "10", None);
        row.devices = &["nvme", "remote"];
        rows.push(row);
    }
    for value in [256, 1024, 4096, 16_384, 65_536] {
        rows.push(
            Gets {
                value,
                ..Gets::default()
            }
            .row(
                format!("fa-fig8b-leveldb-value-{value}"),
                &format!("Fig. 8b, LevelDB Get, records of {value} bytes, memory 10 % of the data"),
                10,
            )
            .point("fa-fig8b", "memory 10 %", value.to_string(), None),
        );
    }
    // Figure 9 is the grid of both; its corners beside those above.
    for (value, percent) in [(256, 100), (4096, 50), (16_384, 50), (65_536, 100)] {
        rows.push(
            Gets {
                value,
                ..Gets::default()
            }
            .row(
                format!("fa-fig9-leveldb-{value}-{percent}"),
                &format!(
                    "Fig. 9, LevelDB Get, records of {value} bytes, memory {percent} % of the data"
                ),
                percent,
            )
            .point(
                "fa-fig9",
                format!("memory {percent} %"),
                value.to_string(),
                None,
            ),
        );
    }
    for threads in [1, 4, 16] {
        rows.push(
            Gets {
                threads,
                ..Gets::default()
            }
            .row(
                format!("fa-fig10a-leveldb-threads-{threads}"),
                &format!("Fig. 10a, LevelDB Get, clients: {threads}, memory 10 % of the data"),
                10,
            )
            .point("fa-fig10a", "YCSB C", threads.to_string(), None),
        );
    }
    for letter in ['a', 'b', 'c'] {
        rows.push(
            Gets {
                letter,
                // Writes need compaction.
                level_0: if letter == 'c' { LEVEL_0 } else { 0 },
                ..Gets::default()
            }
            .row(
                format!("fa-fig10b-leveldb-ycsb-{letter}"),
                &format!(
                    "Fig. 10b, LevelDB under YCSB {}, memory 10 % of the data",
                    letter.to_ascii_uppercase()
                ),
                10,
            )
            .point("fa-fig10b", "one client", letter.to_string(), None),
        );
    }
    for zipf in [0.5, 0.75, 0.99, 1.2] {
        rows.push(
            Gets {
                zipf,
                ..Gets::default()
            }
            .row(
                format!("fa-fig10c-leveldb-zipf-{zipf}"),
                &format!("Fig. 10c, LevelDB Get, Zipf exponent {zipf}, memory 10 % of the data"),
                10,
            )
            .point("fa-fig10c", "YCSB C", zipf.to_string(), None),
        );
    }
    // Not in the paper: LevelDB as it comes maps its tables.
    rows.push(
        Gets {
            more: "--io mmap",
            ..Gets::default()
        }
        .row(
            "fa-fig8a-leveldb-mapped-10".to_owned(),
            "Fig. 8a, but LevelDB maps its tables as it does by default, memory 10 % of the data",
            10,
        )
        .point("fa-fig8a", "mapped", "10", None),
    );
    rows
}
