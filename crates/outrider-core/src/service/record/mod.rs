//! Recordings: what passed through the service's seams in a run, from which the same code can be driven again.
//!
//! A service is a function of what it sees: the time, what programs tell, and what the kernel answers. A recording has all of it, round by round, and what the
//! service did: which requests it made, what it wrote for the programs, and what it dropped from the cache. A [replay](mod@replay) shows the same service the same
//! things and compares what it does. So a change that must not change anything can be proven not to, for every run that somebody has recorded.
//!
//! That works because in a run that is recorded everything happens in rounds. The service has copies of the programs' memory ([`ferry`]), which
//! change between two rounds only, its clock stands still in a round, and what workers have done becomes known between two rounds, too.
//!
//! A query of the kernel has a name and arguments. A replay answers it as it was answered in the same round, or last; so a query that is made once more, or
//! once less, than in the recording is no difference.
//!
//! What isn't recorded: walks through directories, which have threads of their own, processes with other rights, and the kernel module's bitmaps.
//!
//! # The format
//! Text, a line each, fields separated by blanks, numbers decimal unless said otherwise:
//!
//! | line | what |
//! | --- | --- |
//! | `outrider-recording 1 MODE WORKERS PID` | the first; `shm::MODE_*`, jobs that are done at once (0: nothing is fetched), number of the service's process |
//! | `config TEXT` | the configuration, TOML, as [`text`](log::escaped) |
//! | `R NS` | a round begins so many nanoseconds after the last |
//! | `M NAME` | a process hands its memory over, the next from 0 on: its command as text |
//! | `D M AT VALUE` | process `M` has written a word at byte `AT`, all hexadecimal |
//! | `E M KIND FD GENERATION EXTRA OFFSET LEN` | it has told an event; EXTRA hexadecimal |
//! | `G DEV INO` | a file was let go of |
//! | `J N i NS HANDED READ FAILED` | job `N`, requests, was done: begun at this time; READ or `-`; indices and reasons |
//! | `J N a NS SEEN OVERDUE` | job `N`, a wait, has ended at this time |
//! | `J N w` | job `N`, a wait, was given up for the moment |
//! | `Q NAME ARGUMENTS = ANSWER` | a query |
//! | `> i DEV INO RANGES` | the next job: these bytes of a file are asked for |
//! | `> a DEV INO LAST` | the next job: this byte of a file is waited for |
//! | `W M AT VALUE` | the service has written a word at byte `AT`, all hexadecimal |
//! | `X DEV INO RANGE` | it has dropped this from the cache |

pub mod ferry;
pub mod log;
mod recorder;
mod replay;

pub use recorder::{Recorder, record, record_nothing};
pub use replay::{Difference, Recording, Replayed};
