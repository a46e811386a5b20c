//! TPC-C's table of customers as SQL text, with libprefetch's secondary index by zip code (its section 5.4).
//!
//! Rows are in order of their number and zip codes are random, so that each row of a query in order of zip codes lies on
//! another page than the one before.

use std::fmt::Write as _;
use std::io::{self, BufWriter, Write};

use crate::{Result, Wrong};
use outrider_sim::random::Random;

/// `outrider-work customer`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Rows of about 650 bytes, six to a page of 4 KiB.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    rows: u64,
    /// Other seeds make other rows.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// What the index is for, and the pages that the paper's section 5.4 sets. A database being made anew needs no journal.
const SCHEMA: &str = "\
PRAGMA page_size=4096;
PRAGMA journal_mode=OFF;
PRAGMA synchronous=OFF;
CREATE TABLE customer (
  c_id INTEGER PRIMARY KEY, c_d_id INTEGER, c_w_id INTEGER, c_first TEXT, c_middle TEXT, c_last TEXT,
  c_street_1 TEXT, c_street_2 TEXT, c_city TEXT, c_state TEXT, c_zip TEXT, c_phone TEXT, c_since TEXT,
  c_credit TEXT, c_credit_lim REAL, c_discount REAL, c_balance REAL, c_ytd_payment REAL,
  c_payment_cnt INTEGER, c_delivery_cnt INTEGER, c_data TEXT);
BEGIN;
";
const INDEX: &str = "COMMIT;\nCREATE INDEX customer_zip ON customer (c_zip);\n";

/// TPC-C 4.3.2.3: syllables of which last names are made.
const SYLLABLES: [&str; 10] = [
    "BAR", "OUGHT", "ABLE", "PRI", "PRES", "ESE", "ANTI", "CALLY", "ATION", "EING",
];
/// Customers of a district, and districts of a warehouse.
const CUSTOMERS: u64 = 3000;
const DISTRICTS: u64 = 10;

/// A row in the making.
struct Row {
    number: u64,
    random: Random,
}

impl Row {
    /// A string of `least..=most` letters.
    fn letters(&mut self, least: u64, most: u64) -> String {
        let length = self.random.within(least, most);
        (0..length)
            .map(|_| char::from(b'a' + self.random.below(26) as u8))
            .collect()
    }

    /// A string of digits.
    fn digits(&mut self, length: u64) -> String {
        (0..length)
            .map(|_| char::from(b'0' + self.random.below(10) as u8))
            .collect()
    }

    /// An INSERT statement.
    fn insert(&mut self) -> String {
        let number = self.number;
        let name = self.random.below(1000);
        let last = [name / 100, name / 10 % 10, name % 10].map(|i| SYLLABLES[i as usize]);
        let mut sql = format!(
            "INSERT INTO customer VALUES({},{},{},",
            number + 1,
            number / CUSTOMERS % DISTRICTS + 1,
            number / CUSTOMERS / DISTRICTS + 1,
        );
        let texts = [
            self.letters(8, 16),
            "OE".to_owned(),
            last.concat(),
            self.letters(10, 20),
            self.letters(10, 20),
            self.letters(10, 20),
            self.letters(2, 2),
            // TPC-C 4.3.2.7: four random digits, then ones.
            self.digits(4) + "11111",
            self.digits(16),
            "2009-06-14".to_owned(),
            if self.random.below(10) == 0 {
                "BC"
            } else {
                "GC"
            }
            .to_owned(),
        ];
        for text in texts {
            let _ = write!(sql, "'{text}',");
        }
        let discount = self.random.below(5001) as f64 / 1e4;
        let data = self.letters(300, 500);
        let _ = writeln!(sql, "50000.0,{discount},-10.0,10.0,1,0,'{data}');");
        sql
    }
}

/// Prints it.
pub fn run(args: &Args) -> Result {
    let told = |e| Wrong::system("standard output", e);
    let mut out = BufWriter::with_capacity(1 << 20, io::stdout().lock());
    out.write_all(SCHEMA.as_bytes()).map_err(told)?;
    for number in 0..args.rows {
        let mut row = Row {
            number,
            random: Random::part(args.seed, number),
        };
        out.write_all(row.insert().as_bytes()).map_err(told)?;
    }
    out.write_all(INDEX.as_bytes()).map_err(told)?;
    out.flush().map_err(told)
}
