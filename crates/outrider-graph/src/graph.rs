//! What a function is going to call: a graph, or a generator.
//!
//! A graph (the paper's section 3.2) has a start, an end, nodes that are system calls, nodes that are branches, and edges. A
//! *weak* edge is one on which the function may leave early. A *looping-back* edge closes a loop and counts its passes in a 64-bit
//! epoch. Stubs compute a call's arguments or a branch's choice from the context and the epochs of the enclosing loops, or say that
//! they can't yet. A generator is the common case of one loop: the i-th call.
//!
//! Both are immutable; where a function is in them is a [`Cursor`], of which every thread has its own.

use std::fmt;

use crate::call::{Data, Kind, Op};
use crate::limits::DEEPEST_WINDOW;
use crate::payback::Payback;
use crate::stats::{Shared, Sink};

/// Loops within loops that a graph may have.
pub const DEEPEST: usize = 8;

/// Names a node within its [`Builder`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Node(usize);

/// What a generator says of its i-th call.
#[derive(Clone, Copy, Debug)]
pub enum Next<'a> {
    /// This call, and the function goes on.
    Call(Op<'a>),
    /// This call, after which the function may end or do something else.
    Weak(Op<'a>),
    /// This read, whose bytes the next call, a write of [`Data::Linked`], writes.
    Link(Op<'a>),
    /// There is such a call, but its arguments can't be told yet.
    NotReady,
    /// The function makes no such call.
    End,
    /// The generator can't go on; the graph is switched off, for this reason.
    Broken(&'static str),
}

type Stub<C> =
    Box<dyn for<'a> Fn(&'a C, &[u64]) -> Result<Option<Op<'a>>, &'static str> + Send + Sync>;
type Choice<C> = Box<dyn Fn(&C, &[u64]) -> Option<usize> + Send + Sync>;
type Harvest<C> = Box<dyn Fn(&C, &[u64], isize) + Send + Sync>;
type Generate<C> = Box<dyn for<'a> Fn(&'a C, u64) -> Next<'a> + Send + Sync>;

enum What<C: ?Sized> {
    Start,
    End,
    Call {
        kind: Kind,
        stub: Stub<C>,
        harvest: Option<Harvest<C>>,
        link: bool,
        held: bool,
    },
    Branch(Choice<C>),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Edge {
    to: usize,
    weak: bool,
    back: bool,
}

struct Vertex<C: ?Sized> {
    name: String,
    what: What<C>,
    edges: Vec<Edge>,
    /// Heads of the enclosing loops, outermost first.
    loops: Vec<usize>,
}

/// Builds a [`Graph`] node by node.
pub struct Builder<C: ?Sized> {
    name: String,
    nodes: Vec<Vertex<C>>,
}

/// What is wrong with a graph; the text names the nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// Two nodes have this name, or it is empty.
    Name(String),
    /// A node has too many or too few edges.
    Edges(String),
    /// This node can't be reached.
    Unreachable(String),
    /// The end can't be reached from this node.
    Endless(String),
    /// A loop that is not one.
    Loop(String),
    /// A link that can't be honoured.
    Link(String),
    /// An effect that can never be certain.
    Effect(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Name(s)
            | Error::Edges(s)
            | Error::Unreachable(s)
            | Error::Endless(s)
            | Error::Loop(s)
            | Error::Link(s)
            | Error::Effect(s) => f.write_str(s),
        }
    }
}

impl std::error::Error for Error {}

const START: usize = 0;
const END: usize = 1;

impl<C: ?Sized> Builder<C> {
    /// An empty graph of the function `name`.
    pub fn new(name: &str) -> Builder<C> {
        let vertex = |name: &str, what| Vertex {
            name: name.into(),
            what,
            edges: Vec::new(),
            loops: Vec::new(),
        };
        Builder {
            name: name.into(),
            nodes: vec![vertex("start", What::Start), vertex("end", What::End)],
        }
    }

    /// The function's entrance; it has one edge.
    pub fn start(&self) -> Node {
        Node(START)
    }

    /// The function's exit.
    pub fn end(&self) -> Node {
        Node(END)
    }

    /// The node of this name.
    pub fn find(&self, name: &str) -> Option<Node> {
        self.nodes.iter().position(|v| v.name == name).map(Node)
    }

    fn add(&mut self, name: &str, what: What<C>) -> Node {
        self.nodes.push(Vertex {
            name: name.into(),
            what,
            edges: Vec::new(),
            loops: Vec::new(),
        });
        Node(self.nodes.len() - 1)
    }

    /// A system call. `args` gives its arguments from the context and the epochs of the enclosing loops, outermost first, or `None`
    /// while they can't be told. Whatever it gives must stay true until the function makes the call: a file that others change
    /// meanwhile is not ready.
    pub fn call(
        &mut self,
        name: &str,
        kind: Kind,
        args: impl for<'a> Fn(&'a C, &[u64]) -> Option<Op<'a>> + Send + Sync + 'static,
    ) -> Node {
        self.call_or_broken(name, kind, move |context, epochs| Ok(args(context, epochs)))
    }

    /// The same with a stub that may find that it can't go on: the graph is switched off, for the reason that it gives.
    pub fn call_or_broken(
        &mut self,
        name: &str,
        kind: Kind,
        args: impl for<'a> Fn(&'a C, &[u64]) -> Result<Option<Op<'a>>, &'static str>
        + Send
        + Sync
        + 'static,
    ) -> Node {
        self.add(
            name,
            What::Call {
                kind,
                stub: Box::new(args),
                harvest: None,
                link: false,
                held: false,
            },
        )
    }

    /// A branch. `choice` gives the number of the edge that is taken, in the order in which the edges were added, or `None` while it
    /// can't be told.
    pub fn branch(
        &mut self,
        name: &str,
        choice: impl Fn(&C, &[u64]) -> Option<usize> + Send + Sync + 'static,
    ) -> Node {
        self.add(name, What::Branch(Box::new(choice)))
    }

    /// Has `harvest` called with the result (or negated errno) of each call of this node, when the program has it.
    pub fn harvest(
        &mut self,
        node: Node,
        then: impl Fn(&C, &[u64], isize) + Send + Sync + 'static,
    ) {
        if let What::Call { harvest, .. } = &mut self.nodes[node.0].what {
            *harvest = Some(Box::new(then));
        }
    }

    /// Links a read to the write after it, which writes what it read ([`Data::Linked`]).
    pub fn link(&mut self, node: Node) {
        if let What::Call { link, .. } = &mut self.nodes[node.0].what {
            *link = true;
        }
    }

    /// Says that it is known that this call, an effect behind weak edges, is never made ahead.
    pub fn held(&mut self, node: Node) {
        if let What::Call { held, .. } = &mut self.nodes[node.0].what {
            *held = true;
        }
    }

    fn connect(&mut self, from: Node, to: Node, weak: bool, back: bool) {
        self.nodes[from.0].edges.push(Edge {
            to: to.0,
            weak,
            back,
        });
    }

    /// After `from` comes `to`.
    pub fn edge(&mut self, from: Node, to: Node) {
        self.connect(from, to, false, false);
    }

    /// After `from` comes `to`, unless the function ends there.
    pub fn weak_edge(&mut self, from: Node, to: Node) {
        self.connect(from, to, true, false);
    }

    /// From the branch `from` the function goes back to `to`, and that loop's epoch goes up by one.
    pub fn back_edge(&mut self, from: Node, to: Node) {
        self.connect(from, to, false, true);
    }

    /// The same, on an edge on which the function may end.
    pub fn weak_back_edge(&mut self, from: Node, to: Node) {
        self.connect(from, to, true, true);
    }

    /// Checks everything that can be checked before the function runs.
    pub fn build(mut self) -> Result<Graph<C>, Error> {
        self.check_names()?;
        self.check_edges()?;
        self.check_reach()?;
        self.find_loops()?;
        self.check_links()?;
        self.check_effects()?;
        let pure = self
            .nodes
            .iter()
            .all(|v| !matches!(v.what, What::Call { kind, .. } if kind.has_effects()));
        Ok(Graph {
            name: self.name,
            form: Form::Nodes(self.nodes),
            pure,
            options: Options::default(),
            shared: Shared::default(),
        })
    }

    fn name_of(&self, i: usize) -> &str {
        &self.nodes[i].name
    }

    fn check_names(&self) -> Result<(), Error> {
        for (i, v) in self.nodes.iter().enumerate() {
            if v.name.is_empty() {
                return Err(Error::Name(format!(
                    "{}: node {i} has an empty name",
                    self.name
                )));
            }
            if self.nodes[..i].iter().any(|w| w.name == v.name) {
                return Err(Error::Name(format!(
                    "{}: two nodes are named {:?}; names are unique, and \"start\" and \"end\" are taken",
                    self.name, v.name
                )));
            }
        }
        Ok(())
    }

    fn check_edges(&self) -> Result<(), Error> {
        for v in &self.nodes {
            let bad = |text: String| Err(Error::Edges(format!("{}: {text}", self.name)));
            let n = v.edges.len();
            match v.what {
                What::Start if n != 1 => {
                    return bad(format!("the start has {n} edges; it has exactly one"));
                }
                What::End if n != 0 => return bad(format!("the end has {n} edges; it has none")),
                What::Call { .. } if n != 1 => {
                    return bad(format!(
                        "{} is a call with {n} edges; a call has exactly one, and a branch after it if it needs more",
                        v.name
                    ));
                }
                What::Branch(_) if n == 0 => {
                    return bad(format!("the branch {} has no edge", v.name));
                }
                _ => {}
            }
            for e in &v.edges {
                if e.to == START {
                    return bad(format!("an edge leads from {} to the start", v.name));
                }
                if e.back && !matches!(v.what, What::Branch(_)) {
                    return Err(Error::Loop(format!(
                        "{}: a loop goes back from {}, which is no branch, so it could never be left",
                        self.name, v.name
                    )));
                }
                if e.back && e.to == END {
                    return bad(format!("{} loops back to the end", v.name));
                }
            }
        }
        Ok(())
    }

    /// Nodes that can be reached from `from` over edges that `follow` lets through.
    fn reach(&self, from: usize, follow: impl Fn(usize, &Edge) -> bool) -> Vec<bool> {
        let mut seen = vec![false; self.nodes.len()];
        let mut open = vec![from];
        seen[from] = true;
        while let Some(i) = open.pop() {
            for e in &self.nodes[i].edges {
                if !seen[e.to] && follow(i, e) {
                    seen[e.to] = true;
                    open.push(e.to);
                }
            }
        }
        seen
    }

    fn check_reach(&self) -> Result<(), Error> {
        let seen = self.reach(START, |_, _| true);
        if let Some(i) = (2..self.nodes.len()).find(|i| !seen[*i]) {
            return Err(Error::Unreachable(format!(
                "{}: no path leads from the start to {}",
                self.name,
                self.name_of(i)
            )));
        }
        for i in 0..self.nodes.len() {
            if !self.reach(i, |_, _| true)[END] {
                return Err(Error::Endless(format!(
                    "{}: no path leads from {} to the end",
                    self.name,
                    self.name_of(i)
                )));
            }
            // Forward edges alone must not close a circle.
            for e in self.nodes[i].edges.iter().filter(|e| !e.back) {
                if self.reach(e.to, |_, f| !f.back)[i] {
                    return Err(Error::Loop(format!(
                        "{}: {} and {} are on a circle without a looping-back edge; a loop goes back from a branch, with back_edge",
                        self.name,
                        self.name_of(i),
                        self.name_of(e.to)
                    )));
                }
            }
        }
        Ok(())
    }

    fn find_loops(&mut self) -> Result<(), Error> {
        let n = self.nodes.len();
        // (head, body), a loop for each head.
        let mut loops: Vec<(usize, Vec<bool>)> = Vec::new();
        for b in 0..n {
            for e in self.nodes[b].edges.iter().filter(|e| e.back) {
                let head = e.to;
                if !self.reach(head, |_, f| !f.back)[b] {
                    return Err(Error::Loop(format!(
                        "{}: {} loops back to {}, which does not lie before it",
                        self.name,
                        self.name_of(b),
                        self.name_of(head)
                    )));
                }
                // Nodes from which b is reached without passing the head.
                let body: Vec<bool> = (0..n)
                    .map(|i| i == head || self.reach(i, |from, _| from != head)[b])
                    .collect();
                match loops.iter_mut().find(|l| l.0 == head) {
                    Some(l) => (0..n).for_each(|i| l.1[i] |= body[i]),
                    None => loops.push((head, body)),
                }
            }
        }
        for (head, body) in &loops {
            for i in (0..n).filter(|i| !body[*i]) {
                for e in &self.nodes[i].edges {
                    if body[e.to] && e.to != *head {
                        return Err(Error::Loop(format!(
                            "{}: the edge from {} to {} enters the loop of {} past its head",
                            self.name,
                            self.name_of(i),
                            self.name_of(e.to),
                            self.name_of(*head)
                        )));
                    }
                }
            }
            // A way round that makes no call would be walked for ever.
            let branches_only = self.nodes[*head].edges.iter().any(|e| {
                let quiet = |i: usize| body[i] && matches!(self.nodes[i].what, What::Branch(_));
                quiet(*head)
                    && (e.to == *head
                        || quiet(e.to)
                            && self.reach(e.to, |from, f| {
                                quiet(from) && (quiet(f.to) || f.to == *head)
                            })[*head])
            });
            if branches_only {
                return Err(Error::Loop(format!(
                    "{}: the loop of {} can be passed without a call",
                    self.name,
                    self.name_of(*head)
                )));
            }
        }
        for (a, x) in loops.iter().enumerate() {
            for y in &loops[..a] {
                let both = (0..n).any(|i| x.1[i] && y.1[i]);
                let inside = |p: &[bool], q: &[bool]| (0..n).all(|i| !p[i] || q[i]);
                if both && !inside(&x.1, &y.1) && !inside(&y.1, &x.1) {
                    return Err(Error::Loop(format!(
                        "{}: the loops of {} and {} overlap; one must lie in the other",
                        self.name,
                        self.name_of(x.0),
                        self.name_of(y.0)
                    )));
                }
            }
        }
        loops.sort_by_key(|(_, body)| std::cmp::Reverse(body.iter().filter(|b| **b).count()));
        for i in 0..n {
            self.nodes[i].loops = loops
                .iter()
                .filter(|(_, body)| body[i])
                .map(|(head, _)| *head)
                .collect();
            if self.nodes[i].loops.len() > DEEPEST {
                return Err(Error::Loop(format!(
                    "{}: {} lies in {} loops; at most {DEEPEST} are followed",
                    self.name,
                    self.name_of(i),
                    self.nodes[i].loops.len()
                )));
            }
        }
        Ok(())
    }

    fn check_links(&self) -> Result<(), Error> {
        for v in &self.nodes {
            let What::Call {
                kind, link: true, ..
            } = v.what
            else {
                continue;
            };
            let bad = |why: String| {
                Err(Error::Link(format!(
                    "{}: the link of {} can't be honoured: {why}",
                    self.name, v.name
                )))
            };
            if !kind.reads() {
                return bad(format!("{} is no read", kind.name()));
            }
            let e = v.edges[0];
            let next = &self.nodes[e.to];
            match next.what {
                What::Call { kind, .. } if kind.writes() => {}
                _ => return bad(format!("{}, which follows, is no write", next.name)),
            }
            if e.weak {
                return bad(format!("the edge to {} is weak", next.name));
            }
            let others = self
                .nodes
                .iter()
                .flat_map(|w| w.edges.iter().map(move |f| (w, f)))
                .find(|(w, f)| f.to == e.to && !std::ptr::eq(*w, v));
            if let Some((w, _)) = others {
                return bad(format!("{} is reached from {} too", next.name, w.name));
            }
        }
        Ok(())
    }

    /// An effect into which only weak edges lead is never made ahead; whoever means that says so.
    fn check_effects(&self) -> Result<(), Error> {
        for (i, v) in self.nodes.iter().enumerate() {
            let What::Call {
                kind, held: false, ..
            } = v.what
            else {
                continue;
            };
            if !kind.has_effects() || !kind.runs_ahead() {
                continue;
            }
            // Whether a call or the start reaches i over edges none of which is weak, through branches only.
            let certain = (0..self.nodes.len()).any(|from| {
                matches!(self.nodes[from].what, What::Call { .. } | What::Start)
                    && self.nodes[from].edges.iter().any(|e| {
                        !e.weak
                            && (e.to == i
                                || matches!(self.nodes[e.to].what, What::Branch(_))
                                    && self.reach(e.to, |at, f| {
                                        !f.weak && matches!(self.nodes[at].what, What::Branch(_))
                                    })[i])
                    })
            });
            if !certain {
                return Err(Error::Effect(format!(
                    "{}: every path to {} ends with a weak edge, so that {} would never be made ahead; mark it as held if that is meant",
                    self.name,
                    v.name,
                    kind.name()
                )));
            }
        }
        Ok(())
    }
}

/// Which engine makes the calls that are made ahead.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Engine {
    /// io_uring, or threads where it is refused.
    #[default]
    Auto,
    /// The same as `Auto`, said explicitly.
    Uring,
    /// Threads.
    Threads,
    /// None: every call is made when the program makes it.
    Serial,
    /// None, and every prediction is compared with what the program does; see [`Graph::problems`].
    Check,
}

/// How a graph is followed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    pub engine: Engine,
    /// Calls to look ahead at most.
    pub depth: usize,
    /// The depth does not adapt.
    pub fixed: bool,
    pub private_positions: bool,
    pub among: bool,
    pub stable: bool,
    /// The function ends with the first effect that fails.
    pub stops: bool,
    /// Its scopes look ahead also beside others of the thread.
    pub beside: bool,
    /// Directories that are listed ahead have their entries looked up.
    pub walk: bool,
    /// Reads through the page cache are fetched into it, not made.
    pub fetch: bool,
    /// Bytes that stubs give for writes may change while they are borrowed: they come from C.
    pub changing: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            engine: Engine::Auto,
            depth: 256,
            fixed: false,
            private_positions: false,
            among: false,
            stable: false,
            stops: false,
            beside: false,
            walk: false,
            fetch: false,
            changing: false,
        }
    }
}

enum Form<C: ?Sized> {
    Nodes(Vec<Vertex<C>>),
    Generator(Generate<C>),
}

/// A validated graph of a function. It is built once and shared by all threads that run the function.
pub struct Graph<C: ?Sized> {
    name: String,
    form: Form<C>,
    pub(crate) pure: bool,
    pub(crate) options: Options,
    pub(crate) shared: Shared,
}

impl<C: ?Sized> Graph<C> {
    /// A function with one loop of calls. `next` gives the i-th, from 0 on, and must give the same when it is asked again for the
    /// same i, except that what was not ready may be later.
    pub fn generator(
        name: &str,
        next: impl for<'a> Fn(&'a C, u64) -> Next<'a> + Send + Sync + 'static,
    ) -> Graph<C> {
        Graph {
            name: name.into(),
            form: Form::Generator(Box::new(next)),
            pure: false,
            options: Options::default(),
            shared: Shared::default(),
        }
    }

    /// Says that a generator gives no calls with effects. Only then is it looked beyond one that is not ready.
    pub fn pure(mut self) -> Graph<C> {
        if let Form::Generator(_) = self.form {
            self.pure = true;
        }
        self
    }

    /// Says that nobody moves the positions of the descriptors that the function writes at their positions, and the function only by calls of the graph. Without that
    /// write(2) is never made ahead; read(2) is, since its position can be checked afterwards.
    pub fn private_positions(mut self) -> Graph<C> {
        self.options.private_positions = true;
        self
    }

    /// Says that the function makes other calls between those that the graph foresees, also of the same kinds: they are no divergence.
    /// Instead, the graph is switched off if most of what it foresees does not come.
    pub fn among(mut self) -> Graph<C> {
        self.options.among = true;
        self
    }

    /// Says that what the graph's calls without effects return is changed by nothing that the function does besides.
    pub fn stable(mut self) -> Graph<C> {
        self.options.stable = true;
        self
    }

    /// Says that the function ends, or does something else, after a call with effects that fails or writes less than it should. Each effect is then made ahead
    /// only when all before it have succeeded. Otherwise those may have been made that were on their way beside the one that failed.
    pub fn stops(mut self) -> Graph<C> {
        self.options.stops = true;
        self
    }

    /// Has its scopes look ahead also while another scope of the thread does. Whoever makes calls with effects then tells all of them
    /// ([`crate::Scope::notice`]).
    pub fn beside(mut self) -> Graph<C> {
        self.options.beside = true;
        self
    }

    /// Says that the function asks for the attributes of the entries of whatever directory it lists: who lists one ahead, because it is
    /// foreseen to be opened or listed, fetches the blocks of their inodes too. From a directory that was named to [`Scope::walk`](crate::Scope::walk) on,
    /// listing goes on below its subdirectories. Listing takes threads, and to start one has the C library's allocator take locks from then on: it
    /// rests until something was waited for.
    pub fn walk(mut self) -> Graph<C> {
        self.options.walk = true;
        self.shared.payback = Payback::at_rest();
        self
    }

    /// Reads through the page cache are not made ahead: what they need is fetched into it, neighbours together, and the function reads it. For functions that
    /// often end before what is foreseen: when one ends, nothing is under way that it would have to wait for, because the kernel can't cancel it. And for
    /// scans: of reads that are certain, in a generator without effects, only one in a few dozen is looked at, and the bytes stay in the processor's caches.
    pub fn fetch(mut self) -> Graph<C> {
        self.options.fetch = true;
        self.shared.without_pool = true.into();
        self
    }

    /// Says that the bytes of a write which a stub gives are borrowed in name only, as those of a C program are: they may change before the function
    /// writes them, and are compared then even if they lie where they lay.
    pub fn changing(mut self) -> Graph<C> {
        self.options.changing = true;
        self
    }

    /// Has `sink` told of counts and problems.
    pub fn sink(mut self, sink: &'static dyn Sink) -> Graph<C> {
        self.shared.sink = Some(sink);
        self
    }

    /// Looks at most `calls` ahead, 1 to 256 (256 by default), less where that is enough or brings nothing.
    pub fn depth(mut self, calls: usize) -> Graph<C> {
        self.options.depth = calls.clamp(1, DEEPEST_WINDOW);
        self
    }

    /// Always looks `calls` ahead, 1 to 256, whether that brings anything or not.
    pub fn fixed_depth(mut self, calls: usize) -> Graph<C> {
        self = self.depth(calls);
        self.options.fixed = true;
        self
    }

    /// Chooses the engine. One that is named is at work from the beginning.
    pub fn engine(mut self, engine: Engine) -> Graph<C> {
        self.options.engine = engine;
        if engine != Engine::Auto {
            self.shared.payback = Payback::default();
        }
        self
    }

    /// The function's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn lines(&self) -> (&[Vertex<C>], bool) {
        match &self.form {
            Form::Nodes(nodes) => (nodes, false),
            Form::Generator(_) => (&[], true),
        }
    }

    /// The graph in Graphviz's language: calls are boxes, branches diamonds, weak edges dashed, looping-back edges bold.
    pub fn dot(&self) -> String {
        let (nodes, generator) = self.lines();
        let mut s = format!("digraph \"{}\" {{\n", escape(&self.name));
        if generator {
            s += "  start [shape=circle];\n  next [shape=box, label=\"next(i)\"];\n  end [shape=doublecircle];\n";
            s +=
                "  start -> next;\n  next -> next [style=bold, label=\"i + 1\"];\n  next -> end;\n";
        }
        for v in nodes {
            let label = escape(&v.name);
            s += &match &v.what {
                What::Start => format!("  \"{label}\" [shape=circle];\n"),
                What::End => format!("  \"{label}\" [shape=doublecircle];\n"),
                What::Call { kind, .. } => {
                    let effects = if kind.has_effects() {
                        ", peripheries=2"
                    } else {
                        ""
                    };
                    format!(
                        "  \"{label}\" [shape=box{effects}, label=\"{label}\\n{}\"];\n",
                        kind.name()
                    )
                }
                What::Branch(_) => format!("  \"{label}\" [shape=diamond];\n"),
            };
        }
        for v in nodes {
            let linked = matches!(v.what, What::Call { link: true, .. });
            for (i, e) in v.edges.iter().enumerate() {
                let style = match (e.weak, e.back) {
                    (true, true) => "\"dashed,bold\"",
                    (true, false) => "dashed",
                    (false, true) => "bold",
                    _ => "solid",
                };
                let mut label = String::new();
                if v.edges.len() > 1 {
                    label = i.to_string();
                }
                if linked {
                    label = "link".into();
                }
                s += &format!(
                    "  \"{}\" -> \"{}\" [style={style}, label=\"{label}\"];\n",
                    escape(&v.name),
                    escape(&nodes[e.to].name)
                );
            }
        }
        s + "}\n"
    }
}

fn escape(s: &str) -> String {
    s.replace('\\', "\\\\").replace('"', "\\\"")
}

impl<C: ?Sized> fmt::Display for Graph<C> {
    /// A line for each node: its name, its call, and where it leads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (nodes, generator) = self.lines();
        writeln!(f, "graph {}", self.name)?;
        if generator {
            let pure = if self.pure { ", no effects" } else { "" };
            return writeln!(f, "  next(i): one loop{pure}");
        }
        for v in nodes {
            write!(f, "  {}{}", "  ".repeat(v.loops.len()), v.name)?;
            match &v.what {
                What::Call {
                    kind, link, held, ..
                } => {
                    write!(f, ": {}", kind.name())?;
                    if kind.has_effects() {
                        write!(f, ", effects")?;
                    }
                    if *link {
                        write!(f, ", linked")?;
                    }
                    if *held {
                        write!(f, ", held")?;
                    }
                }
                What::Branch(_) => write!(f, "?")?,
                _ => {}
            }
            for e in &v.edges {
                let arrow = match (e.weak, e.back) {
                    (false, false) => "->",
                    (true, false) => "~>",
                    (false, true) => "=>",
                    (true, true) => "~=>",
                };
                write!(f, " {arrow} {}", nodes[e.to].name)?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// A place in a graph: a call, and the epochs of the loops around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    node: usize,
    epochs: [u64; DEEPEST],
}

impl Cursor {
    /// The place of a call that no graph speaks of.
    pub(crate) const NOWHERE: Cursor = Cursor {
        node: START,
        epochs: [0; DEEPEST],
    };
}

/// What a graph says of a place.
pub enum At<'a> {
    Call {
        op: Op<'a>,
        link: bool,
        /// The function may leave after it.
        weak: bool,
    },
    /// The kind, and whether the next call is linked to it, are known in graphs of nodes.
    NotReady {
        kind: Option<Kind>,
        link: bool,
    },
    End,
    /// The graph contradicts itself.
    Broken(&'static str),
}

/// What comes after a place.
pub enum Follow {
    To {
        cursor: Cursor,
        weak: bool,
    },
    /// A branch can't be decided yet.
    Unknown,
    End,
    Broken(&'static str),
}

/// A graph with its context: what an instance walks.
pub trait Source {
    fn first(&self) -> Follow;
    fn at(&self, cursor: &Cursor) -> At<'_>;
    fn after(&self, cursor: &Cursor) -> Follow;
    /// The place that lies `calls` further on, where that is known without looking at them.
    fn skip(&self, cursor: &Cursor, calls: u64) -> Option<Cursor>;
    fn harvest(&self, cursor: &Cursor, result: isize);
}

/// A graph bound to the context of one run of its function.
pub struct Bound<'a, C: ?Sized> {
    pub graph: &'a Graph<C>,
    pub context: &'a C,
}

impl<C: ?Sized> Bound<'_, C> {
    /// Goes over one edge and then through branches, to a call or the end.
    fn walk(&self, nodes: &[Vertex<C>], from: &Cursor, first: Edge) -> Follow {
        let mut at = *from;
        let mut edge = first;
        let mut weak = false;
        loop {
            weak |= edge.weak;
            let (old, new) = (&nodes[at.node].loops, &nodes[edge.to].loops);
            if edge.back {
                // The head's own loop is the innermost around it.
                let level = new.len() - 1;
                at.epochs[level] += 1;
                at.epochs[level + 1..].fill(0);
            } else {
                for level in 0..DEEPEST {
                    if new.get(level).is_none() || old.get(level) != new.get(level) {
                        at.epochs[level] = 0;
                    }
                }
            }
            at.node = edge.to;
            match &nodes[at.node].what {
                What::End => return Follow::End,
                What::Branch(choice) => {
                    let v = &nodes[at.node];
                    match choice(self.context, &at.epochs[..v.loops.len()]) {
                        None => return Follow::Unknown,
                        Some(i) => match v.edges.get(i) {
                            Some(e) => edge = *e,
                            None => {
                                return Follow::Broken(
                                    "a branch chose an edge that it does not have",
                                );
                            }
                        },
                    }
                }
                _ => return Follow::To { cursor: at, weak },
            }
        }
    }
}

impl<C: ?Sized> Source for Bound<'_, C> {
    fn first(&self) -> Follow {
        let start = Cursor {
            node: START,
            epochs: [0; DEEPEST],
        };
        match &self.graph.form {
            Form::Nodes(nodes) => self.walk(nodes, &start, nodes[START].edges[0]),
            Form::Generator(_) => Follow::To {
                cursor: start,
                weak: false,
            },
        }
    }

    fn at(&self, cursor: &Cursor) -> At<'_> {
        match &self.graph.form {
            Form::Nodes(nodes) => {
                let v = &nodes[cursor.node];
                let What::Call {
                    kind, stub, link, ..
                } = &v.what
                else {
                    return At::End;
                };
                match stub(self.context, &cursor.epochs[..v.loops.len()]) {
                    Err(why) => At::Broken(why),
                    Ok(None) => At::NotReady {
                        kind: Some(*kind),
                        link: *link,
                    },
                    Ok(Some(op)) if op.kind() != *kind => {
                        At::Broken("a node gave arguments of another call than its own")
                    }
                    Ok(Some(op)) => At::Call {
                        op,
                        link: *link,
                        weak: false,
                    },
                }
            }
            Form::Generator(next) => {
                let (op, link, weak) = match next(self.context, cursor.epochs[0]) {
                    Next::Call(op) => (op, false, false),
                    Next::Weak(op) => (op, false, true),
                    Next::Link(op) => (op, true, false),
                    Next::NotReady => {
                        return At::NotReady {
                            kind: None,
                            link: false,
                        };
                    }
                    Next::End => return At::End,
                    Next::Broken(why) => return At::Broken(why),
                };
                if self.graph.pure && op.kind().has_effects() {
                    return At::Broken(
                        "a generator that was declared pure gave a call with effects",
                    );
                }
                if link && !op.kind().reads() {
                    return At::Broken("a link from a call that is no read");
                }
                At::Call { op, link, weak }
            }
        }
    }

    fn after(&self, cursor: &Cursor) -> Follow {
        match &self.graph.form {
            Form::Nodes(nodes) => self.walk(nodes, cursor, nodes[cursor.node].edges[0]),
            Form::Generator(_) => {
                let mut next = *cursor;
                next.epochs[0] += 1;
                Follow::To {
                    cursor: next,
                    weak: false,
                }
            }
        }
    }

    fn skip(&self, cursor: &Cursor, calls: u64) -> Option<Cursor> {
        let mut next = *cursor;
        next.epochs[0] = next.epochs[0].checked_add(calls)?;
        matches!(self.graph.form, Form::Generator(_)).then_some(next)
    }

    fn harvest(&self, cursor: &Cursor, result: isize) {
        if let Form::Nodes(nodes) = &self.graph.form {
            let v = &nodes[cursor.node];
            if let What::Call {
                harvest: Some(h), ..
            } = &v.what
            {
                h(self.context, &cursor.epochs[..v.loops.len()], result);
            }
        }
    }
}

/// Whether this write takes its bytes from the read before it.
pub fn is_linked(op: &Op<'_>) -> bool {
    matches!(op.data(), Some(Data::Linked))
}
