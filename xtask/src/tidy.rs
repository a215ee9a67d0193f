//! `cargo xtask tidy`: the rules that the workspace's text must keep.
//!
//! A rule is a sentence that ARCHITECTURE.md carries, and a check that names file and line of what breaks it. The
//! checks read text, nothing is parsed: they catch what is written by habit, not what is written to deceive. The
//! rules are in [`rules`].

mod rules;

use std::path::{Path, PathBuf};

use clap::Args;

use crate::{Result, cargo};

/// Options of `tidy`.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct Options {
    /// Print the sentences that ARCHITECTURE.md carries, and check nothing
    #[arg(long)]
    list: bool,
}

/// The command itself.
pub(crate) fn main(options: &Options) -> Result<bool> {
    if options.list {
        for rule in rules::RULES {
            println!("- {}", rule.sentence);
        }
        return Ok(true);
    }
    let tree = Tree::read(&cargo::root())?;
    let mut broken = 0;
    for rule in rules::RULES {
        for violation in (rule.check)(&tree) {
            println!("{}: {}", rule.name, violation);
            broken += 1;
        }
    }
    for violation in unstated(&tree) {
        println!("stated: {violation}");
        broken += 1;
    }
    match broken {
        0 => println!("tidy: {} rules kept in {} files", rules::RULES.len(), tree.files.len()),
        _ => println!("tidy: {broken} violations"),
    }
    Ok(broken == 0)
}

/// A rule.
struct Rule {
    /// What violations are listed under.
    name: &'static str,
    /// How ARCHITECTURE.md says it.
    sentence: &'static str,
    /// Finds what breaks it.
    check: fn(&Tree) -> Vec<Violation>,
}

/// What breaks a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Violation {
    file: PathBuf,
    line: usize,
    text: String,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}: {}", self.file.display(), self.line, self.text)
    }
}

/// The workspace's text files, by their path in it.
struct Tree {
    files: Vec<(PathBuf, String)>,
}

/// Folders that hold nothing of ours.
const SKIPPED: [&str; 3] = ["target", ".git", "node_modules"];

impl Tree {
    /// Reads every text file below `root`.
    fn read(root: &Path) -> Result<Self> {
        let mut files = Vec::new();
        let mut folders = vec![root.to_path_buf()];
        while let Some(folder) = folders.pop() {
            let entries = std::fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
            for entry in entries {
                let entry = entry.map_err(|e| format!("{}: {e}", folder.display()))?;
                let (path, name) = (entry.path(), entry.file_name());
                let kind = entry.file_type().map_err(|e| format!("{}: {e}", path.display()))?;
                if kind.is_dir() {
                    if !SKIPPED.iter().any(|skipped| name == *skipped) {
                        folders.push(path);
                    }
                } else if kind.is_file()
                    && let Ok(text) = std::fs::read_to_string(&path)
                {
                    files.push((path.strip_prefix(root).unwrap_or(&path).to_path_buf(), text));
                }
            }
        }
        files.sort();
        Ok(Self { files })
    }

    /// The text of one file.
    fn file(&self, path: &str) -> Option<&str> {
        self.files.iter().find(|(p, _)| p == Path::new(path)).map(|(_, text)| text.as_str())
    }

    /// The files below one of `folders` whose names end with `extension`.
    fn below<'a>(&'a self, folders: &'a [&str], extension: &'a str) -> impl Iterator<Item = (&'a Path, &'a str)> {
        self.files
            .iter()
            .filter(move |(path, _)| {
                folders.iter().any(|f| path.starts_with(f)) && path.extension().is_some_and(|e| e == extension)
            })
            .map(|(path, text)| (path.as_path(), text.as_str()))
    }

    /// Whether a file or a folder is there.
    fn has(&self, path: &Path) -> bool {
        self.files.iter().any(|(p, _)| p.starts_with(path))
    }
}

/// Rules that ARCHITECTURE.md does not state.
fn unstated(tree: &Tree) -> Vec<Violation> {
    let text = words(tree.file("ARCHITECTURE.md").unwrap_or_default());
    let missing = rules::RULES.iter().filter(|rule| !text.contains(&words(rule.sentence)));
    missing
        .map(|rule| Violation {
            file: "ARCHITECTURE.md".into(),
            line: 1,
            text: format!("lacks the sentence of the rule \"{}\": {}", rule.name, rule.sentence),
        })
        .collect()
}

/// A text with every run of white space as one blank, so that lines may be broken anywhere.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
