//! `outrider-lab replay`: a service driven from recordings.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use outrider_cli::shown;
use outrider_core::config::Config;
use outrider_core::service::record::Recording;

use crate::output::{Context, Failure, Outcome};

/// Replays all of these files, and tells what came of each. Fails with exit code 1 if a service did something else than in one of them.
pub fn replay(files: &[PathBuf]) -> Outcome {
    let mut differ = 0;
    for file in files {
        let (recording, config) = read(file)?;
        let name = shown::line(file.as_os_str().as_bytes());
        match recording.replay(config).doing("a replay can't begin")? {
            Ok(alike) => println!(
                "{name}: as recorded in {} rounds: {} requests, {} words for programs, {} ranges dropped",
                alike.rounds, alike.requests, alike.words, alike.dropped
            ),
            Err(difference) => {
                println!("{name}: {difference}");
                differ += 1;
            }
        }
    }
    match differ {
        0 => Ok(()),
        n => Err(Failure::system(format!(
            "in {n} of {} recordings the service did something else",
            files.len()
        ))),
    }
}

/// A recording, and its service's configuration.
fn read(file: &Path) -> Result<(Recording, Config), Failure> {
    let bad = |why: String| {
        Failure::usage(format!(
            "{}: {why}",
            shown::line(file.as_os_str().as_bytes())
        ))
    };
    let text = std::fs::read_to_string(file).map_err(|e| bad(e.to_string()))?;
    let recording = Recording::read(&text).map_err(bad)?;
    let config = toml::from_str(recording.config());
    let config = config.map_err(|e| bad(format!("its configuration: {}", e.message())))?;
    Ok((recording, config))
}
