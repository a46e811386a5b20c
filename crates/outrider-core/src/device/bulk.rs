//! How what may be read some time goes to a device beside a program that waits for each of its own reads there.
//!
//! It goes in pieces. Beside a device that has room for one request more, a piece delays a read of the program's only by what is left of its transfer when both are due at
//! once: the shorter the pieces, the less, by the square. A device that has none does one after the other, and a piece costs all of its time; then longer ones cost less
//! a byte. Which of the two it is shows in two small requests that are made at once: where there is no room, the second waits for the first. How long pieces may be shows
//! in what they take.

use outrider_sys::units::PAGE;

use super::Seeks;

/// Bytes of the shortest piece: a read of a few pages, which most devices answer about as soon as one of a page.
const LEAST: u64 = 16 << 10;
/// … but no less than what a slow device transfers in a quarter of the time that it takes to answer, bytes/µs. One that has a head begins with pieces of which two thirds are
/// transfer ([`LONG`]): shorter ones are dearer than many a program's own reads, and none would be bought by which it could be seen that longer ones are not.
const SLOW: f64 = 100.0;
/// Where there is no room it begins with so many: one as short as many a program's reads takes as long as they do, and is as dear.
const SERIAL: u64 = 4 * LEAST;
/// Bytes of the longest: at 100 MB/s 40 ms.
const MOST: u64 = 4 << 20;
/// Pieces on their way at once, at most.
const MOST_PIECES: u64 = 8;
/// Pieces of one size after which the next is tried.
const ENOUGH: u32 = 3;
/// Pieces after which a size is tried again that was too long: others may have been in its way.
const RETRY: u32 = 64;
/// Tries by which it is judged whether there is room.
pub const TRIES: u32 = 2;
/// There is room where the second of two requests waits for so much of the time of a lone one at most.
pub const ROOM: f64 = 0.4;
/// No request, and no several, take less time than a lone one: with so much of it something else was in its way.
const LESS: f64 = 0.8;
/// Where there is room a piece may take so many times what a small request takes: a quarter of it is transfer …
const SHORT: f64 = 1.3;
/// … and where there is none, so many times what the shortest takes: two thirds are transfer.
const LONG: f64 = 3.0;

/// The quicker of two times, of which the first may not be known yet.
fn quicker(known: f64, us: f64) -> f64 {
    match known {
        0.0 => us,
        known => known.min(us),
    }
}

/// What a device transfers beside pieces, and how quickly.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    /// Bytes per µs.
    pub bandwidth: f64,
    /// Bytes of one of the program's reads.
    pub each: f64,
}

/// What pieces take on a device.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bulk {
    /// Bytes of the shortest piece; 0: none was asked for.
    least: u64,
    /// Bytes of a piece.
    piece: u64,
    /// What those of this size take, µs, and how many there were.
    took_us: f64,
    count: u32,
    /// What the shortest take, µs; 0: not known yet.
    shortest_us: f64,
    /// What small requests have taken at the quickest that were made alone, and the last of several that were made at once, µs; 0: none was. And how often several were.
    lone_us: f64,
    several_us: f64,
    tries: u32,
    /// The next size was too long.
    settled: bool,
    /// The device has a head: there is never room.
    head: bool,
}

impl Bulk {
    /// Bytes of a small request, at most: what a slow device transfers meanwhile is no matter.
    pub const SMALL: u64 = PAGE;

    /// Bytes of a short request, at most: on no device is its transfer much of the time that it takes.
    pub const SHORT: u64 = LEAST;

    /// A small request was made alone.
    pub fn lone(&mut self, us: f64) {
        if self.tries == 0 {
            self.lone_us = quicker(self.lone_us, us);
        }
    }

    /// Undisturbed the device answers in `us`. If the small request that was made alone has taken much longer, what was concluded from that is void.
    pub fn answers_in(&mut self, us: f64) {
        if self.was_disturbed(us) {
            *self = Bulk {
                lone_us: us,
                ..Bulk::default()
            };
        }
    }

    /// Whether something else was in the way of the small request that was made alone: others, or several at once, have taken less.
    pub fn was_disturbed(&self, others_us: f64) -> bool {
        others_us < LESS * self.lone_us
    }

    /// Several small requests were made at once, and all had arrived after `us`; so many that once tells all, or else two.
    pub fn several(&mut self, us: f64, telling: bool) {
        self.tries += if telling { TRIES } else { 1 };
        self.several_us = quicker(self.several_us, us);
    }

    /// What a small request takes alone, µs, if that was tried.
    pub fn lone_us(&self) -> Option<f64> {
        (self.lone_us > 0.0).then_some(self.lone_us)
    }

    /// How often several requests were made at once.
    pub fn tries(&self) -> u32 {
        self.tries
    }

    /// Bytes of a piece, on a device that answers in `latency_us`.
    pub fn piece(&self, latency_us: f64) -> u64 {
        match self.piece {
            0 => {
                let (part, most) = match self.head && Seeks::of(self.lone_us) == Seeks::Yes {
                    true => (LONG - 1.0, MOST / 2),
                    false => (0.25, MOST / 8),
                };
                let slow = (latency_us * SLOW * part) as u64;
                let least = match self.tries >= TRIES && !self.has_room() {
                    true => SERIAL,
                    false => LEAST,
                };
                (slow.next_power_of_two() / 2).clamp(least, most)
            }
            piece => piece,
        }
    }

    /// Pieces on their way at once, at most: where there is room, so many that their transfer takes half of the time in which the device answers. A read then waits for
    /// the rest of one of them.
    pub fn pieces(&self) -> u64 {
        let transfer = self.took_us - self.lone_us;
        match self.has_room() {
            true if transfer > 0.0 => {
                ((self.lone_us / 2.0 / transfer) as u64).clamp(2, MOST_PIECES)
            }
            true => 2,
            false => 1,
        }
    }

    /// A piece of `bytes` took `us`, on a device that answers in `latency_us`.
    pub fn arrived(&mut self, bytes: u64, us: f64, latency_us: f64) {
        if self.piece == 0 {
            self.piece = self.piece(latency_us);
            self.least = self.piece;
        }
        // A part of one may have been there.
        if bytes > self.piece || bytes < self.piece / 4 * 3 {
            return;
        }
        self.count += 1;
        // Whatever interferes makes it only longer.
        let weight = match us < self.took_us {
            true => 0.5,
            false => 0.1,
        };
        self.took_us += (us - self.took_us) * if self.count == 1 { 1.0 } else { weight };
        if self.count < ENOUGH {
            return;
        }
        if bytes == self.least {
            self.shortest_us = self.took_us;
        }
        let most = match self.has_room() {
            true => self.lone_us * SHORT,
            false => self.shortest_us * LONG,
        };
        let settled = self.settled && self.count < RETRY;
        if self.took_us > most && self.piece > self.least {
            self.resize(self.piece / 2);
            self.settled = true;
        } else if !settled && self.took_us < most && self.piece < MOST {
            self.resize(self.piece * 2);
        }
    }

    fn resize(&mut self, piece: u64) {
        let transfer = (self.took_us - self.shortest_us).max(0.0);
        self.took_us += transfer * (piece as f64 / self.piece as f64 - 1.0);
        (self.piece, self.count) = (piece, 0);
    }

    /// The same of a device that has a head, or has none. `streams`: what it takes to answer, and what each of many requests that were on their way together took of its
    /// time, µs, where these have shown that it does several at once: then that need not be tried.
    pub fn with(self, head: bool, streams: Option<(f64, f64)>) -> Bulk {
        match streams {
            Some((latency_us, each_us)) if self.tries < TRIES => Bulk {
                head,
                lone_us: latency_us,
                several_us: latency_us + each_us,
                tries: TRIES,
                ..self
            },
            _ => Bulk { head, ..self },
        }
    }

    /// Whether the device has room for a request beside those of the program, as far as is known.
    pub fn has_room(&self) -> bool {
        self.does_several() && !self.head
    }

    /// Whether it does several requests at once.
    pub fn does_several(&self) -> bool {
        self.tries >= TRIES && self.waits_us() < ROOM * self.lone_us
    }

    /// How long the second of two requests waits for the first, µs.
    fn waits_us(&self) -> f64 {
        (self.several_us - self.lone_us).max(0.0)
    }

    /// By how much a piece delays a program that waits for each of its reads there for `read_us`, µs.
    pub fn delay_us(&self, read_us: f64, link: &Link) -> f64 {
        if !self.has_room() {
            return self.takes_us(read_us, link);
        }
        let transfer = self.transfer_us(read_us, link);
        let met = (transfer / read_us.max(1.0)).min(1.0);
        self.waits_us() / 2.0 + met * transfer / 2.0
    }

    /// The same where as many are on their way as the device takes: the program waits behind all of them. Nobody hurries before it is known what they take.
    pub fn hurried_us(&self, read_us: f64, link: &Link) -> f64 {
        match self.has_room() {
            _ if self.shortest_us == 0.0 && !self.head => f64::INFINITY,
            true => self.transfer_us(read_us, link),
            false => self.takes_us(read_us, link),
        }
    }

    /// Whether it is known what a piece takes.
    pub fn is_known(&self) -> bool {
        self.count > 0 || self.shortest_us > 0.0
    }

    /// What a piece takes; before any was seen, what is known of the program's reads says it.
    fn takes_us(&self, read_us: f64, link: &Link) -> f64 {
        match self.took_us {
            0.0 => {
                let more = self.piece(read_us) as f64 - link.each;
                (read_us + more / link.bandwidth.min(SLOW)).max(read_us * 1.25)
            }
            _ => self.took_us,
        }
    }

    /// What of a piece's time is transfer, where the device delivers so many bytes/µs. Beside others a small request takes longer than it does alone, and leaves too
    /// little of the difference, and a piece that meets one of the program's waits for its transfer.
    fn transfer_us(&self, read_us: f64, link: &Link) -> f64 {
        let least = self.piece(read_us) as f64 / link.bandwidth;
        let met_us = link.each / link.bandwidth;
        (self.takes_us(read_us, link) - self.lone_us - met_us).max(least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device that answers in `latency` µs, delivers `bandwidth` bytes/µs, and does several requests at once, or one after the other.
    fn tried(latency: f64, bandwidth: f64, parallel: bool) -> Bulk {
        let mut bulk = Bulk::default();
        let small = PAGE as f64 / bandwidth;
        for _ in 0..TRIES {
            bulk.lone(latency + small);
            let second = if parallel { small } else { latency + small };
            bulk.several(latency + small + second, false);
        }
        for _ in 0..RETRY {
            let piece = bulk.piece(latency);
            bulk.arrived(piece, latency + piece as f64 / bandwidth, latency);
        }
        bulk
    }

    /// B11: beside a device's room pieces are short, and cost less than their transfer; where there is none they cost all of their time, and are longer.
    #[test]
    fn pieces_are_as_long_as_they_may_be() {
        for (latency, bandwidth) in [(80.0, 1400.0), (500.0, 1000.0), (800.0, 125.0)] {
            let [room, none] = [true, false].map(|parallel| tried(latency, bandwidth, parallel));
            assert!(room.has_room() && !none.has_room());
            let piece = room.piece(latency);
            let transfer = piece as f64 / bandwidth;
            let link = Link {
                bandwidth,
                each: 0.0,
            };
            assert!(transfer <= latency / 2.0, "{piece} of {latency} µs");
            assert!(transfer * room.pieces() as f64 <= latency, "{piece}");
            assert!(room.delay_us(latency, &link) < transfer / 2.0);
            assert!(none.piece(latency) > piece && none.pieces() == 1);
            assert!(none.delay_us(latency, &link) >= latency);
        }
    }
}
