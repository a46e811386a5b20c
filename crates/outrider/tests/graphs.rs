//! FA10: foreaction graphs through the C and C++ interfaces, on both engines, against the bare calls.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use support::graph_count as count;

/// Compiles one of `tests/programs` against the headers and the library beside the command under test.
fn compile(compiler: &str, source: &str, extra: &[&str]) -> PathBuf {
    let root = support::repository();
    let libraries = support::outrider().parent().unwrap().to_owned();
    let name = Path::new(source).file_name().unwrap().to_str().unwrap();
    let target = support::scratch().join(name.replace('.', "-"));
    let out = Command::new(compiler)
        .args(["-O1", "-Wall", "-Wextra", "-Werror"])
        .args(extra)
        .arg("-I")
        .arg(root.join("include"))
        .arg(root.join("tests/programs").join(source))
        .arg("-o")
        .arg(&target)
        .arg("-L")
        .arg(&libraries)
        .arg("-loutrider")
        .arg(format!("-Wl,-rpath,{}", libraries.display()))
        .output()
        .unwrap();
    assert!(
        out.status.success(),
        "{source}: {}",
        String::from_utf8_lossy(&out.stderr)
    );
    target
}

fn run(program: &Path, argument: &Path, engine: &str) -> String {
    let out = Command::new(program)
        .arg(argument)
        .env("OUTRIDER_GRAPH", engine)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(
        out.status.success(),
        "{engine}: {text}{}",
        String::from_utf8_lossy(&out.stderr)
    );
    text
}

#[test]
fn the_c_interface_gives_what_the_calls_give() {
    let program = compile("cc", "graph.c", &["-std=c11", "-pthread"]);
    for engine in ["serial", "uring", "threads"] {
        let dir = support::scratch().join(format!("graph-c-{engine}"));
        std::fs::create_dir_all(&dir).unwrap();
        let text = run(&program, &dir, engine);
        assert!(
            text.contains("refused: read is a call with 0 edges"),
            "{text}"
        );
        assert!(text.contains("the check found it"), "{text}");
        for graph in ["load", "scan", "copy"] {
            // A copy's last read, which finds the end, is not in its graph.
            let most = if graph == "copy" { 5 } else { 0 };
            assert!(count(&text, graph, "not foreseen") <= most, "{text}");
            let used = count(&text, graph, "used");
            assert_eq!(used > 0, engine != "serial", "{graph} on {engine}: {text}");
        }
        assert!(!text.contains("EFFECTS NOT CALLED"), "{text}");
        // FA8: beside a scope that longjmp left open, after it, and in other threads, calls are made ahead; a scope that its thread
        // leaves open ends with it.
        for graph in ["jumped", "inside", "after", "exited", "others"] {
            assert_eq!(count(&text, graph, "runs"), 1, "{text}");
            let used = count(&text, graph, "used");
            assert_eq!(used > 0, engine != "serial", "{graph} on {engine}: {text}");
        }
        assert_eq!(count(&text, "abandoned", "runs"), 1, "{text}");
    }
}

#[test]
fn the_cpp_interface_leaves_by_exceptions_and_pthread_exit() {
    if Command::new("c++").arg("--version").output().is_err() {
        return support::skip(
            "the_cpp_interface_leaves_by_exceptions_and_pthread_exit",
            "no C++ compiler",
        );
    }
    let program = compile("c++", "graph.cpp", &["-std=c++14", "-pthread"]);
    let file = support::scratch().join("blocks");
    let bytes: Vec<u8> = (0..64 * 4096u32)
        .map(|i| (i / 4096 * 3 + i % 7) as u8)
        .collect();
    std::fs::write(&file, bytes).unwrap();
    for engine in ["uring", "threads"] {
        let text = run(&program, &file, engine);
        assert_eq!(count(&text, "search", "runs"), 4, "{text}");
        assert!(count(&text, "search", "used") > 0, "{text}");
        assert_eq!(count(&text, "exits", "runs"), 1, "{text}");
        assert!(count(&text, "exits", "used") > 0, "{text}");
        // FA2, FA7: a graph of nodes, whose linked writes are made ahead.
        assert_eq!(count(&text, "copies", "runs"), 1, "{text}");
        assert!(count(&text, "copies", "used") > 0, "{text}");
        assert_eq!(count(&text, "copies", "not foreseen"), 0, "{text}");
    }
}

/// FA8: runs within runs of the same graph, ten deep: each finds what it finds without one, although the inner ones write to what the outer ones
/// have read ahead.
#[test]
fn a_function_that_calls_itself_finds_what_it_finds_without_its_graph() {
    let program = compile("cc", "graph_recursion.c", &["-std=c11", "-pthread"]);
    let mut expected = None;
    for engine in ["serial", "uring", "threads"] {
        let dir = support::scratch().join(format!("graph-recursion-{engine}"));
        std::fs::create_dir_all(&dir).unwrap();
        let text = run(&program, &dir, engine);
        let found: Vec<_> = text.lines().take(11).map(str::to_owned).collect();
        let files: Vec<_> = (0..=10)
            .map(|depth| std::fs::read(dir.join(depth.to_string())).unwrap())
            .collect();
        assert!(
            found[0].starts_with("10: ") && found[10].starts_with("0: "),
            "{text}"
        );
        let found = (found, files);
        assert!(
            expected.get_or_insert_with(|| found.clone()) == &found,
            "{engine}: {text}"
        );
        assert_eq!(count(&text, "visit", "runs"), 11, "{text}");
        assert_eq!(count(&text, "visit", "not foreseen"), 0, "{text}");
        assert!(!text.contains("EFFECTS NOT CALLED"), "{text}");
        let used = count(&text, "visit", "used");
        assert_eq!(used > 0, engine != "serial", "{engine}: {text}");
    }
}

/// Loops of more iterations than the prototype could count, on every engine, and of ten million.
#[test]
fn loops_of_ten_million_iterations() {
    const NUMBERS: u64 = 251;
    let program = compile("cc", "graph_long.c", &["-std=c11"]);
    let file = support::scratch().join("graph-long");
    let bytes: Vec<u8> = (0..NUMBERS).flat_map(|n| (n * n).to_ne_bytes()).collect();
    std::fs::write(&file, bytes).unwrap();
    let engines = [
        ("uring", 140_000),
        ("threads", 140_000),
        ("auto", 10_000_000),
    ];
    for (engine, iterations) in engines {
        let out = Command::new(&program)
            .args([&file, Path::new(&iterations.to_string())])
            .env("OUTRIDER_GRAPH", engine)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(out.status.success(), "{engine}: {out:?}");
        let sum = (0..iterations).fold(0u64, |sum, i| {
            let n = i % NUMBERS;
            sum.wrapping_mul(31).wrapping_add(n * n)
        });
        assert!(
            text.starts_with(&format!("sum {sum}\n")),
            "{engine}: {text}"
        );
        assert_eq!(count(&text, "long", "calls"), iterations, "{text}");
        assert_eq!(count(&text, "long", "not foreseen"), 0, "{text}");
        // What is cached is rarely looked ahead of.
        assert!(count(&text, "long", "used") > 0, "{text}");
    }
}

/// The example in docs/guide/graphs.md finds what the bare calls find.
#[test]
fn the_example_in_the_guide_works() {
    let guide = support::repository().join("docs/guide/graphs.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    let (_, code) = guide.split_once("```c\n").unwrap();
    let (code, _) = code.split_once("```").unwrap();
    let source = format!(
        "#define _GNU_SOURCE\n{code}
#include <fcntl.h>
#include <stdio.h>
static int found(const char *block) {{ return block[7] == 'x'; }}
int main(int argc, char **argv)
{{
    static const off_t at[] = {{3 * 4096, 0, 4096, 2 * 4096}};
    struct blocks b = {{argc > 1 ? open(argv[1], O_RDONLY) : -1, at, 0}};
    for (b.count = 0; b.count <= 4; b.count++)
        printf(\"%d\", search(&b, found));
    return 0;
}}
"
    );
    let root = support::scratch();
    let path = root.join("guide.c");
    std::fs::write(&path, source).unwrap();
    let program = compile("cc", path.to_str().unwrap(), &["-std=c11"]);
    let file = root.join("guide-blocks");
    let mut bytes = vec![b'.'; 4 * 4096];
    bytes[4096 + 7] = b'x';
    std::fs::write(&file, bytes).unwrap();
    for engine in ["auto", "threads", "serial"] {
        assert_eq!(run(&program, &file, engine), "00011", "{engine}");
    }
}
