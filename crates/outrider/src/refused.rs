//! What is lost by the system calls that this machine refuses, in words: see `confined`, by which they are asked.

use crate::confined::{self, CALLS, Cost, is_refusal, text};

/// What was found.
#[derive(Debug, Default)]
pub struct Refused {
    /// Why this process has to become the program, if it has.
    pub obstacle: Option<String>,
    /// What is lost, a line each.
    pub notes: Vec<String>,
}

/// `filtered` says that filters of system calls are in force: then what is done otherwise is told, too. This process has one thread.
pub fn ask(filtered: bool, graphs: bool) -> Refused {
    match confined::answers(graphs) {
        Ok(answers) => told(answers, filtered),
        Err(reason) => Refused {
            obstacle: Some(reason),
            notes: Vec::new(),
        },
    }
}

/// What the answers say, errnos in the order of [`CALLS`].
fn told(answers: impl Iterator<Item = i32>, filtered: bool) -> Refused {
    let refused: Vec<_> = CALLS.iter().zip(answers).collect();
    let of = |wanted: Cost| {
        let mut names: Vec<String> = refused
            .iter()
            .filter(|((_, cost, ..), errno)| *cost == wanted && is_refusal(*errno))
            .map(|((name, ..), errno)| format!("{name} ({})", text(*errno)))
            .collect();
        names.dedup();
        (!names.is_empty()).then(|| names.join(", "))
    };
    let service = of(Cost::Service)
        .map(|names| format!("system calls: refused here: {names}; nothing could be prefetched"));
    let part = of(Cost::Part).filter(|_| filtered).map(|names| {
        format!(
            "system calls: refused here: {names}; what needs them was done in other ways or not at all"
        )
    });
    Refused {
        obstacle: of(Cost::Runner).map(|names| format!("system calls are refused here: {names}")),
        notes: service.into_iter().chain(part).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The child comes through all calls, each of which its arguments have fail, or do nothing. Nothing that every kernel has is refused where no filter is in
    /// force. The only test that has a child made.
    #[test]
    fn nothing_is_refused_here() {
        if outrider_sys::seccomp::filters() != Some(0) {
            return;
        }
        let found = ask(false, true);
        assert!(
            found.obstacle.is_none() && found.notes.is_empty(),
            "{found:?}"
        );
        use libc::{EBADF, ECHILD, EFAULT, EINVAL, ERANGE, ESRCH};
        let by_arguments = [0, EBADF, ECHILD, EFAULT, EINVAL, ERANGE, ESRCH];
        for ((name, ..), errno) in CALLS.iter().zip(confined::answers(true).unwrap()) {
            let known = by_arguments.contains(&errno) || is_refusal(errno);
            assert!(known, "{name}: {}", text(errno));
        }
    }

    #[test]
    fn what_is_refused_is_named() {
        let with = |name: &str, errno: i32, filtered: bool| {
            let answers = CALLS
                .iter()
                .map(|(n, ..)| if *n == name { errno } else { 9 });
            told(answers, filtered)
        };
        let found = with("wait4", libc::ENOSYS, false);
        let obstacle = found.obstacle.unwrap();
        assert!(
            obstacle.ends_with("wait4 (Function not implemented)"),
            "{obstacle}"
        );
        let found = with("accept4", libc::EPERM, false);
        assert!(found.obstacle.is_none());
        assert!(found.notes[0].contains("accept4 (Operation not permitted); nothing"));
        assert!(with("statx", libc::EPERM, false).notes.is_empty());
        assert_eq!(with("statx", libc::EPERM, true).notes.len(), 1);
        // One that is asked of in several ways is named once.
        let notes = with("madvise", libc::EPERM, false).notes;
        assert_eq!(notes[0].matches("madvise").count(), 1, "{notes:?}");
        assert!(with("statx", libc::EFAULT, true).notes.is_empty());
    }
}
