//! Chang, Su, Chang: "A New Readahead Framework for SSD-based Caching Storage in IoT Systems" (2024): fio, grep, diff, a
//! compile, postmark and TPC-H, scaled to seconds. The paper changes the kernel's readahead below bcache; its gains are those
//! of its whole system over stock Linux.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;

use super::make::{self, Text, Tree};
use super::words::{WORK, argv, data, script};
use super::{Data, Maker, Row, Workload};
use crate::output::{Context, Outcome};
use outrider_sim::random::Random;

const M: u64 = 1 << 20;
/// What greps look for.
const NEEDLE: &str = "needle_";

/// The rows.
pub fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    rows.extend(fio());
    rows.extend(text());
    rows.push(compile());
    rows.push(postmark());
    rows.extend(queries());
    rows
}

/// `large` and `small`: files of noise. Words: their sizes.
fn files(maker: &Maker) -> Outcome {
    make::noise(&maker.path("large"), maker.size(0)?, 1)?;
    make::noise(&maker.path("small"), maker.size(1)?, 2)
}

/// Figure 12: sequential reads of a large file are 3.8 times as fast, random reads of a small one as before.
fn fio() -> Vec<Row> {
    // What fio prints are times; what it did must be the same: KiB read, field 6 of its terse line. It must not drop the
    // cache, which another column has warmed. A colon in a file's name would separate two.
    let command = |file: &str, rw: &str| {
        script(&format!(
            "cd '{{data}}' && fio --name=read --filename={file} --rw={rw} --bs=4k --ioengine=psync --readonly --thinktime=0 \
             --randseed=1 --invalidate=0 --eta=never --output-format=terse --output='{{out}}/fio' && cut -d';' -f6 '{{out}}/fio'"
        ))
    };
    let row = |name: &str, about: &str, file: &str, rw: &str, paper| {
        let work = Workload::one(command(file, rw)).needs(&[("fio", "fio")]);
        Row::new(name, about, data("fio:256M:32M", 288 * M, files), work).point(
            "dr-fig12",
            "fio",
            rw,
            Some(paper),
        )
    };
    vec![
        row(
            "dr-fig12a-fio-sequential",
            "SSD-cache readahead Fig. 12(a): fio, 4 KiB reads of a file of 256 MB, sequential",
            "large",
            "read",
            3.8,
        )
        .short(&["remote"]),
        row(
            "dr-fig12b-fio-random",
            "SSD-cache readahead Fig. 12(b): fio, 4 KiB reads of a file of 32 MB, random",
            "small",
            "randread",
            1.0,
        ),
    ]
}

/// `a`, `b`: source trees that are the same but for a file in 200; greps find a line in one of 100. Words: how many
/// files.
fn sources(maker: &Maker) -> Outcome {
    let tree = Tree {
        files: maker.count(0)?,
        in_directory: 40,
        sizes: (1000, 24_000),
        seed: 4,
    };
    for (name, changed) in [("a", false), ("b", true)] {
        tree.make(&maker.path(name), ".c", |n, size, bytes| {
            let mut lines = Text::from(tree.content(n));
            if n % 100 == 0 {
                bytes.extend(format!("static int {NEEDLE}{n};\n").bytes());
            }
            if n % 200 == 0 && changed {
                bytes.extend(b"/* This file is a newer one. */\n");
            }
            while bytes.len() < size {
                lines.line(bytes);
            }
        })?;
    }
    Ok(())
}

/// `a`, `b`: files of text that are the same but for a line in 50,000; greps find a line in 10,000. Words: their size.
fn lines(maker: &Maker) -> Outcome {
    let size = maker.size(0)?;
    for (name, changed) in [("a", false), ("b", true)] {
        let path = maker.path(name);
        let file = fs::File::create(&path).doing(path.display())?;
        let mut to = std::io::BufWriter::with_capacity(4 << 20, file);
        let (mut lines, mut line) = (Text::new(5), Vec::new());
        let (mut n, mut written) = (0u64, 0);
        while written < size {
            line.clear();
            if n % 10_000 == 77 {
                line.extend(format!("{NEEDLE}{n} ").bytes());
            }
            if n % 50_000 == 99 && changed {
                line.extend(b"newer ");
            }
            lines.line(&mut line);
            to.write_all(&line).doing(path.display())?;
            written += line.len() as u64;
            n += 1;
        }
        to.flush().doing(path.display())?;
    }
    Ok(())
}

/// Figures 13 and 14. grep takes 13.3 % less time over a source tree, 27 % of the time over a file of 100 MB; diff 25 % less
/// and 19 % of it.
fn text() -> Vec<Row> {
    let trees = || data("sources:6000", 2 * 6000 * 15_000, sources);
    let large = || data("lines:100M", 201 * M, lines);
    let grep = |what: &str| script(&format!("cd '{{data}}' && grep -rn {NEEDLE} {what} | sort"));
    // 1 only says that there are differences.
    let diff = script("cd '{data}' && { diff -r a b || [ $? -eq 1 ]; }");
    let greps = |command| Workload::one(command).needs(&[("grep", "grep")]);
    let diffs = || Workload::one(diff.clone()).needs(&[("diff", "diffutils")]);
    let mut rows = vec![
        Row::new(
            "dr-fig13a-grep-tree",
            "SSD-cache readahead Fig. 13(a): grep -r over a source tree of 6,000 files",
            trees(),
            greps(grep("a")),
        )
        .point("dr-fig13", "grep", "tree", Some(1.15)),
        Row::new(
            "dr-fig13b-grep-100M",
            "SSD-cache readahead Fig. 13(b): grep over a text of 100 MB",
            large(),
            greps(grep("a")),
        )
        .point("dr-fig13", "grep", "100 MB", Some(3.7)),
        Row::new(
            "dr-fig14a-diff-tree",
            "SSD-cache readahead Fig. 14(a): diff -r of two source trees of 6,000 files",
            trees(),
            diffs(),
        )
        .point("dr-fig14", "diff", "tree", Some(1.33)),
        Row::new(
            "dr-fig14b-diff-100M",
            "SSD-cache readahead Fig. 14(b): diff of two texts of 100 MB",
            large(),
            diffs(),
        )
        .point("dr-fig14", "diff", "100 MB", Some(5.3)),
    ];
    for row in &mut rows {
        if row.name.contains("diff") {
            row.short = &["remote"];
        }
    }
    rows
}

/// `project`: a C program. Words: how many source files; there is a header for every two.
fn project(maker: &Maker) -> Outcome {
    let count = maker.count(0)?;
    let headers = count.div_ceil(2);
    let root = maker.path("project");
    let put = |name: String, text: &[u8]| {
        let path = root.join(name);
        fs::write(&path, text).doing(path.display())
    };
    for dir in ["src", "include"] {
        let dir = root.join(dir);
        fs::create_dir_all(&dir).doing(dir.display())?;
    }
    let mut random = Random::new(6);
    // Prose, as half of many sources is.
    let prose = |text: &mut Vec<u8>, lines: usize, seed: u64| {
        let mut words = Text::new(seed);
        text.extend(b"/*\n");
        for _ in 0..lines {
            text.extend(b" * ");
            words.line(text);
        }
        text.extend(b" */\n");
    };
    let mut modules: Vec<u64> = (0..count).collect();
    random.shuffle(&mut modules);
    for h in 0..headers {
        let mut text = format!("#ifndef H{h}\n#define H{h}\n").into_bytes();
        prose(&mut text, 60, 1000 + h);
        for n in 0..40 {
            text.extend(format!("extern int h{h}_unused_{n}(int, const char *, long);\n").bytes());
        }
        text.extend(format!("struct h{h} {{ int a, b; }};\n#endif\n").bytes());
        put(format!("include/h{h:03}.h"), &text)?;
    }
    for n in modules {
        let mut text = Vec::new();
        prose(&mut text, 30, 2000 + n);
        let mut included: Vec<u64> = (0..headers).collect();
        random.shuffle(&mut included);
        included.truncate(8);
        for h in &included {
            text.extend(format!("#include \"h{h:03}.h\"\n").bytes());
        }
        for f in 0..6 {
            let (a, b) = (random.below(1000), random.below(1000) + 1);
            text.extend(
                format!(
                    "static unsigned m{n}_{f}(unsigned x)\n{{\n    struct h{} s = {{ {a}, {b} }};\n    for (int i = 0; i < s.b; i++)\n        \
                     x = x * 31 + (unsigned)s.a + (unsigned)i;\n    return x;\n}}\n",
                    included[f % included.len()]
                )
                .bytes(),
            );
            prose(&mut text, 8, 100_000 + n * 10 + f as u64);
        }
        text.extend(format!("unsigned m{n}(unsigned x)\n{{\n    return m{n}_5(m{n}_4(m{n}_3(m{n}_2(m{n}_1(m{n}_0(x))))));\n}}\n").bytes());
        put(format!("src/m{n:04}.c"), &text)?;
    }
    let mut main = String::from("#include <stdio.h>\n");
    let mut calls = String::new();
    for n in 0..count {
        main += &format!("unsigned m{n}(unsigned);\n");
        calls += &format!("    x = m{n}(x);\n");
    }
    main += &format!(
        "int main(void)\n{{\n    unsigned x = 1;\n{calls}    printf(\"%u\\n\", x);\n    return 0;\n}}\n"
    );
    put("src/main.c".to_owned(), main.as_bytes())?;
    let rules = "SOURCES := $(sort $(wildcard src/*.c))\n\
                 OBJECTS := $(SOURCES:src/%.c=$(OUT)/%.o)\n\
                 $(OUT)/program: $(OBJECTS)\n\t$(CC) -o $@ $^\n\
                 $(OUT)/%.o: src/%.c\n\t$(CC) -O0 -Iinclude -c -o $@ $<\n";
    put("Makefile".to_owned(), rules.as_bytes())
}

/// Figure 15: 4.5 % less time.
fn compile() -> Row {
    Row::new(
        "dr-fig15-compile",
        "SSD-cache readahead Fig. 15: make -j2 of a C program of 100 sources and 50 headers",
        data("project:100", 4 * M, project),
        Workload::one(script(
            "make -s -j2 -C '{data}/project' CC=cc 'OUT={out}' && '{out}/program'",
        ))
        .needs(&[("make", "make"), ("cc", "gcc")]),
    )
    .point("dr-fig15", "compile", "gcc", Some(1.047))
}

/// Nothing: the program makes what it reads. Words: its files, its transactions.
fn nothing(_: &Maker) -> Outcome {
    Ok(())
}

/// Figure 16: within a second of each other. As in the paper nearly all transactions read; files are of postmark's own sizes, and the pool
/// is larger than memory.
fn postmark() -> Row {
    Row::new(
        "dr-fig16-postmark",
        "SSD-cache readahead Fig. 16: postmark, 10,000 files of 500 to 10,000 bytes, 10,000 transactions, memory for a third",
        data("postmark", 128 * M, nothing),
        Workload::one(argv(&[
            WORK, "postmark", "{data}/pool", "--files", "10000", "--transactions", "10000",
        ]))
        .reset(argv(&["rm", "-rf", "{data}/pool"])),
    )
    .memory(32 * M)
    .point("dr-fig16", "postmark", "postmark", Some(1.0))
}

/// `tpch.db`: customers, orders and lineitems of SQLite in the proportions of TPC-H; 150,000 orders are a tenth of its scale
/// factor 1. Words: how many orders.
fn tpch(orders: u64) -> Data {
    data(&format!("tpch:{orders}"), orders * 1100 + 16 * M, |maker| {
        let orders = maker.count(0)?;
        database(&maker.path("tpch.db"), orders)
    })
}

const SCHEMA: &str = "
PRAGMA page_size = 4096; PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -200000;
CREATE TABLE customer(custkey INTEGER PRIMARY KEY, name TEXT, nationkey INT, acctbal INT, mktsegment TEXT, comment TEXT);
CREATE TABLE orders(orderkey INTEGER PRIMARY KEY, custkey INT, orderstatus TEXT, totalprice INT, orderdate TEXT,
  orderpriority TEXT, comment TEXT);
CREATE TABLE lineitem(orderkey INT, partkey INT, suppkey INT, linenumber INT, quantity INT, extendedprice INT, discount INT,
  tax INT, returnflag TEXT, linestatus TEXT, shipdate TEXT, commitdate TEXT, receiptdate TEXT, shipmode TEXT, comment TEXT);
";

const INDEXES: &str = "
CREATE INDEX lineitem_order ON lineitem(orderkey);
CREATE INDEX lineitem_part ON lineitem(partkey);
ANALYZE;
";

/// Writes the database by way of the sqlite3 program. Money is in cents, rates are in per cent: sums are whole numbers.
fn database(path: &Path, orders: u64) -> Outcome {
    let mut sqlite = Command::new("sqlite3");
    sqlite.arg("-batch").arg("-bail").arg(path);
    make::fed(&mut sqlite, |sql| {
        writeln!(sql, "{SCHEMA}BEGIN;")?;
        let mut random = Random::new(7);
        let mut words = Text::new(8);
        let mut line = Vec::new();
        // As TPC-H's comments: up to so many letters, of noise here.
        let mut comment = |random: &mut Random, most: u64| {
            line.clear();
            words.line(&mut line);
            line.truncate(random.within(most / 3, most) as usize);
            String::from_utf8_lossy(&line).into_owned()
        };
        let (customers, parts) = ((orders / 10).max(1), (orders * 2 / 15).max(1));
        let mut customer = Rows::new("customer");
        for key in 1..=customers {
            let segment = [
                "AUTOMOBILE",
                "BUILDING",
                "FURNITURE",
                "HOUSEHOLD",
                "MACHINERY",
            ][random.below(5) as usize];
            let (nation, balance) = (random.below(25), random.below(1_100_000));
            let comment = comment(&mut random, 99);
            customer.add(
                sql,
                format_args!(
                    "{key},'Customer#{key:09}',{nation},{balance},'{segment}','{comment}'"
                ),
            )?;
        }
        customer.end(sql)?;
        let (mut order, mut item) = (Rows::new("orders"), Rows::new("lineitem"));
        for key in 1..=orders {
            let buyer = random.within(1, customers);
            let ordered = random.below(2400);
            let items = random.within(1, 7);
            let mut total = 0;
            for number in 1..=items {
                let (part, quantity) = (random.within(1, parts), random.within(1, 50));
                let price = quantity * (90_000 + part % 20_001 * 10);
                let (discount, tax) = (random.below(11), random.below(9));
                total += price * (100 - discount) / 100;
                let shipped = ordered + random.within(1, 121);
                let (due, came) = (
                    ordered + random.within(30, 90),
                    shipped + random.within(1, 30),
                );
                let returned = if came < 1260 {
                    ["R", "A"][random.below(2) as usize]
                } else {
                    "N"
                };
                let status = if shipped > 1260 { "O" } else { "F" };
                let mode = ["AIR", "FOB", "MAIL", "RAIL", "REG AIR", "SHIP", "TRUCK"]
                    [random.below(7) as usize];
                let supplier = random.within(1, (orders / 150).max(1));
                let comment = comment(&mut random, 44);
                item.add(
                    sql,
                    format_args!(
                        "{key},{part},{supplier},{number},{quantity},{price},{discount},{tax},'{returned}','{status}','{}','{}','{}','{mode}','{comment}'",
                        date(shipped), date(due), date(came)
                    ),
                )?;
            }
            let priority = ["1-URGENT", "2-HIGH", "3-MEDIUM", "4-NOT SPECIFIED", "5-LOW"]
                [random.below(5) as usize];
            let status = if ordered > 1260 { "O" } else { "F" };
            let comment = comment(&mut random, 79);
            order.add(
                sql,
                format_args!(
                    "{key},{buyer},'{status}',{total},'{}','{priority}','{comment}'",
                    date(ordered)
                ),
            )?;
        }
        order.end(sql)?;
        item.end(sql)?;
        writeln!(sql, "COMMIT;{INDEXES}")
    })
}

/// Rows of a table on their way to sqlite3, many in a statement.
struct Rows {
    table: &'static str,
    text: String,
    rows: usize,
}

impl Rows {
    fn new(table: &'static str) -> Self {
        Self {
            table,
            text: String::new(),
            rows: 0,
        }
    }

    fn add(&mut self, sql: &mut dyn Write, values: std::fmt::Arguments) -> std::io::Result<()> {
        use std::fmt::Write as _;
        let comma = if self.rows == 0 { "" } else { "," };
        write!(self.text, "{comma}({values})").map_err(std::io::Error::other)?;
        self.rows += 1;
        if self.rows == 200 {
            self.end(sql)
        } else {
            Ok(())
        }
    }

    fn end(&mut self, sql: &mut dyn Write) -> std::io::Result<()> {
        if self.rows > 0 {
            writeln!(sql, "INSERT INTO {} VALUES{};", self.table, self.text)?;
        }
        self.text.clear();
        self.rows = 0;
        Ok(())
    }
}

/// The day `n` after 1992-01-01, in a calendar whose months have 31 days: what counts is that dates sort.
fn date(n: u64) -> String {
    format!(
        "{}-{:02}-{:02}",
        1992 + n / 372,
        n / 31 % 12 + 1,
        n % 31 + 1
    )
}

/// Figure 17: the 22 queries take 70 % less time on average, 78 % at best; number 17 is slower.
fn queries() -> Vec<Row> {
    let average = Some(1.0 / 0.3);
    let queries = [
        (
            "1",
            average,
            "pricing summary",
            "SELECT returnflag, linestatus, sum(quantity), sum(extendedprice), \
          sum(extendedprice * (100 - discount)), sum(extendedprice * (100 - discount) * (100 + tax)), count(*) FROM lineitem \
          WHERE shipdate <= '1998-05-01' GROUP BY returnflag, linestatus ORDER BY returnflag, linestatus",
        ),
        (
            "3",
            average,
            "shipping priority",
            "SELECT l.orderkey, sum(extendedprice * (100 - discount)) AS revenue, orderdate \
          FROM customer c, orders o, lineitem l WHERE mktsegment = 'BUILDING' AND c.custkey = o.custkey AND \
          l.orderkey = o.orderkey AND orderdate < '1993-03-15' AND shipdate > '1993-03-15' GROUP BY l.orderkey \
          ORDER BY revenue DESC, orderdate, l.orderkey LIMIT 10",
        ),
        (
            "6",
            average,
            "forecast of revenue",
            "SELECT sum(extendedprice * discount) FROM lineitem WHERE \
          shipdate >= '1994-01-01' AND shipdate < '1995-01-01' AND discount BETWEEN 5 AND 7 AND quantity < 24",
        ),
        (
            "17",
            None,
            "small orders of some parts",
            "SELECT sum(extendedprice), count(*) FROM lineitem l WHERE partkey % 40 = 7 AND \
          quantity * 5 < (SELECT sum(quantity) / count(*) FROM lineitem WHERE partkey = l.partkey)",
        ),
    ];
    queries
        .into_iter()
        .map(|(number, paper, about, sql)| {
            let mut row = Row::new(
                format!("dr-fig17-tpch-q{number}"),
                format!(
                    "SSD-cache readahead Fig. 17: query {number} of TPC-H, {about}, on SQLite at scale 0.1 (the paper's gain is the average \
                     of all queries)"
                ),
                tpch(150_000),
                Workload::one(argv(&["sqlite3", "-batch", "-bail", "-readonly", "{data}/tpch.db", sql]))
                    .needs(&[("sqlite3", "sqlite3")]),
            )
            .point("dr-fig17", "tpc-h", number, paper);
            if number == "3" {
                row.short = &["remote"];
            }
            row
        })
        .collect()
}
