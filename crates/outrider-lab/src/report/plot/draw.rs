//! Drawing of panels, legends and whole figures.

use std::ops::Range;

use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint};
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::marks::{Area, BASE, Drawn, GRID, GROUND, INK, look};
use super::{LIMIT, PAPER, Panel, Point};
use crate::results::STOCK;

/// Of a panel with curves, and of one with few bars.
const WIDTH: u32 = 960;
const NARROW: u32 = 640;
/// Of a panel.
const HEIGHT: u32 = 640;
/// Of a panel with many places; what doesn't fit then stands closer.
const WIDEST: u32 = 2400;
/// Above the axes: the title.
const TOP: i32 = 64;
/// Left of the axes.
const LEFT: u32 = 128;
/// Right of the axes.
const RIGHT: u32 = 30;
/// Between panels.
const GAP: u32 = 40;
/// Of text: about 12 CSS pixels on the screen.
const TEXT: u32 = 30;
/// Between lines of text.
const LINE: u32 = 28;
/// Of titles.
const TITLE: u32 = 34;
/// Of a mark.
const MARK: i32 = 9;

/// The width of text, about: no font is asked, because the reader's is unknown. Letters of sans-serif fonts are half as wide
/// as they are high, capitals more.
fn width_of(text: &str, size: u32) -> u32 {
    let halves: u32 = text
        .chars()
        .map(|c| {
            if c.is_uppercase() || c == 'm' || c == 'w' {
                14
            } else {
                11
            }
        })
        .sum();
    halves * size / 24
}

fn style(size: u32, color: RGBColor, pos: Pos) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&color).pos(pos)
}

/// A whole drawing. What is drawn in halves of a pixel is shown in pixels.
fn svg(width: u32, height: u32, title: &str, draw: impl FnOnce(&Area) -> Drawn) -> Drawn<String> {
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, (width, height)).into_drawing_area();
        draw(&root)?;
        root.present()?;
    }
    let shown = text.replacen(
        &format!("<svg width=\"{width}\" height=\"{height}\""),
        &format!("<svg width=\"{}\" height=\"{}\"", width / 2, height / 2),
        1,
    );
    let name = format!(">\n<title>{}</title>", crate::report::table::html(title));
    Ok(shown.replacen('>', &name, 1))
}

/// A panel by itself, on the ground of the page.
pub fn panel(panel: &Panel, names: &[String]) -> Drawn<String> {
    let width = panel_width(panel, names);
    let svg = svg(width, HEIGHT, &panel.title, |root| {
        draw_panel(root, panel, names)
    })?;
    // On a small screen it shrinks to two thirds, then scrolls.
    Ok(svg.replacen(
        "<svg ",
        &format!("<svg style=\"min-width:{}px\" ", width / 3),
        1,
    ))
}

/// The mark of a legend's entry.
pub fn swatch(name: &str, names: &[String]) -> Drawn<String> {
    svg(52, 36, name, |root| {
        draw_swatch(root, name, names, (26, 18))
    })
}

/// The figure as a file: title, legend, panels.
pub fn figure(title: &str, panels: &[Panel], names: &[String]) -> Drawn<String> {
    let widths: Vec<u32> = panels.iter().map(|p| panel_width(p, names)).collect();
    let limit = if panels.len() > 4 {
        3 * WIDTH + 2 * GAP
    } else {
        2 * WIDTH + GAP
    };
    // Panels from left to right, as lines of text.
    let (mut places, mut x, mut y, mut total) = (Vec::new(), 0, 0, WIDTH);
    for width in &widths {
        if x > 0 && x + width > limit {
            (x, y) = (0, y + HEIGHT + GAP);
        }
        places.push((x, y));
        x += width + GAP;
        total = total.max(x - GAP);
    }
    let total = total.max(width_of(title, TITLE + 6)) + 2 * GAP;
    let entries = legend(names, total - 2 * GAP);
    let legend_lines = entries.last().map_or(0, |(_, line)| line / LINE + 1);
    let head = GAP + TITLE + 30 + legend_lines * (LINE + 10) + 20;
    svg(total, head + y + HEIGHT + GAP / 2, title, |root| {
        root.fill(&GROUND)?;
        let bold = ("sans-serif", TITLE + 6, FontStyle::Bold).into_font();
        root.draw(&Text::new(
            title.to_owned(),
            (int(GAP), int(GAP)),
            bold.color(&INK),
        ))?;
        let top = int(GAP + TITLE + 40);
        for (name, (x, line)) in names.iter().zip(&entries) {
            let (x, y) = (int(GAP + x), top + int(line / LINE * (LINE + 10)));
            draw_swatch(root, name, names, (x + 20, y))?;
            let text = style(TEXT, INK, Pos::new(HPos::Left, VPos::Center));
            root.draw(&Text::new(name.clone(), (x + 50, y), text))?;
        }
        for ((panel, (x, y)), width) in panels.iter().zip(&places).zip(&widths) {
            let area = root.clone().shrink((GAP + x, head + y), (*width, HEIGHT));
            draw_panel(&area, panel, names)?;
        }
        Ok(())
    })
}

/// Where entries of a legend stand: x, and y in steps of `LINE`.
fn legend(names: &[String], width: u32) -> Vec<(u32, u32)> {
    let (mut x, mut line) = (0, 0);
    let mut places = Vec::new();
    for name in names {
        let own = 50 + width_of(name, TEXT) + 36;
        if x > 0 && x + own > width {
            (x, line) = (0, line + LINE);
        }
        places.push((x, line));
        x += own;
    }
    places
}

fn draw_swatch(root: &Area, name: &str, names: &[String], (x, y): (i32, i32)) -> Drawn {
    let look = look(name, names);
    if name == LIMIT {
        for dash in [-20, -5, 10] {
            let points = vec![(x + dash, y), (x + dash + 10, y)];
            root.draw(&PathElement::new(points, INK.stroke_width(3)))?;
        }
        return Ok(());
    }
    if name != PAPER {
        let points = vec![(x - 20, y), (x + 20, y)];
        root.draw(&PathElement::new(
            points,
            look.color.stroke_width(look.width),
        ))?;
    }
    if name != STOCK {
        look.mark(root, (x, y), MARK)?;
    }
    Ok(())
}

/// A panel with bars is as wide as their labels need.
fn panel_width(panel: &Panel, names: &[String]) -> u32 {
    if panel.numeric {
        return WIDTH;
    }
    let slot = panel
        .points
        .iter()
        .flat_map(|p| words(&p.label))
        .map(|w| width_of(w, TEXT) + 16)
        .max();
    let bars = u32::try_from(bars(names).len()).unwrap_or(WIDEST) * 20 + 30;
    let places = u32::try_from(panel.points.len()).unwrap_or(1);
    let title = LEFT + width_of(&panel.title, TITLE + 4);
    let wanted = LEFT + RIGHT + places.saturating_mul(slot.unwrap_or(0).max(bars));
    wanted.max(title).clamp(NARROW, WIDEST)
}

/// What gets a bar of its own, or a place beside the bars.
fn bars(names: &[String]) -> Vec<&String> {
    names
        .iter()
        .filter(|n| *n != STOCK && *n != LIMIT)
        .collect()
}

fn draw_panel(area: &Area, panel: &Panel, names: &[String]) -> Drawn {
    let (width, _) = area.dim_in_pixel();
    let title = ("sans-serif", TITLE, FontStyle::Bold)
        .into_font()
        .color(&INK);
    area.draw(&Text::new(panel.title.clone(), (int(LEFT), 10), title))?;
    let axis = Axis::upwards(&panel.points);
    let along = Along::new(panel, width - LEFT - RIGHT);
    let mut chart = ChartBuilder::on(area)
        .margin_top(TOP)
        .margin_right(RIGHT)
        .x_label_area_size(28 + LINE * along.lines_of_text())
        .y_label_area_size(LEFT)
        .build_cartesian_2d(
            Marked::new(along.from..along.to, along.lines()),
            Marked::new(axis.from..axis.to, axis.ticks.clone()),
        )?;
    let tick = |y: &f64| axis.tick(*y);
    let mut mesh = chart.configure_mesh();
    mesh.bold_line_style(GRID.stroke_width(1))
        .light_line_style(TRANSPARENT)
        .axis_style(BASE.stroke_width(2))
        .label_style(style(TEXT, INK, Pos::new(HPos::Left, VPos::Top)))
        .y_desc("speed-up over stock-128")
        .y_label_formatter(&tick)
        .x_label_formatter(&|_| String::new())
        .x_labels(0)
        .set_all_tick_mark_size(6);
    if !panel.numeric {
        mesh.disable_x_mesh();
    }
    mesh.draw()?;
    // From here on in places on the drawing, because marks have sizes in them. They are counted from the drawing's corner, the
    // area from its own.
    let (left, top) = area.get_pixel_range();
    let place = |x: f64, speed: f64| {
        let (px, py) = chart.backend_coord(&(x, axis.place(speed)));
        (px - left.start, py - top.start)
    };
    let line = |from: (i32, i32), to: (i32, i32), color: RGBColor, width: u32| -> Drawn {
        area.draw(&PathElement::new(vec![from, to], color.stroke_width(width)))?;
        Ok(())
    };
    line(place(along.from, 1.0), place(along.to, 1.0), BASE, 3)?;
    let bottom = chart.backend_coord(&(along.from, axis.from)).1 - top.start;
    for (x, label) in &along.labels {
        let text = style(TEXT, INK, Pos::new(HPos::Center, VPos::Top));
        for (at, words) in label.iter().enumerate() {
            let y = bottom + 12 + int(LINE) * i32::try_from(at)?;
            area.draw(&Text::new(
                words.clone(),
                (place(*x, 1.0).0, y),
                text.clone(),
            ))?;
        }
    }
    if panel.points.iter().all(|p| p.speeds.is_empty()) {
        let at = place(f64::midpoint(along.from, along.to), 1.0);
        let text = style(TEXT, INK, Pos::new(HPos::Center, VPos::Bottom));
        area.draw(&Text::new("no valid runs", (at.0, at.1 - 12), text))?;
    }
    if panel.numeric {
        curves(area, panel, names, &along, &place)
    } else {
        groups(area, panel, names, &place)
    }
}

/// A curve per column.
fn curves(
    area: &Area,
    panel: &Panel,
    names: &[String],
    along: &Along,
    place: &dyn Fn(f64, f64) -> (i32, i32),
) -> Drawn {
    let limits: Vec<(i32, i32)> = panel
        .points
        .iter()
        .filter_map(|p| Some(place(along.place(p.x), p.limit?)))
        .collect();
    area.draw(&DashedPathElement::new(
        limits.clone(),
        10,
        8,
        INK.stroke_width(3),
    ))?;
    for at in limits {
        look(LIMIT, names).mark(area, at, MARK - 2)?;
    }
    for name in names {
        let look = look(name, names);
        let points: Vec<(f64, [f64; 3])> = panel
            .points
            .iter()
            .filter_map(|p| Some((along.place(p.x), speeds(p, name)?)))
            .collect();
        for (x, [slow, _, fast]) in &points {
            whisker(area, place(*x, *slow), place(*x, *fast), look.color)?;
        }
        let path: Vec<(i32, i32)> = points
            .iter()
            .map(|(x, [_, median, _])| place(*x, *median))
            .collect();
        if name != STOCK {
            area.draw(&PathElement::new(
                path.clone(),
                look.color.stroke_width(look.width),
            ))?;
            for at in path {
                look.mark(area, at, MARK)?;
            }
        }
    }
    for point in &panel.points {
        if let Some(gain) = point.paper {
            look(PAPER, names).mark(area, place(along.place(point.x), gain), MARK)?;
        }
    }
    Ok(())
}

/// A group of bars per place, and the paper's star at its end.
fn groups(
    area: &Area,
    panel: &Panel,
    names: &[String],
    place: &dyn Fn(f64, f64) -> (i32, i32),
) -> Drawn {
    let bars = bars(names);
    let share = 0.86 / bars.len().max(1) as f64;
    for (slot, point) in panel.points.iter().enumerate() {
        let start = slot as f64 + 0.07;
        let mut x = start;
        for name in &bars {
            let look = look(name, names);
            let middle = x + share / 2.0;
            if let Some([slow, median, fast]) = speeds(point, name) {
                let (from, to) = (
                    place(x + share * 0.08, 1.0),
                    place(x + share * 0.92, median),
                );
                area.draw(&Rectangle::new([from, to], look.color.filled()))?;
                whisker(area, place(middle, slow), place(middle, fast), INK)?;
                let size = ((to.0 - from.0) / 2 - 1).min(MARK);
                if size >= 4 {
                    look.mark(area, place(middle, median), size)?;
                }
            }
            if let (PAPER, Some(gain)) = (name.as_str(), point.paper) {
                look.mark(area, place(middle, gain), MARK)?;
            }
            x += share;
        }
        if let Some(limit) = point.limit {
            let ends = vec![place(start, limit), place(start + 0.86, limit)];
            area.draw(&DashedPathElement::new(ends, 10, 8, INK.stroke_width(3)))?;
        }
    }
    Ok(())
}

fn speeds(point: &Point, name: &str) -> Option<[f64; 3]> {
    point
        .speeds
        .iter()
        .find(|(column, _)| column == name)
        .map(|(_, speeds)| *speeds)
}

/// From the slowest to the fastest run.
fn whisker(area: &Area, from: (i32, i32), to: (i32, i32), color: RGBColor) -> Drawn {
    if (from.1 - to.1).abs() > 2 {
        area.draw(&PathElement::new(vec![from, to], color.stroke_width(2)))?;
        for (x, y) in [from, to] {
            area.draw(&PathElement::new(
                vec![(x - 5, y), (x + 5, y)],
                color.stroke_width(2),
            ))?;
        }
    }
    Ok(())
}

/// An axis with lines exactly where they are wanted.
struct Marked {
    range: Range<f64>,
    ticks: Vec<f64>,
}

impl Marked {
    fn new(range: Range<f64>, ticks: Vec<f64>) -> Self {
        Self { range, ticks }
    }
}

impl Ranged for Marked {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let share = (value - self.range.start) / (self.range.end - self.range.start);
        let offset = (share * f64::from(limit.1 - limit.0)).round() as i32;
        limit.0 + offset
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.clone()
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

/// The axis upwards: speed-ups, as they are or as their logarithms.
struct Axis {
    log: bool,
    from: f64,
    to: f64,
    ticks: Vec<f64>,
}

impl Axis {
    fn upwards(points: &[Point]) -> Self {
        let all = || {
            let of = |p: &Point| -> Vec<f64> {
                let speeds = p.speeds.iter().flat_map(|(_, speeds)| *speeds);
                speeds.chain(p.limit).chain(p.paper).collect()
            };
            points.iter().flat_map(of).chain([1.0])
        };
        let (least, most) = (
            all().fold(f64::INFINITY, f64::min),
            all().fold(0.0, f64::max),
        );
        let log = most / least > 10.0;
        let (low, high) = if log {
            (least.log10(), most.log10())
        } else {
            (least, most)
        };
        let room = (high - low).max(0.2) * 0.08;
        let (from, to) = (low - room, high + room);
        let mut axis = Self {
            log,
            from: if log { from } else { from.max(0.0) },
            to,
            ticks: Vec::new(),
        };
        axis.ticks = if log { axis.decades() } else { axis.even() };
        axis
    }

    /// Speed-up to place on the axis.
    fn place(&self, speed: f64) -> f64 {
        if self.log { speed.log10() } else { speed }
    }

    fn tick(&self, place: f64) -> String {
        let speed = if self.log { 10f64.powf(place) } else { place };
        // Without the noise of the last bits.
        format!("{}x", (speed * 1e4).round() / 1e4)
    }

    /// 1, 2, 5, 10 … or, where these are too many, 1, 10, 100 …
    fn decades(&self) -> Vec<f64> {
        let decades = (self.from.floor() as i32)..=(self.to.ceil() as i32);
        let each = |steps: &[f64]| -> Vec<f64> {
            let all = decades
                .clone()
                .flat_map(|d| steps.iter().map(move |s| f64::from(d) + s.log10()));
            all.filter(|place| (self.from..=self.to).contains(place))
                .collect()
        };
        let fine = each(&[1.0, 2.0, 5.0]);
        if fine.len() <= 8 { fine } else { each(&[1.0]) }
    }

    /// Four to eight steps of 1, 2, 2.5 or 5 times a power of ten.
    fn even(&self) -> Vec<f64> {
        let rough = (self.to - self.from) / 6.0;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 2.5, 5.0, 10.0]
            .into_iter()
            .map(|s| s * power)
            .find(|s| *s >= rough)
            .unwrap_or(rough);
        let first = (self.from / step).ceil();
        (0..12)
            .map(|n| (first + f64::from(n)) * step)
            .take_while(|y| *y <= self.to)
            .collect()
    }
}

/// The horizontal axis.
struct Along {
    log: bool,
    /// Where 0 is drawn if the axis is logarithmic.
    zero: f64,
    from: f64,
    to: f64,
    /// Places and their labels, in lines.
    labels: Vec<(f64, Vec<String>)>,
}

impl Along {
    fn new(panel: &Panel, width: u32) -> Self {
        if !panel.numeric {
            let places = panel.points.len().max(1);
            let room = width / u32::try_from(places).unwrap_or(u32::MAX);
            let labels = panel.points.iter().enumerate();
            return Self {
                log: false,
                zero: 0.0,
                from: 0.0,
                to: places as f64,
                labels: labels
                    .map(|(at, p)| (at as f64 + 0.5, wrapped(&p.label, room)))
                    .collect(),
            };
        }
        let xs = || panel.points.iter().map(|p| p.x);
        let (least, most) = (
            xs().fold(f64::INFINITY, f64::min),
            xs().fold(f64::NEG_INFINITY, f64::max),
        );
        // Thread counts, sizes and ratios double. Nothing stands four times below the least.
        let above = xs().filter(|x| *x > 0.0).fold(f64::INFINITY, f64::min);
        let mut along = Self {
            log: least >= 0.0 && most / above >= 16.0,
            zero: above / 4.0,
            from: 0.0,
            to: 1.0,
            labels: Vec::new(),
        };
        let (from, to) = (along.place(least), along.place(most));
        let room = (to - from) * 0.06;
        (along.from, along.to) = (from - room, to + room);
        // Labels that would touch the one before are left out.
        let mut free = f64::NEG_INFINITY;
        for point in &panel.points {
            let x = along.place(point.x);
            let middle = (x - along.from) / (along.to - along.from) * f64::from(width);
            let half = f64::from(width_of(&point.label, TEXT)) / 2.0 + 6.0;
            if middle - half >= free {
                along.labels.push((x, vec![point.label.clone()]));
                free = middle + half;
            }
        }
        along
    }

    fn place(&self, x: f64) -> f64 {
        match self.log {
            true if x > 0.0 => x.log2(),
            true => self.zero.log2(),
            false => x,
        }
    }

    /// Lines that the tallest label takes.
    fn lines_of_text(&self) -> u32 {
        let most = self.labels.iter().map(|(_, label)| label.len()).max();
        u32::try_from(most.unwrap_or(1)).unwrap_or(1)
    }

    /// Places that have a line of the grid.
    fn lines(&self) -> Vec<f64> {
        self.labels.iter().map(|(x, _)| *x).collect()
    }
}

/// Where a label may be broken: after a hyphen and the like.
fn words(label: &str) -> impl Iterator<Item = &str> {
    label.split_inclusive([' ', '-', '_', '/', ','])
}

/// A label in at most three lines of a width, if it can be.
fn wrapped(label: &str, width: u32) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in words(label) {
        let last = lines.len() - 1;
        let together = format!("{}{word}", lines[last]);
        if lines[last].is_empty() || width_of(&together, TEXT) <= width || lines.len() == 3 {
            lines[last] = together;
        } else {
            lines.push(word.to_owned());
        }
    }
    lines.iter().map(|l| l.trim().to_owned()).collect()
}

fn int(length: u32) -> i32 {
    i32::try_from(length).unwrap_or(i32::MAX)
}
