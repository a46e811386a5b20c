//! Graphs as such: what is refused when they are built (FA1, FA2), how they are walked and printed.

use std::cell::RefCell;
use std::sync::Mutex;

use outrider_graph::{Builder, Data, Engine, Error, Graph, Kind, Op};

type Plain = Builder<()>;

fn read(b: &mut Plain, name: &str) -> outrider_graph::Node {
    b.call(name, Kind::Pread, |(), _| {
        Some(Op::Pread {
            fd: -1,
            len: 1,
            offset: 0,
        })
    })
}

fn write(b: &mut Plain, name: &str) -> outrider_graph::Node {
    b.call(name, Kind::Write, |(), _| {
        Some(Op::Write {
            fd: -1,
            data: Data::Linked,
        })
    })
}

fn refused(build: impl FnOnce(&mut Plain)) -> Error {
    let mut b = Plain::new("f");
    build(&mut b);
    match b.build() {
        Ok(_) => panic!("accepted"),
        Err(e) => {
            assert!(e.to_string().starts_with("f: "), "{e}");
            e
        }
    }
}

#[test]
fn wrong_graphs_are_refused_with_the_reason() {
    let e = refused(|b| {
        let (r, s) = (read(b, "r"), read(b, "r"));
        b.edge(b.start(), r);
        b.edge(r, s);
        b.edge(s, b.end());
    });
    assert!(matches!(&e, Error::Name(t) if t.contains("two nodes are named \"r\"")));

    let e = refused(|b| {
        let r = read(b, "r");
        b.edge(b.start(), r);
    });
    assert!(matches!(&e, Error::Edges(t) if t.contains("r is a call with 0 edges")));

    let e = refused(|b| {
        let (r, s) = (read(b, "r"), read(b, "s"));
        b.edge(b.start(), r);
        b.edge(r, b.end());
        b.edge(s, b.end());
    });
    assert!(matches!(&e, Error::Unreachable(t) if t.contains("from the start to s")));

    let e = refused(|b| {
        let r = read(b, "r");
        b.edge(b.start(), r);
        b.back_edge(r, r);
    });
    assert!(
        matches!(&e, Error::Loop(t) if t.contains("no branch")),
        "{e}"
    );

    let e = refused(|b| {
        let r = read(b, "r");
        let more = b.branch("more", |(), _| Some(0));
        b.edge(b.start(), r);
        b.edge(r, more);
        b.back_edge(more, r);
    });
    assert!(matches!(&e, Error::Endless(_)), "{e}");

    let e = refused(|b| {
        let r = read(b, "r");
        let more = b.branch("more", |(), _| Some(0));
        b.edge(b.start(), r);
        b.edge(r, more);
        b.edge(more, r);
        b.edge(more, b.end());
    });
    assert!(
        matches!(&e, Error::Loop(t) if t.contains("without a looping-back edge")),
        "{e}"
    );

    let e = refused(|b| {
        let r = read(b, "r");
        let more = b.branch("more", |(), _| Some(0));
        b.edge(b.start(), more);
        b.back_edge(more, more);
        b.edge(more, r);
        b.edge(r, b.end());
    });
    assert!(
        matches!(&e, Error::Loop(t) if t.contains("without a call")),
        "{e}"
    );

    let e = refused(|b| {
        let (r, s) = (read(b, "r"), read(b, "s"));
        b.edge(b.start(), r);
        b.edge(r, s);
        b.edge(s, b.end());
        b.link(r);
    });
    assert!(
        matches!(&e, Error::Link(t) if t.contains("s, which follows, is no write")),
        "{e}"
    );

    let e = refused(|b| {
        let (r, w) = (read(b, "r"), write(b, "w"));
        b.edge(b.start(), r);
        b.weak_edge(r, w);
        b.edge(w, b.end());
        b.link(r);
    });
    assert!(matches!(&e, Error::Link(t) if t.contains("weak")), "{e}");

    let e = refused(|b| {
        let (r, w) = (read(b, "r"), write(b, "w"));
        b.edge(b.start(), r);
        b.weak_edge(r, w);
        b.edge(w, b.end());
    });
    assert!(matches!(&e, Error::Effect(t) if t.contains("held")), "{e}");
}

/// Where nested loops are, as the stubs see it: 64-bit epochs that start anew with the outer loop.
#[test]
fn nested_loops_count_their_own_epochs() {
    type Seen = Mutex<Vec<Vec<u64>>>;
    let mut b = Builder::<Seen>::new("nested");
    let inner = b.call("inner", Kind::Lseek, |_, _| {
        Some(Op::Lseek {
            fd: -1,
            offset: 0,
            whence: 0,
        })
    });
    b.harvest(inner, |seen: &Seen, epochs, _| {
        seen.lock().unwrap().push(epochs.to_vec())
    });
    let again = b.branch("again", |_, e| Some(usize::from(e[1] == e[0])));
    let outer = b.branch("outer", |_, e| Some(usize::from(e[0] == 2)));
    let head = b.call("head", Kind::Lseek, |_, _| {
        Some(Op::Lseek {
            fd: -1,
            offset: 1,
            whence: 0,
        })
    });
    b.edge(b.start(), head);
    b.edge(head, inner);
    b.edge(inner, again);
    b.back_edge(again, inner);
    b.edge(again, outer);
    b.back_edge(outer, head);
    b.edge(outer, b.end());
    let graph = b.build().unwrap();

    let text = graph.to_string();
    assert!(text.contains("inner: lseek -> again"), "{text}");
    assert!(text.contains("again? => inner -> outer"), "{text}");
    let dot = graph.dot();
    assert!(dot.contains("\"again\" -> \"inner\" [style=bold"), "{dot}");
    assert!(dot.starts_with("digraph \"nested\" {") && dot.ends_with("}\n"));

    let seen = Seen::default();
    let mut scope = graph.enter(&seen);
    for i in 0..3 {
        assert!(scope.lseek(&-1, 1, 0).is_err());
        for _ in 0..=i {
            assert!(scope.lseek(&-1, 0, 0).is_err());
        }
    }
    drop(scope);
    let expected: Vec<Vec<u64>> = (0..3)
        .flat_map(|i| (0..=i).map(move |j| vec![i, j]))
        .collect();
    assert_eq!(*seen.lock().unwrap(), expected);
    assert_eq!(graph.counts().divergences, 0);
}

/// The dry run finds what a wrong graph would have done, and does none of it.
#[test]
fn the_check_engine_finds_effects_that_do_not_come() {
    let dir = tempfile::tempdir().unwrap();
    let file = std::fs::File::create(dir.path().join("f")).unwrap();
    use std::os::fd::AsRawFd;
    let fd = file.as_raw_fd();
    let graph: Graph<RefCell<u32>> = Graph::generator("wrong", move |_, i| match i {
        0..3 => outrider_graph::Next::Call(Op::Pwrite {
            fd,
            data: Data::Bytes(b"abc"),
            offset: 100 * i as i64,
        }),
        _ => outrider_graph::Next::End,
    })
    .engine(Engine::Check);
    let context = RefCell::new(0);
    let mut scope = graph.enter(&context);
    assert_eq!(scope.pwrite(&file, b"abc", 0).unwrap(), 3);
    assert_eq!(scope.pwrite(&file, b"abd", 100).unwrap(), 3);
    drop(scope);
    let problems = graph.problems().join("\n");
    assert!(problems.contains("other bytes than foreseen"), "{problems}");
    assert!(
        problems.contains("pwrite") && problems.contains("did not call it"),
        "{problems}"
    );
    assert_eq!(graph.counts().unclaimed_effects, 1);
    assert_eq!(file.metadata().unwrap().len(), 103);
}
