//! Measuring: `outrider-lab list` and `run`.

mod accuracy;
mod backing;
mod column;
mod device;
mod direct;
mod exec;
mod group;
mod load;
mod machine;
mod needed;
mod progress;
mod record;
mod run;
mod select;
mod store;

pub use run::run;

use serde_json::json;

use crate::cli::ListArgs;
use crate::output::Outcome;
use crate::rows::{Memory, Row};
use crate::size;

/// `outrider-lab list`.
pub fn list(args: &ListArgs) -> Outcome {
    let rows = select::rows(crate::rows::all(), &args.rows)?;
    if args.json {
        let all: Vec<_> = rows.iter().map(described).collect();
        println!("{:#}", json!(all));
        return Ok(());
    }
    let wide = rows.iter().map(|r| r.name.len()).max().unwrap_or(0);
    for row in &rows {
        let short = if row.short.is_empty() {
            "long "
        } else {
            "short"
        };
        let devices = row.devices.join(",");
        let memory = match row.memory {
            Memory::Free => String::new(),
            Memory::Bytes(n) => format!(", memory {}", size::show(n)),
        };
        println!(
            "{:wide$}  {short}  {devices}  {} ({}{memory})",
            row.name,
            row.about,
            size::show(row.data.bytes)
        );
    }
    Ok(())
}

fn described(row: &Row) -> serde_json::Value {
    json!({
        "row": row.name,
        "about": row.about,
        "short": row.short,
        "devices": row.devices,
        "figure": row.point.as_ref().map(|p| p.figure),
        "series": row.point.as_ref().map(|p| &p.series),
        "x": row.point.as_ref().map(|p| &p.x),
        "paper": row.point.as_ref().and_then(|p| p.paper),
        "memory": match row.memory {
            Memory::Free => None,
            Memory::Bytes(n) => Some(n),
        },
        "data": row.data.key,
        "data_bytes": row.data.bytes,
        "hinted": row.work.hinted.is_some(),
        "declared": row.work.declared.is_some(),
        "graph": row.work.graph.is_some(),
        "needs": row.work.needs.iter().map(|(program, _)| program).collect::<Vec<_>>(),
    })
}
