//! What is said of the command line in other places, and generated from it: the shells' completions, and the commands in the manual page.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::cli::Cli;

const HOW: &str = "OUTRIDER_REGENERATE=1 cargo test -p outrider --bin outrider command_line";

/// A file of the repository is what was generated, or becomes it.
fn is_generated(path: &str, generated: &[u8]) {
    let path = repository().join(path);
    if std::env::var_os("OUTRIDER_REGENERATE").is_some() {
        fs::write(&path, generated).unwrap();
    } else {
        let same = fs::read(&path).is_ok_and(|there| there == generated);
        let path = path.display();
        assert!(
            same,
            "{path} is not what the command line is; `{HOW}` writes it anew"
        );
    }
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// contrib/completions is what clap makes of the command line today.
#[test]
fn completions_are_those_of_the_command_line() {
    for (shell, name) in [
        (Shell::Bash, "outrider.bash"),
        (Shell::Zsh, "_outrider"),
        (Shell::Fish, "outrider.fish"),
    ] {
        let mut generated = Vec::new();
        clap_complete::generate(shell, &mut Cli::command(), "outrider", &mut generated);
        is_generated(&format!("contrib/completions/{name}"), &generated);
    }
}

/// The sections of a command that does something, and of those below one that doesn't.
fn describe(command: &Command, name: &str, page: &mut String) {
    if command.has_subcommands() {
        for below in command.get_subcommands() {
            describe(below, &format!("{name} {}", below.get_name()), page);
        }
        return;
    }
    let man = Man::new(command.clone());
    let mut text = Vec::new();
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ").replace('-', "\\-");
    writeln!(text, "{usage}\n.PP").unwrap();
    man.render_description_section(&mut text).unwrap();
    if command.get_arguments().next().is_some() {
        man.render_options_section(&mut text).unwrap();
    }
    page.push_str(&format!(".SS {name}\n"));
    // A section's heading is the command's name here, and what each rendering begins with stands once, in the template.
    let is_own = |line: &&str| {
        [".SH ", ".ie ", ".el "]
            .iter()
            .all(|w| !line.starts_with(w))
    };
    for line in String::from_utf8(text).unwrap().lines().filter(is_own) {
        page.push_str(line);
        page.push('\n');
    }
}

/// man/outrider.1 is packaging/outrider.1.in with what clap knows of each command.
#[test]
fn the_manual_page_is_that_of_the_command_line() {
    // Each command has these, and the page says so once.
    let mut command = Cli::command()
        .disable_help_flag(true)
        .disable_version_flag(true);
    command.build();
    let mut commands = String::new();
    for below in command.get_subcommands() {
        describe(
            below,
            &format!("outrider {}", below.get_name()),
            &mut commands,
        );
    }
    let template = fs::read_to_string(repository().join("packaging/outrider.1.in")).unwrap();
    // What is written by hand names no flag that isn't there.
    let known = commands.replace("\\-", "-");
    for text in template.replace("\\-", "-").split("--").skip(1) {
        let end = text.find(|c: char| c != '-' && !c.is_ascii_lowercase());
        let flag = &text[..end.unwrap_or(text.len())];
        let is_known = flag == "help" || known.contains(&format!("--{flag}"));
        assert!(is_known, "--{flag}");
    }
    let page = template
        .replace("@VERSION@", env!("CARGO_PKG_VERSION"))
        .replace("@COMMANDS@\n", &commands);
    is_generated("man/outrider.1", page.as_bytes());
}
