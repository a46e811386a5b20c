//! CrossPrefetch's Figure 8b: several instances of Filebench's personalities.
//!
//! The paper runs 16 instances on 160 GB with 80 GB of memory. Here there are 4 or 16 on half a gigabyte in all, with
//! half as much memory.

use super::line;
use crate::output::Outcome;
use crate::rows::make::run;
use crate::rows::words::{WORK, data};
use crate::rows::{Data, Maker, Row, Workload};

/// A personality.
struct Personality {
    name: &'static str,
    /// Files of all instances together.
    files: u64,
    /// Bytes of a file.
    size: u64,
    /// Operations of all instances together; none if it reads everything once.
    ops: Option<u64>,
    /// Whether it writes.
    writes: bool,
}

const PERSONALITIES: [Personality; 4] = [
    Personality {
        name: "seqread",
        files: 16,
        size: 32 << 20,
        ops: None,
        writes: false,
    },
    Personality {
        name: "randread",
        files: 16,
        size: 32 << 20,
        ops: Some(32_000),
        writes: false,
    },
    // Thousands of files; half as many bytes, because each operation appends.
    Personality {
        name: "mongodb",
        files: 8000,
        size: 32 << 10,
        ops: Some(3200),
        writes: true,
    },
    Personality {
        name: "videoserver",
        files: 64,
        size: 8 << 20,
        ops: Some(64),
        writes: true,
    },
];

/// The words of the key are instances, files of an instance and bytes of a file.
fn make(maker: &Maker) -> Outcome {
    for instance in 0..maker.count(0)? {
        let mut command = std::process::Command::new(maker.tools.bin.join("outrider-work"));
        command
            .args(["filebench", "make"])
            .arg(maker.path(&instance.to_string()))
            .args(["--files", maker.word(1)?, "--size", maker.word(2)?])
            .args(["--seed", &(instance + 1).to_string()]);
        run(&mut command)?;
    }
    Ok(())
}

fn files(personality: &Personality, instances: u64) -> Data {
    let Personality { files, size, .. } = personality;
    // What is appended, or written as new videos, is less than is there.
    let bytes = files * size * if personality.writes { 2 } else { 1 };
    // Personalities with the same files share them.
    let key = format!("filebench:{instances}:{}:{size}", files / instances);
    data(&key, bytes + (bytes >> 5), make)
}

fn work(personality: &Personality, instances: u64) -> Workload {
    let name = personality.name;
    let commands = (0..instances).map(|instance| {
        let mut command = line(&format!("{WORK} filebench {name} {{data}}/{instance}"));
        if let Some(ops) = personality.ops {
            let (ops, seed) = (ops / instances, instance + 1);
            command.extend(line(&format!("--ops {ops} --seed {seed}")));
        }
        command
    });
    let mut work = Workload::all(commands.collect());
    if personality.writes {
        let mut reset = line(&format!(
            "{WORK} filebench reset --size {}",
            personality.size
        ));
        reset.extend((0..instances).map(|instance| format!("{{data}}/{instance}")));
        work.reset = Some(reset);
    }
    work
}

/// Each personality with 4 and with 16 instances. The paper's figure gives no numbers over its stock system.
pub fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for instances in [4, 16] {
        for personality in &PERSONALITIES {
            let name = personality.name;
            let bytes = personality.files * personality.size;
            let mut row = Row::new(
                format!("cp-fig8b-{name}-{instances}"),
                format!("CrossPrefetch Fig. 8b, Filebench's {name}, {instances} instances"),
                files(personality, instances),
                work(personality, instances),
            )
            .point("cp-fig8b", format!("{instances} instances"), name, None)
            .memory(bytes / 2)
            .on(&["nvme"]);
            if instances == 4 {
                row.short = &["nvme"];
            }
            rows.push(row);
        }
    }
    rows
}
