//! Reading the settings: which file, and where in it a mistake is.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use outrider_core::config::Config;
use outrider_core::profile::store::{self, Trouble};

use crate::cli::{Engine, Mode};
use crate::elf;
use crate::output::{Failure, show};

#[cfg(test)]
mod reference;

/// What a file says for one program, beside the other sections.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ForProgram {
    /// Whether it runs with its reads foreseen at all.
    pub enabled: Option<bool>,
    pub mode: Option<Mode>,
    pub engine: Option<Engine>,
    /// Bytes.
    pub budget: Option<u64>,
}

impl ForProgram {
    /// What this doesn't say `other` says.
    fn or(self, other: ForProgram) -> ForProgram {
        ForProgram {
            enabled: self.enabled.or(other.enabled),
            mode: self.mode.or(other.mode),
            engine: self.engine.or(other.engine),
            budget: self.budget.or(other.budget),
        }
    }
}

/// The settings of a file.
#[derive(Debug, Default)]
pub struct Settings {
    /// With what a section of the program's own has changed.
    pub config: Config,
    pub program: ForProgram,
    /// What is wrong with a file that nobody named.
    pub lost: Option<String>,
}

/// The settings of `path`, or, where none is given, of the first of these that exists:
/// `$XDG_CONFIG_HOME/outrider/config.toml` (`~/.config` where that is not set),
/// `/etc/outrider/config.toml`. Without any file, the defaults. `program` is what is run, of which there may be a section.
///
/// Unknown keys and bad values of a file that was named are failures that name the file and the line, and so is that it can't be read. In a usual place,
/// where nobody asked for it, either only costs its settings: what is lost is said in a line for the report.
pub fn load(path: Option<&Path>, program: Option<&OsStr>) -> Result<Settings, Failure> {
    if let Some(path) = path {
        let text = contents(path, true).map_err(|what| Failure::usage(refusal(path, &what)))?;
        return settings(path, &text, program);
    }
    let Some(path) = usual_places().into_iter().find(|p| p.is_file()) else {
        return Ok(Settings::default());
    };
    let read = contents(&path, false).map_err(|what| refusal(&path, &what));
    let read =
        read.and_then(|text| settings(&path, &text, program).map_err(|failure| failure.message));
    Ok(read.unwrap_or_else(|what| Settings {
        lost: Some(format!("{what}; the defaults hold")),
        ..Settings::default()
    }))
}

fn usual_places() -> Vec<PathBuf> {
    let user = base_directory("XDG_CONFIG_HOME", ".config");
    user.into_iter()
        .chain([PathBuf::from("/etc")])
        .map(|dir| dir.join("outrider/config.toml"))
        .collect()
}

/// A base directory of the user's (XDG Base Directory Specification): an absolute path in `variable`, or `below` the home directory.
pub fn base_directory(variable: &str, below: &str) -> Option<PathBuf> {
    std::env::var_os(variable)
        .map(PathBuf::from)
        .filter(|p| p.is_absolute())
        .or_else(|| {
            Some(PathBuf::from(std::env::var_os("HOME")?).join(below)).filter(|p| p.is_absolute())
        })
}

fn refusal(path: &Path, what: &str) -> String {
    format!("config file {} {what}", show(path))
}

/// Bytes of a config file at most: twice what all patterns of `files.exclude` may take, 1024 of PATH_MAX.
const MOST: u64 = 8 << 20;

/// The text of a file, or what is wrong with it. One that is `named` may be a pipe, which is waited for, and is found as whoever has named it meant. What lies in
/// a usual place may have been put there by others: nothing shows what a link of theirs leads to.
fn contents(path: &Path, named: bool) -> Result<String, String> {
    let opened = match named {
        true => fs::File::open(path),
        false => store::open(path).map_err(|trouble| match trouble {
            Trouble::Link(at) => {
                io::Error::other(format!("{} is a link of another user's", show(&at)))
            }
            other => other.into(),
        }),
    };
    let mut text = String::new();
    match opened.and_then(|file| file.take(MOST + 1).read_to_string(&mut text)) {
        Ok(_) if text.len() as u64 <= MOST => Ok(text),
        Ok(_) => Err("is longer than 8 MiB; accepted is a TOML file".to_owned()),
        Err(e) if e.kind() == io::ErrorKind::InvalidData => {
            Err("is not UTF-8 text; accepted is a TOML file".to_owned())
        }
        Err(e) => Err(format!("cannot be read: {e}")),
    }
}

fn settings(path: &Path, text: &str, program: Option<&OsStr>) -> Result<Settings, Failure> {
    parse_all(text, program).map_err(|(line, what)| match line {
        Some(line) => Failure::usage(format!("{}:{line}: {what}", show(path))),
        None => Failure::usage(format!("{}: {what}", show(path))),
    })
}

/// A mistake: its line, from 1, and what is wrong.
type Mistake = (Option<usize>, String);

/// The sections of programs.
const PROGRAMS: &str = "program";

/// The settings in `text` for a program.
fn parse_all(text: &str, program: Option<&OsStr>) -> Result<Settings, Mistake> {
    let whole: Option<toml::Table> = toml::from_str(text).ok();
    let Some((mut whole, own)) = whole.and_then(|mut whole| {
        let own = whole.remove(PROGRAMS)?;
        Some((whole, own))
    }) else {
        let config = parse(text).map_err(with_programs)?;
        return Ok(Settings {
            config,
            ..Settings::default()
        });
    };
    let general = without_programs(text);
    let accepted = format!("accepted are sections such as [{PROGRAMS}.\"postgres\"]");
    let own = own.as_table().filter(|_| {
        // Written in another form than by headers, they can't be told from the rest by lines.
        toml::from_str::<toml::Table>(&general).is_ok_and(|table| table == whole)
    });
    let own = own.ok_or_else(|| {
        let line = line_of_key(text, &[PROGRAMS]);
        (line, format!("{PROGRAMS}: {accepted}"))
    })?;
    let config = parse(&general).map_err(with_programs)?;
    let mut settings = Settings {
        config,
        ..Settings::default()
    };
    let mut named = Vec::new();
    for (name, section) in own {
        let section = section.as_table();
        let section = section.ok_or_else(|| {
            let line = line_of_key(text, &[PROGRAMS, name]);
            (line, format!("{PROGRAMS}.{name}: {accepted}"))
        })?;
        let (for_program, changes) = program_section(text, name, section)?;
        if program.is_some_and(|program| is_named(name, program)) {
            named.push((name, for_program, changes));
        }
    }
    // A path goes before a name, and is taken after it therefore.
    named.sort_by_key(|(name, ..)| name.contains('/'));
    for (name, own, changes) in named {
        merge(&mut whole, changes);
        let config: Config = toml::Value::Table(whole.clone())
            .try_into()
            .map_err(|e: toml::de::Error| (None, e.message().to_owned()))?;
        config
            .validate()
            .map_err(|what| (None, format!("{PROGRAMS}.{name}: {what}")))?;
        settings.config = config;
        settings.program = own.or(settings.program);
    }
    Ok(settings)
}

/// Names the sections of programs among those that are accepted, where a section is what was wrong.
fn with_programs((line, mut what): Mistake) -> Mistake {
    let refused = tried("\"?\" = 1").err();
    let sections = refused
        .as_ref()
        .and_then(|e| e.message().split_once(", expected "));
    if let Some(at) = sections.and_then(|(_, names)| Some(what.find(names)? + names.len())) {
        what.insert_str(at, &format!(", `{PROGRAMS}`"));
    }
    (line, what)
}

/// Whether a section is of the program that is run: by the name of its file, or, where it has a slash, by its path.
fn is_named(section: &str, program: &OsStr) -> bool {
    if section.contains('/') {
        let path = elf::look_up(program);
        let path = path.map(|path| path.canonicalize().unwrap_or(path));
        return path.is_some_and(|path| path == Path::new(section));
    }
    Path::new(program).file_name() == Some(OsStr::new(section))
}

/// The text with empty lines in the place of the sections of programs.
fn without_programs(text: &str) -> String {
    let mut within = false;
    let lines = text.lines().map(|line| {
        if let Some(header) = line.trim_start().strip_prefix('[') {
            let header = header.trim_start();
            let rest = header.strip_prefix(PROGRAMS).map(str::trim_start);
            within = rest.is_some_and(|rest| rest.starts_with(['.', ']']));
        }
        if within { "" } else { line }
    });
    lines.map(|line| format!("{line}\n")).collect()
}

/// What a program's section says of its own, and what it changes of the others.
fn program_section(
    text: &str,
    name: &str,
    section: &toml::Table,
) -> Result<(ForProgram, toml::Table), Mistake> {
    let mut found = ForProgram::default();
    let mut changes = toml::Table::new();
    for (key, value) in section {
        let line = || line_of_key(text, &[PROGRAMS, name, key]);
        let wrong = |accepted: &str| {
            let what = show(value.to_string());
            let key = format!("{PROGRAMS}.{name}.{key}");
            (
                line(),
                format!("{key}: {what} is not accepted; accepted is {accepted}"),
            )
        };
        let word = value.as_str().unwrap_or_default();
        match key.as_str() {
            "enabled" => {
                found.enabled = Some(value.as_bool().ok_or_else(|| wrong("true or false"))?);
            }
            "mode" => {
                let accepted = || wrong(&format!("one of {}", names::<Mode>()));
                found.mode = Some(Mode::from_str(word, false).map_err(|_| accepted())?);
            }
            "engine" => {
                let accepted = || wrong(&format!("one of {}", names::<Engine>()));
                found.engine = Some(Engine::from_str(word, false).map_err(|_| accepted())?);
            }
            "budget" => {
                let accepted = |_| wrong("a string such as \"512M\"");
                found.budget = Some(outrider_cli::size::parse(word).map_err(accepted)?);
            }
            section => {
                let Some(table) = value.as_table() else {
                    return Err(wrong(
                        "enabled, mode, engine, budget, and the sections that there are without a program",
                    ));
                };
                for (key, value) in table {
                    let alone = toml::Table::from_iter([(key.clone(), value.clone())]);
                    let alone = toml::Table::from_iter([(section.to_owned(), alone.into())]);
                    let line = || line_of_key(text, &[PROGRAMS, name, section, key]);
                    let text = toml::to_string(&alone).unwrap_or_default();
                    parse(&text).map_err(|(_, what)| (line(), what))?;
                }
                changes.insert(section.to_owned(), value.clone());
            }
        }
    }
    Ok((found, changes))
}

/// The names of a setting's values.
pub fn names<T: ValueEnum>() -> String {
    let values = T::value_variants().iter();
    let names = values.filter_map(|value| Some(value.to_possible_value()?.get_name().to_owned()));
    names.collect::<Vec<_>>().join(", ")
}

/// Puts the keys of one table into another, section by section.
fn merge(into: &mut toml::Table, from: toml::Table) {
    for (key, value) in from {
        match (into.get_mut(&key), value) {
            (Some(toml::Value::Table(into)), toml::Value::Table(from)) => merge(into, from),
            (_, value) => drop(into.insert(key, value)),
        }
    }
}

/// The line on which a key stands.
fn line_of_key(text: &str, path: &[&str]) -> Option<usize> {
    let document = toml::de::DeTable::parse(text).ok()?;
    let mut table = document.get_ref();
    let (last, sections) = path.split_last()?;
    for name in sections {
        table = table.get(*name)?.get_ref().as_table()?;
    }
    let key = table.keys().find(|key| key.get_ref() == last)?;
    Some(line_of(text, &key.span()))
}

/// The settings in `text`, or the line (from 1) and the mistake.
fn parse(text: &str) -> Result<Config, Mistake> {
    let config: Config = toml::from_str(text).map_err(|e| {
        let line = e.span().map(|span| line_of(text, &span));
        if let Some(what) = e.span().and_then(|span| refused_value(text, &span)) {
            return (line, what);
        }
        let mut what = e.message().split_whitespace().collect::<Vec<_>>().join(" ");
        if let Some(source) = line.and_then(|n| text.lines().nth(n - 1)) {
            let source = source.trim();
            if !source.is_empty() {
                what.push_str(&format!(" (in `{}`)", show(Path::new(source))));
            }
        }
        (line, what)
    })?;
    config.validate().map_err(|what| {
        let key = what.split_once(": ").map_or("", |(key, _)| key);
        let line = span_of(text, key).map(|span| line_of(text, &span));
        (line, what)
    })?;
    Ok(config)
}

/// The number, from 1, of the line on which a span begins.
fn line_of(text: &str, span: &Range<usize>) -> usize {
    text.as_bytes()[..span.start.min(text.len())]
        .iter()
        .filter(|b| **b == b'\n')
        .count()
        + 1
}

/// What is wrong with the value at a span: its key and what that accepts, in the words of who writes such files.
fn refused_value(text: &str, span: &Range<usize>) -> Option<String> {
    let document = toml::de::DeTable::parse(text).ok()?;
    let shown = |span: Range<usize>| {
        let value = text.get(span)?.trim();
        Some(show(Path::new(value.lines().next()?)))
    };
    for (section, value) in document.get_ref() {
        let section = section.get_ref();
        let toml::de::DeValue::Table(table) = value.get_ref() else {
            if value.span() == *span {
                let keys = alternatives(tried(&format!("{section}.\"?\" = 1")).err()?.message())?;
                let value = shown(value.span())?;
                return Some(format!(
                    "{section}: {value} is not accepted; accepted is a section [{section}] with {keys}"
                ));
            }
            continue;
        };
        for (key, value) in table {
            let within = |list: &toml::de::DeArray<'_>| list.iter().any(|v| v.span() == *span);
            if value.span() == *span || value.get_ref().as_array().is_some_and(within) {
                let key = format!("{section}.{}", key.get_ref());
                let (accepted, value) = (accepted(&key)?, shown(value.span())?);
                return Some(format!(
                    "{key}: {value} is not accepted; accepted is {accepted}"
                ));
            }
        }
    }
    None
}

fn tried(text: &str) -> Result<Config, toml::de::Error> {
    toml::from_str(text)
}

/// The names in a message that says what else was expected.
fn alternatives(message: &str) -> Option<String> {
    let (_, names) = message.split_once(", expected ")?;
    Some(names.trim_start_matches("one of ").replace('`', "\""))
}

/// What a key accepts. Found out by trying, so that nothing has to be written down twice.
fn accepted(key: &str) -> Option<String> {
    let with = |value: &str| tried(&format!("{key} = {value}"));
    if with("true").is_ok() {
        return Some("true or false".to_owned());
    }
    if with("[]").is_ok() {
        return Some("a list of patterns such as [\"/mnt/s3/**\"]".to_owned());
    }
    let refusal = with("\"?\"").err()?.message().to_owned();
    if refusal.starts_with("unknown variant") {
        return alternatives(&refusal).map(|names| format!("one of {names}"));
    }
    // The largest numbers of some types, of which one is too large for the key but not for its type.
    const LARGE: [&str; 3] = ["255", "4294967295", "9223372036854775807"];
    let range = LARGE.iter().chain(&["-1.5"]).find_map(|value| {
        let said = with(value).ok()?.validate().err()?;
        Some(said.split_once("; accepted is ")?.1.to_owned())
    });
    let largest = || LARGE.iter().rfind(|value| with(value).is_ok());
    let range = range.or_else(|| Some(format!("0 to {}", largest()?)))?;
    Some(if with("\"4K\"").is_ok() {
        format!("a number of bytes or a string such as \"128K\", \"2M\" or \"1G\", {range}")
    } else if with("0.5").is_ok() || with("1.0").is_ok() {
        format!("a number, {range}")
    } else {
        format!("a whole number, {range}")
    })
}

/// Where `section.key` gets its value.
fn span_of(text: &str, key: &str) -> Option<Range<usize>> {
    let (section, key) = key.split_once('.')?;
    let document = toml::de::DeTable::parse(text).ok()?;
    let table = document.get_ref().get(section)?;
    match table.get_ref() {
        toml::de::DeValue::Table(t) => Some(t.get(key)?.span()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrider_core::config::Size;

    #[test]
    fn mistakes_are_told_with_their_line() {
        for (text, line, part) in [
            (
                "[predict]\ncounter_bits = 3\nbits = 1\n",
                3,
                "unknown field `bits`",
            ),
            ("\n[windows]\n", 2, "unknown field `windows`"),
            ("[window]\nmax = \"64Q\"\n", 2, "4K to 64G"),
            ("[window]\nmax = true\n", 2, "128K"),
            (
                "[budget]\nlow_watermark = 0.2\nhigh_watermark = 0.1\n",
                2,
                "budget.low_watermark",
            ),
            ("[dense]\n\nshare = 9\n", 3, "0 to 1"),
            ("[engine]\nio_priority = \"high\"\n", 2, "best-effort-7"),
            ("[files]\nexclude = [\"/a\", \"b\"]\n", 2, "files.exclude"),
            ("[files]\n\nexclude = [\"/mnt/[a\"]\n", 3, "bracket"),
            ("[files]\nnetwork = \"on\"\n", 2, "auto"),
            ("[engine\n", 1, ""),
        ] {
            let (at, what) = parse(text).unwrap_err();
            assert_eq!(at, Some(line), "{what}");
            assert!(what.contains(part), "{what}");
            assert!(!what.contains('\n'), "{what}");
        }
    }

    /// Of whatever type a value is, its key says what it accepts, with the limits, and nothing is said of the types of this program.
    #[test]
    fn values_of_other_types_are_told_what_is_accepted() {
        let defaults = toml::Table::try_from(Config::default()).unwrap();
        let mut keys = 0;
        for (section, table) in &defaults {
            let told = parse(&format!("{section} = 3\n")).unwrap_err();
            assert_eq!(told.0, Some(1));
            assert!(told.1.contains("accepted is a section"), "{}", told.1);
            for (key, value) in table.as_table().unwrap() {
                keys += 1;
                let number = value.is_integer() || value.is_float();
                let size = value.as_str().is_some_and(|s| s.parse::<Size>().is_ok());
                for wrong in [
                    "\"?\"",
                    "[1]",
                    "-1",
                    "true",
                    "99999999999999999999",
                    "1979-05-27",
                ] {
                    if value.is_bool() && wrong == "true" {
                        continue;
                    }
                    let (line, what) =
                        parse(&format!("[{section}]\n{key} = {wrong}\n")).unwrap_err();
                    assert_eq!(line, Some(2), "{what}");
                    assert!(what.starts_with(&format!("{section}.{key}: ")), "{what}");
                    assert!(what.contains("accepted is "), "{what}");
                    assert!(!number && !size || what.contains(" to "), "{what}");
                    let words = ["u8", "u32", "f64", "i128", "struct", "boolean", "invalid"];
                    assert!(!words.iter().any(|w| what.contains(w)), "{what}");
                }
            }
        }
        assert!(keys > 20);
    }

    /// A program's section changes what it names, for that program alone; mistakes in it are told with their line, whoever is run.
    #[test]
    fn sections_of_programs() {
        let text = "[window]\nmax = \"8M\"\n\n[program.\"post-gres\"]\nmode = \"predict\"\nbudget = \"1G\"\n[program.\"post-gres\".window]\ninitial = \"256K\"\n\n[dense]\nenabled = false\n";
        let of = |program: &str| parse_all(text, Some(OsStr::new(program))).unwrap();
        let (other, own) = (of("ls"), of("/usr/bin/post-gres"));
        assert_eq!(other.program, ForProgram::default());
        assert_eq!(other.config.window.initial, Size::kib(128));
        assert_eq!(own.program.mode, Some(Mode::Predict));
        assert_eq!(own.program.budget, Some(1 << 30));
        assert_eq!(own.config.window.initial, Size::kib(256));
        for settings in [own, other] {
            assert_eq!(settings.config.window.max, Size::mib(8));
            assert!(!settings.config.dense.enabled);
        }
        for (text, line, part) in [
            ("[program.x]\nmode = \"fast\"\n", 2, "predict+opt"),
            ("[program.x]\n\nengine = 3\n", 3, "readahead"),
            ("[program.x]\nbudget = 3\n", 2, "512M"),
            ("[program.x]\nenabled = \"no\"\n", 2, "true or false"),
            ("[program.x]\nmood = \"fast\"\n", 2, "enabled, mode"),
            ("[program.x.window]\nmax = \"64Q\"\n", 2, "4K to 64G"),
            ("[program.x.window]\n\nmin = 1\n", 3, "unknown field"),
            ("[program.x]\n[dense]\nshare = 9\n", 3, "0 to 1"),
        ] {
            let (at, what) = parse_all(text, Some(OsStr::new("y"))).unwrap_err();
            assert_eq!(at, Some(line), "{text}: {what}");
            assert!(what.contains(part), "{text}: {what}");
        }
        // The path goes before the name, whichever stands first.
        let (name, path) = (
            "[program.cat]\nmode = \"predict\"\nengine = \"noop\"\n[program.cat.window]\nmax = \"8M\"\n",
            "[program.\"/usr/bin/cat\"]\nmode = \"os-only\"\n[program.\"/usr/bin/cat\".window]\nmax = \"4M\"\n",
        );
        for text in [format!("{name}{path}"), format!("{path}{name}")] {
            let own = parse_all(&text, Some(OsStr::new("/usr/bin/cat"))).unwrap();
            assert_eq!(own.program.mode, Some(Mode::OsOnly), "{text}");
            assert_eq!(own.program.engine, Some(Engine::Noop), "{text}");
            assert_eq!(own.config.window.max, Size::mib(4), "{text}");
        }
        // What is accepted at the top has them, and in a section it has not.
        for (text, has) in [
            ("[windows]\n", true),
            ("[program.x]\n[windows]\n", true),
            ("[program.x.windows]\nmax = 1\n", false),
            ("[window]\nmux = 1\n", false),
        ] {
            let (_, what) = parse_all(text, None).unwrap_err();
            assert_eq!(what.contains("`program`"), has, "{text}: {what}");
        }
        for text in ["program = 3\n", "program.x.mode = \"predict\"\n"] {
            let (_, what) = parse_all(text, None).unwrap_err();
            assert!(what.contains("accepted"), "{what}");
        }
    }

    #[test]
    fn all_keys_of_the_defaults_are_read_back() {
        let text = toml::to_string(&Config::default()).unwrap();
        assert_eq!(parse(&text).unwrap(), Config::default());
        assert_eq!(parse("").unwrap(), Config::default());
    }
}
