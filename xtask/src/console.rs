//! What the user sees while ranks run: their lines, prefixed, and a progress bar on a terminal.

use std::io::Write;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Lines to an output, above a progress bar where there is a terminal for one.
pub(crate) struct Console<'a> {
    out: &'a mut (dyn Write + Send),
    bar: ProgressBar,
}

impl<'a> Console<'a> {
    /// A console that writes to `out`, with progress on standard error if `progress` and if that is a terminal.
    pub(crate) fn new(out: &'a mut (dyn Write + Send), progress: bool) -> Self {
        let target = if progress { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(0), target);
        if let Ok(style) = ProgressStyle::with_template("{spinner} {pos} of {len}  {wide_msg}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(200));
        Self { out, bar }
    }

    /// Writes one line. An output that is gone (a closed pipe) is no reason to stop checking.
    pub(crate) fn line(&mut self, line: &str) {
        self.bytes(&[line.as_bytes(), b"\n"].concat());
    }

    /// Writes one line of a rank, prefixed.
    pub(crate) fn rank_line(&mut self, rank: usize, size: usize, text: &[u8]) {
        self.bytes(&prefixed(rank, size, text));
    }

    fn bytes(&mut self, bytes: &[u8]) {
        let out = &mut self.out;
        let _ = self.bar.suspend(|| out.write_all(bytes).and_then(|()| out.flush()));
    }

    /// Shows that `done` of `total` checks are done and what goes on.
    pub(crate) fn progress(&self, done: u64, total: u64, what: String) {
        self.bar.set_length(total);
        self.bar.set_position(done);
        self.bar.set_message(what);
    }
}

impl Drop for Console<'_> {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// A rank's line as it is shown: `rank N | text`, the numbers of a ring of `size` ranks aligned, and a newline.
pub(crate) fn prefixed(rank: usize, size: usize, text: &[u8]) -> Vec<u8> {
    let width = size.saturating_sub(1).to_string().len();
    let mut line = format!("rank {rank:width$} | ").into_bytes();
    line.extend_from_slice(text);
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ranks_line_is_prefixed_and_aligned_whatever_its_bytes() {
        assert_eq!(prefixed(2, 4, b"hello"), b"rank 2 | hello\n");
        assert_eq!(prefixed(2, 11, b"\xff\x00"), b"rank  2 | \xff\x00\n");
        assert_eq!(prefixed(0, 1, b""), b"rank 0 | \n");
    }

    #[test]
    fn lines_go_to_the_output_in_order() {
        let mut out = Vec::new();
        let mut console = Console::new(&mut out, false);
        console.line("a");
        console.rank_line(0, 2, b"b");
        console.progress(1, 2, "c".into());
        drop(console);
        assert_eq!(out, b"a\nrank 0 | b\n");
    }
}
