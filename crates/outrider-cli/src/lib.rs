//! How the commands speak: one line per complaint on standard error, and exit codes.

use std::ffi::OsStr;
use std::fmt::Display;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser};

pub use outrider_sys::size;

pub mod shown;
pub mod width;

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

/// The command, whose help is as wide as the terminal that it goes to, 100 columns at most; elsewhere its lines aren't broken.
fn sized<C: CommandFactory>() -> clap::Command {
    const WIDEST: usize = 100;
    const UNBROKEN: usize = 0;
    let columns = width::columns(io::stdout());
    C::command().term_width(columns.map_or(UNBROKEN, |n| n.min(WIDEST)))
}

/// The command line, or what is wrong with it, for [`explain`].
pub fn parse<C: Parser>() -> Result<C, clap::Error> {
    let mut matches = sized::<C>().try_get_matches()?;
    C::from_arg_matches_mut(&mut matches).map_err(|e| e.format(&mut C::command()))
}

/// Writes help to standard output: as clap does, or where a line is wider than the terminal, as one with a long usage is, without its styles and broken.
fn print_fitted(
    text: &clap::builder::StyledStr,
    as_it_is: impl FnOnce() -> io::Result<()>,
) -> io::Result<()> {
    let plain = text.to_string();
    match width::columns(io::stdout()) {
        Some(columns) if plain.lines().any(|line| width::of_text(line) > columns) => {
            io::stdout().write_all(width::fitted(&plain, columns).as_bytes())?;
        }
        _ => as_it_is()?,
    }
    io::stdout().flush()
}

/// Writes the help of a command to standard output.
pub fn print_help(command: &mut clap::Command) -> io::Result<()> {
    let text = command.render_help();
    print_fitted(&text, || command.print_help())
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

/// How alike a word and a name have to be (Jaro and Winkler, 0 to 1) for the name to be what was meant. What is typed with two letters
/// exchanged, some left out or too many is, and another word is not.
const ALIKE: f64 = 0.8;

/// What was meant by a word, if one of the names is much like it, for the end of a message.
fn meant(given: &str, names: impl Iterator<Item = impl AsRef<str>>) -> String {
    let given = given.trim_start_matches('-').to_lowercase();
    let alike = names.map(|name| {
        let name = name.as_ref();
        let bare = name.trim_start_matches('-');
        // Of short words one mistake is a large part.
        let one = strsim::osa_distance(&given, bare) == 1 && given.len() > 2;
        let measure = strsim::jaro_winkler(&given, bare);
        (if one { 1.0 } else { measure }, name.to_owned())
    });
    let best = alike.filter(|(measure, _)| *measure > ALIKE);
    let best = best.max_by(|a, b| a.0.total_cmp(&b.0));
    best.map_or(String::new(), |(_, name)| format!(" (is {name} meant?)"))
}

fn flags(command: &clap::Command) -> impl Iterator<Item = String> {
    let flags = command.get_arguments().filter_map(clap::Arg::get_long);
    flags.map(|flag| format!("--{flag}"))
}

/// The command with this name, as words, or which of them names none.
pub fn find<C: CommandFactory>(path: &[String]) -> Outcome<clap::Command> {
    let mut command = sized::<C>();
    command.build();
    let mut name = command.get_name().to_owned();
    for word in path {
        let Some(next) = command.find_subcommand(word) else {
            let names = command.get_subcommands().map(clap::Command::get_name);
            let meant = meant(word, names);
            let accepted = match subcommands(&command).as_str() {
                "" => "no further word".to_owned(),
                names => names.to_owned(),
            };
            let word = shown::text(word.as_bytes());
            return Err(Failure::usage(format!(
                "no command {word}{meant}; `{name}` accepts {accepted}"
            )));
        };
        name = format!("{name} {}", next.get_name());
        command = next.clone();
    }
    Ok(command)
}

/// A word before the program of a command that runs one, which begins with a dash and is none of the command's flags. `path` is the command's name.
pub fn unknown_flag<C: CommandFactory>(path: &[&str], given: &OsStr) -> Failure {
    let path: Vec<String> = path.iter().map(|word| (*word).to_owned()).collect();
    let command = match find::<C>(&path) {
        Ok(command) => command,
        Err(failure) => return failure,
    };
    let all: Vec<String> = flags(&command).filter(|flag| flag != "--help").collect();
    let accepted = match all.as_slice() {
        [one] => format!("is {one}"),
        [first @ .., last] => format!("are {} and {last}", first.join(", ")),
        [] => "is none".to_owned(),
    };
    let shown = shown::text(given.as_bytes());
    let meant = meant(&shown, all.iter());
    Failure::usage(format!(
        "unknown flag {shown}{meant}; accepted {accepted}, and -- before a program whose name begins with -"
    ))
}

/// The flags that a command accepts, and what else.
fn arguments(command: &clap::Command) -> String {
    let mut words: Vec<String> = flags(command).collect();
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
        return match print_fitted(&error.render(), || error.print()) {
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
        let meant = meant(given, flags(&command));
        let message = format!("unexpected argument '{given}'{meant}; `{name}` accepts {accepted}");
        complain(&program, &message);
        return 2;
    }
    // clap's first paragraphs say what was wrong and what is accepted; usage and advice follow.
    let text = error.to_string();
    let mut said = text
        .lines()
        .map(str::trim)
        .take_while(|l| !l.starts_with("Usage:") && !l.starts_with("For more information"))
        // What was meant is said below, by one measure for all kinds of mistakes.
        .filter(|l| !l.is_empty() && !l.starts_with("tip:"))
        .collect::<Vec<_>>()
        .join(" ");
    if error.kind() == ErrorKind::InvalidSubcommand && !text.contains("possible values") {
        said.push_str(&format!(" [`{name}` accepts {}]", subcommands(&command)));
    }
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    match (
        error.get(ContextKind::ValidValue),
        text(ContextKind::InvalidValue),
    ) {
        (Some(ContextValue::Strings(values)), Some(given)) => {
            said.push_str(&meant(given, values.iter().map(String::as_str)));
        }
        _ => {
            if let Some(given) = text(ContextKind::InvalidSubcommand) {
                let names = command.get_subcommands().map(clap::Command::get_name);
                said.push_str(&meant(given, names));
            }
        }
    }
    complain(&program, said.strip_prefix("error: ").unwrap_or(&said));
    2
}
