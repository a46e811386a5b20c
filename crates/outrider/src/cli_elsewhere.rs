//! What is said of the command line in other places: the shells' completions, which are generated from it, and the manual page, which has more to say than
//! its help has and names the same flags.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use clap::{Command, CommandFactory};
use clap_complete::Shell;

use crate::cli::Cli;

const HOW: &str = "OUTRIDER_REGENERATE=1 cargo test -p outrider --bin outrider completions";

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// contrib/completions is what clap makes of the command line today.
#[test]
fn completions_are_those_of_the_command_line() {
    let shells = [Shell::Bash, Shell::Zsh, Shell::Fish];
    for (shell, name) in shells
        .iter()
        .zip(["outrider.bash", "_outrider", "outrider.fish"])
    {
        let mut generated = Vec::new();
        clap_complete::generate(*shell, &mut Cli::command(), "outrider", &mut generated);
        let path = repository().join("contrib/completions").join(name);
        if std::env::var_os("OUTRIDER_REGENERATE").is_some() {
            fs::write(&path, generated).unwrap();
        } else {
            let same = fs::read(&path).is_ok_and(|there| there == generated);
            assert!(
                same,
                "{name} is not what the command line is; `{HOW}` writes it anew"
            );
        }
    }
}

/// The names of subcommands and the long flags of a command and of all below it.
fn names(command: &Command, flags: &mut BTreeSet<String>, commands: &mut BTreeSet<String>) {
    let shown = command.get_arguments().filter(|a| !a.is_hide_set());
    flags.extend(shown.filter_map(|a| a.get_long()).map(str::to_owned));
    for below in command.get_subcommands().filter(|c| !c.is_hide_set()) {
        commands.insert(below.get_name().to_owned());
        names(below, flags, commands);
    }
}

/// man/outrider.1 knows each subcommand and each flag, and no flag that isn't there.
#[test]
fn the_manual_page_names_the_same_flags() {
    let (mut flags, mut commands) = (BTreeSet::new(), BTreeSet::new());
    names(&Cli::command(), &mut flags, &mut commands);
    assert!(
        flags.contains("report") && commands.contains("run"),
        "{flags:?}"
    );
    let page = fs::read_to_string(repository().join("man/outrider.1")).unwrap();
    // A hyphen that is one is written with a backslash; a font change may follow the flag.
    let plain = page.replace("\\-", "-");
    let flag = |text: &str| {
        let end = text.find(|c: char| c != '-' && !c.is_ascii_lowercase());
        text[..end.unwrap_or(text.len())].to_owned()
    };
    let named: BTreeSet<String> = plain.split("--").skip(1).map(flag).collect();
    let words: BTreeSet<&str> = plain.split(|c: char| !c.is_ascii_lowercase()).collect();
    let missing: Vec<_> = flags.difference(&named).collect();
    assert!(missing.is_empty(), "not in man/outrider.1: {missing:?}");
    let unknown: Vec<_> = named
        .iter()
        .filter(|n| !["", "help", "version"].contains(&n.as_str()) && !flags.contains(*n))
        .collect();
    assert!(
        unknown.is_empty(),
        "man/outrider.1 has flags that the command hasn't: {unknown:?}"
    );
    let missing: Vec<_> = commands
        .iter()
        .filter(|c| !words.contains(c.as_str()))
        .collect();
    assert!(
        missing.is_empty(),
        "subcommands that aren't in man/outrider.1: {missing:?}"
    );
}
