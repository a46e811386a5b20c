//! What waits for a thread of the lane, by owner; owners take turns.

use std::collections::VecDeque;

/// Calls that wait, of all owners together, of which each of those for whom any does has an equal part, though no more than an eighth.
const CALLS: usize = 8192;
const PARTS: usize = 8;

/// Things that wait, by owner.
pub(super) struct Turns<T>(VecDeque<(usize, VecDeque<T>)>);

impl<T> Default for Turns<T> {
    fn default() -> Turns<T> {
        Turns(VecDeque::new())
    }
}

impl<T> Turns<T> {
    /// Whether there is room for more of an owner.
    pub(super) fn have_room(&self, owner: usize) -> bool {
        let part = CALLS / self.0.len().max(PARTS);
        let own = self.0.iter().find(|(of, _)| *of == owner);
        own.is_none_or(|(_, own)| own.len() < part)
    }

    pub(super) fn push(&mut self, owner: usize, thing: T) {
        match self.0.iter_mut().find(|(of, _)| *of == owner) {
            Some((_, own)) => own.push_back(thing),
            None => self.0.push_back((owner, VecDeque::from([thing]))),
        }
    }

    /// The next things of the owner whose turn it is, of which `many` says how many are taken, one at least.
    pub(super) fn pop(
        &mut self,
        many: impl FnOnce(&VecDeque<T>) -> usize,
    ) -> Option<(usize, VecDeque<T>)> {
        let (owner, mut own) = self.0.pop_front()?;
        let many = many(&own).clamp(1, own.len());
        let taken = own.drain(..many).collect();
        if !own.is_empty() {
            self.0.push_back((owner, own));
        }
        Some((owner, taken))
    }

    /// Things that wait, of all owners.
    pub(super) fn len(&self) -> usize {
        self.0.iter().map(|(_, own)| own.len()).sum()
    }

    /// Takes all of an owner's off.
    pub(super) fn take(&mut self, owner: usize) -> VecDeque<T> {
        let at = self.0.iter().position(|(of, _)| *of == owner);
        at.and_then(|at| self.0.remove(at))
            .map_or_else(VecDeque::new, |(_, own)| own)
    }

    /// Takes the first of an owner's off that is such a one; whether there was any.
    pub(super) fn remove(&mut self, owner: usize, is_one: impl Fn(&T) -> bool) -> bool {
        let Some((_, own)) = self.0.iter_mut().find(|(of, _)| *of == owner) else {
            return false;
        };
        let found = own.iter().position(is_one).and_then(|at| own.remove(at));
        self.0.retain(|(_, own)| !own.is_empty());
        found.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who has asked for much waits no shorter than who has asked for little, and what was taken off is not done.
    #[test]
    fn owners_take_turns() {
        let mut turns = Turns::default();
        for (owner, thing) in [(1, 10), (1, 11), (1, 12), (2, 20), (3, 30), (3, 31)] {
            turns.push(owner, thing);
        }
        assert_eq!(turns.pop(|_| 1), Some((1, [10].into())));
        assert_eq!(turns.pop(|_| 9), Some((2, [20].into())));
        assert!(turns.remove(1, |thing| *thing == 12));
        assert!(!turns.remove(1, |thing| *thing == 12));
        assert_eq!(turns.take(3), [30, 31]);
        assert_eq!(turns.len(), 1);
        let left: Vec<_> = std::iter::from_fn(|| turns.pop(|_| 1)).collect();
        assert_eq!(left, [(1, [11].into())]);
        assert_eq!(turns.len(), 0);
        for thing in 0..5 {
            turns.push(4, thing);
        }
        turns.push(5, 9);
        assert_eq!(turns.pop(|own| own.len() - 2), Some((4, [0, 1, 2].into())));
        assert_eq!(turns.pop(|_| 1), Some((5, [9].into())));
        assert_eq!(turns.pop(|_| 0), Some((4, [3].into())));
    }

    /// Whoever fills its part keeps nobody else from having one.
    #[test]
    fn everybody_has_a_part() {
        let mut turns = Turns::default();
        let mut fill = |owner| {
            let before = (0..).take_while(|_| {
                let room = turns.have_room(owner);
                if room {
                    turns.push(owner, ());
                }
                room
            });
            before.count()
        };
        assert_eq!([fill(1), fill(2)], [CALLS / PARTS; 2]);
        let most = (3..200).map(&mut fill).min();
        assert_eq!(most, Some(CALLS / 199));
    }
}
