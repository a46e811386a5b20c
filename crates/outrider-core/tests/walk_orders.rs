//! docs/design/12-trees.md: the order in which a tree is gone through is that of a naive recursive walk, in each of them and from every file on.

use std::path::{Path, PathBuf};

use outrider_core::tree::cursor::{Cursor, Step};
use outrider_core::tree::known::{Directory, Entry, Place, Tree};
use outrider_core::tree::order::Order;
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

/// Whether a subdirectory is listed, of a tree of which some are not.
fn is_listed(ino: u64) -> bool {
    !ino.is_multiple_of(3)
}

/// Lists one directory into `tree`.
fn list_one(path: &Path, node: &Node, tree: &mut Tree) {
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
}

/// Lists everything into `tree` that is `listed`, which subdirectories are by their inode numbers.
fn list(path: &Path, node: &Node, tree: &mut Tree, listed: fn(u64) -> bool) {
    let Node::Directory(children) = node else {
        return;
    };
    list_one(path, node, tree);
    for (n, ino, child) in children {
        if listed(*ino) {
            list(&path.join(name(*n)), child, tree, listed);
        }
    }
}

/// What is at a path within `root`.
fn at<'a>(root: &Path, node: &'a Node, path: &Path) -> &'a Node {
    let mut at = node;
    for part in path.strip_prefix(root).unwrap() {
        let Node::Directory(children) = at else {
            panic!("{} is in no directory", path.display())
        };
        let child = children.iter().find(|c| name(c.0).as_str() == part);
        at = &child.unwrap().2;
    }
    at
}

/// The entries of a directory in an order, of which there are six: listed, by name, by inode number, and these with `changed`.
fn sorted(
    children: &[(u8, u64, Node)],
    order: usize,
    changed: impl Fn(&mut Vec<&(u8, u64, Node)>),
) -> Vec<&(u8, u64, Node)> {
    let mut children: Vec<_> = children.iter().collect();
    match order % 3 {
        1 => children.sort_by_key(|c| c.0),
        2 => children.sort_by_key(|c| c.1),
        _ => {}
    }
    if order >= 3 {
        changed(&mut children);
    }
    children
}

fn files_first(children: &mut Vec<&(u8, u64, Node)>) {
    children.sort_by_key(|c| matches!(c.2, Node::Directory(_)));
}

/// The files in order, naively. Orders as in [`Order::OF_FILES`]: listed, by name, by inode number; then the same with files first.
fn walk(path: &Path, node: &Node, order: usize, found: &mut Vec<PathBuf>) {
    let Node::Directory(children) = node else {
        return;
    };
    for (n, _, child) in sorted(children, order, files_first) {
        let path = path.join(name(*n));
        match child {
            Node::File => found.push(path),
            Node::Directory(_) => walk(&path, child, order, found),
        }
    }
}

/// The directories in order, naively, each before those in it. Orders as in [`Order::OF_DIRECTORIES`]: listed, by name, by inode number; then the same from the end on.
/// What isn't listed is passed over with all that is in it.
fn descend(
    path: &Path,
    node: &Node,
    order: usize,
    listed: fn(u64) -> bool,
    found: &mut Vec<(PathBuf, bool)>,
) {
    let Node::Directory(children) = node else {
        return;
    };
    for (n, ino, child) in sorted(children, order, |children| children.reverse()) {
        if matches!(child, Node::Directory(_)) {
            let path = path.join(name(*n));
            found.push((path.clone(), listed(*ino)));
            if listed(*ino) {
                descend(&path, child, order, listed, found);
            }
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
        list(root, &node, &mut tree, |_| true);
        for (i, order) in Order::OF_FILES.into_iter().enumerate() {
            let mut all = Vec::new();
            walk(root, &node, i, &mut all);
            for (k, first) in all.iter().enumerate() {
                let mut cursor = Cursor::after(&place(&tree, first), order);
                let mut rest = Vec::new();
                while rest.len() < all.len() {
                    match cursor.next_file(&tree, root, order) {
                        Step::File(p) => rest.push(p.path()),
                        Step::Unlisted(path) => panic!("{}", path.display()),
                        Step::End => break,
                    }
                }
                prop_assert_eq!(&rest[..], &all[k + 1..]);
            }
        }
    }

    /// Of a tree of which nothing is listed but the directory of the first file: the cursor asks for the others, each once, and loses no place meanwhile.
    #[test]
    fn what_is_not_listed_is_asked_for(node in node()) {
        let root = Path::new("/tree");
        for (i, order) in Order::OF_FILES.into_iter().enumerate() {
            let mut all = Vec::new();
            walk(root, &node, i, &mut all);
            for (k, first) in all.iter().enumerate() {
                let mut tree = Tree::default();
                let dir = first.parent().unwrap();
                list_one(dir, at(root, &node, dir), &mut tree);
                let mut cursor = Cursor::after(&place(&tree, first), order);
                let mut rest = Vec::new();
                while rest.len() < all.len() {
                    match cursor.next_file(&tree, root, order) {
                        Step::File(p) => rest.push(p.path()),
                        Step::Unlisted(path) => {
                            prop_assert!(tree.get(&path).is_none(), "{} twice", path.display());
                            list_one(&path, at(root, &node, &path), &mut tree);
                        }
                        Step::End => break,
                    }
                }
                prop_assert_eq!(&rest[..], &all[k + 1..]);
            }
        }
    }

    /// The subdirectories that are to be listed beside one are those of the same directory that are still to come, the next ones first.
    #[test]
    fn what_is_listed_beside_is_still_to_come(node in node(), most in 0usize..5) {
        let root = Path::new("/tree");
        let mut tree = Tree::default();
        list(root, &node, &mut tree, is_listed);
        for (i, order) in Order::OF_FILES.into_iter().enumerate() {
            let mut all = Vec::new();
            walk(root, &node, i, &mut all);
            for first in all {
                let dir = first.parent().unwrap();
                let (Some(_), Node::Directory(children)) = (tree.get(dir), at(root, &node, dir)) else {
                    continue;
                };
                let in_order = sorted(children, i, files_first).into_iter().map(|c| (dir.join(name(c.0)), c));
                let later = in_order.skip_while(|(path, _)| *path != first);
                let expected: Vec<PathBuf> = later
                    .filter(|(_, c)| matches!(c.2, Node::Directory(_)) && !is_listed(c.1))
                    .map(|(path, _)| path)
                    .take(most)
                    .collect();
                let cursor = Cursor::after(&place(&tree, &first), order);
                prop_assert_eq!(cursor.unlisted(&tree, order, most), expected);
            }
        }
    }

    #[test]
    fn directories_are_entered_as_in_a_naive_walk(node in node()) {
        let root = Path::new("/tree");
        let some: [fn(u64) -> bool; 2] = [|_| true, is_listed];
        for listed in some {
            let mut tree = Tree::default();
            list(root, &node, &mut tree, listed);
            for (i, order) in Order::OF_DIRECTORIES.into_iter().enumerate() {
                let mut all = vec![(root.to_owned(), true)];
                descend(root, &node, i, listed, &mut all);
                for (k, (first, _)) in all.iter().enumerate() {
                    let Some(mut cursor) = Cursor::into(first, &tree, order) else {
                        // A file where the tree's root would be.
                        prop_assert!(matches!(node, Node::File));
                        continue;
                    };
                    let next = || {
                        let (path, known) = cursor.next_directory(&tree, root, order)?;
                        Some((path, known.is_some()))
                    };
                    let rest: Vec<_> = std::iter::from_fn(next).take(all.len()).collect();
                    prop_assert_eq!(&rest[..], &all[k + 1..]);
                }
            }
        }
    }
}
