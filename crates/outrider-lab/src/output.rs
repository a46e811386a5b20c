//! How the command speaks: one line per complaint on standard error, and exit codes.

pub use outrider_cli::{Context, Failure, Outcome};

/// Writes `outrider-lab: message` to standard error, on one line.
pub fn complain(message: &str) {
    outrider_cli::complain("outrider-lab", message);
}
