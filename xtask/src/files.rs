//! Files for the programs that are started here: where they can lie, and errors that name them.

use std::path::Path;

use tempfile::TempDir;

use crate::Result;

/// A temporary folder, which is gone when this is dropped.
pub(crate) fn folder() -> Result<TempDir> {
    tempfile::tempdir().map_err(|e| format!("cannot make a temporary folder: {e}"))
}

/// Writes a file, and returns its path.
pub(crate) fn write<P: AsRef<Path>>(path: P, text: &str) -> Result<P> {
    std::fs::write(&path, text).map_err(|e| format!("{}: {e}", path.as_ref().display()))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_written_is_named() {
        let folder = folder().unwrap();
        let path = write(folder.path().join("a"), "text").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "text");
        let below = path.join("b");
        let e = write(&below, "").unwrap_err();
        assert!(e.starts_with(&format!("{}: ", below.display())), "{e}");
    }
}
