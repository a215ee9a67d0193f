//! A run of the machine: QEMU started and ended, its output taken apart, every wait bounded.
//!
//! The guest prints to one virtio port, and its console to another channel, which nobody sees unless the run fails. The
//! machine holds nothing that is worth a shutdown: it is killed when the last part has ended.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use super::image::Image;
use super::{Part, guest, needs};
use crate::Result;

/// How long the machine may take to come up. About 10 s on two free processors, but minutes on busy ones.
const BOOT: Duration = Duration::from_secs(600);
/// How much longer than a part's limit the machine may take to say how the part ended.
const GRACE: Duration = Duration::from_secs(60);
/// How many of the console's last lines an error shows.
const CONSOLE_LINES: usize = 25;

/// What a run tells as it goes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Event<'a> {
    /// The devices are there.
    Ready,
    /// The part that runs printed this.
    Output(&'a [u8]),
    /// The part that ran ended, with the exit status that a shell would show.
    End(i32),
}

/// Boots the machine with `devices` devices and runs `parts` in it, one after the other, telling of `events`. An error
/// is the machine's own failure, with the console's last lines.
pub(super) fn run(image: &Image, devices: usize, parts: &[Part], events: &mut dyn FnMut(Event<'_>)) -> Result<()> {
    let nonce = format!("{:016x}", getrandom::u64().map_err(|e| format!("no random numbers: {e}"))?);
    let folder = std::env::current_dir().map_err(|e| format!("the current folder: {e}"))?;
    let variables: Vec<_> = std::env::vars_os().filter(|(name, _)| passed_on(name.as_bytes())).collect();
    let variables = variables.iter().map(|(name, value)| (name.as_os_str(), value.as_os_str()));
    let script = guest::script(&nonce, devices, &folder, variables, parts);
    let mut qemu = Qemu::start(image, script)?;
    let mut marks = Marks::new(&nonce);
    let mut progress = Progress { parts, ready: false, ended: 0, deadline: Instant::now() + BOOT };
    loop {
        let patience = progress.deadline.saturating_duration_since(Instant::now());
        match qemu.received.recv_timeout(patience) {
            Ok(Received::Output(bytes)) => {
                let mut wrong = None;
                marks.push(&bytes, &mut |piece| {
                    if let Err(e) = progress.take(piece, events) {
                        wrong.get_or_insert(e);
                    }
                });
                if let Some(e) = wrong {
                    return Err(qemu.failure(&e));
                }
                if progress.ended == parts.len() {
                    return Ok(());
                }
            }
            Ok(Received::Console(line)) => qemu.console_line(line),
            Err(RecvTimeoutError::Timeout) => return Err(qemu.failure(&progress.overdue())),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(qemu.failure(&format!("the machine ended {}", progress.place())));
            }
        }
    }
}

/// Whether a variable of the environment is passed on to what runs inside. (A shell could not set an odd name.)
fn passed_on(name: &[u8]) -> bool {
    let known: [&[u8]; 6] = [b"PATH", b"HOME", b"USER", b"LANG", b"RUST_BACKTRACE", b"RUST_LOG"];
    let ours: [&[u8]; 3] = [b"NUVEC_", b"MLX_", b"JACCL_"];
    (known.contains(&name) || ours.iter().any(|prefix| name.starts_with(prefix)))
        && name.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'_')
}

/// How far the machine has come, and until when it must have come further.
struct Progress<'a> {
    parts: &'a [Part],
    ready: bool,
    ended: usize,
    deadline: Instant,
}

impl Progress<'_> {
    fn take(&mut self, piece: Piece<'_>, events: &mut dyn FnMut(Event<'_>)) -> Result<()> {
        match piece {
            Piece::Output(bytes) => events(Event::Output(bytes)),
            Piece::Mark(words) => match words.split(' ').collect::<Vec<_>>()[..] {
                ["ready"] => {
                    self.ready = true;
                    self.deadline = Instant::now() + GRACE;
                    events(Event::Ready);
                }
                ["begin", part] if part == self.ended.to_string() && self.ended < self.parts.len() => {
                    self.deadline = Instant::now() + self.parts[self.ended].limit + GRACE;
                }
                ["end", part, status] if part == self.ended.to_string() => {
                    self.ended += 1;
                    self.deadline = Instant::now() + GRACE;
                    events(Event::End(status.parse().map_err(|_| format!("the machine said {words:?}"))?));
                }
                _ => return Err(format!("the machine said {words:?} {}", self.place())),
            },
        }
        Ok(())
    }

    fn place(&self) -> String {
        match self.parts.get(self.ended) {
            _ if !self.ready => "before it was up".into(),
            Some(part) => format!("in {}", part.name),
            None => "after its last part".into(),
        }
    }

    fn overdue(&self) -> String {
        if self.ready {
            format!("the machine hung {}", self.place())
        } else {
            format!("the machine was not up after {} s", BOOT.as_secs())
        }
    }
}

/// The output, taken apart.
#[derive(Debug, PartialEq, Eq)]
enum Piece<'a> {
    Output(&'a [u8]),
    /// The words of a mark.
    Mark(&'a str),
}

/// Finds the script's marks in a stream that comes in chunks. What can be no mark is passed on at once.
struct Marks {
    mark: Vec<u8>,
    pending: Vec<u8>,
}

impl Marks {
    fn new(nonce: &str) -> Self {
        Self { mark: [&[guest::MARK], nonce.as_bytes(), b" "].concat(), pending: Vec::new() }
    }

    fn push(&mut self, bytes: &[u8], take: &mut dyn FnMut(Piece<'_>)) {
        self.pending.extend_from_slice(bytes);
        let mut rest = &self.pending[..];
        loop {
            let at = (0..rest.len()).find(|&at| rest[at..].iter().zip(&self.mark).all(|(a, b)| a == b));
            let (output, mark) = rest.split_at(at.unwrap_or(rest.len()));
            if !output.is_empty() {
                take(Piece::Output(output));
            }
            rest = mark;
            let Some(end) = mark.iter().position(|b| *b == b'\n').filter(|end| *end >= self.mark.len()) else { break };
            take(Piece::Mark(&String::from_utf8_lossy(&mark[self.mark.len()..end])));
            rest = &mark[end + 1..];
        }
        self.pending = rest.to_vec();
    }
}

enum Received {
    Output(Vec<u8>),
    Console(String),
}

/// QEMU as a child process. Dropping it kills it.
struct Qemu {
    child: Child,
    received: Receiver<Received>,
    console: VecDeque<String>,
    /// Writes the script, and keeps the port open.
    _script: std::thread::JoinHandle<(ChildStdin, std::io::Result<()>)>,
}

impl Qemu {
    fn start(image: &Image, script: Vec<u8>) -> Result<Self> {
        let mut command = command(image, script.len());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child =
            command.spawn().map_err(|e| format!("cannot start {}: {e}", command.get_program().display()))?;
        let (Some(mut stdin), Some(stdout), Some(stderr)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err("QEMU has no pipes".into());
        };
        let (sender, received) = channel();
        let console = sender.clone();
        std::thread::spawn(move || read_output(stdout, &sender));
        std::thread::spawn(move || read_console(stderr, &console));
        let script = std::thread::spawn(move || {
            let written = stdin.write_all(&script);
            (stdin, written)
        });
        Ok(Self { child, received, console: VecDeque::new(), _script: script })
    }

    fn console_line(&mut self, line: String) {
        self.console.push_back(line);
        if self.console.len() > CONSOLE_LINES {
            self.console.pop_front();
        }
    }

    /// An error's text: what happened, and the console's last lines.
    fn failure(&mut self, what: &str) -> String {
        let _ = self.child.kill();
        // The readers end with QEMU; the bound is for a pipe that somebody else holds.
        while let Ok(received) = self.received.recv_timeout(Duration::from_secs(1)) {
            if let Received::Console(line) = received {
                self.console_line(line);
            }
        }
        let lines: String = self.console.iter().map(|line| format!("\n  | {line}")).collect();
        format!("{what}; its console's last lines:{}", if lines.is_empty() { "\n  | (none)" } else { &lines })
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read_output(mut pipe: impl Read, sender: &Sender<Received>) {
    let mut chunk = [0; 16 * 1024];
    while let Ok(length @ 1..) = pipe.read(&mut chunk) {
        if sender.send(Received::Output(chunk[..length].to_vec())).is_err() {
            return;
        }
    }
}

fn read_console(pipe: impl Read, sender: &Sender<Received>) {
    for line in BufReader::new(pipe).split(b'\n').map_while(std::io::Result::ok) {
        let line = String::from_utf8_lossy(&line).trim_end().to_string();
        if !line.is_empty() && sender.send(Received::Console(line)).is_err() {
            return;
        }
    }
}

/// The command that boots `image` and hands it a script of `length` bytes on standard input.
fn command(image: &Image, length: usize) -> Command {
    let mut command = Command::new("setpriv");
    // The machine ends with this process, however that ends.
    command.args(["--pdeathsig", "KILL", "qemu-system-x86_64"]);
    command.args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"]);
    // Hardware virtualisation is seldom to be had inside a virtual machine or a container: emulation works everywhere.
    command.args(["-accel", "tcg,thread=multi", "-cpu", "max,la57=off", "-smp", "2", "-m", "2G"]);
    command.arg("-kernel").arg(&image.kernel).arg("-initrd").arg(&image.initrd);
    // On a busy host the emulated timer comes too late for the kernel's check of it, which panics.
    let append = "console=ttyS0 quiet loglevel=3 panic=-1 rdinit=/init mitigations=off no_timer_check";
    command.arg("-append").arg(format!("{append} rdma_vm.script={length}"));
    command.args(["-chardev", "file,id=console,path=/dev/stderr", "-serial", "chardev:console"]);
    command.args(["-chardev", "stdio,id=port,signal=off", "-device", "virtio-serial-pci"]);
    command.args(["-device", "virtserialport,chardev=port,name=rdma-vm"]);
    command.args(["-virtfs", "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap"]);
    command.env("PATH", needs::path());
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(chunks: &[&[u8]]) -> Vec<String> {
        let mut marks = Marks::new("abc");
        let mut pieces = Vec::new();
        for chunk in chunks {
            marks.push(chunk, &mut |piece| {
                pieces.push(match piece {
                    Piece::Output(bytes) => format!("out {}", String::from_utf8_lossy(bytes)),
                    Piece::Mark(words) => format!("mark {words}"),
                });
            });
        }
        pieces
    }

    #[test]
    fn marks_are_found_wherever_the_stream_is_cut_and_the_rest_is_output() {
        let stream = b"\x1eabc ready\nhello\x1eab\n\x1e\x1eabc end 0 3\nx";
        let joined = |pieces: Vec<String>| {
            let mut joined: Vec<String> = Vec::new();
            for piece in pieces {
                match (joined.last_mut(), piece.strip_prefix("out ")) {
                    (Some(last), Some(more)) if last.starts_with("out ") => *last += more,
                    _ => joined.push(piece),
                }
            }
            joined
        };
        let expected = ["mark ready", "out hello\x1eab\n\x1e", "mark end 0 3", "out x"];
        for first in 0..stream.len() {
            for second in first..stream.len() {
                let chunks = [&stream[..first], &stream[first..second], &stream[second..]];
                assert_eq!(joined(pieces(&chunks)), expected, "{first} {second}");
            }
        }
        // What can be no mark is not held back.
        assert_eq!(pieces(&[b"prompt> "]), ["out prompt> "]);
    }

    #[test]
    fn a_part_has_its_own_deadline_and_what_hangs_is_named() {
        let part = |name: &str, limit| Part { name: name.into(), limit: Duration::from_secs(limit), ..Part::default() };
        let parts = [part("first", 10), part("second", 1000)];
        let start = Instant::now();
        let mut progress = Progress { parts: &parts, ready: false, ended: 0, deadline: start + BOOT };
        assert_eq!(progress.overdue(), "the machine was not up after 600 s");
        let mut told = Vec::new();
        let mut take = |progress: &mut Progress<'_>, words: &str| {
            progress.take(Piece::Mark(words), &mut |event| told.push(format!("{event:?}")))
        };
        take(&mut progress, "ready").unwrap();
        take(&mut progress, "begin 0").unwrap();
        assert_eq!(progress.overdue(), "the machine hung in first");
        assert!(progress.deadline < start + Duration::from_secs(1000));
        take(&mut progress, "end 0 7").unwrap();
        take(&mut progress, "begin 1").unwrap();
        assert_eq!(progress.overdue(), "the machine hung in second");
        assert!(progress.deadline > start + Duration::from_secs(1000));
        take(&mut progress, "end 0 0").unwrap_err();
        take(&mut progress, "end 1 zero").unwrap_err();
        assert_eq!(told, ["Ready", "End(7)"]);
    }

    #[test]
    fn only_what_concerns_a_test_is_passed_on() {
        for (name, expected) in [
            ("NUVEC_X", true),
            ("MLX_RANK", true),
            ("JACCL_X", true),
            ("PATH", true),
            ("LD_X", false),
            ("MLX_$(x)", false),
        ] {
            assert_eq!(passed_on(name.as_bytes()), expected, "{name}");
        }
    }

    #[test]
    fn a_machine_that_does_not_boot_shows_what_was_said() {
        if needs::missing().is_some() {
            eprintln!("left out: this machine cannot run QEMU");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let [kernel, initrd] = ["kernel", "initrd"].map(|name| folder.path().join(name));
        std::fs::write(&kernel, "no kernel").unwrap();
        std::fs::write(&initrd, "").unwrap();
        let e = run(&Image { kernel, initrd }, 1, &[Part::default()], &mut |_| {}).unwrap_err();
        assert!(e.starts_with("the machine ended before it was up; its console's last lines:\n  | "), "{e}");
        assert!(e.contains("kernel"), "{e}");
    }
}
