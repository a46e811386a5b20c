//! What the tests share.

/// Runs `body` in a process that runs nothing but this test.
// The library's own code must not: see clippy.toml.
#[allow(clippy::disallowed_methods)]
pub fn in_child(name: &str, body: impl FnOnce()) {
    if std::env::var_os("OUTRIDER_GRAPH_CHILD").is_some() {
        return body();
    }
    let out = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--test-threads=1", "--nocapture"])
        .env("OUTRIDER_GRAPH_CHILD", "1")
        .output()
        .unwrap();
    let mut text = String::from_utf8_lossy(&out.stdout).into_owned();
    text += &String::from_utf8_lossy(&out.stderr);
    // Its sum is not one of this process's.
    let said = text
        .replace("test result:", "result:")
        .replace('\n', "\n| ");
    assert!(out.status.success(), "{said}");
    assert!(text.contains("1 passed"), "{said}");
}
