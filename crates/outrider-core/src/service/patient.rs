//! What a program can keep whoever asks waiting for: its page tables and its mappings, which a call of its may hold for as long as a server doesn't answer.
//!
//! Threads of their own ask for that. The service waits for one as long as such an answer takes at most where nothing is wrong. Who keeps it waiting for longer is asked
//! nothing more until that thread is free again.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::mpsc::{Sender, channel, sync_channel};
use std::time::Duration;

use outrider_sys::threads;

/// A look at page tables takes a millisecond at most, and a thread on a busy processor waits some milliseconds for it.
const PATIENCE: Duration = Duration::from_millis(20);
/// Threads that are kept waiting at most. Then nobody is asked anything.
const STUCK: usize = 4;

type Job = Box<dyn FnOnce() + Send>;

/// Asks processes for what they may not tell.
#[derive(Default)]
pub(super) struct Patient {
    /// The thread that isn't kept waiting.
    idle: Option<Sender<Job>>,
    /// By process, whether the thread that it keeps waiting is free again.
    waits: HashMap<u32, Arc<AtomicBool>>,
}

impl Patient {
    /// The answer of process `pid`; `None` where it keeps us waiting.
    pub(super) fn ask<T: Send + 'static>(
        &mut self,
        pid: u32,
        ask: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        self.waits.retain(|_, free| !free.load(Acquire));
        if self.waits.contains_key(&pid) || self.waits.len() >= STUCK {
            return None;
        }
        if self.idle.is_none() {
            self.idle = start();
        }
        // Where no thread can be had there is only this one.
        let Some(idle) = &self.idle else {
            return Some(ask());
        };
        let (tell, told) = sync_channel(1);
        let free = Arc::new(AtomicBool::new(false));
        let is_free = free.clone();
        let job = move || {
            let answer = ask();
            is_free.store(true, Release);
            let _ = tell.send(answer);
        };
        idle.send(Box::new(job)).ok()?;
        let answer = told.recv_timeout(PATIENCE).ok();
        if answer.is_none() {
            self.waits.insert(pid, free);
            // It ends once it is free.
            self.idle = None;
        }
        answer
    }
}

fn start() -> Option<Sender<Job>> {
    let (jobs, given) = channel::<Job>();
    let ours = threads::Own::new();
    let thread = std::thread::Builder::new().name("outrider-looks".into());
    let started = thread.stack_size(STACK).spawn(move || {
        ours.begins();
        for job in given {
            job();
        }
    });
    started.ok().map(|_| jobs)
}

/// Bytes of such a thread's stack: what a look finds lies on it.
const STACK: usize = 256 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    /// Who doesn't answer keeps nobody else waiting, and is asked again once he has.
    #[test]
    fn who_keeps_us_waiting_is_left_alone() {
        let mut patient = Patient::default();
        assert_eq!(patient.ask(1, || 1), Some(1));
        let (answer, answers) = channel::<()>();
        let waits = move || answers.recv().is_ok();
        assert_eq!(patient.ask(2, waits), None);
        assert_eq!(patient.ask(2, || true), None);
        assert_eq!(patient.ask(1, || 3), Some(3));
        answer.send(()).unwrap();
        let asked = (0..1000).find_map(|_| {
            std::thread::sleep(Duration::from_millis(1));
            patient.ask(2, || 4)
        });
        assert_eq!(asked, Some(4));
        // Not more than so many wait.
        let kept: Vec<_> = (10..10 + STUCK as u32)
            .map(|pid| {
                let (answer, answers) = channel::<()>();
                assert_eq!(patient.ask(pid, move || answers.recv().is_ok()), None);
                answer
            })
            .collect();
        assert_eq!(patient.ask(1, || 5), None);
        drop(kept);
        let asked = (0..1000).find_map(|_| {
            std::thread::sleep(Duration::from_millis(1));
            patient.ask(1, || 6)
        });
        assert_eq!(asked, Some(6));
    }
}
