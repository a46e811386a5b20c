//! Colours and marks of columns.

use plotters::coord::Shift;
use plotters::prelude::*;

use super::{LIMIT, PAPER};
use crate::report::data::rank;
use crate::results::STOCK;

/// Where things are drawn.
pub type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// What drawing returns.
pub type Drawn<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// Text and the limit. The page's style sheet knows this colour and the next two.
pub const INK: RGBColor = RGBColor(0x22, 0x22, 0x22);
/// Lines of the grid.
pub const GRID: RGBColor = RGBColor(0xdd, 0xdd, 0xdd);
/// Behind everything, and around marks.
pub const GROUND: RGBColor = RGBColor(0xfe, 0xfe, 0xfe);
/// The line at 1.
pub const BASE: RGBColor = RGBColor(0x80, 0x80, 0x80);
/// The paper's star.
const STAR: RGBColor = RGBColor(0xf0, 0xe4, 0x42);

/// The shape of a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Disc,
    Ring,
    Square,
    Frame,
    Up,
    Down,
    Diamond,
    Cross,
    Star,
    Dash,
}

/// How a column looks.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// Of line, bar and mark.
    pub color: RGBColor,
    /// Of its line.
    pub width: u32,
    shape: Shape,
}

/// For columns of a row's own, in the order of the legend.
const OWN: [(RGBColor, Shape); 6] = [
    (RGBColor(0x77, 0x66, 0xcc), Shape::Cross),
    (RGBColor(0x11, 0x77, 0x33), Shape::Frame),
    (RGBColor(0xaa, 0x44, 0x99), Shape::Down),
    (RGBColor(0x44, 0xaa, 0x99), Shape::Ring),
    (RGBColor(0xcc, 0x66, 0x77), Shape::Square),
    (RGBColor(0xb8, 0x86, 0x0b), Shape::Diamond),
];

/// The look of what a legend names; `names` are all of its names. Outrider's lines are thicker than those of its peers.
pub fn look(name: &str, names: &[String]) -> Look {
    let (color, width, shape) = match name {
        STOCK => (BASE, 3, Shape::Dash),
        "stock-4M" => (RGBColor(0x56, 0xb4, 0xe9), 3, Shape::Ring),
        "stock-best" => (RGBColor(0x99, 0x99, 0x99), 3, Shape::Frame),
        "app-only" => (RGBColor(0xe6, 0x9f, 0x00), 3, Shape::Up),
        "vmtouch" => (RGBColor(0xcc, 0x79, 0xa7), 3, Shape::Diamond),
        "predict" => (RGBColor(0x99, 0x99, 0x33), 5, Shape::Down),
        "predict+opt" => (RGBColor(0x00, 0x72, 0xb2), 5, Shape::Disc),
        "fetchall+opt" => (RGBColor(0x88, 0x22, 0x55), 5, Shape::Diamond),
        "declared" => (RGBColor(0xd5, 0x5e, 0x00), 5, Shape::Square),
        "graph" => (RGBColor(0x00, 0x9e, 0x73), 5, Shape::Up),
        LIMIT => (INK, 3, Shape::Dash),
        PAPER => (STAR, 3, Shape::Star),
        _ => {
            let own = names.iter().filter(|n| rank(n) == usize::MAX);
            let at = own.take_while(|n| *n != name).count();
            let (color, shape) = OWN[at % OWN.len()];
            (color, 4, shape)
        }
    };
    Look {
        color,
        width,
        shape,
    }
}

impl Look {
    /// Draws the mark around a point of the area; `size` is its radius.
    pub fn mark(&self, area: &Area, (x, y): (i32, i32), size: i32) -> Drawn {
        let at = |dx: f64, dy: f64| {
            let r = f64::from(size);
            let place = |d: f64| (d * r).round() as i32;
            (x + place(dx), y + place(dy))
        };
        let closed = |points: &[(f64, f64)], fill: RGBColor, line: RGBColor, width: u32| -> Drawn {
            let mut points: Vec<(i32, i32)> = points.iter().map(|&(dx, dy)| at(dx, dy)).collect();
            area.draw(&Polygon::new(points.clone(), fill.filled()))?;
            points.extend_from_within(..2);
            area.draw(&PathElement::new(points, line.stroke_width(width)))?;
            Ok(())
        };
        match self.shape {
            Shape::Disc => {
                area.draw(&Circle::new((x, y), size, self.color.filled()))?;
                area.draw(&Circle::new((x, y), size, GROUND.stroke_width(1)))?;
            }
            Shape::Ring => {
                area.draw(&Circle::new((x, y), size, GROUND.filled()))?;
                area.draw(&Circle::new((x, y), size, self.color.stroke_width(4)))?;
            }
            Shape::Square => {
                closed(
                    &[(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)],
                    self.color,
                    GROUND,
                    1,
                )?;
            }
            Shape::Frame => {
                closed(
                    &[(-0.85, -0.85), (0.85, -0.85), (0.85, 0.85), (-0.85, 0.85)],
                    GROUND,
                    self.color,
                    4,
                )?;
            }
            Shape::Up => closed(
                &[(0.0, -1.15), (1.05, 0.8), (-1.05, 0.8)],
                self.color,
                GROUND,
                1,
            )?,
            Shape::Down => closed(
                &[(0.0, 1.15), (1.05, -0.8), (-1.05, -0.8)],
                self.color,
                GROUND,
                1,
            )?,
            Shape::Diamond => {
                closed(
                    &[(0.0, -1.25), (1.05, 0.0), (0.0, 1.25), (-1.05, 0.0)],
                    self.color,
                    GROUND,
                    1,
                )?;
            }
            Shape::Cross => {
                for side in [1.0, -1.0] {
                    let points = vec![at(-0.9, -0.9 * side), at(0.9, 0.9 * side)];
                    area.draw(&PathElement::new(points, self.color.stroke_width(4)))?;
                }
            }
            Shape::Star => {
                let points: Vec<(f64, f64)> = (0..10)
                    .map(|corner| {
                        let radius = if corner % 2 == 0 { 1.7 } else { 0.75 };
                        let angle = f64::from(corner) * std::f64::consts::PI / 5.0;
                        (radius * angle.sin(), -radius * angle.cos())
                    })
                    .collect();
                closed(&points, self.color, INK, 2)?;
            }
            Shape::Dash => {
                let points = vec![at(-1.4, 0.0), at(1.4, 0.0)];
                area.draw(&PathElement::new(points, self.color.stroke_width(5)))?;
            }
        }
        Ok(())
    }
}
