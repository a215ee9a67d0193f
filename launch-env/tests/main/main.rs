//! What users' environments look like, and what this crate says to each: whole files and variables in, values or the
//! line that a user reads out.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use nuvec_launch_env::{Error, ErrorKind, LaunchEnv, Settings, read};
use tempfile::TempDir;

mod arbitrary;
mod half;
mod jaccl;
mod ring;
mod settings;

/// An environment in the making: variables, and the files that some of them name.
struct Env {
    vars: BTreeMap<String, String>,
    folder: TempDir,
}

impl Env {
    fn new(vars: &[(&str, &str)]) -> Self {
        let vars = vars.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Self { vars, folder: tempfile::tempdir().expect("a folder for the files") }
    }

    /// Lets `variable` name a new file with this content.
    fn file(mut self, variable: &str, content: impl AsRef<[u8]>) -> Self {
        let path = self.path(variable);
        fs::write(&path, content).expect("the file is written");
        self.vars.insert(variable.to_owned(), path.to_str().expect("a path in UTF-8").to_owned());
        self
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn read(&self) -> Result<LaunchEnv, Error> {
        read(&self.vars)
    }

    /// The error's line, with the folder's path left out. It must be one line of sane length.
    fn error(&self) -> (String, ErrorKind) {
        let error = self.read().expect_err("an error");
        let line = error.to_string();
        assert!(!line.contains(char::is_control) && line.len() < 900, "one line of sane length: {line:?}");
        (line.replace(self.folder.path().to_str().expect("a path in UTF-8"), ""), error.kind().clone())
    }
}

/// Reads settings alone.
fn settings(vars: &[(&str, &str)]) -> Result<Settings, Error> {
    Ok(Env::new(vars).read()?.settings)
}
