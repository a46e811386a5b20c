//! A table, and how it is written as Markdown, as HTML and as plain text.

/// A table with a title.
#[derive(Debug)]
pub struct Table {
    /// Its anchor on the page.
    pub id: &'static str,
    /// Its heading.
    pub title: &'static str,
    /// What to know before reading it.
    pub note: String,
    /// Names of its columns.
    pub head: Vec<&'static str>,
    /// Its lines, as long as `head`.
    pub lines: Vec<Vec<Value>>,
}

/// A field.
#[derive(Clone, Debug, Default)]
pub struct Value {
    /// As it is shown.
    pub text: String,
    /// What it is sorted by, where that is a number.
    pub number: Option<f64>,
    /// Whether it is good or bad news.
    pub tone: Tone,
}

/// Good or bad news.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    /// Neither.
    #[default]
    Plain,
    /// Good.
    Good,
    /// Bad.
    Bad,
}

/// Stands where there is nothing.
const NOTHING: &str = "–";

impl Value {
    /// Words.
    pub fn text(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            ..Self::default()
        }
    }

    /// A number as it is shown by `show`, or nothing.
    pub fn number(number: Option<f64>, show: fn(f64) -> String) -> Self {
        Self {
            text: number.map_or_else(|| NOTHING.to_owned(), show),
            number,
            tone: Tone::Plain,
        }
    }

    /// The same as good or bad news.
    pub fn tone(mut self, tone: Tone) -> Self {
        self.tone = tone;
        self
    }

    /// The same with something after it.
    pub fn with(mut self, suffix: &str) -> Self {
        self.text.push_str(suffix);
        self
    }
}

/// Seconds, with as many digits as can matter.
pub fn seconds(s: f64) -> String {
    match s {
        s if s < 10.0 => format!("{s:.3}"),
        s if s < 100.0 => format!("{s:.2}"),
        s => format!("{s:.1}"),
    }
}

/// Times faster.
pub fn times(x: f64) -> String {
    if x < 100.0 {
        format!("{x:.2}x")
    } else {
        format!("{x:.0}x")
    }
}

/// A share.
pub fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// A share with its sign.
pub fn signed_percent(share: f64) -> String {
    format!("{:+.1} %", share * 100.0)
}

/// Bytes as 10⁶ bytes.
pub fn megabytes(bytes: f64) -> String {
    format!("{:.1}", bytes / 1e6)
}

/// A count or a figure of unknown size.
pub fn figure(n: f64) -> String {
    if n.fract() == 0.0 || n.abs() >= 1000.0 {
        format!("{n:.0}")
    } else {
        format!("{n:.2}")
    }
}

impl Table {
    /// Whether a column holds numbers.
    fn numeric(&self, at: usize) -> bool {
        let mut lines = self.lines.iter().map(|line| &line[at]);
        let numbers = lines.clone().any(|v| v.number.is_some());
        numbers && lines.all(|v| v.number.is_some() || v.text == NOTHING)
    }

    /// With a heading of the second order.
    pub fn markdown(&self) -> String {
        let mut out = format!("## {}\n\n", self.title);
        if !self.note.is_empty() {
            out += &format!("{}\n\n", self.note);
        }
        out += &format!("| {} |\n|", self.head.join(" | "));
        for at in 0..self.head.len() {
            out += if self.numeric(at) {
                " ---: |"
            } else {
                " --- |"
            };
        }
        out.push('\n');
        for line in &self.lines {
            out.push('|');
            for value in line {
                out += &format!(" {} |", markdown(&value.text));
            }
            out.push('\n');
        }
        out
    }

    /// A section with a heading; its headings are buttons to sort by.
    pub fn html(&self) -> String {
        let mut out = format!(
            "<section id=\"{}\">\n<h2>{}</h2>\n",
            self.id,
            html(self.title)
        );
        if !self.note.is_empty() {
            out += &format!("<p>{}</p>\n", html(&self.note));
        }
        out += "<div class=\"wide\"><table>\n<thead><tr>";
        for (at, name) in self.head.iter().enumerate() {
            let class = if self.numeric(at) { " class=\"n\"" } else { "" };
            out += &format!(
                "<th scope=\"col\"{class}><button type=\"button\">{}</button></th>",
                html(name)
            );
        }
        out += "</tr></thead>\n<tbody>\n";
        for line in &self.lines {
            out += "<tr>";
            for (at, value) in line.iter().enumerate() {
                let mut class = Vec::new();
                if self.numeric(at) {
                    class.push("n");
                }
                match value.tone {
                    Tone::Good => class.push("good"),
                    Tone::Bad => class.push("bad"),
                    Tone::Plain => {}
                }
                let class = match class.is_empty() {
                    true => String::new(),
                    false => format!(" class=\"{}\"", class.join(" ")),
                };
                let sort = match value.number {
                    Some(n) => format!(" data-v=\"{n}\""),
                    None if value.text == NOTHING => " data-v=\"\"".to_owned(),
                    None => String::new(),
                };
                out += &format!("<td{class}{sort}>{}</td>", html(&value.text));
            }
            out += "</tr>\n";
        }
        out += "</tbody>\n</table></div>\n</section>\n";
        out
    }

    /// For a terminal: columns under each other, the heading above.
    pub fn plain(&self) -> String {
        let width = |at: usize| {
            let fields = self.lines.iter().map(|line| line[at].text.chars().count());
            fields
                .chain([self.head[at].chars().count()])
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<(usize, bool)> = (0..self.head.len())
            .map(|at| (width(at), self.numeric(at)))
            .collect();
        let head: Vec<&str> = self.head.clone();
        let lines = self
            .lines
            .iter()
            .map(|l| l.iter().map(|v| v.text.as_str()).collect::<Vec<_>>());
        let mut out = String::new();
        for line in [head].into_iter().chain(lines) {
            let mut text = String::new();
            for (field, (width, right)) in line.iter().zip(&widths) {
                match right {
                    true => text += &format!("{field:>width$}  "),
                    false => text += &format!("{field:<width$}  "),
                }
            }
            out += text.trim_end();
            out.push('\n');
        }
        out
    }
}

/// Text in a Markdown table.
pub fn markdown(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '|' => out += "\\|",
            '<' => out += "&lt;",
            '\n' | '\r' => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

/// Text in HTML, attributes included. What XML cannot hold is replaced.
pub fn html(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            c if c.is_control() && !matches!(c, '\n' | '\t') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}
