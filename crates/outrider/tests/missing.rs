//! SPEC B1, B11: whatever of ours is missing or wrong, the program runs as it would without us, and the report names the cause.

mod support;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use support::{fresh, is_root, outrider, plain_environment, skip_unprivileged};

const SCRIPT: &str = "cksum data; echo \"$#\" >&2; exit 5";

/// `WRAPPER… COMMAND run FLAGS… -- sh …`, or without us.
fn run(
    dir: &Path,
    wrapper: &[&str],
    ours: Option<(&Path, &[&str])>,
    env: &[(&str, &str)],
) -> Output {
    let mut argv: Vec<&str> = wrapper.to_vec();
    if let Some((command, flags)) = ours {
        argv.extend([command.to_str().unwrap(), "run"]);
        argv.extend(flags);
        argv.push("--");
    }
    argv.extend(["sh", "-c", SCRIPT, "_", "a"]);
    let mut command = Command::new(argv[0]);
    plain_environment(&mut command, dir);
    command.args(&argv[1..]).envs(env.iter().copied());
    command.current_dir(dir).output().unwrap()
}

/// The program's run is the same with a report, and one line of `lost` has `word`.
fn costs(dir: &Path, wrapper: &[&str], command: &Path, env: &[(&str, &str)], word: &str) {
    let plain = run(dir, wrapper, None, env);
    assert_eq!(plain.status.code(), Some(5), "{plain:?}");
    let _ = fs::remove_file(dir.join("r.json"));
    let ours = run(dir, wrapper, Some((command, &["--report=r.json"])), env);
    assert_eq!(ours, plain, "{word}");
    let json: serde_json::Value =
        serde_json::from_slice(&fs::read(dir.join("r.json")).unwrap()).unwrap();
    assert!(
        json["lost"].to_string().contains(word),
        "{word}: {}",
        json["lost"]
    );
    let early = run(dir, wrapper, Some((command, &[])), env);
    assert_eq!(
        (early.status, early.stdout),
        (plain.status, plain.stdout),
        "{word}"
    );
}

#[test]
fn library_missing_or_of_another_kind() {
    let dir = fresh("library_missing");
    fs::write(dir.join("data"), "data").unwrap();
    let command = dir.join("outrider");
    fs::copy(outrider(), &command).unwrap();
    costs(&dir, &["env"], &command, &[], "liboutrider.so is missing");
    fs::write(dir.join("liboutrider.so"), [7; 4096]).unwrap();
    costs(&dir, &["env"], &command, &[], "no shared object");
}

#[test]
fn proc_missing() {
    if !is_root() {
        return skip_unprivileged("proc_missing", "only root can unmount /proc");
    }
    let dir = fresh("proc_missing");
    fs::write(dir.join("data"), "data").unwrap();
    let wrapper = |mount: &'static str| ["unshare", "-m", "sh", "-c", mount, "_"];
    let none = "mount -t tmpfs none /proc && exec \"$@\"";
    costs(&dir, &wrapper(none), &outrider(), &[], "/proc: not mounted");
}

#[test]
fn few_descriptors_make_no_static_program() {
    let dir = fresh("few_descriptors");
    fs::write(dir.join("data"), "data").unwrap();
    let wrapper = ["prlimit", "--nofile=5"];
    run(
        &dir,
        &wrapper,
        Some((&outrider(), &["--report=r.json"])),
        &[],
    );
    let report = fs::read_to_string(dir.join("r.json")).unwrap();
    assert!(!report.contains("statically"), "{report}");
}

/// `OUTRIDER=off`: the program is the process itself and finds nothing of ours; no report is written.
#[test]
fn switched_off() {
    let dir = fresh("switched_off");
    fs::write(dir.join("data"), "data").unwrap();
    for value in ["off", "0", "No", "false"] {
        for flags in [&[][..], &["--report=r.json"]] {
            let mut command = Command::new("sh");
            plain_environment(&mut command, &dir);
            let script =
                "echo $$; exec \"$0\" run \"$@\" -- sh -c 'echo $$ $OUTRIDER_SHM $LD_PRELOAD'";
            command.args(["-c", script]).arg(outrider()).args(flags);
            let output = command
                .env("OUTRIDER", value)
                .current_dir(&dir)
                .output()
                .unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            let lines: Vec<&str> = text.lines().collect();
            assert!(
                lines.len() == 2 && lines[0] == lines[1],
                "{value} {flags:?}: {text}"
            );
            assert!(output.stderr.is_empty() && !dir.join("r.json").exists());
        }
    }
    costs(
        &dir,
        &["env"],
        &outrider(),
        &[("OUTRIDER", "maybe")],
        "OUTRIDER=maybe is not understood",
    );
}
