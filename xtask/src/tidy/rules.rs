//! The rules, and how each is checked.

use std::path::{Component, Path, PathBuf};

use super::{Rule, Tree, Violation};

/// Every rule.
pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "dependencies",
        sentence: "Dependencies point one way: `transport` and `launch-env` depend on none of our crates, `transport-tcp` and `collectives` on `transport` alone, `transport-rdma` on both transports, `nuvec-distributed` on those, and `xtask` on none of them.",
        check: dependencies,
    },
    Rule { name: "nuvec", sentence: "Only `nuvec-distributed`, and `tests` with it, know nuvec.", check: nuvec },
    Rule {
        name: "unsafe",
        sentence: "There is no `unsafe` code but in `transport-rdma`'s `sys`, `verbs` and `fake`, which call verbs or stand in for them, and in one binary of `tests` that hosts ranks as a C program would; elsewhere the lints forbid it.",
        check: no_unsafe,
    },
    Rule {
        name: "collectives",
        sentence: "`collectives` knows no socket, no file descriptor and no environment variable.",
        check: collectives,
    },
    Rule {
        name: "transports",
        sentence: "Transports know no dtype and no operation: to them, everything is bytes.",
        check: transports,
    },
    Rule { name: "launch-env", sentence: "`launch-env` opens no socket and resolves no name.", check: launch_env },
    Rule {
        name: "writev",
        sentence: "Transports never use the standard library's vectored write: that is writev(2), which raises SIGPIPE; they use sendmsg(2).",
        check: writev,
    },
    Rule {
        name: "socket options",
        sentence: "No socket has SO_REUSEPORT (two jobs would share a port) or TCP_USER_TIMEOUT (it kills a live peer that does not read).",
        check: socket_options,
    },
    Rule {
        name: "allow",
        sentence: "No lint is silenced by an `allow` attribute: an exception is an `expect` with a reason.",
        check: allow,
    },
    Rule { name: "module", sentence: "Every source file begins with what lives there.", check: module_documentation },
    Rule {
        name: "length",
        sentence: "No source file has more than 600 lines, unless its first lines say \"Long because\" and why.",
        check: length,
    },
    Rule {
        name: "registry",
        sentence: "No file names a package registry's host: the user's configuration decides where packages come from.",
        check: registry,
    },
    Rule { name: "links", sentence: "Every relative link in a document leads to a file that is there.", check: links },
    Rule {
        name: "commands",
        sentence: "Every `cargo xtask` command in a document is one that the command line understands.",
        check: commands,
    },
];

/// Where our crates' code lies.
const CRATES: [&str; 8] = [
    "transport",
    "transport-tcp",
    "transport-rdma",
    "collectives",
    "launch-env",
    "nuvec-distributed",
    "xtask",
    "tests",
];
const TRANSPORTS: [&str; 3] = ["transport/src", "transport-tcp/src", "transport-rdma/src"];
/// The only places for unsafe code: what calls verbs or stands in for them, and the binary that hosts ranks as a C program
/// would. Beginnings of paths.
const UNSAFE: [&str; 4] =
    ["transport-rdma/src/sys", "transport-rdma/src/verbs", "transport-rdma/src/fake", "tests/src/bin/host.rs"];
/// The rules quote what they forbid.
const RULES_FILES: [&str; 2] = ["xtask/src/tidy.rs", "xtask/src/tidy"];

/// A crate, and those of ours that it may depend on.
const MAY_USE: [(&str, &[&str]); 8] = [
    ("transport", &[]),
    ("transport-tcp", &["nuvec-transport"]),
    // Ranks that meet over RDMA do so over TCP, by its hello.
    ("transport-rdma", &["nuvec-transport", "nuvec-transport-tcp"]),
    ("collectives", &["nuvec-transport"]),
    ("launch-env", &[]),
    (
        "nuvec-distributed",
        &["nuvec-transport", "nuvec-transport-tcp", "nuvec-transport-rdma", "nuvec-collectives", "nuvec-launch-env"],
    ),
    ("xtask", &[]),
    (
        "tests",
        &[
            "nuvec-transport",
            "nuvec-transport-tcp",
            "nuvec-transport-rdma",
            "nuvec-collectives",
            "nuvec-launch-env",
            "nuvec-distributed",
        ],
    ),
];

/// What a manifest's dependency tables name: line, whether it is for tests alone, and the package.
fn manifest_dependencies(manifest: &str) -> Vec<(usize, bool, String)> {
    let mut found = Vec::new();
    let mut section = String::new();
    for (i, line) in manifest.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        let mut add = |section: &str, name: &str| {
            let name = name.trim().trim_matches('"').to_string();
            found.push((i + 1, section.ends_with("dev-dependencies"), name));
        };
        if let Some(header) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            section = header.to_string();
            if let Some((table, name)) = header.rsplit_once('.')
                && table.ends_with("dependencies")
            {
                add(table, name);
            }
        } else if section.ends_with("dependencies") && line.contains('=') {
            let name = line.split(['=', '.']).next().unwrap_or_default();
            add(&section, name);
        }
    }
    found
}

fn dependencies(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for (package, may_use) in MAY_USE {
        let manifest = format!("{package}/Cargo.toml");
        let Some(text) = tree.file(&manifest) else {
            found.push(violation(&manifest, 1, "is missing: is the rule's list of crates out of date?"));
            continue;
        };
        for (line, for_tests, name) in manifest_dependencies(text) {
            let ours = MAY_USE.iter().any(|(_, of)| of.contains(&name.as_str())) || name == "nuvec-distributed-tests";
            // A crate's tests may look further, and name the crate itself to switch on a feature; xtask's may not.
            let free = for_tests && package != "xtask";
            if ours && !free && !may_use.contains(&name.as_str()) {
                found.push(violation(&manifest, line, &format!("{package} must not depend on {name}")));
            }
        }
    }
    found
}

fn nuvec(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for package in CRATES.iter().filter(|c| !["nuvec-distributed", "tests"].contains(c)) {
        let manifest = format!("{package}/Cargo.toml");
        for (line, _, name) in manifest_dependencies(tree.file(&manifest).unwrap_or_default()) {
            if ["nuvec", "nuvec-core", "nuvec-nn"].contains(&name.as_str()) {
                found.push(violation(&manifest, line, &format!("{package} must not depend on {name}")));
            }
        }
    }
    found
}

fn no_unsafe(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    let workspace = tree.file("Cargo.toml").unwrap_or_default();
    if !workspace.lines().any(|line| line.trim() == "unsafe_code = \"forbid\"") {
        found.push(violation("Cargo.toml", 1, "the workspace's lints must say unsafe_code = \"forbid\""));
    }
    for package in CRATES {
        let manifest = format!("{package}/Cargo.toml");
        let text = tree.file(&manifest).unwrap_or_default();
        let denies = ["tests", "transport-rdma"].contains(&package) && text.contains("\nunsafe_code = \"deny\"\n");
        if !text.contains("[lints]\nworkspace = true") && !denies {
            found.push(violation(&manifest, 1, "must take the workspace's lints"));
        }
    }
    let facade = "nuvec-distributed/src/lib.rs";
    if !tree.file(facade).unwrap_or_default().contains("#![forbid(unsafe_code)]") {
        found.push(violation(facade, 1, "must say #![forbid(unsafe_code)]"));
    }
    let unsafe_code = code_with(tree, &CRATES, &["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern"]);
    let elsewhere = |v: &Violation| !UNSAFE.iter().any(|place| v.file.to_string_lossy().starts_with(place));
    found.extend(unsafe_code.into_iter().filter(elsewhere));
    found
}

fn collectives(tree: &Tree) -> Vec<Violation> {
    let words =
        ["std::net", "std::os", "std::env", "socket2", "rustix", "libc", "TcpStream", "UdpSocket", "AsFd", "RawFd"];
    code_with(tree, &["collectives/src"], &words)
}

fn transports(tree: &Tree) -> Vec<Violation> {
    code_with(tree, &TRANSPORTS, &["DType", "dtype", "Reduction", "half::", "nuvec_core", "nuvec_collectives"])
}

fn launch_env(tree: &Tree) -> Vec<Violation> {
    let words = ["TcpStream", "TcpListener", "UdpSocket", "UnixStream", "ToSocketAddrs", "socket2", "rustix", "libc"];
    code_with(tree, &["launch-env/src"], &words)
}

fn writev(tree: &Tree) -> Vec<Violation> {
    code_with(tree, &TRANSPORTS, &["write_vectored", "write_all_vectored", "writev"])
}

fn socket_options(tree: &Tree) -> Vec<Violation> {
    let words = ["SO_REUSEPORT", "reuse_port", "reuseport", "TCP_USER_TIMEOUT", "tcp_user_timeout", "TcpUserTimeout"];
    code_with(tree, &CRATES, &words)
}

fn allow(tree: &Tree) -> Vec<Violation> {
    code_with(tree, &CRATES, &["#[allow(", "#![allow("])
}

fn module_documentation(tree: &Tree) -> Vec<Violation> {
    let files = tree.below(&CRATES, "rs").filter(|(_, text)| !text.starts_with("//!"));
    files.map(|(path, _)| violation(path, 1, "must begin with \"//!\" and what lives there")).collect()
}

fn length(tree: &Tree) -> Vec<Violation> {
    let long = tree.below(&CRATES, "rs").filter(|(_, text)| {
        text.lines().count() > 600 && !text.lines().take(40).any(|line| line.contains("Long because"))
    });
    long.map(|(path, text)| violation(path, text.lines().count(), "has more than 600 lines and does not say why"))
        .collect()
}

fn registry(tree: &Tree) -> Vec<Violation> {
    let words = [
        "index.crates.io",
        "static.crates.io",
        "pypi.org",
        "pythonhosted.org",
        "registry.npmjs.org",
        "deb.debian.org",
        "proxy.golang.org",
        "replace-with",
        "index-url",
        "[source.",
    ];
    let files = tree.files.iter().filter(|(path, _)| path != Path::new("Cargo.lock") && !is_rules_file(path));
    files.flat_map(|(path, text)| lines_with(path, text.lines(), &words)).collect()
}

fn links(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for (path, text) in tree.below(&[""], "md") {
        let folder = path.parent().unwrap_or(Path::new(""));
        for (i, line) in text.lines().enumerate() {
            for rest in line.split("](").skip(1) {
                let link = rest.split([')', ' ', '#']).next().unwrap_or_default();
                let elsewhere = link.is_empty() || link.contains("://") || link.starts_with("mailto:");
                if !elsewhere && !normal(&folder.join(link)).is_some_and(|target| tree.has(&target)) {
                    found.push(violation(path, i + 1, &format!("the link {link} leads nowhere")));
                }
            }
        }
    }
    found
}

/// A path without `.` and `..`; none if it leaves the workspace.
fn normal(path: &Path) -> Option<PathBuf> {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                if !normal.pop() {
                    return None;
                }
            }
            part => normal.push(part),
        }
    }
    Some(normal)
}

fn commands(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for (path, text) in tree.below(&[""], "md") {
        for (at, start) in text.match_indices("cargo xtask ") {
            let line = text[..at].matches('\n').count() + 1;
            let rest = text[at + start.len()..].replace("\\\n", " ");
            let command = rest.split(['\n', '`', '#', '|', '…', '(', ')']).next().unwrap_or_default();
            let command = command.trim_end_matches([',', '.', ':', ';', ' ']);
            if let Some(why) = not_understood(command) {
                found.push(violation(path, line, &format!("cargo xtask {command}: {why}")));
            }
        }
    }
    found
}

/// Why the command line does not understand `command`, if it does not.
fn not_understood(command: &str) -> Option<String> {
    use clap::error::ErrorKind;
    let words = ["cargo xtask"].into_iter().chain(command.split_whitespace());
    let error = crate::grammar().try_get_matches_from(words).err()?;
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            None
        }
        _ => Some(super::words(error.to_string().split("\n\n").next().unwrap_or_default())),
    }
}

/// Lines of Rust code below `folders` that contain one of `words`, comments aside.
fn code_with(tree: &Tree, folders: &[&str], words: &[&str]) -> Vec<Violation> {
    let files = tree.below(folders, "rs").filter(|(path, _)| !is_rules_file(path));
    files.flat_map(|(path, text)| lines_with(path, text.lines().map(code), words)).collect()
}

fn is_rules_file(path: &Path) -> bool {
    RULES_FILES.iter().any(|rules| path.starts_with(rules))
}

/// A line of Rust without its comment. (`://` in a string begins none.)
fn code(line: &str) -> &str {
    let comment = line.match_indices("//").find(|(at, _)| !line[..*at].ends_with(':'));
    comment.map_or(line, |(at, _)| &line[..at])
}

fn lines_with<'a>(path: &Path, lines: impl Iterator<Item = &'a str>, words: &[&str]) -> Vec<Violation> {
    let mut found = Vec::new();
    for (i, line) in lines.enumerate() {
        if let Some(word) = words.iter().find(|word| line.contains(**word)) {
            found.push(violation(path, i + 1, &format!("{word} has no place here")));
        }
    }
    found
}

fn violation(file: impl AsRef<Path>, line: usize, text: &str) -> Violation {
    Violation { file: file.as_ref().to_path_buf(), line, text: text.to_string() }
}

#[cfg(test)]
mod tests {
    use super::super::{unstated, words};
    use super::*;

    /// A tree that keeps every rule.
    fn clean() -> Tree {
        let mut files = vec![("Cargo.toml".into(), "[workspace.lints.rust]\nunsafe_code = \"forbid\"\n".to_string())];
        for package in CRATES {
            files.push((
                format!("{package}/Cargo.toml").into(),
                "[package]\n[lints]\nworkspace = true\n\n[dependencies]\nserde_json.workspace = true\n".to_string(),
            ));
            files.push((format!("{package}/src/lib.rs").into(), "//! Doc.\n#![forbid(unsafe_code)]\n".to_string()));
        }
        files.push((
            "README.md".into(),
            "See [the code](transport/src) and `cargo xtask ring-test --ranks 2`.\n".into(),
        ));
        let sentences: Vec<_> = RULES.iter().map(|rule| rule.sentence.replace(' ', "\n")).collect();
        files.push(("ARCHITECTURE.md".into(), sentences.join("\n\n").replace("cargo\nxtask", "cargo xtask")));
        Tree { files }
    }

    /// The clean tree with `text` added to the end of a file, new or old.
    fn planted(file: &str, text: &str) -> Tree {
        let mut tree = clean();
        match tree.files.iter_mut().find(|(path, _)| path == Path::new(file)) {
            Some((_, old)) => old.push_str(text),
            None => tree.files.push((file.into(), text.to_string())),
        }
        tree
    }

    fn broken(tree: &Tree) -> Vec<(&'static str, Violation)> {
        RULES.iter().flat_map(|rule| (rule.check)(tree).into_iter().map(|v| (rule.name, v))).collect()
    }

    #[test]
    fn a_tree_that_keeps_the_rules_passes() {
        assert_eq!(broken(&clean()), []);
        assert_eq!(unstated(&clean()), []);
    }

    #[test]
    fn every_rule_finds_what_breaks_it_and_says_where() {
        let long = format!("//! Doc.\n{}", "\n".repeat(600));
        let cases = [
            ("dependencies", "collectives/Cargo.toml", "nuvec-transport-tcp.workspace = true\n", 7),
            (
                "dependencies",
                "transport/Cargo.toml",
                "[target.'cfg(unix)'.dependencies.nuvec-launch-env]\npath = \"x\"\n",
                7,
            ),
            ("dependencies", "xtask/Cargo.toml", "[dev-dependencies]\nnuvec-transport = { path = \"x\" }\n", 8),
            ("nuvec", "launch-env/Cargo.toml", "nuvec-core = \"0.5\"\n", 7),
            ("unsafe", "transport-tcp/src/lib.rs", "fn f() { unsafe { g() } }\n", 3),
            ("unsafe", "tests/src/lib.rs", "unsafe fn f() {}\n", 3),
            ("collectives", "collectives/src/lib.rs", "use std::net::TcpStream;\n", 3),
            ("collectives", "collectives/src/lib.rs", "let x = std::env::var(\"X\");\n", 3),
            ("transports", "transport-tcp/src/lib.rs", "fn f(d: DType) {}\n", 3),
            ("launch-env", "launch-env/src/lib.rs", "use std::net::TcpStream;\n", 3),
            ("writev", "transport-tcp/src/lib.rs", "s.write_vectored(&p)?;\n", 3),
            ("socket options", "transport-tcp/src/lib.rs", "s.set_reuse_port(true)?;\n", 3),
            ("socket options", "transport-tcp/src/lib.rs", "s.set_tcp_user_timeout(t)?;\n", 3),
            ("allow", "tests/src/lib.rs", "#[allow(dead_code)]\n", 3),
            ("module", "tests/src/new.rs", "fn f() {}\n", 1),
            ("length", "transport/src/long.rs", &long, 601),
            ("registry", ".cargo/config.toml", "[source.x]\n", 1),
            ("registry", ".ci/run", "echo\ncurl https://static.crates.io/x\n", 2),
            ("links", "README.md", "[gone](docs/gone.md#here)\n", 2),
            ("links", "transport/README.md", "[out](../../x)\n", 1),
            ("commands", "README.md", "Run `cargo xtask ring-tst`.\n", 2),
            ("commands", "README.md", "```\ncargo xtask ring-test --rank 2\n```\n", 3),
        ];
        for (rule, file, text, line) in cases {
            let found = broken(&planted(file, text));
            let at: Vec<_> = found.iter().map(|(rule, v)| (*rule, v.file.clone(), v.line)).collect();
            assert_eq!(at, [(rule, PathBuf::from(file), line)], "{text:?}: {found:?}");
        }
        for rule in RULES {
            assert!(
                cases.iter().any(|case| case.0 == rule.name),
                "the rule \"{}\" has no planted violation",
                rule.name
            );
        }
    }

    #[test]
    fn what_is_no_violation_passes() {
        for (file, text) in [
            (
                "collectives/Cargo.toml",
                "nuvec-transport.workspace = true\n[dev-dependencies]\nnuvec-transport-tcp.workspace = true\n",
            ),
            ("transport-tcp/src/lib.rs", "// Never write_vectored, nor SO_REUSEPORT, nor unsafe { }.\n"),
            ("transport/src/long.rs", &format!("//! Long because.\n{}", "\n".repeat(700))),
            ("tests/src/bin/host.rs", "//! Doc.\nfn f() { unsafe { g() } }\n"),
            ("README.md", "[web](https://example.org/x) [here](#there) [up](./transport/src/lib.rs)\n"),
            ("README.md", "```\ncargo xtask launch -n 2 \\\n    -- ./program --flag # comment\n```\n"),
            ("README.md", "`cargo xtask ring-test --help`, or just `cargo xtask`\n"),
        ] {
            assert_eq!(broken(&planted(file, text)), [], "{text}");
        }
    }

    #[test]
    fn lints_must_be_taken_and_must_forbid_unsafe() {
        let mut tree = clean();
        for (_, text) in &mut tree.files {
            *text = text.replace("forbid", "deny").replace("[lints]", "[other]");
        }
        let found = broken(&tree);
        assert_eq!(found.iter().filter(|(rule, _)| *rule == "unsafe").count(), 2 + CRATES.len());
    }

    #[test]
    fn a_rule_that_the_architecture_does_not_state_is_found() {
        let mut tree = clean();
        tree.files.retain(|(path, _)| path != Path::new("ARCHITECTURE.md"));
        assert_eq!(unstated(&tree).len(), RULES.len());
        assert_eq!(words(" a\n  b "), "a b");
    }
}
