//! `make campaign`, small: it reads what suites print, goes on where it stopped, and finds a fault that is there and no other.

mod support;

use std::fs;
use std::process::{Command, Output};

use serde_json::Value;
use support::{have, outrider, repository, skip};
use tempfile::TempDir;

/// The parsers with samples of real output, resumability, and which recipes there may be.
#[test]
fn its_own_tests_pass() {
    if !have("python3") {
        return skip("its_own_tests_pass", "python3 is not installed");
    }
    let output = Command::new("python3")
        .arg(repository().join("bench/campaign/test_campaign.py"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.ends_with("OK\n"), "{said}");
}

/// Suites whose outcome is known. `seen` tells whether the hooks are there, as a test that Outrider breaks would; `torn` fails at random, `own`
/// fails always.
const RECIPES: &str = r#"
import parsers
from recipes import Recipe
EACH = "case $UNIT in seen) [ -z \"$LD_PRELOAD\" ];; own) false;; user) [ $(id -u) = 65534 ];; *) cat input >/dev/null;; esac"
RECIPES = [
    Recipe(
        name="units",
        build="head -c 3000000 /dev/zero >input",
        units="echo well seen own user",
        each=EACH + "; [ $? = 0 ] && echo PASS || { echo FAIL; exit 1; }",
        parser=lambda text: (parsers.ended(unit, end) for unit, _, end in parsers.units(text)),
        cold=("input",),
    ),
    Recipe(
        name="whole",
        test="for t in ${UNITS:-a b c}; do echo PASS: $t; done; sleep 1000 & true",
        parser=parsers.automake,
    ),
]
"#;

fn campaign(state: &TempDir, arguments: &[&str]) -> Output {
    let recipes = state.path().join("suites.py");
    fs::write(&recipes, RECIPES).unwrap();
    Command::new("python3")
        .arg(repository().join("bench/campaign/campaign.py"))
        .args(["--jobs=1", "--disk=none", "--recipes"])
        .arg(recipes)
        .arg("--state")
        .arg(state.path().join("state"))
        .arg("--build")
        .arg(outrider().parent().unwrap())
        .args(arguments)
        .output()
        .unwrap()
}

/// From the first run to the table: a case that fails only when the hooks are there is the one fault that is named, and a second start
/// runs nothing.
#[test]
fn a_fault_is_found_and_named() {
    const NAME: &str = "a_fault_is_found_and_named";
    for program in ["python3", "setpriv", "unshare", "tar"] {
        if !have(program) {
            return skip(NAME, &format!("{program} is not installed"));
        }
    }
    if !rustix::process::geteuid().is_root() {
        return skip(NAME, "not root");
    }
    if !outrider().with_file_name("outrider-lab").exists() {
        return skip(NAME, "outrider-lab is not built");
    }
    // The suites run as nobody, who must get there.
    let state = tempfile::Builder::new()
        .prefix("outrider-campaign-")
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .tempdir_in("/var/tmp")
        .unwrap();
    let kept = state.path().join("kept");
    let save = format!("--save={}", kept.display());
    let output = campaign(&state, &["--only=units,whole", &save]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}{printed}");
    for line in [
        "| units | - | 4 | 3 / 1 / 0 | 2 / 2 / 0 | 1 | 0 | ",
        "| whole | - | 3 | 3 / 0 / 0 | 3 / 0 / 0 | 0 | 0 | ",
        "- units: `seen: exit`, 3 of 3 (ended: 1)",
    ] {
        assert!(
            printed.lines().any(|l| l.starts_with(line)),
            "{line}\n\n{printed}{said}"
        );
    }
    let read = |name: &str| -> Value {
        serde_json::from_slice(&fs::read(kept.join(name)).unwrap()).unwrap()
    };
    assert_eq!(read("units.json")["new"].as_array().unwrap().len(), 1);
    assert_eq!(
        read("whole.json")["new"],
        Value::Array(Vec::new()),
        "{printed}"
    );
    let again = campaign(&state, &["--only=units,whole"]);
    assert!(again.stderr.is_empty(), "{again:?}");
    assert_eq!(
        String::from_utf8_lossy(&again.stdout),
        printed,
        "the same table"
    );
}
