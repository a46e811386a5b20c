//! Adds up what a tree takes on its disk, as du does: lists each directory, then looks at each of its entries.

mod support;

use std::ffi::{CStr, CString};
use std::os::fd::AsRawFd;

use outrider_graph::{Engine, Graph, Next, Op};

/// The entries of one directory.
struct Directory {
    fd: i32,
    names: Vec<CString>,
}

fn looks(engine: Engine) -> Graph<Directory> {
    Graph::generator("look", |d: &Directory, i| match d.names.get(i as usize) {
        Some(path) => Next::Call(Op::Fstatat {
            dir: d.fd,
            path,
            flags: libc::AT_SYMLINK_NOFOLLOW,
        }),
        None => Next::End,
    })
    .pure()
    .engine(engine)
}

fn names(room: &[u8]) -> impl Iterator<Item = CString> + '_ {
    let mut rest = room;
    std::iter::from_fn(move || {
        loop {
            if rest.is_empty() {
                return None;
            }
            // struct linux_dirent64: inode, offset, length, type, name.
            let length = usize::from(u16::from_ne_bytes([rest[16], rest[17]]));
            let (entry, after) = rest.split_at(length);
            rest = after;
            let name = CStr::from_bytes_until_nul(&entry[19..]).ok()?;
            if !matches!(name.to_bytes(), b"." | b"..") {
                return Some(name.to_owned());
            }
        }
    })
}

/// Blocks of 512 bytes, and entries.
fn usage(graph: &Graph<Directory>, root: &str) -> std::io::Result<(i64, u64)> {
    let mut open = vec![CString::new(root)?];
    let (mut blocks, mut entries) = (0, 0);
    let mut room = vec![0u8; 64 << 10];
    while let Some(path) = open.pop() {
        let mut directory = Directory {
            fd: -1,
            names: Vec::new(),
        };
        let file = std::fs::File::open(std::path::Path::new(path.to_str().unwrap_or(".")))?;
        directory.fd = file.as_raw_fd();
        loop {
            // SAFETY: the buffer's own length.
            let n = unsafe {
                libc::syscall(
                    libc::SYS_getdents64,
                    file.as_raw_fd(),
                    room.as_mut_ptr(),
                    room.len(),
                )
            };
            match n {
                0 => break,
                n if n < 0 => return Err(std::io::Error::last_os_error()),
                n => directory.names.extend(names(&room[..n as usize])),
            }
        }
        let mut scope = graph.enter(&directory);
        for name in &directory.names {
            let st = scope.fstatat(&file, name, libc::AT_SYMLINK_NOFOLLOW)?;
            blocks += st.st_blocks;
            entries += 1;
            if st.st_mode & libc::S_IFMT == libc::S_IFDIR {
                let below = [path.to_bytes(), b"/", name.to_bytes()].concat();
                open.push(CString::new(below)?);
            }
        }
    }
    Ok((blocks, entries))
}

fn main() {
    let (paths, engine) = support::arguments("usage DIRECTORY");
    let run = |graph: &Graph<Directory>| {
        let (r, time) = support::timed(|| usage(graph, &paths[0]));
        (r.unwrap_or_else(|e| support::fail(&e.to_string())), time)
    };
    let plain = run(&looks(Engine::Serial));
    let graph = looks(engine);
    let ahead = run(&graph);
    println!("{} KiB in {} entries", ahead.0.0 / 2, ahead.0.1);
    support::conclude(plain, ahead, graph.counts(), &graph.problems());
}
