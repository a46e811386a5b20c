//! Plug-ins (`include/outrider_plugin.h`): whether a file is one, before anything is loaded into a program.

use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use object::read::ReadCache;
use object::{Architecture, Object, ObjectKind, ObjectSymbol};

use crate::output::{Failure, show};
use crate::preload;

/// How the names of installed plug-ins' files begin.
const PREFIX: &str = "outrider_";
/// The table's symbol, without the version that ends it.
const TABLE: &str = "outrider_plugin_";
/// The version of the interface that this command's library has.
const VERSION: u32 = 1;

/// Checks the files of `--plugin`, in their order; absolute paths, as the dynamic linker and the library take them.
pub fn check(files: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    files.iter().map(|file| check_one(file)).collect()
}

/// Where plug-ins lie that are named without a path: beside the library, below it, and where they are built.
fn places() -> Vec<PathBuf> {
    let library = preload::library().ok();
    let beside = library.as_deref().and_then(Path::parent);
    let own = std::env::current_exe().ok();
    let built = own.as_deref().and_then(Path::parent).and_then(Path::parent);
    let places = [
        beside.map(|directory| directory.join("outrider/plugins")),
        beside.map(Path::to_owned),
        built.map(|directory| directory.join("plugins")),
    ];
    places.into_iter().flatten().collect()
}

/// Where a plug-in's file lies that may be named without a path: the command may lie where others may put one near it.
fn installed_at(file: &Path) -> Option<PathBuf> {
    preload::kept_near(file, &std::env::current_exe().ok()?)
}

/// The names of the plug-ins that can be named without a path.
fn installed() -> Vec<String> {
    let entries = places()
        .into_iter()
        .flat_map(|place| std::fs::read_dir(place).into_iter().flatten());
    let mut names: Vec<String> = entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let name = entry.file_name().into_string().ok()?;
            let name = name.strip_prefix(PREFIX)?.strip_suffix(".so")?.to_owned();
            let file = entry.path();
            // SQLite's extension is called alike.
            has_table(&installed_at(&file)?).is_ok().then_some(name)
        })
        .collect();
    names.sort();
    names.dedup();
    names
}

/// Whether this names an installed plug-in, such as `du`, and no file: whoever may write to the working directory is not to choose what is loaded.
fn is_name(name: &Path) -> bool {
    let text = name.to_str();
    text.is_some_and(|text| !text.contains(['/', '.']))
}

/// The file of an installed plug-in.
fn by_name(name: &Path) -> Option<PathBuf> {
    let file = format!("{PREFIX}{}.so", name.to_str()?);
    let found = places().into_iter().map(|place| place.join(&file));
    found.into_iter().find_map(|path| installed_at(&path))
}

fn check_one(file: &Path) -> Result<PathBuf, Failure> {
    let wrong = |what: String| Failure::usage(format!("--plugin {}: {what}", show(file)));
    let path = match is_name(file) {
        true => by_name(file).ok_or_else(|| std::io::Error::from_raw_os_error(libc::ENOENT)),
        false => file.canonicalize(),
    };
    let path = path.map_err(|e| {
        let names = match installed() {
            names if names.is_empty() => "none is installed".to_owned(),
            names => format!("installed are {}", names.join(", ")),
        };
        wrong(format!(
            "{e}; accepted is a shared object, by a name with a slash or a dot, or the name of an installed plug-in, and {names}"
        ))
    })?;
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
    has_table(&path).map_err(wrong)?;
    Ok(path)
}

/// Whether a file is a plug-in for this command's library; `Err` says why not.
fn has_table(path: &Path) -> Result<(), String> {
    let data = File::open(path).map_err(|e| e.to_string())?;
    let data = ReadCache::new(data);
    let object = object::File::parse(&data)
        .map_err(|_| "not an ELF file; accepted is a shared object".to_owned())?;
    if object.kind() != ObjectKind::Dynamic || object.architecture() != native() || !object.is_64()
    {
        return Err(
            "not a shared object of this machine's kind (cc -shared -fPIC makes one)".to_owned(),
        );
    }
    let mut other = None;
    for symbol in object.dynamic_symbols().filter(|s| s.is_definition()) {
        let Some(version) = symbol.name().ok().and_then(|n| n.strip_prefix(TABLE)) else {
            continue;
        };
        if version.parse() == Ok(VERSION) {
            return Ok(());
        }
        other = Some(version.to_owned());
    }
    Err(match other {
        Some(version) => format!(
            "made for version {version} of the plug-in interface; accepted is version {VERSION}"
        ),
        None => {
            format!("exports no {TABLE}{VERSION}; accepted is a plug-in, see outrider_plugin(3)")
        }
    })
}

fn native() -> Architecture {
    if cfg!(target_arch = "aarch64") {
        Architecture::Aarch64
    } else {
        Architecture::X86_64
    }
}
