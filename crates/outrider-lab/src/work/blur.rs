//! A blur over an image that does not fit into memory, as GIMP does it: libprefetch, section 5.3.
//!
//! The image is cut into tiles of 64 x 64 pixels of 4 bytes, 16 KiB, which lie in a swap file one after the other, row by
//! row. One pass goes down the columns, blurs vertically and appends its tiles to a second copy in *its* order, column by
//! column; the next goes along the rows of that copy, blurs horizontally and appends to a third, row by row; a last one
//! goes down the columns of the result, as what displays or merges it does. Each pass reads against the grain: one tile
//! here, the next a whole row or column further.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use xxhash_rust::xxh3::Xxh3;

use crate::declare::{self, Declare, List, Range};
use crate::figures::Figures;
use crate::{Result, Wrong};

/// Pixels along a tile's edge.
const EDGE: usize = 64;
/// Bytes of a pixel.
const PIXEL: usize = 4;
/// Bytes of a tile's row of pixels.
const LINE: usize = EDGE * PIXEL;
/// Bytes of a tile.
const TILE: usize = EDGE * LINE;

/// `outrider-work blur`.
///
/// Blurs the image in the first third of a swap file; the other two are overwritten with what comes in between. The
/// image stays as it is.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The swap file: three times the image, a whole number of tiles of 16 KiB each.
    swap: PathBuf,
    /// Tiles in a row of the image. [default: the largest power of two whose square is not above their number]
    #[arg(long)]
    width: Option<u64>,
    /// Advise the kernel 64 tiles ahead (posix_fadvise).
    #[arg(long)]
    hint: bool,
    /// Declare each pass to Outrider.
    #[arg(long)]
    declare: bool,
}

/// Which way a pass goes over the tiles.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// Row by row.
    Rows,
    /// Column by column.
    Columns,
}

/// The image's size in tiles.
#[derive(Clone, Copy)]
struct Grid {
    width: u64,
    height: u64,
}

impl Grid {
    fn tiles(self) -> u64 {
        self.width * self.height
    }

    /// The `n`th tile on the way: its column and row.
    fn place(self, way: Way, n: u64) -> (u64, u64) {
        match way {
            Way::Rows => (n % self.width, n / self.width),
            Way::Columns => (n / self.height, n % self.height),
        }
    }

    /// How many tiles lie before that of a column and row, if they were stored in the order of `way`.
    fn index(self, way: Way, (column, row): (u64, u64)) -> u64 {
        match way {
            Way::Rows => row * self.width + column,
            Way::Columns => column * self.height + row,
        }
    }
}

/// Runs it.
pub fn run(args: &Args) -> Result {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&args.swap)
        .map_err(|e| Wrong::system(args.swap.display(), e))?;
    let size = file
        .metadata()
        .map_err(|e| Wrong::system(args.swap.display(), e))?
        .len();
    let grid = grid(args, size)?;
    let begun = Instant::now();
    let mut blur = Blur {
        args,
        file: &file,
        grid,
        call: args.declare.then(Declare::find).transpose()?,
        figures: Figures::with_room(3 * grid.tiles() as usize),
        told: 0,
    };
    let image = grid.tiles() * TILE as u64;
    let (second, third) = (image, 2 * image);
    blur.pass(0, Way::Rows, Way::Columns, |n, tile| {
        write(&file, &args.swap, second, n, tile)
    })?;
    blur.pass(second, Way::Columns, Way::Rows, |n, tile| {
        write(&file, &args.swap, third, n, tile)
    })?;
    let mut digest = Xxh3::new();
    blur.look(third, Way::Rows, Way::Columns, |tile| digest.update(tile))?;
    println!(
        "{} x {} tiles {:016x}",
        grid.width,
        grid.height,
        digest.digest()
    );
    let told = blur.told as f64;
    blur.figures.tell(begun.elapsed(), &[("declared", told)]);
    Ok(())
}

/// The image's size in tiles, if the file's size and `--width` make one.
fn grid(args: &Args, size: u64) -> Result<Grid> {
    let tiles = size / (3 * TILE as u64);
    if tiles == 0 || !size.is_multiple_of(3 * TILE as u64) {
        return Err(Wrong::usage(format!(
            "{}: {size} bytes are not three copies of tiles of {TILE} bytes",
            args.swap.display()
        )));
    }
    let width = args.width.unwrap_or_else(|| 1 << (tiles.ilog2() / 2));
    if width == 0 || !tiles.is_multiple_of(width) {
        return Err(Wrong::usage(format!(
            "--width {width}: the image's {tiles} tiles are not so many columns"
        )));
    }
    let height = tiles / width;
    Ok(Grid { width, height })
}

/// Appends the `n`th tile of a copy that begins at `base`.
fn write(file: &File, path: &Path, base: u64, n: u64, tile: &[u8]) -> Result {
    file.write_all_at(tile, base + n * TILE as u64)
        .map_err(|e| Wrong::system(path.display(), e))
}

struct Blur<'a> {
    args: &'a Args,
    file: &'a File,
    grid: Grid,
    call: Option<Declare>,
    figures: Figures,
    told: usize,
}

impl Blur<'_> {
    /// Goes over the copy at `base`, stored in the order of `stored`, in the order of `way`.
    fn look(&mut self, base: u64, stored: Way, way: Way, mut with: impl FnMut(&[u8])) -> Result {
        self.tiles(base, stored, way, |_, tile| {
            with(tile);
            Ok(())
        })
    }

    /// Blurs along the way, and hands the tiles on in its order.
    fn pass(
        &mut self,
        base: u64,
        stored: Way,
        way: Way,
        mut put: impl FnMut(u64, &[u8]) -> Result,
    ) -> Result {
        let line = match way {
            Way::Rows => self.grid.width,
            Way::Columns => self.grid.height,
        };
        let mut before = vec![0; TILE];
        let mut tile = vec![0; TILE];
        let mut out = vec![0; TILE];
        // A tile is done once its successor is known, whose edge it needs.
        self.tiles(base, stored, way, |n, next| {
            if !n.is_multiple_of(line) {
                let first = (n - 1) % line == 0;
                let edge = if first { &tile } else { &before };
                smooth(way, edge, &tile, next, &mut out, first, false);
                put(n - 1, &out)?;
            }
            std::mem::swap(&mut before, &mut tile);
            tile.copy_from_slice(next);
            if n % line == line - 1 {
                smooth(way, &before, &tile, &tile, &mut out, line == 1, true);
                put(n, &out)?;
            }
            Ok(())
        })
    }

    /// Reads the tiles on the way.
    fn tiles(
        &mut self,
        base: u64,
        stored: Way,
        way: Way,
        mut with: impl FnMut(u64, &[u8]) -> Result,
    ) -> Result {
        let (grid, args) = (self.grid, self.args);
        let range = |n: u64| Range {
            offset: base + grid.index(stored, grid.place(way, n)) * TILE as u64,
            length: TILE as u64,
        };
        let mut list = List::new(self.call, self.file, || {
            (0..grid.tiles()).map(range).collect()
        })?;
        if args.hint {
            for n in 0..grid.tiles().min(declare::AHEAD as u64) {
                declare::hint(self.file, range(n));
            }
        }
        let mut tile = vec![0; TILE];
        for n in 0..grid.tiles() {
            list.read(n as usize)?;
            let later = n + declare::AHEAD as u64;
            if args.hint && later < grid.tiles() {
                declare::hint(self.file, range(later));
            }
            let since = Instant::now();
            self.file
                .read_exact_at(&mut tile, range(n).offset)
                .map_err(|e| Wrong::system(args.swap.display(), e))?;
            self.figures.done(since, TILE as u64);
            with(n, &tile)?;
        }
        self.told += list.told();
        Ok(())
    }
}

/// A kernel of (1, 2, 1) / 4 over `tile` along the way; `before` and `after` are its neighbours. At the image's own
/// edges (`first`, `last`) the outermost pixel is its own neighbour.
fn smooth(
    way: Way,
    before: &[u8],
    tile: &[u8],
    after: &[u8],
    out: &mut [u8],
    first: bool,
    last: bool,
) {
    let mix = |a: &[u8], b: &[u8], c: &[u8], out: &mut [u8]| {
        for (((a, b), c), out) in a.iter().zip(b).zip(c).zip(out) {
            *out = ((u16::from(*a) + 2 * u16::from(*b) + u16::from(*c)) / 4) as u8;
        }
    };
    match way {
        Way::Columns => {
            // Lines of pixels lie one after the other.
            let line = |n: usize| &tile[n * LINE..][..LINE];
            for n in 0..EDGE {
                let above = match n {
                    0 if first => line(0),
                    0 => &before[TILE - LINE..],
                    _ => line(n - 1),
                };
                let below = match n + 1 {
                    EDGE if last => line(n),
                    EDGE => &after[..LINE],
                    _ => line(n + 1),
                };
                mix(above, line(n), below, &mut out[n * LINE..][..LINE]);
            }
        }
        Way::Rows => {
            // A line with a pixel of each neighbour at its ends.
            let mut wide = [0; LINE + 2 * PIXEL];
            for n in 0..EDGE {
                let line = &tile[n * LINE..][..LINE];
                let left = if first {
                    line
                } else {
                    &before[(n + 1) * LINE - PIXEL..]
                };
                let right = if last {
                    &line[LINE - PIXEL..]
                } else {
                    &after[n * LINE..]
                };
                wide[..PIXEL].copy_from_slice(&left[..PIXEL]);
                wide[PIXEL..PIXEL + LINE].copy_from_slice(line);
                wide[PIXEL + LINE..].copy_from_slice(&right[..PIXEL]);
                let out = &mut out[n * LINE..][..LINE];
                mix(&wide, &wide[PIXEL..], &wide[2 * PIXEL..], out);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrider_sim::random::Random;

    /// LP, section 5.3: what the tiles say is what a blur of the whole image says.
    #[test]
    fn tiles_blur_as_the_whole_image_does() {
        for (width, height) in [(1, 1), (1, 3), (4, 1), (4, 2), (2, 8)] {
            let tiles = (width * height) as usize;
            let mut image = vec![0; tiles * TILE];
            Random::new(width * 100 + height).fill(&mut image);
            let dir = tempfile::tempdir().unwrap();
            let swap = dir.path().join("swap");
            let mut bytes = image.clone();
            bytes.resize(3 * tiles * TILE, 0xaa);
            std::fs::write(&swap, &bytes).unwrap();
            run(&Args {
                swap: swap.clone(),
                width: Some(width),
                hint: true,
                declare: false,
            })
            .unwrap();
            let after = std::fs::read(&swap).unwrap();
            assert!(after[..image.len()] == image[..], "the image was changed");

            // The whole image, pixel by pixel.
            let (across, down) = (width as usize * EDGE, height as usize * EDGE);
            let at = |x: usize, y: usize, c: usize| {
                let tile = (y / EDGE) * width as usize + x / EDGE;
                tile * TILE + (y % EDGE) * LINE + (x % EDGE) * PIXEL + c
            };
            let blurred = |from: &[u8], vertical: bool| {
                let mut to = vec![0; from.len()];
                for y in 0..down {
                    for x in 0..across {
                        for c in 0..PIXEL {
                            let (before, next) = if vertical {
                                (at(x, y.max(1) - 1, c), at(x, (y + 1).min(down - 1), c))
                            } else {
                                (at(x.max(1) - 1, y, c), at((x + 1).min(across - 1), y, c))
                            };
                            let sum = u16::from(from[before])
                                + 2 * u16::from(from[at(x, y, c)])
                                + u16::from(from[next]);
                            to[at(x, y, c)] = (sum / 4) as u8;
                        }
                    }
                }
                to
            };
            let expected = blurred(&blurred(&image, true), false);
            assert!(
                after[2 * image.len()..] == expected[..],
                "{width} x {height} tiles"
            );
        }
    }
}
