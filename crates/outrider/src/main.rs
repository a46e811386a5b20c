//! The `outrider` command.
//!
//! `main` is the C one: Rust's own start-up ignores SIGPIPE and reopens closed standard streams, and
//! `outrider run` must hand its program the process as it found it. The other subcommands, which have
//! output of their own, set both right for themselves.

#![cfg_attr(not(test), no_main)]

mod cached;
mod cli;
#[cfg(test)]
mod cli_elsewhere;
mod config;
// Nothing begins in a test.
#[cfg_attr(test, allow(dead_code))]
mod confined;
mod doctor;
mod elf;
mod evict;
#[cfg(fast_start)]
mod fast_start;
mod filter;
mod graph;
mod kept;
mod locks;
mod models;
mod output;
mod own_directory;
#[cfg_attr(test, allow(dead_code))]
mod plain;
mod plugin;
mod preload;
mod probe;
mod profile;
mod refused;
mod remember;
mod request;
mod run;
mod settings;
mod signals;
mod tree;
mod trial;
mod warm;

use cli::{Cli, Command, GraphCommand, Mode, RunArgs};
use output::Failure;
use settings::Settled;

// See unwinder.rs, beside the library's build script.
#[cfg(static_unwinder)]
#[link(name = "gcc_eh", kind = "static", modifiers = "-bundle")]
unsafe extern "C" {}

/// The process's entry, called by the C start-up code. Returns the exit code: 0 done, 1 something could
/// not be read, 2 bad input.
#[cfg(not(test))]
#[unsafe(no_mangle)]
extern "C" fn main(argc: i32, argv: *const *const std::ffi::c_char) -> i32 {
    #[cfg(fast_start)]
    let _ = (argc, argv);
    // SAFETY: what the C library's start-up code hands over; no thread runs yet.
    #[cfg(not(fast_start))]
    unsafe {
        unsafe extern "C" {
            static environ: *const plain::Text;
        }
        confined::look(argc as usize, argv.cast(), environ);
    }
    start()
}

#[cfg_attr(test, allow(dead_code))]
fn start() -> i32 {
    if std::env::args_os().len() <= 1 {
        let columns = output::columns(std::io::stderr()).unwrap_or(usize::MAX);
        let words = output::fitted(cli::FIRST_WORDS, columns);
        let _ = std::io::Write::write_all(&mut std::io::stderr(), words.as_bytes());
        return 2;
    }
    let cli = match outrider_cli::parse::<Cli>() {
        Ok(cli) => cli,
        Err(error) => return outrider_cli::explain::<Cli>(&error),
    };
    let result = match cli.command {
        Command::Run(args) if cli::is_unknown_flag(&args.command[0]) => Err(
            outrider_cli::unknown_flag::<Cli>(&["run"], &args.command[0]),
        ),
        #[cfg(fast_start)]
        Command::Run(args) if fast_start::has_started() => run::carry_on(args),
        Command::Run(args) => run_program(args),
        Command::Try(args) if cli::is_unknown_flag(&args.command[0]) => Err(
            outrider_cli::unknown_flag::<Cli>(&["try"], &args.command[0]),
        ),
        Command::Graph(GraphCommand::Check(args)) if cli::is_unknown_flag(&args.command[0]) => Err(
            outrider_cli::unknown_flag::<Cli>(&["graph", "check"], &args.command[0]),
        ),
        Command::Graph(GraphCommand::Check(args)) => {
            let args = RunArgs::bare(Mode::AppOnly, args.plugin, args.command);
            run::run(
                args,
                outrider_core::config::Config::default(),
                run::Purpose::Check,
                None,
            )
        }
        other => {
            take_standard_streams();
            match other {
                Command::Cached(args) => cached::command(&args),
                Command::Warm(args) => warm::command(&args),
                Command::Evict(args) => evict::command(&args),
                Command::Probe(args) => probe::command(&args),
                Command::Doctor(args) => doctor::command(&args),
                Command::Graph(GraphCommand::Show(args)) => graph::show(&args),
                Command::Profile(command) => profile::command(&command),
                Command::Try(args) => trial::command(&args),
                Command::Report(args) => request::command(&args),
                Command::Help(args) => help(&args.command),
                Command::Run(_) | Command::Graph(_) => unreachable!("handled above"),
            }
        }
    };
    match result {
        Ok(code) => code,
        Err(Failure { message, code }) => {
            output::complain(&message);
            code
        }
    }
}

/// `outrider run`, once its settings are found.
fn run_program(mut args: RunArgs) -> output::Outcome {
    // Whoever wants to have the program run as if this weren't there wants no settings, good or bad.
    if run::is_switched_off() {
        return run::run(args, Default::default(), run::Purpose::Run, None);
    }
    run::mishap::outlive(&args.command);
    if let Some(flag) = settings::meant_as_value(&args.command) {
        let file = output::show(&args.command[0]);
        return Err(Failure::usage(format!(
            "{file} is no program; for {flag} to have it as its value, write {flag}={file}"
        )));
    }
    match settings::settle(&mut args)? {
        Settled::Run(config, lost) => run::run(args, *config, run::Purpose::Run, lost),
        Settled::Off => Err(run::become_it(&args.command)),
    }
}

/// `outrider help`: what `--help` of the command says.
fn help(words: &[String]) -> output::Outcome {
    let mut command = outrider_cli::find::<Cli>(words)?;
    outrider_cli::print_help(&mut command)?;
    Ok(0)
}

/// Dies quietly when a reader such as `head` goes away, and keeps files from getting the number of a
/// closed standard stream.
fn take_standard_streams() {
    // SAFETY: no thread runs yet, and SIG_DFL is always a valid disposition.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    for fd in 0..3 {
        // SAFETY: both calls take numbers and a constant string; a descriptor that is closed here has no
        // owner.
        unsafe {
            if libc::fcntl(fd, libc::F_GETFD) == -1 {
                libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
            }
        }
    }
}
