//! On which terms files are opened for a profile: what fetches ([`super::replay`]) and what sees ([`super::observe`]) keep to the same ones.

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use outrider_sys::units::InodeKey;

use crate::lock;

/// What the service says.
pub struct Terms {
    allowed: AtomicBool,
    held_back: AtomicBool,
    untouchable: Mutex<HashSet<InodeKey>>,
}

impl Default for Terms {
    fn default() -> Terms {
        Terms {
            allowed: AtomicBool::new(true),
            held_back: AtomicBool::new(false),
            untouchable: Mutex::default(),
        }
    }
}

impl Terms {
    /// Whether files may be opened that no program has open.
    pub fn allow(&self, allowed: bool) {
        self.allowed.store(allowed, Relaxed);
    }

    /// What [`Terms::allow`] said.
    pub fn is_allowed(&self) -> bool {
        self.allowed.load(Relaxed)
    }

    /// Nothing is opened or looked up until this is taken back.
    pub fn hold_back(&self, held_back: bool) {
        self.held_back.store(held_back, SeqCst);
    }

    /// What [`Terms::hold_back`] said.
    pub fn is_held_back(&self) -> bool {
        self.held_back.load(SeqCst)
    }

    /// This file must never be opened. The service bounds how many there are.
    pub fn leave(&self, key: InodeKey) {
        lock(&self.untouchable).insert(key);
    }

    /// Whether [`Terms::leave`] said so.
    pub fn is_untouchable(&self, key: InodeKey) -> bool {
        lock(&self.untouchable).contains(&key)
    }
}
