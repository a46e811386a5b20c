//! What is to be done before a program changes what it may do: its user, capabilities, root, namespaces, or system calls.
//!
//! What it may do then is another matter, and another service's. So what is followed is left first, and then the service's memory goes.

use outrider_core::shm;
use outrider_sys::{raw, threads};

use crate::{attach, declared, needs, track, waits};

/// The calling thread alone is about to change what it may do. Threads of ours would keep what it gives up, for whoever has them do something, so they end
/// first, for good: with them what was declared.
#[cold]
pub fn end_threads() {
    if attach::is_filtered() {
        // To have them end, or to wait for that, is a call.
        return;
    }
    threads::forget_ended();
    declared::disable();
    outrider_graph::end_threads();
    threads::await_ends(|| attach::until(shm::PATIENCE_US));
}

/// Nothing is followed in this process any more: its threads no longer share one descriptor table, so that numbers say nothing.
#[cold]
pub fn disable() {
    if waits::is_guest() || attach::is_filtered() {
        return;
    }
    if attach::is_handed() {
        leave();
        // Nobody will tell when what it still holds is in the way.
        attach::release_all(attach::impatient());
    }
    attach::forbid();
}

/// The service holds nothing for this process any longer, because nobody would tell it when that is in the way.
fn leave() {
    track::closing_range(0, u32::MAX);
}

/// The program is about to change what it may do: its user, capabilities, root or namespaces. What it opens from here on is followed
/// by a service that may do the same.
#[cold]
pub fn change() {
    needs::forget();
    if !attach::may_follow() {
        return;
    }
    if attach::is_handed() {
        leave();
    }
    attach::retire();
}

/// The same of the calling thread alone. Where others may do what they could, a process has no rights of its own any more by which it could be helped: what is
/// known of them is those of its first thread. So nothing is followed in it from here on, and the report says so.
#[cold]
pub fn change_of_thread() {
    end_threads();
    needs::forget();
    if !attach::may_follow() {
        return;
    }
    if raw::gettid() == raw::getpid() {
        return change();
    }
    attach::lose(shm::lost::RIGHTS);
    disable();
}

/// The program is about to enter another network namespace, where nobody listens: what it opens from there on is not followed, and the report says so.
#[cold]
pub fn leave_network() {
    if attach::predicts() {
        attach::lose(shm::lost::NETWORK);
    }
}

/// The program is about to forbid itself and the programs that it starts some system calls, on pain of death perhaps, or may do so in whatever way, since it gives up
/// privileges as those must who have none before they install a filter (PR_SET_NO_NEW_PRIVS): from here on hooks
/// ask the kernel nothing that programs don't ask themselves, in no process that this one becomes or makes.
#[cold]
pub fn confine() {
    end_threads();
    if attach::is_filtered() {
        // The filter that is there already may kill for any call.
        return;
    }
    disable();
    attach::forbid_calls();
}
