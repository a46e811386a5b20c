//! SPEC B1: what exec(2) keeps and no attribute shows: what is to be done when the process ends.

mod support;

use std::process::{Command, Output};

use support::{fresh, have, outrider, plain_environment, program, skip};

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Adjustments of System V semaphores (SEM_UNDO) are made when the program ends, and not before.
#[test]
fn adjustments_of_semaphores() {
    if !have("ipcmk") || !have("ipcs") {
        return skip("adjustments_of_semaphores", "ipcmk is not installed");
    }
    let dir = fresh("semaphores");
    let made = Command::new("ipcmk").args(["-S", "1"]).output().unwrap();
    let Some(id) = text(&made).split_whitespace().last().map(str::to_owned) else {
        return support::skip_unprivileged("adjustments_of_semaphores", "no semaphores here");
    };
    // The third line from the end is: number, value, waiters for more, for zero, process.
    let value = "ipcs -s -i \"$0\" | awk '$1 == \"0\" { print $2 }'";
    let shown = || {
        let output = Command::new("sh").args(["-c", value, &id]).output();
        text(&output.unwrap())
    };
    let run = |ours: &[&str]| {
        let mut command = Command::new(program("attributes"));
        plain_environment(&mut command, &dir);
        command.args([&format!("undo={id}"), "--"]);
        if !ours.is_empty() {
            command.arg(outrider()).args(ours);
        }
        // In the program, and of what it leaves behind.
        command.args(["sh", "-c", value, &id]).current_dir(&dir);
        let during = text(&command.output().unwrap());
        (during, shown())
    };
    let all: Vec<_> = [&[][..], &["run", "--"], &["run", "--report=r.json", "--"]]
        .into_iter()
        .map(run)
        .collect();
    let _ = Command::new("ipcrm").args(["-s", &id]).status();
    assert_eq!(all[0], ("5\n".into(), "0\n".into()));
    assert!(all.iter().all(|seen| *seen == all[0]), "{all:?}");
}
