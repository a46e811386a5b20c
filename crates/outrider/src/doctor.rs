//! `outrider doctor`: what this machine, and a program on it, allow, and what is lost by each no.

mod place;

use std::io::{self, BufWriter, Write};
use std::path::Path;

use serde_json::{Value, json};

use outrider_sys::caps::{self, Capability};
use outrider_sys::device::Device;
use outrider_sys::memory;

use crate::cli::DoctorArgs;
use crate::elf::{self, ProgramKind};
use crate::output::{self, Failure, Outcome, bytes, show};

/// How a finding is to be taken.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Yes,
    No,
    /// Neither good nor bad, or not known.
    Info,
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Self::Yes => "yes",
            Self::No => "no",
            Self::Info => "info",
        }
    }
}

/// One line of the report.
struct Finding {
    name: &'static str,
    verdict: Verdict,
    /// What was found.
    detail: String,
    /// What is lost by a no.
    lost: Option<&'static str>,
}

fn check(name: &'static str, answer: Capability, lost: &'static str) -> Finding {
    match answer {
        Capability::Yes => Finding {
            name,
            verdict: Verdict::Yes,
            detail: String::new(),
            lost: None,
        },
        Capability::No(detail) => Finding {
            name,
            verdict: Verdict::No,
            detail,
            lost: Some(lost),
        },
        Capability::Unknown(detail) => Finding {
            name,
            verdict: Verdict::Info,
            detail,
            lost: None,
        },
    }
}

fn info(name: &'static str, detail: String) -> Finding {
    Finding {
        name,
        verdict: Verdict::Info,
        detail,
        lost: None,
    }
}

fn machine(at: &Path) -> Vec<Finding> {
    let mut all = vec![
        info("kernel", caps::kernel_release()),
        check(
            "cachestat",
            caps::cachestat_own(),
            "what is cached is counted with the slower mincore, and reads of cached files are not left alone",
        ),
        check(
            "cachestat_foreign",
            caps::cachestat_foreign(),
            "residency of files that you neither own nor may write to stays unknown; cached bytes may be asked for again",
        ),
        check(
            "kernel_module",
            caps::kernel_module(),
            "what is cached is asked of cachestat, and requests are cut to what no kernel clips",
        ),
        check(
            "io_uring",
            caps::io_uring(),
            "--engine uring falls back to threads, which are as fast as far as measured",
        ),
        check(
            "pidfd_getfd",
            caps::pidfd_getfd_self(),
            "nothing today: files are opened through /proc/PID/fd",
        ),
        check(
            "pidfd_getfd_child",
            caps::pidfd_getfd_child(),
            "nothing today: files are opened through /proc/PID/fd",
        ),
        check(
            "populate_read",
            caps::populate_read(),
            "when prefetched data has arrived is estimated, and the device is not measured",
        ),
        check(
            "pagemap",
            caps::pagemap(),
            "memory-mapped reads are not foreseen",
        ),
        check(
            "pagemap_scan",
            caps::pagemap_scan(),
            "accesses through memory maps cost more to look up",
        ),
    ];
    all.push(match caps::yama_ptrace_scope() {
        None => info("yama", "not built in: processes of one user may look into each other".to_owned()),
        Some(0) => info("yama", "ptrace_scope 0: processes of one user may look into each other".to_owned()),
        Some(1) => info("yama", "ptrace_scope 1: only a process and its ancestors may look into it".to_owned()),
        Some(n) => Finding {
            name: "yama",
            verdict: Verdict::No,
            detail: format!("ptrace_scope {n}"),
            lost: Some("memory-mapped reads may not be foreseen without root, since the service reads the program's page map"),
        },
    });
    let memory = memory::memory();
    all.push(match memory.tightest() {
        Some(cgroup) => info(
            "cgroup_limit",
            format!(
                "{} in {}, {} of it left for cache",
                bytes(cgroup.limit),
                show(&cgroup.path),
                bytes(cgroup.headroom())
            ),
        ),
        None => info("cgroup_limit", "none".to_owned()),
    });
    all.push(info(
        "memory",
        format!(
            "{} available of {}{}",
            bytes(memory.available),
            bytes(memory.total),
            if memory.estimated {
                ", estimated: /proc/meminfo can't be read"
            } else {
                ""
            }
        ),
    ));
    all.push(match memory.psi_some_avg10 {
        Some(avg10) => Finding {
            name: "psi",
            verdict: Verdict::Yes,
            detail: format!("some task waited for memory {avg10} % of the last 10 s"),
            lost: None,
        },
        None => Finding {
            name: "psi",
            verdict: Verdict::No,
            detail: "no /proc/pressure/memory".to_owned(),
            lost: Some("memory pressure is noticed later, when pages vanish"),
        },
    });
    all.push(readahead_clip(at));
    all.extend(place::findings(at));
    all
}

fn readahead_clip(at: &Path) -> Finding {
    let name = "readahead_clip";
    let device = match Device::of_path(at) {
        Ok(device) => device,
        Err(e) => return info(name, format!("{}: {e}", show(at))),
    };
    let mount = device.mount.as_ref();
    let place = match (&device.block_name, mount) {
        (Some(name), _) => name.clone(),
        (None, Some(mount)) => format!("{} {}", show(&mount.fs_type), show(&mount.source)),
        (None, None) => device.id.to_string(),
    };
    if device.is_memory() {
        return info(
            name,
            format!("{place}: files live in memory, nothing to prefetch"),
        );
    }
    match device.readahead_clip() {
        Some(clip) if clip >= outrider_sys::device::UNCLIPPED_CHUNK => info(
            name,
            format!(
                "{place}: one readahead call reads at most {}; ours are smaller",
                bytes(clip)
            ),
        ),
        Some(clip) => Finding {
            name,
            verdict: Verdict::No,
            detail: format!("{place}: one readahead call reads at most {}", bytes(clip)),
            lost: Some("requests are cut smaller than 128 KiB: more calls for the same bytes"),
        },
        None => info(
            name,
            format!("{place}: not known; 128 KiB are assumed to pass"),
        ),
    }
}

fn program_findings(kind: &ProgramKind) -> Vec<Finding> {
    let mut all = vec![info("kind", kind.describe())];
    all.push(match kind.cannot_hook_reason() {
        Some(reason) => Finding {
            name: "hooks",
            verdict: Verdict::No,
            detail: format!("it {reason}"),
            lost: Some("outrider run starts it unchanged and prefetches nothing for it"),
        },
        None if *kind == ProgramKind::NotAProgram => Finding {
            name: "hooks",
            verdict: Verdict::No,
            detail: "neither an ELF program nor a script with #!".to_owned(),
            lost: Some("outrider run cannot start it"),
        },
        None => Finding {
            name: "hooks",
            verdict: Verdict::Yes,
            detail: String::new(),
            lost: None,
        },
    });
    if let Some(missed) = kind.may_miss() {
        all.push(Finding {
            name: "all_reads_seen",
            verdict: Verdict::No,
            detail: format!("it {missed}"),
            lost: Some("reads made that way are not seen; those through the C library are"),
        });
    }
    all
}

fn findings_json(findings: &[Finding]) -> Value {
    findings
        .iter()
        .map(|f| {
            (
                f.name.to_owned(),
                json!({"verdict": f.verdict.word(), "detail": f.detail, "lost": f.lost}),
            )
        })
        .collect::<serde_json::Map<_, _>>()
        .into()
}

fn write_findings(out: &mut impl Write, findings: &[Finding]) -> io::Result<()> {
    for f in findings {
        let verdict = if f.verdict == Verdict::Info {
            ""
        } else {
            f.verdict.word()
        };
        let line = format!(
            "  {:<18} {verdict:<4} {}",
            f.name.replace('_', " "),
            f.detail
        );
        writeln!(out, "{}", line.trim_end())?;
        if let Some(lost) = f.lost {
            writeln!(out, "  {:<18}      lost: {lost}", "")?;
        }
    }
    Ok(())
}

/// Runs the subcommand. A no is an answer, not a failure: exit code 0.
pub fn command(args: &DoctorArgs) -> Outcome {
    let program = match &args.program {
        None => None,
        Some(name) => {
            let refused = |what: &str| {
                Failure::usage(format!(
                    "{}: {what}; accepted are the path of a file or the name of a program in PATH",
                    show(name)
                ))
            };
            let path = elf::look_up(name.as_os_str()).ok_or_else(|| refused("no such program"))?;
            let kind = elf::classify(&path).map_err(|e| refused(&e.to_string()))?;
            Some((path, kind))
        }
    };
    let at = match &args.at {
        Some(at) if !at.exists() => {
            return Err(Failure::usage(format!(
                "--at {}: not there; accepted is a file or a directory",
                show(at)
            )));
        }
        Some(at) => at,
        None => Path::new("."),
    };
    let machine = machine(at);
    if args.json {
        let mut document = json!({"machine": findings_json(&machine)});
        if let Some((path, kind)) = &program {
            let shown = json!({
                "kind": kind.tag(),
                "description": kind.describe(),
                "hookable": kind.cannot_hook_reason().is_none() && *kind != ProgramKind::NotAProgram,
                "reason": kind.cannot_hook_reason(),
                "may_miss": kind.may_miss(),
            });
            document["program"] = output::with_path(shown, "path", path);
        }
        output::print_json(&document)?;
        return Ok(0);
    }
    let mut out = BufWriter::new(io::stdout().lock());
    writeln!(out, "this machine")?;
    write_findings(&mut out, &machine)?;
    if let Some((path, kind)) = &program {
        writeln!(out, "{}", show(path))?;
        write_findings(&mut out, &program_findings(kind))?;
    }
    writeln!(out, "docs/troubleshooting.md explains each line")?;
    out.flush()?;
    Ok(0)
}
