//! One ledger of what is had ahead of programs: of the memory that it takes, and of the bytes in flight.
//!
//! Each holder has a share of the whole, which is kept for it as far as it has asked for it. What one doesn't use another may, and gives it back as its
//! programs read what was fetched: nothing is thrown away for that. All together never take more than the whole.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Who holds something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// What is fetched of files that programs have open, by the engine's queues: streams and all other sources.
    Files,
    /// Files that no program has opened yet, by its lane.
    Walks,
    /// What an earlier run of the job needed.
    Remembered,
    /// What programs declare. Their processes fetch it, and say how much they hold.
    Lists,
}

impl Holder {
    /// Its share of a whole. A walk's part is small because its files are, and because a program that reads in a stream waits for that with nothing else to do.
    pub fn share(self, whole: u64) -> u64 {
        let walks = whole / 4;
        match self {
            Holder::Files => whole - walks,
            Holder::Walks => walks,
            // What others leave, up to half: a profile may be wrong, and what programs are seen to read isn't.
            Holder::Remembered => whole / 2,
            // Theirs is what the page cache can take beside it.
            Holder::Lists => 0,
        }
    }
}

/// What a holder has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holding {
    /// Bytes that it has.
    pub held: u64,
    /// Bytes that it would have beyond these if there were room.
    pub short: u64,
}

impl Holding {
    /// Bytes that are not for others: what it has, and what it lacks of its share.
    pub fn kept(self, share: u64) -> u64 {
        let wanted = self.held.saturating_add(self.short);
        self.held.max(wanted.min(share))
    }
}

/// What all have.
#[derive(Clone, Copy, Debug, Default)]
struct Holdings {
    whole: u64,
    files: Holding,
    walks: Holding,
    remembered: Holding,
    lists: Holding,
}

impl Holdings {
    fn of(&mut self, holder: Holder) -> &mut Holding {
        match holder {
            Holder::Files => &mut self.files,
            Holder::Walks => &mut self.walks,
            Holder::Remembered => &mut self.remembered,
            Holder::Lists => &mut self.lists,
        }
    }

    /// Bytes that are kept for others than this one.
    fn kept_from(&self, holder: Holder) -> u64 {
        let files = self.files.kept(Holder::Files.share(self.whole));
        let walks = self.walks.kept(Holder::Walks.share(self.whole));
        // It keeps nothing that it doesn't have.
        let remembered = self.remembered.held;
        match holder {
            Holder::Files => walks + remembered,
            Holder::Walks => files + remembered,
            Holder::Remembered => files + walks,
            Holder::Lists => files + walks + remembered,
        }
    }
}

/// Memory that what was fetched and not read takes: of the files of one service.
#[derive(Debug, Default)]
pub struct Ledger(Mutex<Holdings>);

impl Ledger {
    fn lock(&self) -> MutexGuard<'_, Holdings> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Of `room` bytes that the page cache can take, so many are for all together but lists, which have the rest. What lists hold beyond that they have of the whole;
    /// but what a process says is a claim, and half stays whatever they say. Returns what that leaves. Who still lacks some says so again.
    pub fn grant(&self, whole: u64, room: u64) -> u64 {
        let mut holdings = self.lock();
        let rest = room.saturating_sub(whole);
        let taken = holdings.lists.held.saturating_sub(rest).min(whole / 2);
        holdings.whole = whole - taken;
        (holdings.files.short, holdings.walks.short) = (0, 0);
        holdings.whole
    }

    /// A holder has so many bytes.
    pub fn hold(&self, holder: Holder, held: u64) {
        self.lock().of(holder).held = held;
    }

    /// A holder would have so many bytes more if there were room. That counts until it says otherwise, or there is a new grant.
    pub fn lack(&self, holder: Holder, short: u64) {
        self.lock().of(holder).short = short;
    }

    /// Bytes that all but lists have together.
    pub fn held(&self) -> u64 {
        let holdings = self.lock();
        holdings.files.held + holdings.walks.held + holdings.remembered.held
    }

    /// Bytes that others have, or that are kept for them.
    pub fn kept_from(&self, holder: Holder) -> u64 {
        self.lock().kept_from(holder)
    }

    /// Bytes that a holder may have, those that it has among them.
    pub fn allowance(&self, holder: Holder) -> u64 {
        let holdings = self.lock();
        let left = holdings.whole.saturating_sub(holdings.kept_from(holder));
        match holder {
            Holder::Files | Holder::Walks => left,
            Holder::Remembered => left.min(holder.share(holdings.whole)),
            Holder::Lists => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: u64 = 1000;

    fn ledger() -> Ledger {
        let ledger = Ledger::default();
        ledger.grant(WHOLE, WHOLE);
        ledger
    }

    /// Takes as much as is allowed of what is wanted.
    fn take(ledger: &Ledger, holder: Holder, wanted: u64) -> u64 {
        let held = wanted.min(ledger.allowance(holder));
        ledger.hold(holder, held);
        ledger.lack(holder, wanted - held);
        held
    }

    /// Whoever is alone has all of it.
    #[test]
    fn what_one_does_not_use_another_may() {
        for holder in [Holder::Files, Holder::Walks] {
            let ledger = ledger();
            assert_eq!(take(&ledger, holder, 2 * WHOLE), WHOLE);
            assert_eq!(ledger.held(), WHOLE);
        }
    }

    /// Who comes later gets its share, and no more, as soon as the other's bytes are read; in no moment is more held than there is.
    #[test]
    fn who_comes_later_has_its_share() {
        for (first, second) in [
            (Holder::Files, Holder::Walks),
            (Holder::Walks, Holder::Files),
        ] {
            let ledger = ledger();
            let mut held = take(&ledger, first, WHOLE - 50);
            assert_eq!(take(&ledger, second, WHOLE), 50);
            for _ in 0..100 {
                // A tenth is read, and as much as is allowed is fetched.
                let left = held * 9 / 10;
                ledger.hold(first, left);
                held = take(&ledger, first, WHOLE).max(left);
                ledger.hold(first, held);
                take(&ledger, second, WHOLE);
                assert!(ledger.held() <= WHOLE);
            }
            assert_eq!(held, first.share(WHOLE));
            assert_eq!(ledger.held(), WHOLE);
        }
    }

    /// Of a share no more is kept than its holder asks for, and nothing once it is silent.
    #[test]
    fn nothing_is_kept_that_nobody_asks_for() {
        let ledger = ledger();
        take(&ledger, Holder::Files, WHOLE);
        ledger.lack(Holder::Walks, 30);
        assert_eq!(ledger.kept_from(Holder::Files), 30);
        ledger.lack(Holder::Walks, WHOLE);
        assert_eq!(ledger.kept_from(Holder::Files), Holder::Walks.share(WHOLE));
        ledger.grant(WHOLE, WHOLE);
        assert_eq!(ledger.allowance(Holder::Files), WHOLE);
    }

    /// Lists have what the page cache can take beside the others; what they hold beyond it is theirs for so long, up to half of the whole.
    #[test]
    fn lists_and_others_share_what_there_is() {
        let ledger = ledger();
        let granted = |held| {
            ledger.hold(Holder::Lists, held);
            ledger.grant(WHOLE, 2 * WHOLE)
        };
        assert_eq!((granted(0), granted(WHOLE)), (WHOLE, WHOLE));
        assert_eq!(granted(WHOLE + 100), WHOLE - 100);
        assert_eq!(ledger.allowance(Holder::Files), WHOLE - 100);
        assert_eq!(granted(u64::MAX), WHOLE / 2);
        granted(0);
        take(&ledger, Holder::Files, 300);
        take(&ledger, Holder::Walks, WHOLE);
        assert_eq!(ledger.kept_from(Holder::Lists), WHOLE);
    }
}
