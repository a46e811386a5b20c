//! Looking ahead: the walk along the window that issues what may be issued.

use std::time::Instant;

use outrider_sys::raw::{self, syscall6};

use super::{GONE, Instance, LISTED, SEARCH, uses_file};
use crate::buffers::LARGEST;
use crate::call::{Args, Data, Kind};
use crate::conflict::{File, Touch, Writes, conflict, is_of_kernel, may_be_written};
use crate::context::{Progress, opens_directory};
use crate::graph::{At, Cursor, Engine, Source};
use crate::limits::{DEEPEST_WINDOW, FIRST_BYTES};
use crate::{device, process, walk};

impl Instance<'_> {
    /// Looks ahead: fills the window, and issues what may be issued.
    pub(super) fn pump(&mut self, source: &dyn Source) {
        let depth = match self.depth_now() {
            0 => return,
            d => d,
        };
        let len = self.cx.as_ref().map_or(0, |cx| cx.order.len());
        // Of writes half the window is gathered: they go out in larger pieces.
        let writes = 1 << Kind::Write as u32 | 1 << Kind::Pwrite as u32;
        let low = if self.kinds & writes != 0 { 2 } else { 3 };
        if self.waiting == 0 && len * 4 > depth.max(self.reach) * low {
            return;
        }
        // Where reads are only fetched, none of the time that this takes is a read's own.
        let began = (self.is_short() && self.options.fetch).then(raw::thread_time);
        self.look(source);
        if let (Some(began), Some(cx)) = (began, self.cx.as_mut()) {
            cx.account -= raw::thread_time().saturating_sub(began).as_nanos() as i64;
        }
    }

    fn look(&mut self, source: &dyn Source) {
        // A walk starts from where the positions are, before the current call.
        self.positions = [None; 8];
        let mut walk = Walk::default();
        self.begin_together(source);
        if self.waiting > 0 || self.ordered || !self.pure {
            if let Some(i) = self.current {
                self.consider(source, i, &mut walk);
            }
            let mut n = 0;
            while !walk.stopped {
                let Some(i) = self.cx.as_ref().and_then(|cx| cx.order.get(n).copied()) else {
                    break;
                };
                self.consider(source, i, &mut walk);
                n += 1;
            }
        }
        let mut ahead = self.ahead();
        while !walk.stopped && self.is_near(ahead) && self.extend(source) {
            let newest = self.cx.as_ref().and_then(|cx| cx.order.back().copied());
            if let Some(i) = newest {
                self.consider(source, i, &mut walk);
                ahead.0 += self.place(i).map_or(0, |p| p.args.len);
                ahead.1 &= !self.tail_weak;
            }
        }
        self.reach = self.cx.as_ref().map_or(0, |cx| cx.order.len());
        if let Some(cx) = self.cx.as_mut() {
            cx.submit();
        }
        // While the first reads are on their way.
        if let Some((file, at)) = self.unasked.take() {
            self.device = device::of(&file, at);
        }
    }

    /// When nothing was made ahead so far, the program's own read goes to the disk with those behind it, and before them.
    fn begin_together(&mut self, source: &dyn Source) {
        let Some(i) = self.current else { return };
        let read = |p: &crate::context::Place| {
            p.args.kind == Kind::Pread && p.progress == Progress::Ready && !p.warmed
        };
        if !self.place(i).is_some_and(read) {
            return;
        }
        let alone = self.cx.as_ref().is_none_or(|cx| cx.order.is_empty());
        if alone && !self.extend(source) {
            return;
        }
        if !self.options.fetch && !self.cx.as_mut().is_some_and(|cx| cx.has_ring()) {
            return;
        }
        if let Some(cx) = self.cx.as_mut() {
            let p = &mut cx.places[i as usize];
            p.position = Some(p.args.offset);
        }
        // It is not among those that wait.
        let waiting = self.waiting + 1;
        self.waiting = waiting;
        self.issue(source, i);
        self.waiting = waiting - 1;
    }

    /// Bytes of the calls in the window, and whether no weak edge lies in it.
    fn ahead(&self) -> (usize, bool) {
        let Some(cx) = self.cx.as_ref() else {
            return (0, false);
        };
        let places = cx.order.iter().map(|i| &cx.places[*i as usize]);
        places.fold((0, !self.tail_weak), |(bytes, certain), p| {
            (bytes + p.args.len, certain && !p.weak_before)
        })
    }

    /// Whether one more call is to be looked at.
    fn is_near(&mut self, (bytes, certain): (usize, bool)) -> bool {
        let depth = self.depth_on(self.device);
        let len = self.cx.as_ref().map_or(0, |cx| cx.order.len());
        if self.adapts() && self.shared.payback.rests() {
            return false;
        }
        let room = device::room(self.file_system);
        let begin = certain && self.adapts() && bytes < FIRST_BYTES.min(room);
        len < depth && (bytes < room || len == 0) || begin && len < self.options.depth
    }

    /// How far to look now; 0 while looking ahead rests.
    pub(super) fn depth_now(&mut self) -> usize {
        if self.closing || self.cx.as_ref().is_none_or(|cx| cx.broken) {
            return 0;
        }
        self.settle_account();
        if self.adapts() && self.shared.payback.rests() {
            // It begins anew when it goes on.
            self.depths = [self.first_depth().min(self.options.depth); device::DEVICES];
            return 0;
        }
        self.depth_on(self.device)
    }

    /// Looks at a place in the course of a walk: issues it if that is possible, and notes what it means for those behind it.
    pub(super) fn consider(&mut self, source: &dyn Source, i: u16, walk: &mut Walk) {
        let is_current = self.current == Some(i);
        self.ask_again(source, i);
        let Some(cx) = self.cx.as_mut() else {
            walk.stopped = true;
            return;
        };
        cx.poll(i);
        let p = &cx.places[i as usize];
        if p.weak_before && !is_current {
            walk.certain = false;
        }
        if p.progress == Progress::NotReady {
            walk.expected = false;
            if !self.pure && p.kind.is_none_or(Kind::has_effects) {
                // It may change anything.
                walk.stopped = true;
            } else if p.kind.is_none_or(|k| !k.runs_ahead() || k == Kind::Read) {
                walk.unknown_position = true;
            }
            return;
        }
        self.predict_position(i, walk);
        let Some(p) = self.place(i) else { return };
        let rests = self.adapts() && self.shared.payback.rests();
        let open = p.progress == Progress::Ready && !p.never && !p.warmed && !is_current && !rests;
        if open && self.may_issue(i, walk) && self.issue(source, i) {
            self.waiting -= 1;
        }
        let Some(p) = self.place(i) else {
            walk.stopped = true;
            return;
        };
        // What was only warmed is still to be made: an open may create its file.
        let back = p.progress == Progress::Done && p.args.kind.runs_ahead();
        let effects = p.args.has_effects();
        if p.args.kind != Kind::Lseek && (back || !effects || self.options.stops) {
            walk.expected &= back && !p.stale && (p.pretended || p.is_whole());
        }
        if !back || effects && !p.stands() {
            walk.effects |= effects;
            walk.writes.add(&p.args);
            walk.pending.push(i);
        }
    }

    /// Sets the offset that a call at its descriptor's position will have, and moves the position on.
    pub(super) fn predict_position(&mut self, i: u16, walk: &mut Walk) {
        let Some((args, progress, result, assumed)) = self
            .place(i)
            .map(|p| (p.args, p.progress, p.result, p.position))
        else {
            return;
        };
        let at = match args.kind {
            Kind::Read | Kind::Write | Kind::Lseek if !walk.unknown_position => {
                self.position(args.fd)
            }
            Kind::Pread | Kind::Pwrite => Some(args.offset),
            _ => None,
        };
        let Some(cx) = self.cx.as_mut() else { return };
        let p = &mut cx.places[i as usize];
        let issued = matches!(progress, Progress::Flying | Progress::Done);
        if !issued {
            p.position = at;
        } else if assumed != at && args.kind == Kind::Read {
            p.stale = true;
        }
        let next = match args.kind {
            Kind::Read | Kind::Write => {
                let moved = if progress == Progress::Done && !p.pretended {
                    result.max(0)
                } else {
                    args.len as i64
                };
                at.map(|a| a.saturating_add(moved))
            }
            Kind::Lseek => match args.flags {
                libc::SEEK_SET => Some(args.offset),
                libc::SEEK_CUR => at.map(|a| a.saturating_add(args.offset)),
                _ => None,
            },
            _ => return,
        };
        // An unsent linked write's length is not known.
        let next = if p.linked.is_some() && !issued {
            None
        } else {
            next
        };
        if let Some(entry) = self
            .positions
            .iter_mut()
            .flatten()
            .find(|entry| entry.0 == args.fd)
        {
            entry.1 = next;
        }
    }

    /// The position of a descriptor at the point that a walk has reached.
    pub(super) fn position(&mut self, fd: i32) -> Option<i64> {
        if let Some((_, at)) = self.positions.iter().flatten().find(|e| e.0 == fd) {
            return *at;
        }
        let free = self.positions.iter_mut().find(|e| e.is_none())?;
        let at = raw::lseek(fd, 0, libc::SEEK_CUR);
        let at = (at >= 0).then_some(at);
        *free = Some((fd, at));
        at
    }

    /// What a descriptor names, asked once per call of the program, or of the scope.
    pub(super) fn file(&mut self, fd: i32) -> Option<File> {
        if let Some(f) = self.files.iter().flatten().find(|f| f.fd == fd) {
            return Some(*f);
        }
        let st = raw::status(fd).ok()?;
        // SAFETY: F_GETFL takes no memory.
        let flags = unsafe {
            syscall6(
                libc::SYS_fcntl,
                fd as usize,
                libc::F_GETFL as usize,
                0,
                0,
                0,
                0,
            )
        } as i32;
        let format = st.st_mode & libc::S_IFMT;
        let of_kernel = match self.diskless {
            _ if libc::major(st.st_dev) != 0 => false,
            Some((device, known)) if device == st.st_dev => known,
            _ => {
                let asked = is_of_kernel(fd);
                self.diskless = Some((st.st_dev, asked));
                asked
            }
        };
        let file = File {
            fd,
            device: st.st_dev,
            inode: st.st_ino,
            size: st.st_size,
            regular: format == libc::S_IFREG && !of_kernel,
            directory: format == libc::S_IFDIR && !of_kernel,
            append: flags & libc::O_APPEND != 0,
            direct: flags & libc::O_DIRECT != 0,
        };
        // What goes around the cache is read and not fetched, which must not happen to another file.
        let kept = !self.keeps_files() || file.regular && !file.direct;
        if kept && let Some(free) = self.files.iter_mut().find(|f| f.is_none()) {
            *free = Some(file);
        }
        Some(file)
    }

    /// Whether a call may be made now, before the program makes it.
    pub(super) fn may_issue(&mut self, i: u16, walk: &Walk) -> bool {
        let Some(p) = self.place(i) else { return false };
        let (args, position) = (p.args, p.position);
        if !args.kind.runs_ahead() {
            // It is only warmed, which has no effects.
            return true;
        }
        if args.kind.has_effects() && (self.unsure || !(walk.certain && walk.expected)) {
            return false;
        }
        if !args.kind.has_effects() && !walk.effects {
            return true;
        }
        let own = if uses_file(args.kind) {
            self.file(args.fd)
        } else {
            None
        };
        let alone = Touch {
            args: &args,
            position,
            path: &[],
            file: own,
        };
        if walk.writes.let_by(&alone) {
            return true;
        }
        !walk.pending.into_iter().any(|e| self.meet(*e, i))
    }

    /// Whether the calls of two places must keep their order.
    pub(super) fn meet(&mut self, earlier: u16, later: u16) -> bool {
        let (first, second) = (self.file_of(earlier), self.file_of(later));
        let touches = (self.touch(earlier, first), self.touch(later, second));
        !matches!(touches, (Some(a), Some(b)) if !conflict(&a, &b))
    }

    /// What the call of a place reads or writes.
    pub(super) fn touch(&self, i: u16, file: Option<File>) -> Option<Touch<'_>> {
        let cx = self.cx.as_ref()?;
        let p = cx.places.get(i as usize)?;
        Some(Touch {
            args: &p.args,
            position: p.position,
            path: cx.paths(i).0,
            file,
        })
    }

    /// The file of a place's call, if it takes no path.
    pub(super) fn file_of(&mut self, i: u16) -> Option<File> {
        let args = self.place(i)?.args;
        uses_file(args.kind).then(|| self.file(args.fd))?
    }

    /// Gives a call to the engine. `false`: not now. A call that can't be made ahead at all is marked so.
    pub(super) fn issue(&mut self, source: &dyn Source, i: u16) -> bool {
        let Some((args, linked, cursor, position)) = self
            .place(i)
            .map(|p| (p.args, p.linked, p.cursor, p.position))
        else {
            return false;
        };
        let mut buffer = None;
        let mut len = args.len;
        let mut direct = false;
        let mut lent = 0;
        match args.kind {
            Kind::Read | Kind::Pread | Kind::Write | Kind::Pwrite => {
                let fits = linked.is_some() || (1..=LARGEST).contains(&len);
                let allowed = args.kind != Kind::Write || self.options.private_positions;
                let file = self.file(args.fd);
                let writes = args.kind.writes();
                let usable = file.is_some_and(|f| {
                    f.regular && !(f.append && writes) && !may_be_written(f.device, f.inode)
                });
                // A write beyond the limit brings a signal, to whoever makes it.
                let usable = usable && !(writes && self.has_size_limit());
                direct = file.is_some_and(|f| f.direct);
                // Where the program's own bytes of a linked write lie is not known yet, and O_DIRECT may refuse them.
                if !fits || !allowed || !usable || direct && linked.is_some() {
                    return self.never(i);
                }
                // Neither EINVAL for a negative offset nor an unknown position is for us.
                if position.is_none_or(|p| p < 0) {
                    return false;
                }
                if args.kind.reads()
                    && self.adapts()
                    && let (Some(file), Some(at)) = (file, position)
                {
                    self.note_device(i, &file, at);
                }
                let fetches = self.options.fetch && self.options.engine != Engine::Check;
                if args.kind.reads() && fetches && !direct {
                    return self.fetch(i);
                }
                if args.kind.reads() {
                    buffer = self.buffer(len);
                } else if linked == Some(GONE) {
                    return self.never(i);
                } else if let Some(from) = linked {
                    let Some(read) = self.place(from) else {
                        return false;
                    };
                    if read.progress != Progress::Done
                        || read.result != read.args.len as i64 && !read.pretended
                    {
                        return false;
                    }
                    len = read.args.len;
                    buffer = read.buffer.clone();
                } else if let At::Call { op, .. } = source.at(&cursor)
                    && op.args() == args
                    && let Some(Data::Bytes(bytes)) = op.data()
                {
                    if direct && !(bytes.as_ptr() as usize).is_multiple_of(512) {
                        return self.never(i);
                    }
                    buffer = self.buffer(len);
                    // A stub can't tell for how long it lends what it borrows from the context: for as long as the scope does.
                    if !self.options.changing {
                        lent = bytes.as_ptr() as usize;
                    }
                    if let Some(b) = &buffer {
                        // SAFETY: the buffer holds `len` bytes, and is new to us.
                        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), b.at(), len) };
                    }
                }
                if buffer.is_none() {
                    return false;
                }
            }
            // What a stream writes and when is not seen.
            Kind::Fsync
                if self
                    .file(args.fd)
                    .is_some_and(|f| may_be_written(f.device, f.inode)) =>
            {
                return self.never(i);
            }
            // Listers come to it.
            Kind::Openat
                if self.walk != 0
                    && opens_directory(args.flags)
                    && process::pool().is_some_and(|pool| pool.walk() == self.walk) =>
            {
                return self.never(i);
            }
            Kind::Getdents => {
                let new = !self.listed[..self.listed_count].contains(&args.fd);
                let wanted = self.file(args.fd).is_some_and(|f| {
                    f.directory && !(self.options.walk && walk::was_walked(f.device, f.inode))
                });
                if !new || !wanted || self.listed_count == LISTED {
                    return self.never(i);
                }
                self.listed[self.listed_count] = args.fd;
                self.listed_count += 1;
            }
            _ => {}
        }
        let Some(cx) = self.cx.as_mut() else {
            return false;
        };
        let p = &mut cx.places[i as usize];
        p.args.len = len;
        p.buffer = buffer;
        p.lent = lent;
        p.direct = direct;
        if self.options.engine == Engine::Check {
            p.pretended = true;
            p.progress = Progress::Done;
        } else if !cx.launch(i) {
            let p = &mut cx.places[i as usize];
            p.buffer = None;
            p.args.len = args.len;
            return false;
        }
        let p = &mut cx.places[i as usize];
        p.warmed = !args.kind.runs_ahead();
        self.counts.ahead += 1;
        self.settle_account();
        true
    }

    /// Whether RLIMIT_FSIZE is set; asked once in a run.
    fn has_size_limit(&mut self) -> bool {
        *self.size_limit.get_or_insert_with(|| {
            let mut limit = libc::rlimit64 {
                rlim_cur: 0,
                rlim_max: 0,
            };
            let (what, at) = (libc::RLIMIT_FSIZE as usize, &raw mut limit as usize);
            // SAFETY: the kernel fills a struct of this kind.
            let r = unsafe { syscall6(libc::SYS_prlimit64, 0, what, 0, at, 0, 0) };
            r < 0 || limit.rlim_cur != libc::RLIM64_INFINITY
        })
    }

    /// A read of byte `at` is issued: on which device it lies, and whether that is to be seen by it.
    fn note_device(&mut self, i: u16, file: &File, at: i64) {
        self.file_system = file.device;
        if !device::is_known(file) {
            self.device = device::UNSEEN;
            self.unasked = Some((*file, at));
            return;
        }
        self.device = device::of(file, at);
        if device::is_spread(file)
            && let Some(cx) = self.cx.as_mut()
            && cx.order.len() <= device::FEW
        {
            cx.places[i as usize].issued = Some(Instant::now());
        }
    }

    /// Has the kernel fetch what a read needs; the function makes the read.
    fn fetch(&mut self, i: u16) -> bool {
        let Some(cx) = self.cx.as_mut() else {
            return false;
        };
        let p = &mut cx.places[i as usize];
        (p.never, p.warmed) = (true, true);
        let (fd, at, len) = (p.args.fd, p.position.unwrap_or(0), p.args.len);
        cx.fetch(Some(i), fd, at, len);
        self.counts.ahead += 1;
        true
    }

    /// The function is about to ask for the attributes of the entries of directory `fd`. Listers that are here already go on with what is below it;
    /// otherwise a walk begins here, unless a graph has had it listed.
    pub fn walk(&mut self, fd: i32) {
        let makes = self.options.walk && self.options.engine != Engine::Check;
        if !makes || !process::is(self.token) || self.depth_now() == 0 {
            return;
        }
        self.forget_caches();
        let Some(directory) = self.file(fd).filter(|f| f.directory) else {
            return;
        };
        let Some(pool) = process::pool() else { return };
        let (walk, account) = pool.enter(directory.device, directory.inode);
        self.shared.payback.enter(account);
        self.walk = walk.unwrap_or(0);
        if walk.is_some() || walk::was_walked(directory.device, directory.inode) {
            return;
        }
        let Some(cx) = self.cx.as_mut() else { return };
        let Some(i) = cx.place(Cursor::NOWHERE) else {
            return;
        };
        let p = &mut cx.places[i as usize];
        p.args = Args::new(Kind::Getdents, fd);
        self.walk = pool.begin_walk(directory.device);
        p.args.offset = self.walk as i64;
        p.progress = Progress::Ready;
        p.warmed = true;
        cx.launch(i);
        cx.release(i);
        cx.submit();
        self.counts.ahead += 1;
        self.settle_account();
    }

    pub(super) fn never(&mut self, i: u16) -> bool {
        if let Some(cx) = self.cx.as_mut() {
            cx.places[i as usize].never = true;
            self.waiting -= 1;
        }
        false
    }
}

/// What a walk along the window has met so far.
pub(super) struct Walk {
    /// No weak edge.
    pub(super) certain: bool,
    /// Every read and look-up has come back as expected.
    pub(super) expected: bool,
    /// A call with effects that is not done.
    pub(super) effects: bool,
    /// Positions can't be told from here on.
    pub(super) unknown_position: bool,
    /// Nothing can be said of what comes.
    pub(super) stopped: bool,
    pub(super) pending: Pending,
    /// The same, as one range if that can be.
    pub(super) writes: Writes,
}

impl Default for Walk {
    fn default() -> Walk {
        Walk {
            certain: true,
            expected: true,
            effects: false,
            unknown_position: false,
            stopped: false,
            pending: Pending::default(),
            writes: Writes::None,
        }
    }
}

/// Calls that are not done, in order. No allocation.
pub(super) struct Pending {
    list: [u16; DEEPEST_WINDOW + SEARCH + 1],
    len: usize,
}

impl Default for Pending {
    fn default() -> Pending {
        Pending {
            list: [0; DEEPEST_WINDOW + SEARCH + 1],
            len: 0,
        }
    }
}

impl Pending {
    pub(super) fn push(&mut self, i: u16) {
        if let Some(at) = self.list.get_mut(self.len) {
            *at = i;
            self.len += 1;
        }
    }
}

impl<'a> IntoIterator for &'a Pending {
    type Item = &'a u16;
    type IntoIter = std::slice::Iter<'a, u16>;

    fn into_iter(self) -> Self::IntoIter {
        self.list[..self.len].iter()
    }
}
