//! How the command speaks: one line per complaint on standard error, and exit codes.

use std::io::{self, Write};

/// Why a subcommand ends: one line for standard error and the exit code.
#[derive(Debug)]
pub struct Failure {
    /// What was wrong and what is accepted.
    pub message: String,
    /// 2 for bad input, 1 for what the machine refused.
    pub code: i32,
}

impl Failure {
    /// Bad input: exit code 2.
    pub fn usage(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            code: 2,
        }
    }

    /// The machine refused: exit code 1.
    pub fn system(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            code: 1,
        }
    }
}

/// What a subcommand returns.
pub type Outcome<T = ()> = Result<T, Failure>;

/// Names what was being done when the machine refused.
pub trait Context<T> {
    /// Turns the error into `what: error`, exit code 1.
    fn doing(self, what: impl std::fmt::Display) -> Outcome<T>;
}

impl<T, E: std::fmt::Display> Context<T> for Result<T, E> {
    fn doing(self, what: impl std::fmt::Display) -> Outcome<T> {
        self.map_err(|e| Failure::system(format!("{what}: {e}")))
    }
}

/// Writes `outrider-lab: message` to standard error, on one line.
pub fn complain(message: &str) {
    let line = message.trim_end().replace('\n', "; ");
    let _ = writeln!(io::stderr(), "outrider-lab: {line}");
}
