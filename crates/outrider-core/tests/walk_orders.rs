//! docs/design/12-trees.md: the order in which a tree is gone through is that of a naive recursive walk, in each of them and from every file on.

use std::path::{Path, PathBuf};

use outrider_core::tree::known::{Directory, Entry, Place, Tree};
use outrider_core::tree::order::{Cursor, Order, Step};
use proptest::prelude::*;

use outrider_sys::units::InodeKey;

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
        InodeKey::new(1, 1),
        (0, 0),
        entries.collect(),
    ));
    for (n, _, child) in children {
        list(&path.join(name(*n)), child, tree);
    }
}

/// The files in order, naively. Orders as in [`Order::OF_FILES`]: listed, by name, by inode number; then the same with files first.
fn walk(path: &Path, node: &Node, order: usize, found: &mut Vec<PathBuf>) {
    let Node::Directory(children) = node else {
        return;
    };
    let mut children: Vec<_> = children.iter().collect();
    match order % 3 {
        1 => children.sort_by_key(|c| c.0),
        2 => children.sort_by_key(|c| c.1),
        _ => {}
    }
    if order >= 3 {
        children.sort_by_key(|c| matches!(c.2, Node::Directory(_)));
    }
    for (n, _, child) in children {
        let path = path.join(name(*n));
        match child {
            Node::File => found.push(path),
            Node::Directory(_) => walk(&path, child, order, found),
        }
    }
}

/// The directories in order, naively, each before those in it. Orders as in [`Order::OF_DIRECTORIES`]: listed, by name, by inode number; then the same from the end on.
fn descend(path: &Path, node: &Node, order: usize, found: &mut Vec<PathBuf>) {
    let Node::Directory(children) = node else {
        return;
    };
    found.push(path.to_owned());
    let mut children: Vec<_> = children.iter().collect();
    match order % 3 {
        1 => children.sort_by_key(|c| c.0),
        2 => children.sort_by_key(|c| c.1),
        _ => {}
    }
    if order >= 3 {
        children.reverse();
    }
    for (n, _, child) in children {
        descend(&path.join(name(*n)), child, order, found);
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
        for (i, order) in Order::OF_FILES.into_iter().enumerate() {
            let mut all = Vec::new();
            walk(root, &node, i, &mut all);
            for (k, first) in all.iter().enumerate() {
                let mut cursor = Cursor::after(&place(&tree, first), order);
                let mut rest = Vec::new();
                loop {
                    match cursor.next_file(&tree, root, order) {
                        Step::File(p) => rest.push(p.dir.path.join(&p.dir.entries[p.entry].name)),
                        Step::Unlisted(path) => panic!("{}", path.display()),
                        Step::End => break,
                    }
                }
                prop_assert_eq!(&rest[..], &all[k + 1..]);
            }
        }
    }

    #[test]
    fn directories_are_entered_as_in_a_naive_walk(node in node()) {
        let root = Path::new("/tree");
        let mut tree = Tree::default();
        list(root, &node, &mut tree);
        for (i, order) in Order::OF_DIRECTORIES.into_iter().enumerate() {
            let mut all = Vec::new();
            descend(root, &node, i, &mut all);
            for (k, first) in all.iter().enumerate() {
                let mut cursor = Cursor::into(first, &tree, order).unwrap();
                let next = || Some(cursor.next_directory(&tree, root, order)?.0);
                let rest: Vec<PathBuf> = std::iter::from_fn(next).collect();
                prop_assert_eq!(&rest[..], &all[k + 1..]);
            }
        }
    }
}
