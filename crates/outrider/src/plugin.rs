//! Plug-ins (`include/outrider_plugin.h`): whether a file is one, before anything is loaded into a program.

use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use object::read::ReadCache;
use object::{Architecture, Object, ObjectKind, ObjectSymbol};

use crate::output::{Failure, show};

/// The table's symbol, without the version that ends it.
const TABLE: &str = "outrider_plugin_";
/// The version of the interface that this command's library has.
const VERSION: u32 = 1;

/// Checks the files of `--plugin`, in their order; absolute paths, as the dynamic linker and the library take them.
pub fn check(files: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    files.iter().map(|file| check_one(file)).collect()
}

fn check_one(file: &Path) -> Result<PathBuf, Failure> {
    let wrong = |what: String| Failure::usage(format!("--plugin {}: {what}", show(file)));
    let path = file.canonicalize().map_err(|e| wrong(e.to_string()))?;
    if !path.is_file() {
        return Err(wrong(
            "not a regular file; accepted is a shared object".into(),
        ));
    }
    if path
        .as_os_str()
        .as_bytes()
        .iter()
        .any(|b| matches!(b, b':' | b' ' | b'\t' | b'\n'))
    {
        return Err(wrong(format!(
            "cannot be preloaded from {}: LD_PRELOAD accepts no path with a colon or white space",
            show(&path)
        )));
    }
    let data = File::open(&path).map_err(|e| wrong(e.to_string()))?;
    let data = ReadCache::new(data);
    let object = object::File::parse(&data)
        .map_err(|_| wrong("not an ELF file; accepted is a shared object".into()))?;
    if object.kind() != ObjectKind::Dynamic || object.architecture() != native() || !object.is_64()
    {
        return Err(wrong(
            "not a shared object of this machine's kind (cc -shared -fPIC makes one)".into(),
        ));
    }
    let mut other = None;
    for symbol in object.dynamic_symbols().filter(|s| s.is_definition()) {
        let Some(version) = symbol.name().ok().and_then(|n| n.strip_prefix(TABLE)) else {
            continue;
        };
        if version.parse() == Ok(VERSION) {
            return Ok(path);
        }
        other = Some(version.to_owned());
    }
    Err(wrong(match other {
        Some(version) => format!(
            "made for version {version} of the plug-in interface; accepted is version {VERSION}"
        ),
        None => {
            format!("exports no {TABLE}{VERSION}; accepted is a plug-in, see outrider_plugin(3)")
        }
    }))
}

fn native() -> Architecture {
    if cfg!(target_arch = "aarch64") {
        Architecture::Aarch64
    } else {
        Architecture::X86_64
    }
}
