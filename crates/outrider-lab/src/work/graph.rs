//! `--graph`: a workload's calls made through a foreaction graph.

use outrider_graph::{Engine, Graph};

use crate::{Result, Wrong};

/// The flag. Without it the calls are plain.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct Flag {
    /// Make the calls through a foreaction graph.
    #[arg(long, value_name = "ENGINE", num_args = 0..=1, require_equals = true, default_missing_value = "auto")]
    graph: Option<With>,
}

/// How what is foreseen is made ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum With {
    /// By io_uring, or by threads where it is refused.
    Auto,
    /// By threads.
    Threads,
    /// Not at all.
    Serial,
    /// Not at all, and a prediction that does not come true is an error.
    Check,
}

impl Flag {
    /// Without a graph, and on each engine.
    #[cfg(test)]
    pub fn all() -> [Flag; 4] {
        [
            None,
            Some(With::Auto),
            Some(With::Threads),
            Some(With::Check),
        ]
        .map(|graph| Flag { graph })
    }

    /// The graph, if one is wanted.
    pub fn of<C: ?Sized>(self, build: impl FnOnce() -> Graph<C>) -> Option<Graph<C>> {
        Some(build().engine(match self.graph? {
            With::Auto => Engine::Auto,
            With::Threads => Engine::Threads,
            With::Serial => Engine::Serial,
            With::Check => Engine::Check,
        }))
    }

    /// What became of the calls: figures, none without a graph; an error for what the check found.
    pub fn told<C: ?Sized>(self, graph: Option<&Graph<C>>) -> Result<Vec<(&'static str, f64)>> {
        let Some(graph) = graph else {
            return Ok(Vec::new());
        };
        if self.graph == Some(With::Check)
            && let Some(problem) = graph.problems().first()
        {
            return Err(Wrong::system(
                format!("--graph=check: {}", graph.name()),
                problem,
            ));
        }
        let counts = graph.counts();
        Ok(vec![
            ("graph_used", counts.hits as f64),
            ("graph_unused", counts.unused as f64),
            ("graph_unforeseen", counts.divergences as f64),
        ])
    }
}
