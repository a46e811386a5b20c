//! Outrider's pipeline, in the order that data takes: sources foresee, the view knows what is cached, place
//! knows devices, budget grants memory, plan decides, the engine issues, account tells what became of it.

pub mod asked;
pub mod board;
pub mod budget;
pub mod clock;
pub mod config;
pub mod declare;
pub mod device;
pub mod engine;
pub mod exclude;
pub mod explain;
pub mod fetch;
pub mod hints;
pub mod intent;
pub mod ledger;
mod load;
pub mod map;
pub mod needs;
pub mod plan;
pub mod proc_memory;
pub mod profile;
pub mod residency;
pub mod service;
pub mod shared;
pub mod sharing;
pub mod shm;
pub mod source;
pub mod tally;
pub mod tree;
pub mod view;
pub mod walk;

/// Locks a mutex. That somebody has panicked with it is no reason to do so, too.
fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
