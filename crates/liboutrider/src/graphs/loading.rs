//! Plug-ins (`include/outrider_plugin.h`) are loaded and started.
//!
//! `outrider run --plugin` preloads them behind this library and names them in the environment. The constructor asks each for its table and,
//! if it is for this program, starts it.

use core::ffi::{CStr, c_char};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use outrider_sys::environment::variable;
use outrider_sys::raw;

use super::made::generator;
use super::structures::Plugin;
use super::{plugins, show, turns};

/// Starts the plug-ins that OUTRIDER_PLUGINS names, paths with colons between them. Called once, from the constructor.
pub fn start() {
    // SAFETY: the constructor runs before the program can change its environment from another thread.
    let named = unsafe {
        let Some(named) = variable(c"OUTRIDER_PLUGINS") else {
            return;
        };
        // It is `outrider graph` that asks: a run's program runs.
        if variable(c"OUTRIDER_SHM").is_none() {
            show::ask();
        }
        named
    };
    plugins::begin(raw::getpid());
    for path in named.to_bytes().split(|b| *b == b':') {
        let mut text = path.to_vec();
        text.push(0);
        // SAFETY: a C string; the object is loaded already or not touched, and stays loaded.
        let table = unsafe {
            let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
            let handle = libc::dlopen(text.as_ptr().cast(), flags);
            if handle.is_null() {
                continue;
            }
            libc::dlsym(handle, c"outrider_plugin_1".as_ptr()).cast::<Plugin>()
        };
        // SAFETY: null or the plug-in's table.
        if let Some(plugin) = unsafe { table.as_ref() } {
            begin(plugin);
        }
    }
    if show::is_asked() {
        // SAFETY: ends the process, which was started for nothing else.
        unsafe { libc::_exit(0) };
    }
}

unsafe extern "C" {
    /// See program_invocation_short_name(3).
    static program_invocation_short_name: AtomicPtr<c_char>;
}

fn is_for_this_program(plugin: &Plugin) -> bool {
    if plugin.programs.is_null() || show::is_asked() {
        return true;
    }
    // SAFETY: the C library's, a C string; an array of C strings that ends with null.
    unsafe {
        let own = program_invocation_short_name.load(Relaxed);
        let mut at = plugin.programs;
        while !(*at).is_null() {
            if !own.is_null() && libc::strcmp(*at, own) == 0 {
                return true;
            }
            at = at.add(1);
        }
    }
    false
}

fn begin(plugin: &'static Plugin) {
    if !plugins::have_room() || plugin.name.is_null() || !is_for_this_program(plugin) {
        return;
    }
    // SAFETY: the plug-in's function.
    if plugin.start.is_some_and(|start| unsafe { start() } != 0) {
        return;
    }
    let graph = plugin.directory.map_or(null_mut(), |next| {
        // SAFETY: a C string.
        let name = unsafe { CStr::from_ptr(plugin.name) }.to_string_lossy();
        let graph = generator(&name, next, plugin.directory_flags);
        // What becomes of descriptors before the first directory is listed is remembered there.
        turns::prepare();
        graph
    });
    plugins::add(plugin, graph);
    turns::use_graphs();
}
