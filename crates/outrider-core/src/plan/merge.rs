//! Which neighbours are read with one request: those that touch, and those between which reading on is cheaper than another request.

use outrider_sys::units::PageRange;

/// Makes `pages` and `next`, of one file, one run, if no more than `gap` pages lie between them, whichever comes first.
pub fn join(pages: &mut PageRange, next: PageRange, gap: u64) -> bool {
    let near = next.start <= pages.end + gap && next.end + gap >= pages.start;
    if near {
        *pages = PageRange::new(pages.start.min(next.start), pages.end.max(next.end));
    }
    near
}

/// Runs that are left when those of one file that touch are one. Sorts them, by file and page.
pub fn count(runs: &mut [(u16, PageRange)]) -> usize {
    runs.sort_unstable_by_key(|(file, pages)| (*file, pages.start));
    let mut count = 0;
    let mut last: Option<(u16, PageRange)> = None;
    for (file, pages) in runs.iter() {
        let joined = match &mut last {
            Some((of, run)) if of == file => join(run, *pages, 0),
            _ => false,
        };
        if !joined {
            count += 1;
            last = Some((*file, *pages));
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    /// LP7: what lies within the gap becomes one run, from either side; what lies farther away stays apart.
    #[test]
    fn neighbours_become_one() {
        let mut run = PageRange::new(10, 20);
        assert!(!join(&mut run, PageRange::new(21, 22), 0));
        assert!(join(&mut run, PageRange::new(21, 22), 1));
        assert!(join(&mut run, PageRange::new(5, 9), 1));
        assert!(!join(&mut run, PageRange::new(0, 3), 1));
        assert_eq!(run, PageRange::new(5, 22));
    }

    /// LP3: runs that touch or overlap are one, but not those of two files.
    #[test]
    fn runs_that_touch_are_one() {
        let run = |file, start, end| (file, PageRange::new(start, end));
        let mut runs = [
            run(1, 4, 8),
            run(0, 8, 9),
            run(0, 0, 4),
            run(0, 3, 8),
            run(0, 11, 12),
        ];
        assert_eq!(count(&mut runs), 3);
    }
}
