//! Where variables come from. Nothing else in this crate looks at the process's environment.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use crate::error::{Error, ErrorKind, Excerpt, Origin, Spot};

/// A set of environment variables.
///
/// It is injected wherever this crate reads a variable, because a test that sets the process's own variables disturbs
/// every other test of the same process.
pub trait Vars {
    /// The value of `name`, or `None` if it is not set. A variable that is set but empty is `Some`.
    fn get(&self, name: &str) -> Option<OsString>;
}

/// The variables of this process, as [`std::env::var_os`] gives them.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessEnv;

impl Vars for ProcessEnv {
    fn get(&self, name: &str) -> Option<OsString> {
        std::env::var_os(name)
    }
}

impl<K: Borrow<str> + Ord, V: AsRef<OsStr>> Vars for BTreeMap<K, V> {
    fn get(&self, name: &str) -> Option<OsString> {
        BTreeMap::get(self, name).map(|value| value.as_ref().to_owned())
    }
}

impl<F: Fn(&str) -> Option<OsString>> Vars for F {
    fn get(&self, name: &str) -> Option<OsString> {
        self(name)
    }
}

/// The first of `names` that is set, with its value.
pub(crate) fn first_set(vars: &dyn Vars, names: &[&'static str]) -> Option<(&'static str, OsString)> {
    names.iter().find_map(|name| Some((*name, vars.get(name)?)))
}

/// The value as text. `NotUnicode` otherwise.
pub(crate) fn text(name: &'static str, value: OsString) -> Result<String, Error> {
    value.into_string().map_err(|value| {
        let value = Excerpt::new(&value.to_string_lossy());
        Error::new(Origin::Variable(name), Spot::Whole, ErrorKind::NotUnicode { value })
    })
}

/// The value as text without the blanks around it; nothing else is `EmptyVariable`.
pub(crate) fn trimmed(name: &'static str, value: OsString, expected: &'static str) -> Result<String, Error> {
    match text(name, value)?.trim_ascii() {
        "" => Err(empty(name, expected)),
        text => Ok(text.to_owned()),
    }
}

/// The error of a variable that is set to nothing.
pub(crate) fn empty(name: &'static str, expected: &'static str) -> Error {
    Error::new(Origin::Variable(name), Spot::Whole, ErrorKind::EmptyVariable { expected })
}
