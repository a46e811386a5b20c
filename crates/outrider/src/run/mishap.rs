//! A mistake of ours that stops us doesn't stop the program.

use std::ffi::OsString;
use std::panic;
use std::sync::atomic::Ordering::Acquire;

use outrider_sys::raw;

use super::{PROGRAM, become_it, die_like, set_mask};
use crate::output;
use crate::signals::{ENDED, OVER};

/// Has this process, where it panics, become the program that it has not started yet, or else wait for it and end as it does. Its children are
/// left to end.
pub fn outlive(command: &[OsString]) {
    let (runner, command) = (raw::getpid(), command.to_vec());
    // SAFETY: a set that the call writes; nothing changes.
    let mask = unsafe {
        let mut mask = std::mem::zeroed();
        libc::sigprocmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut mask);
        mask
    };
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if raw::getpid() != runner {
            return usual(info);
        }
        let what = info.to_string().replace('\n', " ");
        let program = PROGRAM.load(Acquire);
        if program == 0 {
            output::complain(&format!(
                "a mistake of its own ({what}): the program runs without Outrider"
            ));
            set_mask(&mask);
            output::complain(&become_it(&command).message);
            // SAFETY: ends this process.
            unsafe { libc::_exit(126) };
        }
        output::complain(&format!(
            "a mistake of its own ({what}): there is no report"
        ));
        die_like(match program {
            OVER => ENDED.load(Acquire),
            _ => wait_for(program),
        });
    }));
}

/// How the program ends.
fn wait_for(program: i32) -> i32 {
    loop {
        let mut status = 0;
        // SAFETY: a place for the status.
        let ended = unsafe { libc::waitpid(program, &raw mut status, 0) };
        let interrupted =
            || std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted;
        if ended == program || ended == -1 && !interrupted() {
            return status;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Release;

    /// What a process ends with that panics once `prepared`.
    fn panicking(prepared: impl FnOnce()) -> i32 {
        // SAFETY: the child only prepares, panics, and executes or ends.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                outlive(&["sh".into(), "-c".into(), "exit 7".into()]);
                prepared();
                let nothing: Vec<u8> = Vec::new();
                let _ = std::hint::black_box(nothing)[0];
                libc::_exit(1);
            }
            let mut status = 0;
            libc::waitpid(child, &raw mut status, 0);
            status
        }
    }

    /// B1: a mistake in the runner stops no program, before it is started or after it.
    #[test]
    fn a_mistake_stops_no_program() {
        const NAME: &str = "run::mishap::tests::a_mistake_stops_no_program";
        const ALONE: &str = "OUTRIDER_TEST_ALONE";
        // Other threads may have locks when a child is forked, which nobody gives back there.
        if std::env::var_os(ALONE).is_none() {
            let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
            alone
                .args(["--exact", NAME, "--test-threads=1"])
                .env(ALONE, "1");
            assert!(alone.status().unwrap().success());
            return;
        }
        assert_eq!(libc::WEXITSTATUS(panicking(|| ())), 7);
        let status = panicking(|| {
            // SAFETY: the child only ends.
            let program = unsafe { libc::fork() };
            if program == 0 {
                // SAFETY: as above.
                unsafe { libc::_exit(9) };
            }
            PROGRAM.store(program, Release);
        });
        assert_eq!(libc::WEXITSTATUS(status), 9);
        let status = panicking(|| {
            ENDED.store(5 << 8, Release);
            PROGRAM.store(OVER, Release);
        });
        assert_eq!(libc::WEXITSTATUS(status), 5);
    }
}
