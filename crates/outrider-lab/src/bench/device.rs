//! Which devices are meant: names of models, with parameters.

use outrider_sim::model::PRESETS;

use crate::disk;
use crate::output::{Failure, Outcome};

/// A model with its parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct Device {
    /// For people and results: `nvme`, `hdd scale=0.1`.
    pub label: String,
    /// For the emulator: a preset and all that differs from it.
    pub words: String,
}

/// Reads `nvme,remote,hdd`, where words such as `scale=0.5` belong to the name before them. A device with a head takes
/// its times `head_scale`, unless its words say otherwise.
pub fn parse(list: &str, head_scale: f64) -> Outcome<Vec<Device>> {
    let mut devices: Vec<String> = Vec::new();
    for word in list.split([',', ' ']).filter(|w| !w.is_empty()) {
        match (word.contains('='), devices.last_mut()) {
            (true, Some(last)) => {
                last.push(' ');
                last.push_str(word);
            }
            (true, None) => {
                return Err(Failure::usage(format!(
                    "--device {list}: '{word}' stands before any model's name"
                )));
            }
            _ => devices.push(word.to_owned()),
        }
    }
    if devices.is_empty() {
        return Err(Failure::usage(format!(
            "--device: no model named; accepted are {}, separated by commas",
            measurable()
        )));
    }
    devices
        .into_iter()
        .map(|label| one(label, head_scale))
        .collect()
}

/// The models on which something can be measured.
fn measurable() -> String {
    let names: Vec<&str> = PRESETS.iter().copied().filter(|p| *p != "off").collect();
    names.join(", ")
}

fn one(mut label: String, head_scale: f64) -> Outcome<Device> {
    disk::check_model(&label).map_err(|e| Failure::usage(format!("--device {label}: {e}")))?;
    if label.contains("stall=") || label.split(' ').any(|w| w == "off") {
        return Err(Failure::usage(format!(
            "--device {label}: nothing can be measured on that; accepted are {}",
            measurable()
        )));
    }
    let scaled = label.contains("scale=");
    if !scaled && disk::has_head(&label) && head_scale != 1.0 {
        label.push_str(&format!(" scale={head_scale}"));
    }
    // A preset's name leaves an earlier scale and bad ranges as they are.
    let (preset, rest) = label.split_once(' ').unwrap_or((&label, ""));
    let words = format!("{preset} scale=1 eio=none {rest}");
    Ok(Device {
        words: words.trim_end().to_owned(),
        label,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_belong_to_the_model_before_them() {
        let parsed = parse("nvme,remote,scale=0.5,jitter=0.1,hdd", 0.1).unwrap();
        let labels: Vec<_> = parsed.iter().map(|d| d.label.as_str()).collect();
        assert_eq!(
            labels,
            ["nvme", "remote scale=0.5 jitter=0.1", "hdd scale=0.1"]
        );
        assert_eq!(parsed[2].words, "hdd scale=1 eio=none scale=0.1");
        assert_eq!(parse("hdd", 1.0).unwrap()[0].label, "hdd");
        assert_eq!(parse("hdd,scale=2", 0.1).unwrap()[0].label, "hdd scale=2");
        for bad in ["", "scale=1", "floppy", "off", "nvme,latency=1"] {
            assert_eq!(parse(bad, 1.0).unwrap_err().code, 2, "{bad}");
        }
    }
}
