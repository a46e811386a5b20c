//! Reads of files in a pattern: the micro-benchmarks.

use crate::Result;

/// `outrider-work read`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The files.
    #[arg(required = true)]
    files: Vec<std::path::PathBuf>,
}

/// Runs it.
pub fn run(args: &Args) -> Result {
    for file in &args.files {
        std::fs::metadata(file).map_err(|e| crate::Wrong::system(file.display(), e))?;
    }
    crate::figures::Figures::with_room(0).tell(std::time::Duration::ZERO, &[]);
    Ok(())
}
