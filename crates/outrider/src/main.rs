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
mod run;
mod signals;
mod tree;
mod warm;

use clap::Parser;

use cli::{Cli, Command, GraphCommand, Mode, RunArgs};
use output::Failure;

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
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return outrider_cli::explain::<Cli>(&error),
    };
    let result = match cli.command {
        Command::Run(args) if cli::is_unknown_flag(&args.command[0]) => {
            Err(Failure::usage(format!(
                "unknown flag {}; accepted are --mode, --engine, --budget, --config, --report, --explain, --record, --remember and --plugin, and -- before a program whose name begins with -",
                output::show(&args.command[0])
            )))
        }
        #[cfg(fast_start)]
        Command::Run(args) if fast_start::has_started() => run::carry_on(args),
        Command::Run(args) => match config::load(args.config.as_deref()) {
            Ok((config, lost)) => run::run(args, config, run::Purpose::Run, lost),
            Err(failure) => Err(failure),
        },
        Command::Graph(GraphCommand::Check(args)) if cli::is_unknown_flag(&args.command[0]) => {
            Err(Failure::usage(format!(
                "unknown flag {}; accepted is --plugin, and -- before a program whose name begins with -",
                output::show(&args.command[0])
            )))
        }
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
