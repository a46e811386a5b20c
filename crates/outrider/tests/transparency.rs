//! Real programs with real work, without us and with us: nothing an observer can see may differ.
//!
//! SPEC CP1 (unmodified programs), CP13 (the report shows that the hooks were there), CP14 (many
//! processes, one budget), B1 (no privilege needed), B11 (a wrong guess costs time, never
//! correctness). One test per family of programs; each case says what it is after in its name.

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use support::Data::{Big, Bin, Sorted, Sparse, Text, Tree};
use support::{Case, check, compile, program, scratch, skip, skip_unprivileged};

/// A shell function: waits until `out` has so many lines, for a minute.
const SEEN: &str =
    "seen() { for _ in $(seq 3000); do [ $(wc -l <out) -ge $1 ] && return; sleep 0.02; done; }";

/// CP1: programs that read one file from one end to the other, or from the other to the one.
#[test]
fn coreutils_that_read() {
    check(vec![
        Case::argv("cat", &["cat", "bin.dat", "text.txt"]).data(&[Bin, Text]).expects_events(),
        Case::sh("cat_to_pipe", "cat bin.dat | cksum").data(&[Bin]).expects_events(),
        Case::argv("cat_stdin", &["cat", "-", "text.txt"]).data(&[Bin, Text]).stdin("bin.dat").expects_events(),
        Case::argv("cat_missing_and_directory", &["cat", "nothere", ".", "text.txt"]).data(&[Text]),
        Case::argv("head_bytes", &["head", "-c", "3000001", "bin.dat"]).data(&[Bin]),
        Case::argv("head_but_last", &["head", "-n", "-1000", "text.txt"]).data(&[Text]),
        Case::argv("tail_bytes", &["tail", "-c", "5000000", "bin.dat"]).data(&[Bin]).expects_events(),
        Case::argv("tail_lines_from_the_end", &["tail", "-n", "90000", "text.txt"]).data(&[Text]),
        Case::argv("tail_from_line", &["tail", "-n", "+50000", "text.txt"]).data(&[Text]),
        Case::sh("tail_stdin_pipe", "cat text.txt | tail -n 777").data(&[Text]),
        // tail -f holds the file, follows what a writer appends, and ends by a signal.
        Case::sh(
            "tail_follow",
            &format!(
                "{SEEN}; : >out; cp text.txt log; timeout -k 1 200 tail -n 2 -f log >out & tail=$!; seen 2
                 for i in 1 2 3 4 5; do echo line $i >>log; seen $((i + 2)); done; kill $tail; wait $tail; echo $?; cat out"
            ),
        )
        .data(&[Text]),
        Case::sh(
            "tail_follow_rotation",
            &format!(
                "{SEEN}; : >out; echo first >log; timeout -k 1 200 tail -F -s 0.1 log >out 2>/dev/null & tail=$!; seen 1
                 mv log log.1; echo second >log; seen 2; echo third >>log; seen 3; kill $tail; wait $tail; echo $?; cat out"
            ),
        ),
        Case::argv("tac", &["tac", "text.txt"]).data(&[Text]).expects_prefetch(),
        Case::argv("wc", &["wc", "text.txt", "bin.dat"]).data(&[Bin, Text]).expects_events(),
        Case::argv("wc_bytes_by_seek", &["wc", "-c", "text.txt", "sparse.dat"]).data(&[Text, Sparse]),
        Case::argv("cksum", &["cksum", "bin.dat", "sparse.dat"]).data(&[Bin, Sparse]).expects_events(),
        Case::sh("sha256sum_check", "sha256sum big.dat bin.dat >sums; sha256sum -c sums; md5sum big.dat; sha1sum <bin.dat")
            .data(&[Big, Bin])
            .expects_events(),
        Case::argv("od", &["od", "-A", "d", "-t", "x8", "-j", "1000003", "-N", "2000000", "-v", "bin.dat"]).data(&[Bin]),
        Case::sh("base64_round_trip", "base64 bin.dat | base64 -d | cmp - bin.dat && echo same").data(&[Bin]),
        Case::sh("text_filters", "cut -d' ' -f2 text.txt | tr a-z A-Z | fold -w 40 | nl | paste - - | cksum; rev text.txt | cksum")
            .data(&[Text]),
        Case::sh("strings", "command -v strings >/dev/null && strings -n 6 bin.dat | cksum").data(&[Bin]),
    ]);
}

/// CP1: the stdio calls whose arguments vary in number, and those that read standard input without naming it.
#[test]
fn formatted_input() {
    let scan = program("scan").display().to_string();
    let case = |name: &str, from_stdin: bool| {
        let mut argv = vec![scan.as_str(), name];
        if !from_stdin {
            argv.push("text.txt");
        }
        let case = Case::argv(&format!("scan_{name}"), &argv)
            .data(&[Text])
            .modes(&["predict+opt"])
            .expects_events();
        if from_stdin {
            case.stdin("text.txt")
        } else {
            case
        }
    };
    check(vec![
        case("fscanf", false),
        case("__isoc99_fscanf", false),
        case("vfscanf", false),
        case("__isoc99_vfscanf", false),
        case("getw", false),
        case("fgetwc", false),
        case("fgetws", false),
        case("fwscanf", false),
        case("vfwscanf", false),
        case("getwchar", true),
        case("wscanf", true),
        case("scanf", true),
        case("__isoc99_scanf", true),
        case("vscanf", true),
        case("getchar", true),
        case("getchar_unlocked", true),
    ]);
}

/// CP1: printing to a descriptor, whose arguments vary in number and kind.
#[test]
fn formatted_output() {
    let printed = program("printed").display().to_string();
    check(vec![Case::argv("printed", &[&printed])]);
}

/// CP1: the write family, offsets that move, holes, O_DIRECT, O_APPEND and what cp asks of the kernel.
#[test]
fn coreutils_that_copy() {
    let dd = |name: &str, args: &str| {
        Case::sh(name, &format!("dd status=none {args}; echo $?")).data(&[Bin])
    };
    check(vec![
        Case::sh("cp", "cp bin.dat copy && cp -r tree tree2").data(&[Bin, Tree]),
        Case::sh("cp_preserving", "cp -a tree tree2; cp -p bin.dat copy").data(&[Bin, Tree]),
        Case::sh("cp_sparse_always", "cp --sparse=always sparse.dat copy; cp --sparse=never sparse.dat full; du -k --apparent-size copy full")
            .data(&[Sparse]),
        Case::sh("cp_reflink_auto", "cp --reflink=auto sparse.dat a; cp --reflink=never sparse.dat b; cp --reflink=always sparse.dat c 2>/dev/null; cmp a b && echo same")
            .data(&[Sparse])
            // The file system may or may not clone; either way it does so in both runs.
            .unstable(&["c"]),
        Case::sh("cp_over_existing", "cp text.txt bin.dat; cp -f --remove-destination text.txt b; cp -l text.txt c; cp -b text.txt b").data(&[Bin, Text]),
        Case::sh("mv_and_install", "mv bin.dat tree/moved; install -m 640 -D tree/moved new/dir/file; ln tree/moved hard; stat -c '%n %s %h' hard")
            .data(&[Bin, Tree]),
        dd("dd_plain", "if=bin.dat of=out bs=64k").expects_events(),
        dd("dd_odd_blocks", "if=bin.dat of=out bs=4097 skip=3 seek=5 count=900"),
        dd("dd_bytes", "if=bin.dat of=out bs=8k iflag=skip_bytes,count_bytes skip=12345 count=3456789 oflag=seek_bytes seek=777"),
        dd("dd_ibs_obs", "if=bin.dat of=out ibs=1000 obs=3333 conv=swab"),
        dd("dd_direct_in", "if=bin.dat of=out bs=64k iflag=direct"),
        dd("dd_direct_out", "if=bin.dat of=out bs=64k oflag=direct"),
        dd("dd_direct_both_mixed_with_cached", "if=bin.dat of=a bs=1M; dd status=none if=bin.dat of=b iflag=direct oflag=direct bs=128k; cmp a b"),
        dd("dd_append", "if=bin.dat of=out bs=1M count=2; dd status=none if=bin.dat of=out bs=1M skip=4 oflag=append conv=notrunc"),
        dd("dd_notrunc", "if=/dev/zero of=bin.dat bs=4k seek=100 count=7 conv=notrunc,fsync"),
        dd("dd_fdatasync_sparse", "if=bin.dat of=out bs=256k conv=fdatasync,sparse"),
        dd("dd_excl", "if=bin.dat of=bin.dat conv=excl"),
        dd("dd_fullblock_from_pipe", "if=bin.dat bs=777 | dd status=none bs=65536 iflag=fullblock count=50 of=out"),
        dd("dd_stdin_shared_offset", "of=one bs=100000 count=1 <bin.dat; { dd status=none bs=1000 count=10 of=x; dd status=none bs=1000 count=10 of=y; cat >rest; } <bin.dat"),
        dd("dd_nocache", "if=bin.dat of=out bs=64k iflag=nocache oflag=nocache"),
        Case::sh("tee", "tee one two <bin.dat >three; tee -a one <text.txt >/dev/null").data(&[Bin, Text]),
        Case::sh("truncate", "truncate -s 1000001 bin.dat; truncate -s +5M bin.dat; truncate -r text.txt other; cksum bin.dat other; fallocate -l 3M room && cksum room")
            .data(&[Bin, Text]),
        Case::sh("truncate_while_reading", "exec 3<bin.dat; head -c 1000000 <&3 | cksum; truncate -s 2000000 bin.dat; cat <&3 | cksum; truncate -s 6000000 bin.dat; cat <&3 | cksum")
            .data(&[Bin]),
        Case::sh("unlink_while_reading", "exec 3<bin.dat; head -c 100000 <&3 | cksum; rm bin.dat; cp text.txt bin.dat; cat <&3 | cksum; cat bin.dat | cksum")
            .data(&[Bin, Text]),
        Case::sh("replace_while_reading", "for i in 1 2 3; do cat f$((i-1)) 2>/dev/null | cksum; cp bin.dat f$i; cksum f$i; tr a-m n-z <f$i >new; mv new f$i; cksum f$i; done")
            .data(&[Bin])
            .expects_events(),
        Case::sh("write_then_read_back", "for i in 1 2 3 4; do dd status=none if=text.txt of=f bs=1M seek=$i conv=notrunc; cksum f; done").data(&[Text]),
        Case::sh("shred", "head -c 3000000 bin.dat >f; cp f g; shred -n 2 --random-source=bin.dat f; shred -u -n 1 -z --random-source=bin.dat g; cksum f; ls")
            .data(&[Bin]),
    ]);
}

/// CP1: programs with temporary files, several inputs at once, and outputs split over many files.
#[test]
fn coreutils_that_sort_and_split() {
    check(vec![
        Case::sh("sort_in_small_memory", "sort -S 1M -T . text.txt -o sorted; sort -c sorted; cksum sorted; sort -S 2M -T . -u -k2,2n -k1,1r text.txt | cksum")
            .data(&[Text])
            ,
        Case::sh("sort_merge_parallel", "sort --parallel=2 -S 3M -T . text.txt >s; sort -m s a.txt b.txt | cksum; sort -R --random-source=text.txt text.txt | cksum; sort -z text.txt | cksum")
            .data(&[Text, Sorted]),
        Case::sh("sort_onto_itself", "sort -S 1M -T . -o text.txt text.txt; cksum text.txt").data(&[Text]),
        Case::sh("split", "split -b 1000003 bin.dat by_bytes.; split -l 20000 -d text.txt by_lines.; split -n l/7 text.txt by_parts.; split -n r/3 text.txt rr. ; cat by_bytes.* | cmp - bin.dat")
            .data(&[Bin, Text])
            .expects_events(),
        Case::sh("split_filter", "split -b 2M --filter='gzip -n >$FILE.gz' bin.dat z.; zcat z.*.gz | cmp - bin.dat && echo same").data(&[Bin]),
        Case::sh("csplit", "csplit -s -n 3 text.txt 1000 '/^falcon/' '{20}' '%lantern 99%' '/quill/+3'; ls | wc -l").data(&[Text]),
        Case::sh("comm_join", "comm a.txt b.txt | cksum; join a.txt b.txt | cksum; join -v 1 -v 2 a.txt b.txt | cksum; uniq -c a.txt | cksum; comm -12 <(cut -d' ' -f1 a.txt) <(cut -d' ' -f1 b.txt) | cksum")
            .data(&[Sorted]),
        Case::sh("shuf", "shuf --random-source=bin.dat text.txt | cksum; shuf -n 100 --random-source=bin.dat text.txt; shuf -i 1-100000 --random-source=bin.dat | cksum")
            .data(&[Bin, Text]),
        Case::sh("cmp_diff", "cp text.txt t2; printf X | dd status=none of=t2 bs=1 seek=4000000 conv=notrunc; cmp text.txt t2; cmp -l text.txt t2; diff text.txt t2; diff -q bin.dat text.txt; diff -u a.txt b.txt | cksum; cmp -i 1000:2000 bin.dat bin.dat")
            .data(&[Bin, Text, Sorted])
            .expects_events(),
        Case::sh("patch", "cp a.txt c.txt; diff -u a.txt b.txt >p; patch -s a.txt p && cmp a.txt b.txt && echo applied; patch -s -R a.txt p && cmp a.txt c.txt && echo reversed; ls")
            .data(&[Sorted])
            .needs(&["patch"]),
    ]);
}

/// CP1, B5: archivers.
#[test]
fn archivers() {
    check(vec![
        Case::sh("tar_create_list_append", "tar cf t.tar tree bin.dat; tar tvf t.tar; tar rf t.tar text.txt; tar df t.tar; tar tf t.tar | tail -1; cksum t.tar")
            .data(&[Tree, Bin, Text])
            .unstable(&["t.tar"])
            // GNU tar archives hold the modification time of `tree`, which the copy preserves.
            .expects_events(),
        Case::sh("tar_extract", "tar cf t.tar tree sparse.dat && mkdir x && tar xpf t.tar -C x && diff -r tree x/tree && cmp sparse.dat x/sparse.dat; tar xOf t.tar tree/d1/inner/file03 | cksum")
            .data(&[Tree, Sparse])
            .unstable(&["t.tar"])
            .setup(still_directories),
        Case::sh("tar_sparse", "tar cSf t.tar sparse.dat; tar xSf t.tar --to-command=cksum; tar cf - bin.dat | tar xf - -O | cksum").data(&[Sparse, Bin]),
        Case::sh("tar_compressed", "tar c tree | gzip -n >t.tgz; tar xzf t.tgz --one-top-level=g; tar cJf t.txz tree; tar xJf t.txz --one-top-level=x; diff -r g/tree x/tree && diff -r g/tree tree && echo same")
            .data(&[Tree])
            .needs(&["xz"])
            .unstable(&["t.tgz", "t.txz"]),
        Case::sh("gzip", "cp -p text.txt t; gzip -n t; zcat t.gz | cksum; gzip -t t.gz; gzip -l t.gz; zgrep -c falcon t.gz; gunzip t.gz; cmp t text.txt")
            .data(&[Text])
            .expects_events(),
        Case::sh("xz_bzip2", "xz -0 -k -T1 bin.dat; xzcat bin.dat.xz | cmp - bin.dat && xz -l bin.dat.xz; command -v bzip2 >/dev/null && bzip2 -1 -k text.txt && bzcat text.txt.bz2 | cksum")
            .data(&[Bin, Text])
            .needs(&["xz"]),
        Case::sh("cpio_ar", "ar rcD lib.a tree/d0/inner/file0* && ar t lib.a && ar p lib.a file03 | cksum").data(&[Tree]).needs(&["ar"]),
    ]);
}

/// Extraction restores the directories' times, so they must not depend on when the copy was made.
fn still_directories(work: &Path) {
    let done = Command::new("find")
        .arg(work.join("tree"))
        .args([
            "-type",
            "d",
            "-exec",
            "touch",
            "-d",
            "@1600000000",
            "{}",
            "+",
        ])
        .status();
    assert!(done.unwrap().success());
    let done = Command::new("touch")
        .args(["-d", "@1600000000"])
        .arg(work)
        .status();
    assert!(done.unwrap().success());
}

/// CP1, B5: programs that walk trees and programs that edit in place.
#[test]
fn searchers_and_editors() {
    check(vec![
        Case::sh("find_exec", "find tree -type f -exec cksum {} + | sort; find tree -name 'file1*' -exec sh -c 'head -c 10000 \"$1\" | cksum' _ {} \\; | sort; find tree -type l | sort; find tree -size +200k -print0 | xargs -0 ls -s | wc -l")
            .data(&[Tree]),
        Case::sh("grep", "grep -rc falcon tree | sort; grep -b -o 'stone 1[0-9]*' text.txt | cksum; grep -n meadow text.txt | tail -3; grep -c . bin.dat; grep -abo 'AB' bin.dat | head -20; grep -l zzzz bin.dat text.txt; grep -m 3 -A 2 quill text.txt; { grep -m 1 lantern; head -1; } <text.txt")
            .data(&[Tree, Text, Bin])
            .expects_events(),
        Case::sh("grep_sparse_binary", "grep -c x sparse.dat; grep -F -f <(head -50 a.txt | cut -d' ' -f1) b.txt | cksum").data(&[Sparse, Sorted]),
        Case::sh("sed", "sed -i 's/stone/rock/g' text.txt; sed -i.bak '1,1000d' text.txt; sed -n '$p;50000p' text.txt; sed 's/a/b/w out' text.txt | cksum; sed '/falcon/r a.txt' <(head -2000 text.txt) | cksum")
            .data(&[Text, Sorted]),
        Case::sh("awk", "awk '{s+=$2; n[$1]++} END {for (k in n) print k, n[k] | \"sort\"; close(\"sort\"); printf \"%.0f\\n\", s}' text.txt; awk '{print > (\"part.\" $1)}' text.txt; awk 'BEGIN {while ((getline l < \"a.txt\") > 0) c++; print c; while ((\"tail -3 b.txt\" | getline l) > 0) print l}'")
            .data(&[Text, Sorted])
            .expects_events(),
        Case::sh("du_ls_stat", "du -a --apparent-size tree | sort; ls -lR tree | sed 's/^total.*//'; stat -c '%A %s %h %N' tree/d0/*; file tree/d0/inner/file01 2>/dev/null || true").data(&[Tree]),
        Case::sh("xargs_parallel", "find tree -type f | sort | xargs -P2 -n 10 cksum | sort; find tree -type f -print0 | xargs -0 -P4 -n 5 sh -c 'cat \"$@\" | wc -c' _ | awk '{s+=$1} END {print s}'")
            .data(&[Tree]),
        Case::sh("ed_bc_m4", "seq 1 20000 >n; if command -v bc >/dev/null; then echo '2^200' | bc; fi; paste -sd+ n | head -c 100; printf '%s\\n' *")
            .data(&[Bin]),
    ]);
}

/// CP1, B5: rsync maps files in windows, compares blocks, and runs as two processes over a socket.
#[test]
fn rsync() {
    let sync = |name: &str, script: &str| {
        Case::sh(name, script)
            .data(&[Tree, Bin, Sparse])
            .needs(&["rsync"])
            .setup(still_directories)
    };
    check(vec![
        sync("rsync_archive", "rsync -aH tree bin.dat sparse.dat dst/; rsync -ain tree bin.dat dst/; rsync -a --sparse sparse.dat s/; cmp s/sparse.dat sparse.dat")
            .expects_events(),
        sync("rsync_checksum", "cp -a tree old; rsync -a tree/ old/; printf x >>old/d1/inner/file02; touch -d @1500000000 old/d2/inner/file04; touch -d @1600000000 old/d1/inner/file02; rsync -rci --times tree/ old/ | sort; diff -r tree old && echo same"),
        sync("rsync_delta_inplace", "cp -p bin.dat old; dd status=none if=/dev/zero of=old bs=1 count=5000 seek=3000000 conv=notrunc; { head -c 1000000 bin.dat; echo inserted; tail -c +1000001 bin.dat; } >moved; touch -d @1600000001 old moved; rsync -t --inplace --no-whole-file bin.dat old; cmp bin.dat old && echo same; rsync -t --no-whole-file bin.dat moved; cmp bin.dat moved && echo same")
            .expects_events(),
        sync("rsync_delete_hardlinks", "mkdir dst; echo extra >dst/extra; rsync -aH --delete --link-dest=$PWD/tree tree/ dst/; ls dst"),
    ]);
}

/// CP1, B11: a database that depends on POSIX locks, which die when any descriptor of the file is
/// closed in the process, and that maps its file.
#[test]
fn sqlite() {
    const FILL: &str =
        "CREATE TABLE customer(id INTEGER PRIMARY KEY, zip INTEGER, name TEXT, data BLOB);
        WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < 30000)
        INSERT INTO customer SELECT i, (i*7919)%100003, 'name'||i, zeroblob(i%500) FROM n;
        CREATE INDEX zip ON customer(zip);";
    const ASK: &str = "SELECT count(*), sum(zip), sum(length(data)) FROM customer;
        SELECT id, zip, name FROM customer ORDER BY zip LIMIT 500;
        SELECT sum(id*zip) FROM (SELECT id, zip FROM customer ORDER BY zip);
        SELECT count(*) FROM customer a JOIN customer b ON a.zip = b.zip+1;
        PRAGMA integrity_check;";
    // The asking process starts with a cold file of its own making.
    let fill = |work: &Path| {
        let made = Command::new("sqlite3")
            .arg(work.join("db"))
            .arg(FILL)
            .status()
            .unwrap();
        assert!(made.success());
    };
    let ask = |name: &str, pragma: &str| {
        Case::argv(name, &["sqlite3", "db", &format!("{pragma} {ASK}")])
            .needs(&["sqlite3"])
            .setup(fill)
    };
    let journal = |mode: &str| {
        Case::sh(
            &format!("sqlite_journal_{mode}"),
            &format!(
                "sqlite3 db \"PRAGMA journal_mode={mode}; BEGIN; UPDATE customer SET name = name || 'x' WHERE zip % 3 = 0;
                 DELETE FROM customer WHERE id % 10 = 0; COMMIT; BEGIN; DELETE FROM customer; ROLLBACK;\"; ls;
                 sqlite3 db \"{ASK}\"; sqlite3 db 'VACUUM'; cksum db; sqlite3 db .dump | cksum;
                 sqlite3 db \".backup copy\"; sqlite3 copy 'PRAGMA integrity_check'"
            ),
        )
        .needs(&["sqlite3"])
        .setup(fill)
        .unstable(&["db-wal", "db-shm"])
    };
    let mut cases = vec![
        ask("sqlite_index_order", "PRAGMA cache_size=100;").expects_prefetch(),
        ask("sqlite_mapped", "PRAGMA mmap_size=268435456;"),
        ask(
            "sqlite_mapped_little",
            "PRAGMA mmap_size=1000000; PRAGMA cache_size=50;",
        ),
    ];
    for mode in ["DELETE", "TRUNCATE", "PERSIST", "MEMORY", "WAL"] {
        cases.push(journal(mode));
    }
    // Two writers and a reader at once: every insert arrives, nobody sees a malformed page, and a
    // lock held by one really keeps out the other. Which writer comes first is chance, so only
    // what cannot depend on it is printed.
    for mode in ["DELETE", "WAL"] {
        cases.push(
            Case::sh(
                &format!("sqlite_two_processes_{mode}"),
                &format!(
                    "sqlite3 db 'PRAGMA journal_mode={mode}' >/dev/null
                     writer() {{ for i in 1 2 3 4 5 6 7 8; do
                         sqlite3 -cmd '.timeout 20000' db \"BEGIN IMMEDIATE; SELECT count(*) FROM customer WHERE zip < 50;
                         INSERT INTO customer(zip, name) SELECT zip, '$1' FROM customer WHERE id <= 100; COMMIT\" >/dev/null || echo failed; done; }}
                     writer one & writer two &
                     for i in 1 2 3; do sqlite3 -cmd '.timeout 20000' db 'PRAGMA integrity_check'; done; wait
                     sqlite3 db \"SELECT name, count(*), sum(zip) FROM customer WHERE name IN ('one', 'two') GROUP BY name; PRAGMA integrity_check\""
                ),
            )
            .needs(&["sqlite3"])
            .setup(fill)
            .unstable(&["db", "db-wal", "db-shm"]),
        );
    }
    cases.push(
        Case::python(
            "sqlite_locks_hold",
            r#"
import sqlite3, subprocess, sys
held = sqlite3.connect('db', isolation_level=None)
held.execute('BEGIN EXCLUSIVE')
held.execute('SELECT count(*), sum(zip) FROM customer').fetchall()
# Opening and closing the file elsewhere in this process would drop the lock; ours must not be
# the ones that do so. The other process must find the database locked.
other = "import sqlite3; c = sqlite3.connect('db', timeout=0.3)\ntry: print(c.execute('SELECT count(*) FROM customer').fetchall())\nexcept sqlite3.OperationalError as e: print(e)"
for _ in range(3):
    sys.stdout.flush()
    subprocess.run([sys.executable, '-c', other])
    print(held.execute('SELECT sum(length(data)) FROM customer').fetchall())
held.execute('COMMIT')
sys.stdout.flush()
subprocess.run([sys.executable, '-c', other])
"#,
        )
        .needs(&["sqlite3"])
        .setup(fill),
    );
    check(cases);
}

/// CP1, B5: git maps packs, renames lock files, and starts itself many times.
#[test]
fn git() {
    let git = |name: &str, script: &str| {
        let prepared = format!(
            "set -e; export GIT_CONFIG_NOSYSTEM=1 GIT_AUTHOR_DATE='1600000000 +0000' GIT_COMMITTER_DATE='1600000000 +0000'
             git config --global user.name N; git config --global user.email n@example.org; git config --global init.defaultBranch main
             git config --global pack.threads 1; git config --global maintenance.auto false; git config --global safe.directory '*'
             {script}"
        );
        Case::sh(name, &prepared)
            .needs(&["git"])
            .data(&[Tree, Text])
    };
    check(vec![
        git(
            "git_life",
            "git init -q; git add tree text.txt; git commit -q -m one; sed -i 's/stone/rock/' text.txt; echo x >>tree/d1/inner/file02
             git diff --stat; git commit -q -a -m two; git repack -q -a -d -f; git fsck --full 2>&1; git grep -c falcon | sort; git log -p --stat | cksum
             git blame text.txt | tail -2; git status --short; git count-objects -v | grep -v size; git archive HEAD | cksum; git gc -q --prune=now; git rev-parse HEAD",
        )
        .unstable(&[".git/index", ".git/objects/info/commit-graph"]),
        git(
            "git_clone_checkout",
            "git init -q src; cp -r tree text.txt src/; cd src; git add .; git commit -q -m one; git tag v1; git checkout -q -b side; git rm -q -r tree/d2; git commit -q -m two; git gc -q; cd ..
             git clone -q --local src dst; git -C dst log --oneline | cat; git -C dst checkout -q v1 2>/dev/null; ls dst/tree; git clone -q --no-local src far; git -C far fsck 2>&1; git -C far stash list; git -C dst diff --stat HEAD origin/side | tail -1",
        )
        .unstable(&["src/.git/index", "dst/.git/index", "far/.git/index"]),
    ]);
}

/// CP1: Python's many ways to read: buffered, raw, positioned, mapped, in the kernel, from threads.
#[test]
fn python_reads_and_writes() {
    check(vec![
        Case::python(
            "python_io",
            r#"
import hashlib, io, os, random
rnd = random.Random(7)
def digest(it):
    h = hashlib.sha1()
    for b in it: h.update(b)
    return h.hexdigest()
print(digest(open('bin.dat', 'rb')))
with open('bin.dat', 'rb', buffering=0) as f:
    print(digest(iter(lambda: f.read(10007), b'')), f.tell(), f.read(1))
with open('bin.dat', 'rb') as f:
    for pos in range(8 << 20, 0, -65536):           # backwards
        f.seek(pos - 65536); print(f.read(16).hex(), f.tell(), end=' ')
    f.seek(-100, os.SEEK_END); print(f.read().hex(), f.readinto(bytearray(5)))
    for _ in range(500):                              # at random
        f.seek(rnd.randrange(8 << 20)); print(f.read(3).hex(), end='')
with open('bin.dat', 'r+b') as f:                     # strided, with writes between the reads
    for k in range(0, 8 << 20, 131072):
        f.seek(k); a = f.read(100); f.seek(k + 50); f.write(b'written'); f.seek(k); b = f.read(100)
        assert b == a[:50] + b'written' + a[57:], k
print(sum(1 for _ in open('text.txt')), len(open('text.txt').read()))
with open('text.txt') as f:
    for i, line in zip(range(5), f): print(line, end='')
    print(f.readline(), end='')
fd = os.open('bin.dat', os.O_RDWR | os.O_CREAT)
print([hashlib.md5(os.pread(fd, 50000, o)).hexdigest() for o in range(0, 8 << 20, 1 << 20)])
os.lseek(fd, 0, 0); print([len(os.read(fd, n)) for n in (1, 4095, 1 << 20, 70001, 3 << 20, 8 << 20, 1)]); os.lseek(fd, 0, 0)
bufs = [bytearray(1000), bytearray(77), bytearray(40000)]
print(os.preadv(fd, bufs, 12345), os.readv(fd, bufs), os.lseek(fd, 0, os.SEEK_CUR), digest(bufs))
print(os.pwrite(fd, b'abc', 9 << 20), os.writev(fd, [b'x' * 10, b'y' * 20]), os.fstat(fd).st_size)
os.posix_fadvise(fd, 0, 1 << 20, os.POSIX_FADV_WILLNEED); os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM); os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
for bad in (lambda: os.pread(fd, 10, -1), lambda: os.posix_fadvise(999, 0, 0, 0), lambda: os.posix_fadvise(fd, 0, 0, 77),
            lambda: os.lseek(fd, -1, os.SEEK_SET), lambda: os.read(998, 1), lambda: os.open('nothere/x', os.O_RDONLY), lambda: os.close(997)):
    try: print(bad())
    except OSError as e: print(e.errno)
out = os.open('sent', os.O_WRONLY | os.O_CREAT, 0o600)
print(os.sendfile(out, fd, 1000, 3000000), os.copy_file_range(fd, out, 500000, 4000000), os.copy_file_range(fd, out, 500000), os.lseek(fd, 0, 1))
r, w = os.pipe()
print(os.splice(fd, w, 4096, offset_src=0), hashlib.md5(os.read(r, 4096)).hexdigest())
print(os.lseek(fd, 0, os.SEEK_DATA), os.lseek(fd, 0, os.SEEK_HOLE))
os.ftruncate(fd, 100); print(os.pread(fd, 1000, 90), os.pread(fd, 1, 100)); os.close(fd)
print(repr(io.BufferedRandom(io.FileIO('text.txt', 'r+')).peek(5)[:5]))
print(sorted(os.listdir('/proc/self/fd')))
"#,
        )
        .data(&[Bin, Text])
        .expects_prefetch(),
        Case::python(
            "python_mmap",
            r#"
import hashlib, mmap, os, random
f = open('bin.dat', 'r+b')
m = mmap.mmap(f.fileno(), 0)
print(hashlib.sha1(m).hexdigest(), m.find(b'\0\0\0'), m.rfind(b'\x01\x02'))
m[1000000:1000005] = b'hello'; m.flush()
f.seek(999990); print(f.read(20)); m.resize(9 << 20); print(len(m), m[-5:], os.fstat(f.fileno()).st_size)
m.madvise(mmap.MADV_SEQUENTIAL); m.madvise(mmap.MADV_WILLNEED, 0, 1 << 20); m.madvise(mmap.MADV_DONTNEED)
try: m.madvise(12345)
except OSError as e: print(e.errno)
print(hashlib.sha1(b''.join(m[i:i+10] for i in range(0, 9 << 20, 65536))).hexdigest())
m.close()
p = mmap.mmap(f.fileno(), 1 << 20, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE, offset=1 << 20)
p[0:4] = b'priv'; f.seek(1 << 20); print(p[:4], f.read(4).hex()); f.close(); print(hashlib.sha1(p).hexdigest())
with open('big.dat', 'rb') as g:
    v = mmap.mmap(g.fileno(), 0, access=mmap.ACCESS_READ)
r = random.Random(3)
h = hashlib.sha1()
for _ in range(3000):
    o = r.randrange(32 << 20); h.update(v[o:o + 64])
for o in range(0, 32 << 20, 65536): h.update(v[o:o + 8])
print(h.hexdigest())
"#,
        )
        .data(&[Bin, Big]),
        Case::python(
            "python_threads",
            r#"
import hashlib, os, threading
fd = os.open('big.dat', os.O_RDONLY)
size = os.fstat(fd).st_size
out = [None] * 8
def part(i):
    h = hashlib.sha1(); step = size // 8
    for o in range(i * step, (i + 1) * step, 16384): h.update(os.pread(fd, 16384, o))
    with open('text.txt', 'rb') as f:
        f.seek(i * 500000); h.update(f.read(400000))
    out[i] = h.hexdigest()
for _ in range(2):
    ts = [threading.Thread(target=part, args=(i,)) for i in range(8)]
    [t.start() for t in ts]; [t.join() for t in ts]; print(out)
# threads that open and close all the time: numbers are reused for other files and for pipes
def churn(i):
    for k in range(300):
        a = os.open('big.dat', os.O_RDONLY); r, w = os.pipe(); b = os.open('text.txt', os.O_RDONLY)
        assert len(os.pread(a, 4096, (k * 99991 + i) % (size - 4096))) == 4096
        os.write(w, b'pipe'); os.close(a); assert os.read(r, 10) == b'pipe'; os.dup2(r, b); os.write(w, b'more')
        assert os.read(b, 10) == b'more'; os.close(b); os.close(r); os.close(w)
ts = [threading.Thread(target=churn, args=(i,)) for i in range(4)]
[t.start() for t in ts]; [t.join() for t in ts]
print(sorted(os.listdir('/proc/self/fd')))
"#,
        )
        .data(&[Big, Text])
        .expects_prefetch(),
    ]);
}

/// Must 5: fork, spawn, exec, inherited descriptors, locks between processes, signals.
#[test]
fn python_processes() {
    check(vec![
        Case::python(
            "python_subprocess",
            r#"
import os, subprocess, sys
SHOW = "import os; print(sorted(int(x) for x in os.listdir('/proc/self/fd')), sorted(os.readlink('/proc/self/fd/' + x).split('/')[-1] for x in os.listdir('/proc/self/fd') if os.path.exists('/proc/self/fd/' + x)))"
f = open('bin.dat', 'rb'); f.read(3000000)
os.set_inheritable(f.fileno(), True)
sys.stdout.flush()
subprocess.run([sys.executable, '-c', SHOW], close_fds=True)
subprocess.run([sys.executable, '-c', SHOW], close_fds=False)
subprocess.run([sys.executable, '-c', SHOW], pass_fds=[f.fileno()])
subprocess.run(['ls', '/proc/self/fd'])
subprocess.run([sys.executable, '-c', SHOW], stdin=subprocess.DEVNULL, preexec_fn=lambda: os.close(2))
# an offset shared with a child moves for both
fd = f.fileno(); os.lseek(fd, 1000, 0)
subprocess.run(['head', '-c', '5000'], stdin=f, stdout=subprocess.DEVNULL); print(os.lseek(fd, 0, 1)); sys.stdout.flush()
p = subprocess.Popen(['cksum'], stdin=subprocess.PIPE); p.stdin.write(open('text.txt', 'rb').read()); p.stdin.close(); print(p.wait())
print(subprocess.check_output('cat bin.dat text.txt | cksum', shell=True))
print(subprocess.run(['kill', '-9', str(os.getpid() + 10**8)], stderr=subprocess.DEVNULL).returncode)
print(subprocess.run([sys.executable, '-c', 'import os; os.kill(os.getpid(), 11)']).returncode)
pid = os.posix_spawn('/bin/cat', ['cat'], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, 'text.txt', os.O_RDONLY, 0), (os.POSIX_SPAWN_OPEN, 1, 'spawned', os.O_WRONLY | os.O_CREAT, 0o644)])
print(os.waitpid(pid, 0)[1])
try: subprocess.run(['./nothere'])
except OSError as e: print(e.errno)
"#,
        )
        .data(&[Bin, Text])
        .expects_events(),
        Case::python(
            "python_multiprocessing",
            r#"
import hashlib, multiprocessing as mp, os
def work(args):
    name, start, end = args
    with open(name, 'rb') as f:
        f.seek(start)
        return hashlib.sha1(f.read(end - start)).hexdigest()
def child(q, lock, fd):
    with lock: q.put((hashlib.sha1(os.pread(fd, 500000, 0)).hexdigest()))
if __name__ == '__main__':
    f = open('big.dat', 'rb'); f.read(5000000)
    for method in ('fork', 'spawn', 'forkserver'):
        ctx = mp.get_context(method)
        with ctx.Pool(3) as pool:
            print(method, pool.map(work, [('big.dat', i << 21, (i + 1) << 21) for i in range(16)]))
    ctx = mp.get_context('fork'); q = ctx.Queue(); lock = ctx.Lock()
    ps = [ctx.Process(target=child, args=(q, lock, f.fileno())) for _ in range(4)]
    [p.start() for p in ps]; print([q.get() for _ in ps]); [p.join() for p in ps]; print([p.exitcode for p in ps])
    print(f.tell(), hashlib.sha1(f.read()).hexdigest())
"#,
        )
        .data(&[Big])
        .expects_events(),
        Case::python(
            "python_fork_with_threads",
            r#"
import hashlib, os, threading, time, warnings
# Python 3.12 warns of a fork with threads, and names the process.
warnings.simplefilter('ignore')
fd = os.open('big.dat', os.O_RDONLY); stop = False
def reader(i):
    o = i
    while not stop:
        assert len(os.pread(fd, 8192, o % (31 << 20))) == 8192; o += 65536 * (i + 1)
ts = [threading.Thread(target=reader, args=(i,)) for i in range(3)]; [t.start() for t in ts]
codes = []
for k in range(25):
    pid = os.fork()
    if pid == 0:
        ok = len(os.pread(fd, 100000, k << 20)) == 100000
        with open('big.dat', 'rb') as f: f.seek(k << 19); ok = ok and len(f.read(300000)) == 300000
        if k % 3 == 0: os.execvp('cksum', ['cksum', 'text.txt'])
        os._exit(0 if ok else 1)
    codes.append(os.waitpid(pid, 0)[1])
stop = True; [t.join() for t in ts]
print(codes, hashlib.sha1(os.pread(fd, 1 << 20, 0)).hexdigest())
os.lseek(fd, 0, 0)
pid = os.fork()
if pid == 0:
    os.read(fd, 12345); os._exit(0)
os.waitpid(pid, 0); print(os.lseek(fd, 0, 1))
"#,
        )
        .data(&[Big, Text]),
        Case::python(
            "python_locks_between_processes",
            r#"
import fcntl, os, subprocess, sys
TRY = """
import fcntl, sys
f = open('bin.dat', 'r+b')
try: fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 100, 50); print('got it')
except OSError as e: print('refused', e.errno)
try: fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB); print('flock got it')
except OSError as e: print('flock refused', e.errno)
"""
def attempt():
    sys.stdout.flush(); subprocess.run([sys.executable, '-c', TRY])
f = open('bin.dat', 'r+b'); attempt()
fcntl.lockf(f, fcntl.LOCK_EX, 1000, 0); attempt()
f.read(5000000); f.seek(0); f.read(2000000); attempt()         # prefetching must not drop the lock
g = os.open('text.txt', os.O_RDONLY); os.read(g, 1000000); os.close(g); attempt()
fcntl.flock(f, fcntl.LOCK_SH); attempt()
h = os.open('bin.dat', os.O_RDONLY); os.close(h); attempt()      # and here POSIX says that it is dropped
fcntl.flock(f, fcntl.LOCK_UN); attempt()
print(fcntl.fcntl(f, fcntl.F_GETFL), fcntl.fcntl(f, fcntl.F_GETFD), fcntl.fcntl(f, fcntl.F_DUPFD, 50), fcntl.fcntl(f, fcntl.F_DUPFD_CLOEXEC, 60))
"#,
        )
        .data(&[Bin, Text]),
        Case::python(
            "python_signals",
            r#"
import os, signal, time
hits = 0; bad = 0
fd = os.open('bin.dat', os.O_RDONLY); ref = open('bin.dat', 'rb').read()
def handler(sig, frame):
    global hits, bad
    hits += 1; o = hits * 4099 % (8 << 20)
    if os.pread(fd, 100, o) != ref[o:o + 100]: bad += 1
    with open('text.txt', 'rb') as f: f.read(10)
signal.signal(signal.SIGALRM, handler); signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
end = time.time() + 60; o = 0
while hits <= 20 and time.time() < end:
    if os.pread(fd, 5000, o) != ref[o:o + 5000]: bad += 1
    o = (o + 70000) % (7 << 20)
signal.setitimer(signal.ITIMER_REAL, 0); print(hits > 20, bad)
# a blocking read of a pipe is interrupted exactly as before
r, w = os.pipe()
class Out(Exception): pass
def out(sig, frame): raise Out
signal.signal(signal.SIGALRM, out); signal.setitimer(signal.ITIMER_REAL, 0.1)
try: os.read(r, 1)
except Out: print('interrupted')
"#,
        )
        .data(&[Bin, Text]),
    ]);
}

/// CP1: libraries on top of files: databases, archives, temporary files.
#[test]
fn python_stores() {
    check(vec![
        Case::python(
            "python_stores",
            r#"
import dbm.dumb, glob, hashlib, os, pickle, shelve, shutil, sqlite3, tarfile, tempfile, zipfile, gzip, lzma, csv, json
with shelve.open('shelf') as s:
    for i in range(300): s[str(i)] = list(range(i))
with shelve.open('shelf') as s: print(sum(len(s[k]) for k in s), len(s))
with dbm.dumb.open('dumb', 'c') as d:
    for i in range(500): d[str(i)] = b'v' * i
with dbm.dumb.open('dumb') as d: print(sum(len(d[k]) for k in d.keys()))
with zipfile.ZipFile('z.zip', 'w', zipfile.ZIP_DEFLATED) as z:
    for p in sorted(glob.glob('tree/**', recursive=True)):
        if os.path.isfile(p): z.write(p)
    z.write('bin.dat')
with zipfile.ZipFile('z.zip') as z:
    print(z.testzip(), len(z.namelist()), hashlib.sha1(z.read('bin.dat')).hexdigest()); z.extractall('unzipped')
with tarfile.open('t.tar', 'w') as t: t.add('tree')
with tarfile.open('t.tar') as t: print(len(t.getmembers()), sum(m.size for m in t)); t.extractall('untarred')
with gzip.GzipFile('g.gz', 'wb', mtime=0) as g, open('text.txt', 'rb') as f: shutil.copyfileobj(f, g)
with gzip.open('g.gz') as g: print(hashlib.sha1(g.read()).hexdigest()); g.seek(1000000); print(g.read(20))
shutil.copytree('tree', 'tree2', symlinks=True); shutil.copy2('bin.dat', 'b2'); shutil.make_archive('arch', 'tar', 'tree2'); os.unlink('arch.tar')
with tempfile.TemporaryFile() as t: t.write(open('bin.dat', 'rb').read()); t.seek(4000000); print(hashlib.sha1(t.read()).hexdigest())
with tempfile.NamedTemporaryFile(dir='.') as t: t.write(b'x' * 300000); t.flush(); print(os.path.getsize(t.name), len(open(t.name, 'rb').read()))
with tempfile.SpooledTemporaryFile(max_size=1000) as t: t.write(b'x' * 5000); t.seek(0); print(len(t.read()))
c = sqlite3.connect('db'); c.execute('CREATE TABLE t(a, b)'); c.executemany('INSERT INTO t VALUES (?, ?)', ((i, 'x' * (i % 300)) for i in range(20000))); c.commit()
print(c.execute('SELECT sum(a), sum(length(b)) FROM t').fetchall(), c.execute('PRAGMA integrity_check').fetchall())
pickle.dump(list(range(300000)), open('p', 'wb')); print(sum(pickle.load(open('p', 'rb'))))
"#,
        )
        .data(&[Tree, Bin, Text])
        .unstable(&["t.tar", "shelf*"])
        .expects_events(),
    ]);
}

/// CP1: perl's own buffering, sysread beside it, in-place edit, pipes to itself.
#[test]
fn perl() {
    check(vec![
        Case::perl(
            "perl_io",
            r#"
use strict; use Fcntl qw(:seek :flock); use Digest::MD5;
open(my $f, '<:raw', 'bin.dat') or die; my $d = Digest::MD5->new; $d->addfile($f); print $d->hexdigest, " ", tell($f), "\n";
for (my $o = 8 << 20; $o >= 65536; $o -= 65536) { sysseek($f, $o - 65536, SEEK_SET); my $n = sysread($f, my $b, 4096); print unpack('H16', $b), " $n\n"; }
seek($f, 123457, 0); read($f, my $b, 100000); print Digest::MD5::md5_hex($b), " ", tell($f), " ", eof($f) ? 1 : 0, "\n";
open(my $t, '+<', 'text.txt') or die; flock($t, LOCK_EX) or die; my $n = 0; while (<$t>) { $n++; last if $n == 1000 } print tell($t), "\n";
seek($t, 0, 0); print $t "EDIT"; seek($t, 0, 2); print $t "END\n"; close $t;
my $pid = fork(); if (!$pid) { open(my $g, '<', 'bin.dat'); binmode $g; local $/ = \77777; my $c = 0; $c += length while <$g>; print "child $c\n"; exit 7 }
waitpid($pid, 0); print $? >> 8, "\n"; $| = 1;
open(my $p, '-|', 'cksum bin.dat'); print <$p>; close $p; open(my $w, '|-', 'cksum'); print $w 'x' x 1000000; close $w;
open(my $dup, '<&', $f); sysseek($dup, 10, 0); sysread($f, $b, 4); print unpack('H*', $b), "\n"; truncate('text.txt', 5000); print -s 'text.txt', "\n";
opendir(my $dh, '/proc/self/fd'); print join(' ', sort grep { /\d/ } readdir $dh), "\n"; system('ls /proc/self/fd'); print `head -c 20 text.txt`;
"#,
        )
        .data(&[Bin, Text])
        .expects_prefetch(),
        Case::sh("perl_in_place", "perl -pi -e 's/stone/rock/' text.txt; perl -pi.bak -e '$_ = uc' text.txt; perl -ne 'print if $. % 1000 == 0' text.txt | cksum; perl -0777 -ne 'print length' bin.dat")
            .data(&[Text, Bin])
            .needs(&["perl"]),
    ]);
}

/// Musts 1 and 5: the shell moves descriptors about and shares offsets with what it starts.
#[test]
fn shells() {
    check(vec![
        Case::sh("shell_shared_offset", "{ head -c 100000 >/dev/null; cat; } <bin.dat | cksum; { head -n 5; echo --; sed -n 2p; echo --; tail -n 1; } <text.txt; (read a; read b; echo \"$b\"; cat | cksum) <text.txt")
            .data(&[Bin, Text])
            .expects_events(),
        Case::sh("shell_descriptors", "exec 3<>text.txt 4>out 5<bin.dat; read -u 3 l; echo \"$l\" >&4; echo overwrite >&3; exec 6>&4 4>&-; echo six >&6; dd status=none bs=1000 count=3 <&5 | cksum; dd status=none bs=1000 count=3 <&5 | cksum; exec 5<&- 5<text.txt; head -c 100 <&5; ls /proc/self/fd; ls -l /proc/$$/fd >l; sed 's/.*\\([0-9]* -> \\)/\\1/; s/pipe:.*/pipe/' l; rm l; exec 3>&-; cksum text.txt out")
            .data(&[Bin, Text]),
        Case::sh("shell_read_loop", "n=0; while read -r a b c; do n=$((n+b%7)); [ $((n%50000)) -gt 49990 ] && echo $a $n; done < <(head -20000 text.txt); echo $n; mapfile -t lines <text.txt; echo ${#lines[@]} \"${lines[4711]}\"; IFS= read -r -N 5000 x <text.txt; echo ${#x}")
            .data(&[Text]),
        Case::sh("shell_coproc_and_fifos", "coproc C { while read x; do echo got $x; done; }; echo one >&${C[1]}; read y <&${C[0]}; echo $y; eval \"exec ${C[1]}>&-\"; wait; mkfifo p; cat bin.dat >p & cksum <p; wait; diff <(sort a.txt) <(sort b.txt) | cksum; tee >(cksum >c1) <bin.dat | cksum; wait; until [ -s c1 ]; do sleep 0.02; done; cat c1")
            .data(&[Bin, Sorted]),
        Case::sh("shell_here_documents", "cat <<EOF | cksum\n$(head -c 300000 text.txt)\nEOF\ncat <<<\"$(tail -c 1000 text.txt)\"; x=$(<text.txt); echo ${#x}; bash <<'EOF'\necho inner; cat bin.dat | cksum\nEOF")
            .data(&[Bin, Text]),
        // A script that a shell reads while it runs, and that its own commands read on.
        Case::sh("shell_script_on_stdin", "(echo 'echo start; head -n 1 >/dev/null'; echo 'skipped by head'; for i in $(seq 3000); do echo \": padding $i\"; done; echo 'echo end; cat bin.dat | cksum') >s; bash <s; dash <s; bash s >/dev/null")
            .data(&[Bin]),
        Case::sh("shell_jobs_and_traps", "trap 'echo trapped' USR1; (sleep 0.2; kill -USR1 $$) & wait; wait; sleep 5 & kill $!; wait $! 2>/dev/null; echo $?; (exit 3); echo $?; set -o pipefail; yes | head -1; echo $?; cat bin.dat | head -c 1 >/dev/null; echo $?; trap 'echo bye' EXIT; cat bin.dat >/dev/null")
            .data(&[Bin]),
        Case::sh("shell_append_from_many", "for i in 1 2 3 4; do (for k in $(seq 200); do echo \"$i line $k\"; done >>log) & done; wait; sort log | cksum; wc -l log").unstable(&["log"]),
        Case::sh("shell_noclobber_and_errors", "set -C; echo a >f; echo b >f; cat f <nothere; cat bin.dat >/dev/full; echo $?; echo x >/; : >|f; cat f; cd nothere; read x </; echo $?").data(&[Bin]),
        Case::sh("dash", "dash -c 'cat bin.dat | cksum; while read x y; do echo $x; break; done <text.txt; exec 9<text.txt; read l <&9; echo \"$l\"; exec cat <&9' | cksum").data(&[Bin, Text]),
    ]);
}

/// CP1, DR6: a compile, with a parallel make.
#[test]
fn compilers() {
    let sources = |work: &Path| {
        let mut objects = String::new();
        for i in 0..12 {
            let body = format!(
                "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n#include <math.h>\n#include \"all.h\"\nint f{i}(int x) {{ char b[64]; snprintf(b, sizeof b, \"%d\", x * {i}); return atoi(b) + (int)strlen(b); }}\n"
            );
            fs::write(work.join(format!("f{i}.c")), body).unwrap();
            objects.push_str(&format!(" f{i}.o"));
        }
        let header: String = (0..12).map(|i| format!("int f{i}(int);\n")).collect();
        fs::write(work.join("all.h"), header).unwrap();
        let sum: String = (0..12).map(|i| format!(" + f{i}({i}+1)")).collect();
        fs::write(work.join("main.c"), format!("#include <stdio.h>\n#include \"all.h\"\nint main(void) {{ printf(\"%d\\n\", 0{sum}); return 5; }}\n")).unwrap();
        fs::write(
            work.join("Makefile"),
            format!("prog: main.o libf.a\n\tgcc -o $@ main.o -L. -lf\nlibf.a:{objects}\n\tar rcsD $@ $^\n%.o: %.c all.h\n\t@gcc -O1 -c -o $@ $<\nclean:\n\trm -f *.o *.a prog\n"),
        )
        .unwrap();
    };
    check(vec![
        Case::sh("make_gcc", "make -s -j2; ./prog; echo $?; make -s -q && echo 'up to date'; touch -d '+1 hour' all.h; make -q; echo $?; gcc -O2 -g -flto -o whole *.c && ./whole; gcc -E main.c | grep -c f1; objdump -d prog 2>/dev/null | wc -l")
            .needs(&["gcc", "make"])
            // With -flto the debug information names a temporary file.
            .unstable(&["whole"])
            .setup(sources),
        Case::sh("gcc_errors", "echo 'int main(void) { return x; }' >bad.c; gcc -c bad.c; echo $?; make nothing; echo $?").needs(&["gcc", "make"]).setup(sources),
    ]);
}

/// CP1: a virtual machine with many threads of its own, direct buffers and mapped files.
#[test]
fn java() {
    let source = r#"
import java.io.*; import java.nio.*; import java.nio.channels.*; import java.nio.file.*; import java.util.*; import java.util.concurrent.*; import java.util.zip.CRC32; import java.util.stream.*;
public class Main {
    static long crc(ByteBuffer b) { CRC32 c = new CRC32(); c.update(b); return c.getValue(); }
    public static void main(String[] a) throws Exception {
        Path big = Path.of("big.dat");
        try (FileChannel c = FileChannel.open(big)) {
            ByteBuffer b = ByteBuffer.allocateDirect(1 << 20); CRC32 crc = new CRC32();
            while (c.read(b) >= 0) { b.flip(); crc.update(b); b.clear(); }
            System.out.println(crc.getValue() + " " + c.position());
            MappedByteBuffer m = c.map(FileChannel.MapMode.READ_ONLY, 0, c.size()); System.out.println(crc(m));
            Random r = new Random(1); long sum = 0;
            for (int i = 0; i < 2000; i++) { ByteBuffer s = ByteBuffer.allocate(64); c.read(s, r.nextInt(31 << 20)); sum += s.getLong(0); }
            System.out.println(sum);
            ExecutorService ex = Executors.newFixedThreadPool(4); List<Future<Long>> fs = new ArrayList<>();
            for (int i = 0; i < 8; i++) { final long o = (long) i << 22; fs.add(ex.submit(() -> { ByteBuffer s = ByteBuffer.allocate(1 << 22); while (s.hasRemaining()) c.read(s, o + s.position()); s.flip(); return crc(s); })); }
            for (Future<Long> f : fs) System.out.println(f.get()); ex.shutdown();
            try (FileChannel o = FileChannel.open(Path.of("copy"), StandardOpenOption.CREATE, StandardOpenOption.WRITE)) { System.out.println(c.transferTo(1000, 5000000, o) + " " + o.size()); }
        }
        try (RandomAccessFile f = new RandomAccessFile("bin.dat", "rw")) {
            for (long o = f.length() - 65536; o >= 0; o -= 65536) { f.seek(o); System.out.print(f.readInt() + " "); }
            f.seek(100); f.writeUTF("written"); f.seek(100); System.out.println(f.readUTF()); f.setLength(5000000); System.out.println(f.length());
            try (FileLock l = f.getChannel().lock(0, 10, false)) { System.out.println(l.isValid()); }
        }
        try (BufferedReader r = new BufferedReader(new FileReader("text.txt"))) { System.out.println(r.lines().mapToLong(String::length).sum()); }
        System.out.println(Files.readAllBytes(Path.of("text.txt")).length);
        try (Stream<Path> w = Files.walk(Path.of("tree"))) { System.out.println(w.filter(Files::isRegularFile).count()); }
        Process p = new ProcessBuilder("cksum").redirectInput(new File("bin.dat")).redirectOutput(ProcessBuilder.Redirect.INHERIT).start(); System.out.println(p.waitFor());
        System.exit(42);
    }
}
"#;
    check(vec![
        Case::sh(
            "java",
            "javac Main.java && java -XX:-UsePerfData -Xshare:auto Main; echo $?",
        )
        .file("Main.java", source)
        .data(&[Big, Bin, Text, Tree])
        .needs(&["javac", "java"])
        .expects_prefetch(),
    ]);
}

/// CP1: an event loop with a thread pool that does the file work.
#[test]
fn node() {
    let source = r#"
const fs = require('fs'), crypto = require('crypto'), { Worker, isMainThread, parentPort, workerData } = require('worker_threads'), cp = require('child_process');
const sha = b => crypto.createHash('sha1').update(b).digest('hex');
if (!isMainThread) {
    const fd = fs.openSync('big.dat', 'r'), b = Buffer.alloc(1 << 20), h = crypto.createHash('sha1');
    for (let i = 0; i < 8; i++) { fs.readSync(fd, b, 0, b.length, (workerData * 8 + i) << 20); h.update(b); }
    fs.closeSync(fd); parentPort.postMessage(h.digest('hex')); return;
}
(async () => {
    const h = crypto.createHash('sha1'); let n = 0;
    for await (const c of fs.createReadStream('big.dat')) { h.update(c); n += c.length; }
    console.log(h.digest('hex'), n);
    await new Promise(r => fs.createReadStream('bin.dat', { start: 1000, end: 4000000 }).pipe(fs.createWriteStream('out')).on('finish', r));
    const fd = fs.openSync('bin.dat', 'r+'), b = Buffer.alloc(4096);
    for (let o = (8 << 20) - 65536; o >= 0; o -= 65536) { fs.readSync(fd, b, 0, 4096, o); process.stdout.write(b.toString('hex', 0, 4)); }
    console.log(fs.readSync(fd, b, 0, 10, null), fs.readSync(fd, b, 0, 10, null), fs.readSync(fd, b, 0, 10, 1 << 30));
    fs.writeSync(fd, 'written', 500); fs.fsyncSync(fd); fs.ftruncateSync(fd, 5000000); fs.closeSync(fd); console.log(sha(fs.readFileSync('bin.dat')));
    const fh = await fs.promises.open('text.txt'); console.log((await fh.read(Buffer.alloc(50), 0, 50, 100000)).buffer.toString()); await fh.close();
    console.log(await Promise.all([0, 1, 2, 3].map(i => new Promise(r => new Worker(__filename, { workerData: i }).on('message', r)))));
    console.log((await Promise.all(fs.readdirSync('tree/d0/inner').map(f => fs.promises.readFile('tree/d0/inner/' + f)))).map(sha).join(' '));
    console.log(cp.execSync('cksum bin.dat text.txt').toString(), cp.spawnSync('sh', ['-c', 'ls /proc/self/fd; cat; exit 9'], { input: 'in' }).status);
    fs.copyFileSync('text.txt', 'copy'); try { fs.readFileSync('nothere') } catch (e) { console.log(e.code) }
    process.exitCode = 3;
})();
"#;
    check(vec![
        Case::argv("node", &["node", "main.js"])
            .file("main.js", source)
            .data(&[Big, Bin, Text, Tree])
            .needs(&["node"])
            .expects_prefetch(),
    ]);
}

/// Musts 4 and 5: a daemon that detaches, closes descriptors, forks to save, and is loaded again.
#[test]
fn redis() {
    let commands = |work: &Path| {
        let mut text = String::new();
        for i in 0..12_000u64 {
            text.push_str(&format!(
                "SET key:{i} {}\r\n",
                format!("{:x}", i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32).repeat(60)
            ));
        }
        for i in 0..3000 {
            text.push_str(&format!(
                "RPUSH list:{} {i}\r\nHSET hash field{i} {i}\r\n",
                i % 10
            ));
        }
        fs::write(work.join("commands"), text).unwrap();
    };
    const FUNCTIONS: &str = r#"
start() { redis-server --port 0 --unixsocket r.sock --daemonize yes --logfile log --pidfile "$PWD/pid" --dir "$PWD" --save '' --enable-debug-command yes "$@" >/dev/null 2>&1 || redis-server --port 0 --unixsocket r.sock --daemonize yes --logfile log --pidfile "$PWD/pid" --dir "$PWD" --save '' "$@"
  for i in $(seq 3000); do [ "$(redis-cli -s r.sock ping 2>/dev/null)" = PONG ] && return; sleep 0.02; done; echo 'does not start'; tail -5 log; }
idle() { for i in $(seq 3000); do redis-cli -s r.sock info persistence | grep -Eq "(rdb_bgsave_in_progress|aof_rewrite_in_progress|aof_rewrite_scheduled|loading):1" || return; sleep 0.02; done; echo busy; }
stop() { redis-cli -s r.sock shutdown "$1" 2>/dev/null; for i in $(seq 3000); do [ -e pid ] || return; sleep 0.02; done; echo 'does not stop'; }
state() { redis-cli -s r.sock dbsize; redis-cli -s r.sock debug digest; redis-cli -s r.sock info persistence | grep -E 'last_bgsave_status|last_write_status|last_bgrewrite_status'; }
"#;
    let case = |name: &str, script: &str| {
        Case::sh(name, &format!("{FUNCTIONS}{script}"))
            .needs(&["redis-server", "redis-cli"])
            .setup(commands)
            .unstable(&[
                "log",
                "dump.rdb",
                "appendonlydir/*",
                "appendonly.aof",
                "pid",
            ])
    };
    check(vec![
        case(
            "redis_persistence",
            "start --appendonly yes; redis-cli -s r.sock <commands | sort | uniq -c | sort -n | tail -1; state; redis-cli -s r.sock bgsave; idle; redis-cli -s r.sock bgrewriteaof; idle; redis-cli -s r.sock set after rewrite; state; stop nosave
             start --appendonly yes; state; redis-cli -s r.sock get after; stop save
             start --appendonly no; state; redis-cli -s r.sock lrange list:3 0 5; stop nosave; redis-check-rdb dump.rdb | grep -c 'looks OK\\|looks ok'; ls",
        ),
        case("redis_left_running", "start --appendonly no; redis-cli -s r.sock set a b; ls -l /proc/$(cat pid)/fd | sed 's/.* -> //; s/:.*//; s/.*\\///' | sort | uniq -c").env("LEFT", "1"),
    ]);
}

/// Must 8: programs that cannot be hooked run as if we weren't there.
#[test]
fn unhookable_programs() {
    let fixed = compile("static_reader", "fixed_reader", &["-O1", "-static"]);
    let mut cases = vec![
        Case::argv("static_program", &[fixed.as_os_str(), "bin.dat".as_ref()])
            .data(&[Bin])
            .notice_allowed(),
        Case::sh(
            "static_program_below_shell",
            &format!("{} bin.dat; cat bin.dat | cksum", fixed.display()),
        )
        .data(&[Bin])
        .notice_allowed(),
    ];
    if let Some(go) = go_program() {
        cases.push(
            Case::argv("go_program", &[go.as_os_str(), "bin.dat".as_ref()])
                .data(&[Bin])
                .notice_allowed(),
        );
    }
    if support::is_root() {
        let nobody = [
            "setpriv",
            "--reuid",
            "65534",
            "--regid",
            "65534",
            "--clear-groups",
        ];
        let setuid = scratch().join("programs/setuid_reader");
        support::install(&program("static_reader"), &setuid, 0o4755);
        let readable = Command::new(nobody[0])
            .args(&nobody[1..])
            .arg("test")
            .arg("-x")
            .arg(support::outrider())
            .status();
        let there = Command::new(nobody[0])
            .args(&nobody[1..])
            .arg("test")
            .arg("-x")
            .arg(&setuid)
            .status();
        if readable.is_ok_and(|s| s.success()) && there.is_ok_and(|s| s.success()) {
            cases.push(
                // The file is root's alone: only the set-uid bit lets the program read it.
                Case::sh(
                    "setuid_program",
                    &format!(
                        "cat bin.dat >/dev/null || echo no; {} bin.dat; id -u",
                        setuid.display()
                    ),
                )
                .data(&[Bin])
                .setup(|work| {
                    fs::set_permissions(work.join("bin.dat"), fs::Permissions::from_mode(0o600))
                        .unwrap();
                    fs::set_permissions(work.parent().unwrap(), fs::Permissions::from_mode(0o777))
                        .unwrap();
                })
                .wrapped(&nobody)
                .notice_allowed(),
            );
            // B1: without root, everything works as well, on files we may only read.
            cases.push(
                Case::sh(
                    "unprivileged_user",
                    "cat bin.dat text.txt | cksum; tac text.txt | cksum; id -u",
                )
                .data(&[Bin, Text])
                .setup(|work| {
                    fs::set_permissions(work.parent().unwrap(), fs::Permissions::from_mode(0o777))
                        .unwrap()
                })
                .wrapped(&nobody)
                .expects_prefetch(),
            );
        } else {
            skip_unprivileged(
                "setuid_program",
                "another user cannot reach the build directory",
            );
        }
    } else {
        skip_unprivileged(
            "setuid_program",
            "only root can make a set-uid program of another user",
        );
    }
    check(cases);
}

/// Builds the Go program once; `None` where there is no Go.
fn go_program() -> Option<PathBuf> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    BUILT
        .get_or_init(|| {
            let go = ["/usr/local/go/bin/go", "/usr/bin/go", "/usr/lib/go/bin/go"].iter().find(|p| Path::new(p).exists());
            let Some(go) = go else {
                skip("go_program", "go is not installed");
                return None;
            };
            let dir = scratch().join("go");
            fs::create_dir_all(&dir).unwrap();
            let source = "package main\n\nimport (\n\t\"hash/crc32\"\n\t\"io\"\n\t\"os\"\n)\n\nfunc main() {\n\tf, err := os.Open(os.Args[1])\n\tif err != nil {\n\t\tos.Exit(1)\n\t}\n\th := crc32.NewIEEE()\n\tn, _ := io.Copy(h, f)\n\tprintln(n, h.Sum32())\n\tos.Stdout.WriteString(\"done\\n\")\n\tos.Exit(4)\n}\n";
            fs::write(dir.join("main.go"), source).unwrap();
            let built = Command::new(go).args(["build", "-o", "reader", "main.go"]).current_dir(&dir).env("CGO_ENABLED", "0").env("GO111MODULE", "off").env("GOCACHE", dir.join("cache")).output().unwrap();
            assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
            Some(dir.join("reader"))
        })
        .clone()
}

/// Must 1: what a process can learn about itself is what it would learn without us.
#[test]
fn process_environment() {
    let view = program("selfview");
    let view = view.to_str().unwrap();
    check(vec![
        // Reads 8 MiB, so that whatever we start has been started, then looks at itself:
        // threads, children, descriptors, signal state, timers, limits, and whether unshare works,
        // which the kernel refuses to a process with more than one thread.
        Case::argv("self_view", &[view, "bin.dat"]).data(&[Bin]).expects_prefetch(),
        Case::sh("self_view_below_shell", &format!("trap '' USR2 PIPE; umask 027; ulimit -n 100; ulimit -c 0; exec {view} bin.dat 7<text.txt")).data(&[Bin, Text]),
        Case::sh("environment", "env | sort; env -i A=b env; printenv HOME; declare -x | cksum >/dev/null")
            .normalise(|text| text.lines().filter(|l| !["LD_PRELOAD=", "ASAN_OPTIONS=", "OUTRIDER"].iter().any(|ours| l.starts_with(ours))).map(|l| format!("{l}\n")).collect()),
        Case::sh("arguments", "printf '<%s>' \"$@\" '' 'a b' '*' '--' '-x'; printf '%s\\n' \"$0\""),
        Case::argv("arguments_direct", &["printf", "<%s>", "", "a b", "--mode", "--", "-h", "\\n", "ä"]),
        Case::sh("wrappers", "setsid cat bin.dat | cksum; setsid -w sh -c 'cksum <bin.dat; exit 6'; echo $?; timeout 200 cksum bin.dat; timeout 0.3 sleep 5; echo $?; timeout -s KILL 0.3 cat /dev/zero >/dev/null; echo $?; nohup cksum bin.dat 2>/dev/null; nice -n 5 sh -c 'nice; cksum bin.dat'; stdbuf -oL cat text.txt | cksum; env -C tree ls; chrt -o 0 cksum bin.dat; taskset -c 0 cksum bin.dat")
            .data(&[Bin, Text, Tree])
            .normalise(without_job_ids),
        Case::sh("background", "sleep 0.3 & cat bin.dat | cksum; wait; echo $?; (cat bin.dat >copy; echo done >flag) & wait $!; cat flag").data(&[Bin]),
        Case::sh("left_behind", "cat bin.dat | cksum; sleep 60 & disown; (setsid sleep 61 &)").data(&[Bin]),
        Case::sh("left_behind_reading", "(sleep 0.3; cat bin.dat >late; echo late >flag) & exit 3").data(&[Bin]),
        // Not `ulimit -n 3`: with no descriptor free nothing can be loaded, neither us nor libc.
        Case::sh("limits", "(ulimit -v 60000; cksum bin.dat; echo $?); (ulimit -n 4; cksum bin.dat; cat bin.dat text.txt | cksum); (ulimit -f 100; cat bin.dat >limited 2>/dev/null; echo $?; ls -s limited >/dev/null); (ulimit -t 20; cksum text.txt); (ulimit -s 256; cksum text.txt); (ulimit -l 0; cksum text.txt)")
            .data(&[Bin, Text])
            .normalise(without_job_ids),
        Case::sh("unshare", "cat bin.dat | cksum; unshare -Ur sh -c 'id -u; cksum bin.dat; cat bin.dat | head -c 5000000 | cksum'; echo $?; unshare -Urpf --mount-proc sh -c 'echo $$; cksum <bin.dat; ls /proc >processes; grep -c ^[0-9] processes'; echo $?; rm processes")
            .data(&[Bin])
            .modes(if userns() { support::MODES } else { &[] }),
        Case::sh("chroot_like_directories", "mkdir deep; cd deep; rm -r ../deep; cat ../bin.dat 2>&1 | head -c 100; cat $OLDPWD/bin.dat | cksum").data(&[Bin]),
        Case::sh("strace_inside", "strace -f -o trace sh -c 'cat bin.dat | cksum'; grep -c 'exited with 0' trace").data(&[Bin]).needs(&["strace"]).unstable(&["trace"]),
        Case::sh("proc_and_sys", "cat /proc/self/comm /proc/sys/kernel/ostype; wc -l </proc/self/status; head -c 5 /proc/version; dd status=none if=/proc/self/cmdline bs=1 | tr '\\0' ' '; cat /sys/kernel/mm/transparent_hugepage/enabled; head -c 100000 /dev/zero | cksum; cat /dev/null; cat /proc/self/mem 2>&1 | head -c 100"),
    ]);
}

/// The shell names a killed command with its process id: `bash: line 1: 4711 Killed …`.
fn without_job_ids(text: String) -> String {
    let strip = |line: &str| match line.strip_prefix("bash: line 1: ") {
        Some(rest) => format!(
            "bash: line 1: {}\n",
            rest.trim_start_matches(|c: char| c == ' ' || c.is_ascii_digit())
        ),
        None => format!("{line}\n"),
    };
    text.lines().map(strip).collect()
}

fn userns() -> bool {
    let allowed = Command::new("unshare")
        .args(["-Ur", "true"])
        .status()
        .is_ok_and(|s| s.success());
    if !allowed {
        skip_unprivileged("unshare", "user namespaces are not permitted here");
    }
    allowed
}

/// Must 1: how a program ends is how it ends, and what it cannot write it cannot write.
#[test]
fn endings() {
    let mut cases = vec![
        Case::sh("exit_codes_within", "for i in $(seq 0 15 255); do sh -c \"cat bin.dat >/dev/null; exit $i\"; echo -n \"$? \"; done").data(&[Bin]),
        Case::sh("signals_within", "for s in KILL SEGV PIPE TERM ABRT HUP USR1 XFSZ; do sh -c \"cat bin.dat >/dev/null; kill -$s \\$\\$\" 2>/dev/null; echo -n \"$? \"; done").data(&[Bin]).normalise(without_job_ids),
        Case::sh("full_device", "cat bin.dat >/dev/full; echo $?; printf x >/dev/full; echo $?; cp bin.dat /dev/full; echo $?").data(&[Bin]),
        Case::sh("closed_streams", "cat <&-; echo $?; cat bin.dat >&-; echo $?; echo x >&-; echo $?; cksum bin.dat 2>&-; python3 -c 'import os; print(os.listdir(\"/proc/self/fd\").__len__()); open(\"bin.dat\",\"rb\").read()' <&- 2>&-; sh -c 'exec 0<bin.dat; cksum' <&-; cat bin.dat <&- 2>&- | cksum; (exec 0<&- 1>&- 2>&-; cat bin.dat text.txt; cp bin.dat copy); cksum copy")
            .data(&[Bin, Text])
            .needs(&["python3"]),
        Case::sh("broken_pipe", "cat bin.dat bin.dat | head -c 10 | od -c; echo ${PIPESTATUS[@]}; set -o pipefail; yes | head -1; echo $?; (trap '' PIPE; cat bin.dat 2>err; echo $? >status) | head -c 1 >/dev/null; cat err status").data(&[Bin]),
        Case::argv("command_fails", &["ls", "nothere"]),
    ];
    for signal in ["KILL", "SEGV", "TERM", "PIPE", "ABRT"] {
        cases.push(
            Case::sh(
                &format!("dies_by_{signal}"),
                &format!("ulimit -c 0; cat bin.dat | cksum; kill -{signal} $$; sleep 5"),
            )
            .data(&[Bin])
            .modes(&["predict+opt"]),
        );
    }
    for code in [0, 1, 2, 77, 126, 127, 128, 137, 255] {
        cases.push(
            Case::sh(
                &format!("exits_{code}"),
                &format!("cat bin.dat | cksum; exit {code}"),
            )
            .data(&[Bin])
            .modes(&["predict+opt"]),
        );
    }
    check(cases);
}
