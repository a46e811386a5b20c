//! `docs/configuration.md`: its tables are made of the settings' own definitions, so that the document can't say what the
//! code doesn't. What a key is for stands in its comment, its default in [`Config::default`], and what it accepts is found
//! out by trying, as for a mistake in a file.

use std::fs;
use std::path::Path;

use outrider_core::config::Config;

use super::accepted;

/// What stands before this line is written by hand.
const MARK: &str = "<!-- From here on generated: see crates/outrider/src/config/reference.rs -->\n";
const HOW: &str = "OUTRIDER_REGENERATE=1 cargo test -p outrider --bin outrider configuration";

/// A public field of a structure: its name, its type and its comment.
struct Field<'a> {
    name: &'a str,
    kind: &'a str,
    comment: String,
}

/// The fields of `pub struct NAME` in a source text, in order.
fn fields<'a>(source: &'a str, name: &str) -> Vec<Field<'a>> {
    let head = format!("pub struct {name} {{\n");
    let (_, body) = source.split_once(&head).expect(&head);
    let (body, _) = body.split_once("\n}").unwrap();
    let (mut found, mut comment) = (Vec::new(), Vec::new());
    for line in body.lines().map(str::trim) {
        if let Some(text) = line.strip_prefix("///") {
            comment.push(text.trim());
        } else if let Some(field) = line.strip_prefix("pub ") {
            let (name, kind) = field.trim_end_matches(',').split_once(": ").unwrap();
            found.push(Field {
                name,
                kind,
                comment: std::mem::take(&mut comment).join(" "),
            });
        }
    }
    found
}

/// What a key accepts, as short as a table wants it: that sizes may be strings is said above it.
fn range(key: &str) -> String {
    let text = accepted(key).expect(key);
    match text.split_once("\"1G\", ") {
        Some((_, sizes)) => sizes.to_owned(),
        None => text.replace('"', "`"),
    }
}

fn generated() -> String {
    let source = include_str!("../../../outrider-core/src/config.rs");
    let defaults = toml::Table::try_from(Config::default()).unwrap();
    let mut out = String::new();
    for section in fields(source, "Config") {
        let values = defaults[section.name].as_table().unwrap();
        out += &format!("\n## {}\n\n{}\n\n", section.name, section.comment);
        out += "| key | default | accepted | meaning |\n| --- | --- | --- | --- |\n";
        let keys = fields(source, section.kind);
        let unknown = values.keys().find(|k| keys.iter().all(|f| f.name != *k));
        assert!(
            unknown.is_none(),
            "no field of {}: {unknown:?}",
            section.kind
        );
        for Field { name, comment, .. } in keys {
            let default = values
                .get(name)
                .map_or("none".to_owned(), |v| format!("`{v}`"));
            let range = range(&format!("{}.{name}", section.name));
            out += &format!("| `{name}` | {default} | {range} | {comment} |\n");
        }
    }
    let all = toml::to_string(&Config::default()).unwrap();
    out + "\n## A file with all defaults\n\n```toml\n" + &all + "```\n"
}

/// `docs/configuration.md` says what the code does.
#[test]
fn the_configuration_is_documented() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    let text = fs::read_to_string(&path).unwrap();
    let (by_hand, there) = text.split_once(MARK).expect(MARK);
    let wanted = generated();
    if std::env::var_os("OUTRIDER_REGENERATE").is_some() {
        return fs::write(path, format!("{by_hand}{MARK}{wanted}")).unwrap();
    }
    let differs = there.lines().zip(wanted.lines()).find(|(a, b)| a != b);
    assert!(
        there == wanted,
        "docs/configuration.md is not what the code says; `{HOW}` writes it anew. The first line that differs, there and wanted: {differs:#?}"
    );
}
