//! The `outrider-lab` command: devices that this machine doesn't have, to measure prefetching on.

mod bench;
mod cli;
mod disk;
mod fuse;
mod mount;
mod output;
mod regret;
mod replay;
mod report;
mod results;
mod rows;
mod simulate;

use outrider_cli::size;

use cli::{Cli, Command};

fn main() {
    // Rust's start-up ignores SIGPIPE; a command whose reader went away should end without a word.
    // SAFETY: no other thread runs yet, and SIG_DFL is always a valid disposition.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    let cli = match outrider_cli::parse::<Cli>() {
        Ok(cli) => cli,
        Err(error) => std::process::exit(outrider_cli::explain::<Cli>(&error)),
    };
    let result = match cli.command {
        Command::Disk(args) => disk::command(args.command),
        Command::Mount(args) => mount::mount(&args),
        Command::List(args) => bench::list(&args),
        Command::Run(args) => bench::run(&args),
        Command::Replay { files } => replay::replay(&files),
        Command::Simulate(args) => simulate::simulate(&args),
        Command::Regret(args) => regret::regret(&args),
        Command::Report { dir } => report::report(&dir),
        Command::Compare { before, after } => report::compare(&before, &after),
    };
    if let Err(failure) = result {
        output::complain(&failure.message);
        std::process::exit(failure.code);
    }
}
