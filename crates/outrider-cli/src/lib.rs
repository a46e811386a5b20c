//! How the commands speak: one line per complaint on standard error, and exit codes.

use std::fmt::Display;
use std::io::{self, Write};

use clap::CommandFactory;
use clap::error::{ContextKind, ContextValue, ErrorKind};

pub use outrider_sys::size;

pub mod shown;

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

impl From<io::Error> for Failure {
    /// What was printed could not be.
    fn from(e: io::Error) -> Self {
        Self::system(format!("standard output: {e}"))
    }
}

/// What a subcommand returns, or why it failed.
pub type Outcome<T = ()> = Result<T, Failure>;

/// Names what was being done when the machine refused.
pub trait Context<T> {
    /// Turns the error into `what: error`, exit code 1.
    fn doing(self, what: impl Display) -> Outcome<T>;
}

impl<T, E: Display> Context<T> for Result<T, E> {
    fn doing(self, what: impl Display) -> Outcome<T> {
        self.map_err(|e| Failure::system(format!("{what}: {e}")))
    }
}

/// Writes `program: message` to standard error, on one line, with nothing in it that a terminal would obey.
pub fn complain(program: &str, message: &str) {
    let line = message.trim_end().replace('\n', "; ");
    let line = shown::line(line.as_bytes());
    let _ = writeln!(io::stderr(), "{program}: {line}");
}

/// The subcommand that the command line names, as far as it names one, and how it is called.
fn named(mut command: clap::Command) -> (clap::Command, String) {
    // With the flags that every command has.
    command.build();
    let mut name = command.get_name().to_owned();
    for word in std::env::args_os().skip(1) {
        let Some(next) = command.find_subcommand(&word) else {
            break;
        };
        name = format!("{name} {}", next.get_name());
        command = next.clone();
    }
    (command, name)
}

/// The subcommands that a command accepts.
fn subcommands(command: &clap::Command) -> String {
    let shown = command.get_subcommands().filter(|c| !c.is_hide_set());
    let names: Vec<&str> = shown.map(clap::Command::get_name).collect();
    names.join(", ")
}

/// The flags that a command accepts, and what else.
fn arguments(command: &clap::Command) -> String {
    let flags = command.get_arguments().filter_map(clap::Arg::get_long);
    let mut words: Vec<String> = flags.map(|flag| format!("--{flag}")).collect();
    words.extend(command.get_positionals().map(ToString::to_string));
    if command.has_subcommands() {
        words.push(subcommands(command));
    }
    words.join(", ")
}

/// Tells about a command line that clap did not accept as a `C`, on one line, and returns the exit code. Help and
/// version are no mistakes: they go to standard output.
pub fn explain<C: CommandFactory>(error: &clap::Error) -> i32 {
    let command = C::command();
    let program = command.get_name().to_owned();
    if matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
    ) {
        return match error.print().and_then(|()| io::stdout().flush()) {
            Ok(()) => 0,
            Err(e) => {
                let failure = Failure::from(e);
                complain(&program, &failure.message);
                failure.code
            }
        };
    }
    let (command, name) = named(command);
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let accepted = subcommands(&command);
        let message = format!("no subcommand given; `{name}` accepts {accepted} (see --help)");
        complain(&program, &message);
        return 2;
    }
    if error.kind() == ErrorKind::UnknownArgument
        && let Some(ContextValue::String(given)) = error.get(ContextKind::InvalidArg)
    {
        let accepted = arguments(&command);
        let message = format!("unexpected argument '{given}'; `{name}` accepts {accepted}");
        complain(&program, &message);
        return 2;
    }
    // clap's first paragraphs say what was wrong and what is accepted; usage and advice follow.
    let text = error.to_string();
    let mut said = text
        .lines()
        .map(str::trim)
        .take_while(|l| !l.starts_with("Usage:") && !l.starts_with("For more information"))
        .filter(|l| !l.is_empty())
        .collect::<Vec<_>>()
        .join(" ");
    if error.kind() == ErrorKind::InvalidSubcommand && !text.contains("possible values") {
        said.push_str(&format!(" [`{name}` accepts {}]", subcommands(&command)));
    }
    complain(&program, said.strip_prefix("error: ").unwrap_or(&said));
    2
}
