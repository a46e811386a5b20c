//! Names of files of which nothing is fetched ahead: `files.exclude`.

use std::path::Path;

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

/// Patterns at most: each path is held against all of them.
const MOST: usize = 1024;

/// What is excluded, and all that lies below it.
#[derive(Clone, Debug, Default)]
pub struct Excluded(GlobSet);

impl Excluded {
    /// Patterns as in a shell: `*` and `?` stop at a slash, `**` does not. What is wrong with one, in a line without the key.
    pub fn new(patterns: &[String]) -> Result<Excluded, String> {
        if patterns.len() > MOST {
            return Err(format!("{} patterns; accepted are {MOST}", patterns.len()));
        }
        let mut set = GlobSetBuilder::new();
        for pattern in patterns {
            let bad = |why: &str| {
                format!(
                    "{pattern:?} {why}; accepted are patterns of absolute paths such as \"/mnt/s3/**\""
                )
            };
            if !pattern.starts_with('/') {
                return Err(bad("is no absolute path"));
            }
            let glob = |text: &str| {
                let mut glob = GlobBuilder::new(text);
                let glob = glob.literal_separator(true).backslash_escape(true).build();
                glob.map_err(|e| bad(&format!("is no pattern: {}", e.kind())))
            };
            set.add(glob(pattern)?);
            // A listing shows what lies below.
            if let Some(above) = pattern
                .strip_suffix("/**")
                .filter(|above| !above.is_empty())
            {
                set.add(glob(above)?);
            }
        }
        let set = set.build().map_err(|e| e.to_string())?;
        Ok(Excluded(set))
    }

    /// Whether nothing is.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a path is, or something above it.
    pub fn holds(&self, path: &Path) -> bool {
        !self.is_empty() && path.ancestors().any(|p| self.0.is_match(p))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_exclude_what_lies_below() {
        let patterns = ["/mnt/s3/**", "/home/*/cold", "/data/[ab]?"].map(str::to_owned);
        let excluded = Excluded::new(&patterns).unwrap();
        for (path, out) in [
            ("/mnt/s3", true),
            ("/mnt/s3/a/b", true),
            ("/mnt/s3b/a", false),
            ("/mnt", false),
            ("/home/me/cold", true),
            ("/home/me/cold/x/y", true),
            ("/home/me/x/cold", false),
            ("/data/a1/x", true),
            ("/data/c1", false),
        ] {
            assert_eq!(excluded.holds(Path::new(path)), out, "{path}");
        }
        assert!(!Excluded::default().holds(Path::new("/")));
        for bad in ["mnt/**", "", "/mnt/[a", "/mnt/{a"] {
            let told = Excluded::new(&[bad.to_owned()]).unwrap_err();
            assert!(
                told.contains("; accepted are patterns") && !told.contains('\n'),
                "{told}"
            );
        }
    }
}
