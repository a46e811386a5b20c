//! The command line: subcommands, their flags and how mistakes in them are told.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use outrider_cli::size;

/// Makes programs stop waiting for storage.
#[derive(Debug, Parser)]
#[command(
    name = "outrider",
    version,
    about,
    max_term_width = 100,
    // `help` is one of ours, for the list of commands to have it in its place.
    disable_help_subcommand = true
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a program with its reads foreseen.
    ///
    /// So are the reads of the programs that it starts. It ends as the program does: with its exit code, or by the signal that ended it.
    Run(RunArgs),
    /// Run a program without and with its reads foreseen, on cold files, and say what came of it.
    ///
    /// Runs a program once and sees what it reads, makes these files cold, and runs the program as it is and with its reads foreseen, in turn. Then it says
    /// in a sentence what came of it, and why. The program's output is shown once, and its input is /dev/null.
    ///
    /// Nothing is measured, and the exit code is 1, where more than a quarter of what it reads can't be made cold: what waits to be written, what running
    /// programs have mapped, what lies in memory, what can't be seen, being another user's, and what the kernel refuses to drop. So it is if the program was
    /// not seen to read any file, if a signal ends it, and if it ends in different ways. With bad settings, and those by which nothing is foreseen, it is not
    /// run, and the exit code is 2.
    Try(TryArgs),
    /// Have a run that goes on write its report's file now.
    ///
    /// The run is asked by SIGURG with a value, which its program doesn't get; it goes on as ever.
    Report(ReportArgs),
    /// Show how much of files or trees is in the page cache.
    ///
    /// Of a tree of more than 40 files the directories are shown. The map is of blocks where the locale is UTF-8.
    Cached(CachedArgs),
    /// Read files or trees into the page cache, in the order in which they lie on the device.
    ///
    /// Beside others who read from the device, it asks for less at a time. The settings of section `engine` in a configuration file in one of the usual places
    /// hold.
    Warm(WarmArgs),
    /// Drop clean pages of files or trees from the page cache.
    Evict(EvictArgs),
    /// Measure the device under a file or directory and show what the planner will assume.
    Probe(ProbeArgs),
    /// Show what this machine and a program allow, and what is lost by each no.
    Doctor(DoctorArgs),
    /// Look at the foreaction graphs of plug-ins and programs, and check them.
    #[command(subcommand)]
    Graph(GraphCommand),
    /// Look at what jobs are remembered to need (run --remember), and take it elsewhere.
    #[command(subcommand)]
    Profile(ProfileCommand),
    /// Show the flags of a command.
    Help(HelpArgs),
}

/// `outrider help`.
#[derive(Clone, Debug, Args)]
pub struct HelpArgs {
    /// The command, such as `run` or `graph check`.
    #[arg(value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// `outrider try`.
#[derive(Clone, Debug, Args)]
pub struct TryArgs {
    /// How often each way is measured, 1 to 99.
    #[arg(short = 'n', long, value_name = "N", default_value = "3", value_parser = rounds, allow_negative_numbers = true)]
    pub rounds: u32,
    /// The program and its arguments. It is run once to see what it reads, and 2N times more: whatever it changes it changes so often.
    #[arg(
        value_name = "CMD",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub command: Vec<OsString>,
}

/// `outrider report`.
#[derive(Clone, Debug, Args)]
pub struct ReportArgs {
    /// The process of an `outrider run --report=FILE` itself, not that of its program.
    #[arg(value_name = "PID", value_parser = pid, allow_negative_numbers = true)]
    pub pid: i32,
}

fn days(text: &str) -> Result<u32, String> {
    let number = text.parse().ok();
    number.ok_or_else(|| "accepted is a number of days, such as 90".to_owned())
}

fn pid(text: &str) -> Result<i32, String> {
    let number = text.parse().ok().filter(|n| *n > 0);
    number.ok_or_else(|| "accepted is the number of a process".to_owned())
}

fn rounds(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|n| (1..=99).contains(n));
    number.ok_or_else(|| "accepted is a number from 1 to 99".to_owned())
}

/// What `outrider` alone says: what to type, and nothing that a terminal of 80 columns would break.
pub const FIRST_WORDS: &str = "\
outrider makes programs stop waiting for storage. What to type:
  outrider run -- PROGRAM ...           run a program as always, only sooner
  outrider run --report -- PROGRAM ...  and say at its end what that did
  outrider try -- PROGRAM ...           without and with it, on cold files
  outrider doctor PROGRAM               what this machine and a program allow
  outrider cached PATH ...              what of files or trees is in memory
  outrider warm PATH ...                read them into memory
  outrider evict PATH ...               drop them from memory
  outrider help [COMMAND]               all commands, or the flags of one
`man outrider` has the rest.
";

/// `outrider profile`. A NAME with a slash is a file.
#[derive(Debug, Subcommand)]
pub enum ProfileCommand {
    /// List the profiles that there are.
    List(ProfileListArgs),
    /// Show what a job needs, and when.
    Show(ProfileShowArgs),
    /// Say how much of a profile still fits, and what the next run would gain.
    Check(ProfileCheckArgs),
    /// Take what other profiles know into one.
    Merge(ProfileMergeArgs),
    /// Drop from a profile what is gone or hardly ever needed, or remove profiles that nobody has used for long.
    Prune(ProfilePruneArgs),
    /// Write a profile to standard output, in a form for elsewhere.
    Export(ProfileExportArgs),
    /// Take in a profile that was exported with --portable.
    Import(ProfileImportArgs),
}

/// `outrider profile list`.
#[derive(Clone, Debug, Args)]
pub struct ProfileListArgs {
    /// Write JSON.
    #[arg(long)]
    pub json: bool,
}

/// `outrider profile show`.
#[derive(Clone, Debug, Args)]
pub struct ProfileShowArgs {
    /// The profile.
    #[arg(value_name = "NAME")]
    pub name: OsString,
    /// Write JSON.
    #[arg(long, conflicts_with = "svg")]
    pub json: bool,
    /// Draw it, as SVG.
    #[arg(long)]
    pub svg: bool,
}

/// `outrider profile check`.
#[derive(Clone, Debug, Args)]
pub struct ProfileCheckArgs {
    /// The profile.
    #[arg(value_name = "NAME")]
    pub name: OsString,
    /// Write JSON.
    #[arg(long)]
    pub json: bool,
}

/// `outrider profile merge`.
#[derive(Clone, Debug, Args)]
pub struct ProfileMergeArgs {
    /// The profile that is changed, or made.
    #[arg(value_name = "INTO")]
    pub into: OsString,
    /// Profiles that stay as they are.
    #[arg(value_name = "FROM", required = true)]
    pub from: Vec<OsString>,
}

/// `outrider profile prune`.
#[derive(Clone, Debug, Args)]
pub struct ProfilePruneArgs {
    /// The profile.
    #[arg(
        value_name = "NAME",
        required_unless_present = "unused",
        conflicts_with = "unused"
    )]
    pub name: Option<OsString>,
    /// Remove profiles of which no run has made use for so many days.
    #[arg(long, value_name = "DAYS", value_parser = days, allow_negative_numbers = true)]
    pub unused: Option<u32>,
}

/// `outrider profile export`.
#[derive(Clone, Debug, Args)]
#[command(group(clap::ArgGroup::new("form").required(true).args(["portable", "paths", "ranges"])))]
pub struct ProfileExportArgs {
    /// The profile.
    #[arg(value_name = "NAME")]
    pub name: OsString,
    /// A profile with paths below --root, for `outrider profile import`.
    #[arg(long)]
    pub portable: bool,
    /// A list of files in the order of need, a line each.
    #[arg(long)]
    pub paths: bool,
    /// The same with ranges: path, first byte, bytes, separated by tabs.
    #[arg(long)]
    pub ranges: bool,
    /// Only what lies below this directory, relative to it.
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,
}

/// `outrider profile import`.
#[derive(Clone, Debug, Args)]
pub struct ProfileImportArgs {
    /// What export --portable has written.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// How the profile is to be called.
    #[arg(value_name = "NAME")]
    pub name: OsString,
    /// The directory that its paths begin at.
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub root: PathBuf,
}

/// `outrider graph`.
#[derive(Debug, Subcommand)]
pub enum GraphCommand {
    /// Run a program with nothing made ahead, and compare every call that its graphs foresee with what it does.
    ///
    /// Nothing is prefetched either. A table goes to standard error, and what was foreseen and what was done where they differ. The exit code is 1 if a call
    /// with effects would have been made that the program does not make, or if it entered no graph; otherwise it is the program's.
    Check(GraphCheckArgs),
    /// Print the graphs that plug-ins build, in Graphviz's language.
    Show(GraphShowArgs),
}

/// `outrider graph check`.
#[derive(Clone, Debug, Args)]
pub struct GraphCheckArgs {
    /// A plug-in; may be repeated. Without one, the program's own graphs are checked.
    #[arg(long, value_name = "FILE")]
    pub plugin: Vec<PathBuf>,
    /// The program and its arguments.
    #[arg(
        value_name = "CMD",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub command: Vec<OsString>,
}

/// `outrider graph show`.
#[derive(Clone, Debug, Args)]
pub struct GraphShowArgs {
    /// A plug-in; may be repeated.
    #[arg(long, value_name = "FILE", required = true)]
    pub plugin: Vec<PathBuf>,
    /// Print a line for each node instead.
    #[arg(long)]
    pub text: bool,
}

/// What is prefetched, after Table 2 of the CrossPrefetch paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// The kernel alone: the program's own hints are dropped.
    OsOnly,
    /// The kernel and the program's own hints; nothing is predicted.
    AppOnly,
    /// Patterns are recognised and prefetched.
    Predict,
    /// As predict, and aggressively while there is memory.
    #[value(name = "predict+opt")]
    PredictOpt,
    /// Every opened file is fetched as a whole while there is memory.
    #[value(name = "fetchall+opt")]
    FetchallOpt,
}

impl Mode {
    /// The mode's name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::OsOnly => "os-only",
            Self::AppOnly => "app-only",
            Self::Predict => "predict",
            Self::PredictOpt => "predict+opt",
            Self::FetchallOpt => "fetchall+opt",
        }
    }
}

/// How prefetch requests are issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Engine {
    /// The kernel module's calls where it is loaded, and threads otherwise.
    Auto,
    /// Batches through io_uring.
    Uring,
    /// Readahead calls by a pool of up to four threads.
    Threads,
    /// The same by one thread.
    Readahead,
    /// Nothing is issued; everything else happens.
    Noop,
}

impl Engine {
    /// The engine's name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Uring => "uring",
            Self::Threads => "threads",
            Self::Readahead => "readahead",
            Self::Noop => "noop",
        }
    }
}

/// `outrider run`.
#[derive(Clone, Debug, Args)]
pub struct RunArgs {
    /// What is prefetched; predict+opt where nothing else is said.
    #[arg(long, value_enum)]
    pub mode: Option<Mode>,
    /// How requests are issued; auto where nothing else is said.
    ///
    /// Where the kernel refuses io_uring, uring is as threads.
    #[arg(long, value_enum)]
    pub engine: Option<Engine>,
    /// Memory that prefetched and not yet used data may take, such as 512M.
    ///
    /// Bytes without K, M, G or T. A stream has 256K all the same, and declared lists 1M; with less than 4096 bytes, such as 0, nothing is prefetched.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, allow_negative_numbers = true)]
    pub budget: Option<u64>,
    /// Settings, in TOML.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Say at the end what was prefetched, used and wasted; with =FILE write it as JSON, and for a FILE that ends in .prom as
    /// metrics for Prometheus. =- is as without a FILE.
    ///
    /// A sentence and tables go to standard error; report.schema.json has the members of the JSON. If FILE is a named pipe, nobody waits for its reader: he has
    /// to have opened it when the program ends. A report takes the place of what was in FILE at once, with its owner, mode and extended
    /// attributes, and until then that stays; where nothing can take its place, as in a directory where no file may be made, it is overwritten.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    pub report: Option<Option<PathBuf>>,
    /// Write the report's file every so many seconds, too, 1 to 86400.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, allow_negative_numbers = true)]
    pub report_every: Option<u32>,
    /// Write into FILE what was fetched ahead and why, what came of it, and why files were left alone, a line for each decision.
    ///
    /// What goes on alike is one line. EXPLAINED LINES in outrider(1) says what is in them.
    #[arg(long, value_name = "FILE")]
    pub explain: Option<PathBuf>,
    /// Write into FILE all that the service sees and does, from which `outrider-lab replay` drives it again; no directories are run ahead of then.
    ///
    /// That is what programs tell, what the kernel answers, and each request; a replay compares. It has the names of the files that were read. The service begins with nothing known of any device. Processes with other rights are served and not recorded. With --mode os-only
    /// and app-only there is no service: an error, 2.
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Remember what this job reads, and fetch that ahead in its next runs. Without =NAME the name is made of the command and the
    /// directory; a name with a slash is a file.
    ///
    /// A file that can't be written is used and stays as it is; one that is no profile is an error, 2, if it is named with a slash. Without a place for it, or
    /// where it can't be read, the job runs and is not remembered, which is told. Not with --record, nor with --mode os-only and app-only.
    #[arg(long, value_name = "NAME", num_args = 0..=1, require_equals = true)]
    pub remember: Option<Option<OsString>>,
    /// Load a plug-in with foreaction graphs into the program and those that it starts: a file, or the name of one that is
    /// installed, such as du; may be repeated.
    ///
    /// outrider_plugin(3) says how one is written. A file that is no plug-in is an error, 2.
    #[arg(long, value_name = "FILE")]
    pub plugin: Vec<PathBuf>,
    /// The program and its arguments.
    #[arg(
        value_name = "CMD",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub command: Vec<OsString>,
}

impl RunArgs {
    /// A run without reports and limits.
    pub fn bare(mode: Mode, plugin: Vec<PathBuf>, command: Vec<OsString>) -> RunArgs {
        RunArgs {
            mode: Some(mode),
            engine: None,
            budget: None,
            config: None,
            report: None,
            report_every: None,
            explain: None,
            record: None,
            remember: None,
            plugin,
            command,
        }
    }

    /// What is prefetched.
    pub fn mode(&self) -> Mode {
        self.mode.unwrap_or(Mode::PredictOpt)
    }

    /// How requests are issued.
    pub fn engine(&self) -> Engine {
        self.engine.unwrap_or(Engine::Auto)
    }
}

fn seconds(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|n| (1..=86_400).contains(n));
    number.ok_or_else(|| "accepted is a number of seconds from 1 to 86400".to_owned())
}

/// `outrider cached`.
#[derive(Clone, Debug, Args)]
pub struct CachedArgs {
    /// Files or directories.
    #[arg(value_name = "PATH", required = true)]
    pub paths: Vec<PathBuf>,
    /// Write JSON.
    #[arg(long)]
    pub json: bool,
    /// A line for each PATH.
    #[arg(long, conflicts_with_all = ["json", "all"])]
    pub summary: bool,
    /// A line for each file, however many there are. Without it the files of a large tree are summed up by directory.
    #[arg(long)]
    pub all: bool,
}

/// `outrider warm`.
#[derive(Clone, Debug, Args)]
pub struct WarmArgs {
    /// Files or directories.
    #[arg(value_name = "PATH", required_unless_present = "profile")]
    pub paths: Vec<PathBuf>,
    /// Read what a remembered job needs instead.
    #[arg(long, value_name = "NAME", conflicts_with = "paths")]
    pub profile: Option<OsString>,
    /// Stop after this much, such as 512M. Without it: half of the available memory, or 90 % of what the
    /// tightest cgroup limit leaves, whichever is less.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, allow_negative_numbers = true)]
    pub budget: Option<u64>,
    /// Threads that ask the device and wait for it, 1 to 16. How much is on its way is found out, whatever their number.
    #[arg(long, value_name = "N", default_value = "4", value_parser = jobs, allow_negative_numbers = true)]
    pub jobs: u64,
}

fn jobs(text: &str) -> Result<u64, String> {
    let number = text.parse().ok().filter(|n| (1..=16).contains(n));
    number.ok_or_else(|| "accepted is a number from 1 to 16".to_owned())
}

/// `outrider evict`.
#[derive(Clone, Debug, Args)]
pub struct EvictArgs {
    /// Files or directories.
    #[arg(value_name = "PATH", required = true)]
    pub paths: Vec<PathBuf>,
}

/// `outrider probe`.
#[derive(Clone, Debug, Args)]
pub struct ProbeArgs {
    /// A file of at least 1 MiB, or a directory (where a temporary file is made if no large one is found).
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
    /// Write JSON.
    #[arg(long)]
    pub json: bool,
    /// Keep what was measured: `outrider run` begins with it on this file system, instead of with a guess.
    ///
    /// What it sees corrects that.
    #[arg(long)]
    pub save: bool,
}

/// `outrider doctor`.
#[derive(Clone, Debug, Args)]
pub struct DoctorArgs {
    /// A program, looked up in PATH.
    #[arg(value_name = "PROGRAM")]
    pub program: Option<PathBuf>,
    /// A file or directory, of whose file system is told what it allows. Without it: the current directory.
    #[arg(long, value_name = "PATH")]
    pub at: Option<PathBuf>,
    /// Write JSON.
    #[arg(long)]
    pub json: bool,
}

/// Whether what clap took for the program of `run` is a misspelt flag: it begins with a dash and no `--` stands before it.
pub fn is_unknown_flag(program: &OsStr) -> bool {
    let mut given = std::env::args_os().skip_while(|a| a != "--").skip(1);
    program.as_encoded_bytes().starts_with(b"-") && given.next().as_deref() != Some(program)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn names_agree_with_the_command_line() {
        for mode in Mode::value_variants() {
            assert_eq!(mode.to_possible_value().unwrap().get_name(), mode.name());
        }
        for engine in Engine::value_variants() {
            assert_eq!(
                engine.to_possible_value().unwrap().get_name(),
                engine.name()
            );
        }
    }

    #[test]
    fn run_leaves_the_program_its_own_flags() {
        let parse = |args: &[&str]| match Cli::try_parse_from(args).unwrap().command {
            Command::Run(args) => args,
            _ => panic!("not run"),
        };
        let args = parse(&["outrider", "run", "--report", "--", "ls", "--mode", "-x"]);
        assert_eq!(args.report, Some(None));
        assert_eq!(args.command, ["ls", "--mode", "-x"]);
        assert_eq!(
            (args.mode(), args.engine()),
            (Mode::PredictOpt, Engine::Auto)
        );
        let args = parse(&[
            "outrider",
            "run",
            "--report=r.json",
            "--budget",
            "1G",
            "ls",
            "--",
            "-l",
        ]);
        assert_eq!(args.report, Some(Some("r.json".into())));
        assert_eq!(args.budget, Some(1 << 30));
        assert_eq!(args.command, ["ls", "--", "-l"]);
        let args = parse(&["outrider", "run", "--", "--odd", "--", "x"]);
        assert_eq!(args.command, ["--odd", "--", "x"]);
    }
}
