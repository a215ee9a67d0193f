//! The kernel and the initial file system: made once from the distribution's kernel package, which is downloaded and
//! unpacked but not installed, and kept in the target directory until the recipe changes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::guest::INIT;
use super::needs;
use crate::Result;

/// The package that depends on the newest kernel's.
pub(super) const META_PACKAGE: &str = "linux-image-amd64";
/// What the machine needs beyond what is built in, dependencies aside. Soft-RoCE adds no device before it has a CRC-32.
const MODULES: [&str; 10] = [
    "crc32_generic",
    "virtio_pci",
    "virtio_console",
    "9pnet_virtio",
    "9p",
    "overlay",
    "veth",
    "bridge",
    "sch_netem",
    "rdma_rxe",
];
/// Grows when the making changes in a way that neither [`MODULES`] nor [`INIT`] shows.
const RECIPE: u32 = 1;
/// The most that one step of the making may take, in seconds: a download over a slow line.
const LIMIT: &str = "900";

/// A kernel and an initial file system, whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Image {
    pub(super) kernel: PathBuf,
    pub(super) initrd: PathBuf,
}

impl Image {
    fn at(folder: &Path) -> Self {
        Self { kernel: folder.join("vmlinuz"), initrd: folder.join("initrd") }
    }

    /// What the file `complete` says, which is written last: the recipe and what came of it.
    fn stamp(&self) -> std::io::Result<String> {
        let [kernel, initrd] = [fs::metadata(&self.kernel)?.len(), fs::metadata(&self.initrd)?.len()];
        Ok(format!("recipe {RECIPE}\nkernel {kernel}\ninitrd {initrd}\nmodules {}\n{INIT}", MODULES.join(" ")))
    }
}

/// The image in `target`, if it is there, whole, and made by this recipe.
pub(super) fn kept(target: &Path) -> Option<Image> {
    let folder = place(target);
    let image = Image::at(&folder);
    let stamp = fs::read_to_string(folder.join("complete")).ok()?;
    (image.stamp().ok()? == stamp).then_some(image)
}

/// The image in `target`, made if need be; that takes a download of some 70 MB and half a minute.
pub(super) fn get(target: &Path) -> Result<Image> {
    if let Some(image) = kept(target) {
        return Ok(image);
    }
    eprintln!("rdma-vm: making the kernel and the initial file system in {}", place(target).display());
    let failed = |e: std::io::Error| format!("cannot make the machine in {}: {e}", target.display());
    fs::create_dir_all(target).map_err(failed)?;
    let work = tempfile::Builder::new().prefix("rdma-vm-").tempdir_in(target).map_err(failed)?;
    let made = work.path().join("made");
    make(work.path(), &made)?;
    // Whole or not at all, whoever else makes one now.
    let _ = fs::remove_dir_all(place(target));
    let moved = fs::rename(&made, place(target));
    kept(target).ok_or_else(|| match moved {
        Ok(()) => format!("{} changed while it was made: run it again", place(target).display()),
        Err(e) => failed(e),
    })
}

fn place(target: &Path) -> PathBuf {
    target.join("rdma-vm")
}

/// Makes the image in `made`, with what comes and goes in `work`.
fn make(work: &Path, made: &Path) -> Result<()> {
    let package = package(&output("apt-cache", &["depends", META_PACKAGE], work)?)
        .ok_or_else(|| format!("apt-cache knows no dependency of {META_PACKAGE}: run apt-get update"))?;
    output("apt-get", &["download", "-q", &package], work)?;
    let archive = the_only(work, |name| name.ends_with(".deb"))?;
    let tree = work.join("tree");
    output("dpkg", &["-x", &text(&archive), &text(&tree)], work)?;
    let io = |e: std::io::Error| format!("cannot make the machine in {}: {e}", work.display());
    if !tree.join("lib").exists() {
        // Where /lib is /usr/lib; the tools look below either.
        std::os::unix::fs::symlink("usr/lib", tree.join("lib")).map_err(io)?;
    }
    let modules = the_only(&tree.join("lib/modules"), |_| true)?;
    let release = modules.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    output("depmod", &["-b", &text(&tree), &release], work)?;
    fs::create_dir(made).map_err(io)?;
    let image = Image::at(made);
    fs::copy(tree.join(format!("boot/vmlinuz-{release}")), &image.kernel).map_err(io)?;

    let root = work.join("root");
    for folder in ["bin", "modules", "proc", "sys", "dev", "host", "scratch", "root"] {
        fs::create_dir_all(root.join(folder)).map_err(io)?;
    }
    fs::copy(needs::find("busybox").ok_or("busybox is gone")?, root.join("bin/busybox")).map_err(io)?;
    fs::write(root.join("init"), INIT).map_err(io)?;
    fs::set_permissions(root.join("init"), fs::Permissions::from_mode(0o755)).map_err(io)?;
    let mut needed = Vec::new();
    for module in MODULES {
        let shown = output("modprobe", &["-d", &text(&tree), "-S", &release, "--show-depends", module], work)?;
        needed.extend(files(&shown));
    }
    let mut order: Vec<String> = Vec::new();
    for file in &needed {
        let name = file.rsplit('/').next().unwrap_or_default();
        let (name, unpack) = unpacker(name);
        if !order.contains(&name) {
            let to = fs::File::create(root.join("modules").join(&name)).map_err(io)?;
            run(unpack[0], &[&unpack[1..], &[file]].concat(), work, to.into())?;
            order.push(name);
        }
    }
    fs::write(root.join("modules/order"), order.join("\n") + "\n").map_err(io)?;
    let to = fs::File::create(&image.initrd).map_err(io)?;
    run("sh", &["-c", "find . | busybox cpio -o -H newc"], &root, to.into())?;
    fs::write(made.join("complete"), image.stamp().map_err(io)?).map_err(io)
}

/// The kernel's package, in what `apt-cache depends` says.
fn package(depends: &str) -> Option<String> {
    let package = depends.lines().find_map(|line| line.trim().strip_prefix("Depends: "))?;
    package.starts_with("linux-image-").then(|| package.to_string())
}

/// The files to load, in what `modprobe --show-depends` says; what is built in needs none.
fn files(shown: &str) -> impl Iterator<Item = String> {
    shown.lines().filter_map(|line| line.strip_prefix("insmod ")?.split(' ').next()).map(String::from)
}

/// A module's name without compression, and the command that writes its bytes.
fn unpacker(name: &str) -> (String, &'static [&'static str]) {
    let packed: [(&str, &'static [&'static str]); 3] =
        [(".xz", &["xz", "-dc"]), (".zst", &["zstd", "-dc"]), (".gz", &["gzip", "-dc"])];
    let found = packed.into_iter().find_map(|(end, command)| Some((name.strip_suffix(end)?.to_string(), command)));
    found.unwrap_or((name.to_string(), &["cat"]))
}

/// The one entry of a folder whose name `fits`.
fn the_only(folder: &Path, fits: impl Fn(&str) -> bool) -> Result<PathBuf> {
    let entries = fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut found = entries.flatten().filter(|entry| fits(&entry.file_name().to_string_lossy()));
    match (found.next(), found.next()) {
        (Some(entry), None) => Ok(entry.path()),
        (first, _) => Err(format!(
            "the kernel's package is not as expected: {} has {} that could be meant",
            folder.display(),
            if first.is_some() { "more than one entry" } else { "no entry" }
        )),
    }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Runs a program in `folder`, bounded, and returns what it printed.
fn output(program: &str, arguments: &[&str], folder: &Path) -> Result<String> {
    let output = run(program, arguments, folder, Stdio::piped())?;
    Ok(String::from_utf8_lossy(&output).into_owned())
}

/// Runs a program in `folder`, bounded; an error carries the last line that it said.
fn run(program: &str, arguments: &[&str], folder: &Path, out: Stdio) -> Result<Vec<u8>> {
    let mut command = Command::new("timeout");
    command.args([LIMIT, program]).args(arguments).current_dir(folder).env("LC_ALL", "C").env("PATH", needs::path());
    let output = command.stdin(Stdio::null()).stdout(out).stderr(Stdio::piped()).spawn();
    let output = output.and_then(std::process::Child::wait_with_output);
    let output = output.map_err(|e| format!("cannot run {program}: {e}"))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it does not say why");
    let why = if output.status.code() == Some(124) { "took too long" } else { said };
    Err(format!("{program} {}: {why}", arguments.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A target directory with a whole image in it.
    fn whole() -> (tempfile::TempDir, PathBuf) {
        let target = tempfile::tempdir().unwrap();
        let folder = place(target.path());
        fs::create_dir(&folder).unwrap();
        let image = Image::at(&folder);
        fs::write(&image.kernel, "kernel").unwrap();
        fs::write(&image.initrd, "files").unwrap();
        fs::write(folder.join("complete"), image.stamp().unwrap()).unwrap();
        (target, folder)
    }

    #[test]
    fn a_whole_image_is_kept_and_a_stale_or_cut_off_one_is_not() {
        let (target, folder) = whole();
        assert_eq!(kept(target.path()), Some(Image::at(&folder)));
        let stamp = fs::read_to_string(folder.join("complete")).unwrap();
        let spoilers: [(&str, Option<String>); 6] = [
            ("vmlinuz", Some("kern".into())),
            ("vmlinuz", None),
            ("initrd", Some(String::new())),
            ("complete", None),
            ("complete", Some(stamp.replace("recipe ", "recipe 9"))),
            ("complete", Some(stamp.replace("insmod", "modprobe"))),
        ];
        for (file, text) in spoilers {
            let (target, folder) = whole();
            match &text {
                Some(text) => fs::write(folder.join(file), text).unwrap(),
                None => fs::remove_file(folder.join(file)).unwrap(),
            }
            assert_eq!(kept(target.path()), None, "{file} {text:?}");
        }
        assert_eq!(kept(&target.path().join("elsewhere")), None);
    }

    #[test]
    fn the_kernels_package_is_the_meta_packages_dependency() {
        let depends = "linux-image-amd64\n  Depends: linux-image-6.1.0-9-amd64\n  Depends: <x>\n";
        assert_eq!(package(depends), Some("linux-image-6.1.0-9-amd64".into()));
        assert_eq!(package("linux-image-amd64\n"), None);
    }

    #[test]
    fn modules_come_in_the_order_of_loading_and_without_compression() {
        let shown = "builtin crc32\ninsmod /m/a.ko \ninsmod /m/b.ko.xz option=1\n";
        assert_eq!(files(shown).collect::<Vec<_>>(), ["/m/a.ko", "/m/b.ko.xz"]);
        assert_eq!(unpacker("b.ko.xz"), ("b.ko".into(), &["xz", "-dc"][..]));
        assert_eq!(unpacker("a.ko"), ("a.ko".into(), &["cat"][..]));
    }

    #[test]
    fn a_step_that_fails_says_what_its_program_said() {
        let e = output("sh", &["-c", "echo first >&2; echo why >&2; exit 3"], Path::new("/")).unwrap_err();
        assert!(e.starts_with("sh -c ") && e.ends_with(": why"), "{e}");
    }
}
