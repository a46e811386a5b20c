//! The filter for the library before the C library has started: where `preload::filter_for` has one made. Where none lies there, `main` makes it.

use super::{Arena, NOTHING, PATH, Text, call, contents, length, variable};
use crate::{filter, own_directory, preload};

/// Longest HOME, bytes.
const MOST: usize = PATH / 2;

/// The path of the filter for the library, as a text.
#[unsafe(link_section = ".text")]
pub unsafe fn path(library: Text, environment: *const Text, arena: &mut Arena) -> Option<Text> {
    // SAFETY: as promised; the arena has room.
    unsafe {
        let user = call(libc::SYS_geteuid, NOTHING, NOTHING, NOTHING, NOTHING) as u32;
        let home = variable(environment, b"HOME=");
        let roots = (user == 0).then_some((own_directory::ROOTS.as_ptr().cast(), ""));
        let places = [roots, home.map(|home| (home, own_directory::IN_HOME))];
        let mut i = 0;
        while i < places.len() {
            if let Some((place, rest)) = places[i]
                && own_directory::is_plain(place)
            {
                if length(place) > MOST {
                    return None;
                }
                let begin = arena.at;
                arena.add_text(place);
                arena.add(rest.as_bytes());
                let end = arena.at;
                arena.put(0);
                if own_directory::is_kept_by(begin, user) {
                    arena.at = end;
                    arena.add(own_directory::NAME.as_bytes());
                    return within(begin, user, library, arena);
                }
                arena.at = begin;
            }
            i += 1;
        }
        None
    }
}

/// The filter below this user's directory, whose path begins at `own` and ends where the arena is: if it lies there.
#[unsafe(link_section = ".text")]
unsafe fn within(own: Text, user: u32, library: Text, arena: &mut Arena) -> Option<Text> {
    // SAFETY: as promised; the arena has room.
    unsafe {
        let mut end = arena.at;
        arena.put(0);
        own_directory::is_ours(own, user).then_some(())?;
        arena.at = end;
        arena.put(b'/');
        filter::directory(library, |b| arena.put(b));
        end = arena.at;
        arena.put(0);
        own_directory::is_ours(own, user).then_some(())?;
        arena.at = end;
        arena.put(b'/');
        arena.add(preload::LIBRARY.as_bytes());
        arena.put(0);
        end = arena.at;
        let file = contents(own, 2 * PATH, arena)?;
        let bytes = arena.at.offset_from_unsigned(file) - 1;
        arena.at = end;
        filter::is_for(library, file, bytes).then_some(own)
    }
}
