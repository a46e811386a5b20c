//! What a graph tells of itself: what became of its calls, and whether looking ahead is worth it.

use crate::graph::{Engine, Graph};
use crate::payback;
use crate::stats::Counts;

impl<C: ?Sized> Graph<C> {
    /// What became of its calls so far, of the runs that have ended.
    pub fn counts(&self) -> Counts {
        self.shared.counters.get()
    }

    /// Whether looking ahead rests, because nothing that was waited for of late is worth its price.
    pub fn rests(&self) -> bool {
        self.shared.payback.rests()
    }

    /// Whether a run that begins now may be made without a scope: looking ahead rests, and it is not one of the runs that tell whether to go on.
    /// Not where an engine was named: that one is to be seen at work.
    #[inline]
    pub fn passes_by(&self) -> bool {
        !self.options.fixed
            && self.options.engine == Engine::Auto
            && self.shared.payback.passes_by()
    }

    /// While looking ahead rests and no scope follows: such a call as the graph foresees was made, from `began` until now.
    pub fn timed(&self, began: std::time::Instant) {
        self.shared.payback.timed(began.elapsed());
    }

    /// How many such calls are made then before the next one is to be timed.
    pub fn untimed(&self) -> u16 {
        self.shared.payback.untimed()
    }

    /// Whether hardly anything is known of what the program's calls wait for.
    pub fn is_new(&self) -> bool {
        self.shared.payback.is_new()
    }

    /// While looking ahead does not rest: the program's calls are followed for the sake of this graph, and one of them was made.
    pub fn followed(&self) {
        // The check follows every call.
        if !self.options.fixed && self.options.engine != Engine::Check {
            self.shared.payback.enter(-payback::CALL);
        }
    }

    /// Whether it has been switched off: it diverged too often, or contradicted itself.
    pub fn is_off(&self) -> bool {
        self.shared.is_off()
    }

    /// What was found wrong with it: why it was switched off, and with [`Engine::Check`] every prediction that
    /// did not come true.
    pub fn problems(&self) -> Vec<String> {
        self.shared.problems()
    }
}
