//! `outrider report`: asks a run that goes on for its report. It takes a signal with a value that no program sends: see [`signals::REQUESTED`].

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::Path;

use crate::cli::ReportArgs;
use crate::output::{Failure, Outcome};
use crate::signals;

/// Runs the subcommand. Exit code 2 where the process is no run that has a file for its report, and 1 where it may not be asked.
pub fn command(args: &ReportArgs) -> Outcome {
    let pid = args.pid;
    let wrong = |what: &str, accepted: &str| {
        Failure::usage(format!("process {pid}: {what}; accepted is {accepted}"))
    };
    let itself = "the PID of `outrider run` itself";
    let place = Path::new("/proc").join(pid.to_string());
    let command = fs::read(place.join("cmdline")).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => wrong("there is none", itself),
        _ => Failure::system(format!("process {pid}: {e}")),
    })?;
    let words: Vec<&[u8]> = command.split(|b| *b == 0).collect();
    let exe = fs::read_link(place.join("exe")).ok();
    let name = exe.as_deref().and_then(Path::file_name);
    // Its file may have been replaced since.
    let ours = ["outrider", "outrider (deleted)"].map(OsStr::new);
    if !name.is_some_and(|name| ours.contains(&name)) || words.get(1) != Some(&&b"run"[..]) {
        return Err(wrong("no run of outrider", itself));
    }
    let variables = fs::read(place.join("environ")).unwrap_or_default();
    let mut variables = variables.split(|b| *b == 0);
    // Behind this word all is the program's.
    let mut flags = words.iter().take_while(|word| **word != b"--");
    let flag = flags.find_map(|word| match word.strip_prefix(b"--report") {
        Some(b"") => Some(&b""[..]),
        Some(rest) => rest.strip_prefix(b"="),
        None => None,
    });
    let file = flag.or_else(|| variables.find_map(|v| v.strip_prefix(b"OUTRIDER_REPORT=")));
    if file.is_none_or(|file| file.is_empty() || file == b"-") {
        return Err(wrong(
            "it has no file for a report",
            "that of an outrider run --report=FILE",
        ));
    }
    let value = libc::sigval {
        sival_ptr: signals::REQUESTED as *mut libc::c_void,
    };
    // SAFETY: sends a number.
    match unsafe { libc::sigqueue(pid, signals::REQUEST, value) } {
        0 => Ok(0),
        _ => Err(Failure::system(format!(
            "process {pid}: {}",
            io::Error::last_os_error()
        ))),
    }
}
