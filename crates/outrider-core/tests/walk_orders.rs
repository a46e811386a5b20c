//! DESIGN, "Trees": the order in which a tree is gone through is that of a naive recursive walk, in all manners and from every file on.

use std::path::{Path, PathBuf};

use outrider_core::walk::tree::{Cursor, Directory, Entry, MANNERS, Place, Step, Tree};
use proptest::prelude::*;

/// A tree: names of files and subdirectories with their inode numbers, in the order of the listing.
#[derive(Clone, Debug)]
enum Node {
    File,
    Directory(Vec<(u8, u64, Node)>),
}

fn node() -> impl Strategy<Value = Node> {
    Just(Node::File).prop_recursive(4, 40, 6, |inner| {
        let children = prop::collection::vec((any::<u8>(), any::<u64>(), inner), 0..6);
        children.prop_map(|mut children| {
            let mut names = std::collections::HashSet::new();
            children.retain(|(name, _, _)| names.insert(*name));
            Node::Directory(children)
        })
    })
}

fn name(n: u8) -> String {
    format!("{n:03}")
}

/// Lists everything into `tree`.
fn list(path: &Path, node: &Node, tree: &mut Tree) {
    let Node::Directory(children) = node else {
        return;
    };
    let entries = children.iter().map(|(n, ino, child)| Entry {
        name: name(*n).into(),
        ino: *ino,
        directory: matches!(child, Node::Directory(_)),
    });
    tree.insert(Directory::new(
        path.to_owned(),
        (1, 1),
        (0, 0),
        entries.collect(),
    ));
    for (n, _, child) in children {
        list(&path.join(name(*n)), child, tree);
    }
}

/// The files in order, naively. Manners as in [`MANNERS`]: listed, by name, by inode number; then the same with files first.
fn walk(path: &Path, node: &Node, manner: usize, found: &mut Vec<PathBuf>) {
    let Node::Directory(children) = node else {
        return;
    };
    let mut children: Vec<_> = children.iter().collect();
    match manner % 3 {
        1 => children.sort_by_key(|c| c.0),
        2 => children.sort_by_key(|c| c.1),
        _ => {}
    }
    if manner >= 3 {
        children.sort_by_key(|c| matches!(c.2, Node::Directory(_)));
    }
    for (n, _, child) in children {
        let path = path.join(name(*n));
        match child {
            Node::File => found.push(path),
            Node::Directory(_) => walk(&path, child, manner, found),
        }
    }
}

fn place(tree: &Tree, path: &Path) -> Place {
    let dir = tree.get(path.parent().unwrap()).unwrap().clone();
    let mut names = dir.entries.iter();
    let entry = names.position(|e| Some(e.name.as_os_str()) == path.file_name());
    Place {
        entry: entry.unwrap(),
        dir,
    }
}

proptest! {
    #[test]
    fn orders_are_those_of_a_naive_walk(node in node()) {
        let root = Path::new("/tree");
        let mut tree = Tree::default();
        list(root, &node, &mut tree);
        for (i, manner) in MANNERS.into_iter().enumerate() {
            let mut order = Vec::new();
            walk(root, &node, i, &mut order);
            for (k, first) in order.iter().enumerate() {
                let mut cursor = Cursor::after(&place(&tree, first), manner);
                let mut rest = Vec::new();
                loop {
                    match cursor.advance(&tree, root, manner) {
                        Step::File(p) => rest.push(p.dir.path.join(&p.dir.entries[p.entry].name)),
                        Step::Unlisted(path) => panic!("{}", path.display()),
                        Step::End => break,
                    }
                }
                prop_assert_eq!(&rest[..], &order[k + 1..]);
            }
        }
    }
}
