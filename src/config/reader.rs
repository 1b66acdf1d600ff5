//! Reads variables one by one and remembers what was wrong with them.

use std::collections::BTreeMap;

use super::ConfigError;

/// What the name of every setting begins with.
const PREFIX: &str = "LEASEHOLD_";

/// How much of a value is shown.
const SHOWN: usize = 100;

/// An environment that is being read. Names are given to it without the prefix.
///
/// Every method that reads a setting makes its name known: what nobody has asked for by
/// [`Reader::finish`] is no setting.
pub(super) struct Reader {
    vars: BTreeMap<String, String>,
    known: Vec<&'static str>,
    problems: Vec<String>,
}

impl Reader {
    pub(super) fn new(vars: impl IntoIterator<Item = (String, String)>) -> Self {
        Self { vars: vars.into_iter().collect(), known: Vec::new(), problems: Vec::new() }
    }

    /// A variable of somebody else, by its full name.
    pub(super) fn other(&self, name: &str) -> Option<&str> {
        self.vars.get(name).map(String::as_str)
    }

    /// Whether a setting is there, be it right or wrong.
    pub(super) fn is_set(&mut self, name: &'static str) -> bool {
        self.value(name).is_some()
    }

    /// A setting that may be left out. `parse` says what is allowed where it fails; a value that is
    /// empty must be among that. `None`: it is left out, or wrong.
    pub(super) fn optional<T>(
        &mut self,
        name: &'static str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        let value = self.value(name)?;
        match parse(value.trim()) {
            // A byte that was not Unicode: see `environment`.
            Ok(_) if value.contains(char::REPLACEMENT_CHARACTER) => {
                self.wrong(name, &value, "give text in UTF-8");
                None
            }
            Ok(setting) => Some(setting),
            Err(allowed) => {
                let or_leave = if value.trim().is_empty() { ", or remove the setting" } else { "" };
                self.wrong(name, &value, &format!("{allowed}{or_leave}"));
                None
            }
        }
    }

    /// A setting that must be there. `None`: it is missing, or wrong.
    pub(super) fn required<T>(
        &mut self,
        name: &'static str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        if self.value(name).is_some_and(|value| !value.trim().is_empty()) {
            return self.optional(name, parse);
        }
        if let Err(allowed) = parse("") {
            self.problems.push(format!("{PREFIX}{name} is missing: {allowed}"));
        }
        None
    }

    /// A setting that must not be there, and why.
    pub(super) fn refused(&mut self, name: &'static str, why: &str) {
        if let Some(value) = self.value(name) {
            self.wrong(name, &value, why);
        }
    }

    /// A setting of a later release: only these values, which change nothing, are accepted.
    pub(super) fn later(&mut self, name: &'static str, accepted: &[&str]) {
        let Some(value) = self.value(name) else { return };
        if accepted.iter().any(|text| text.eq_ignore_ascii_case(value.trim())) {
            return;
        }
        let remedy = match accepted {
            [] => "remove the setting".to_owned(),
            values => format!("give {} or remove the setting", values.join(" or ")),
        };
        self.wrong(name, &value, &format!("not in this release: {remedy}"));
    }

    /// `setting` if nothing was wrong; else everything that was. It must be `None` only where a
    /// required setting was missing or wrong.
    pub(super) fn finish<T>(mut self, setting: Option<T>) -> Result<T, ConfigError> {
        self.tell_unknown();
        let problems = self.problems;
        setting.filter(|_| problems.is_empty()).ok_or_else(|| ConfigError::new(problems))
    }

    fn value(&mut self, name: &'static str) -> Option<String> {
        if !self.known.contains(&name) {
            self.known.push(name);
        }
        self.vars.get(&format!("{PREFIX}{name}")).cloned()
    }

    fn wrong(&mut self, name: &str, value: &str, remedy: &str) {
        let mut shown: String = value.chars().take(SHOWN).collect();
        if shown.len() < value.len() {
            shown.push('…');
        }
        self.problems.push(format!("{PREFIX}{name}={shown:?}: {remedy}"));
    }

    /// Names that look like settings and are none. Their values are not shown: nobody knows what
    /// they are.
    fn tell_unknown(&mut self) {
        let mut list = false;
        for name in self.vars.keys() {
            let Some(rest) = setting(name) else { continue };
            if name.starts_with(PREFIX) && self.known.contains(&rest) {
                continue;
            }
            let nearest = nearest(rest, &self.known);
            list |= nearest.is_none();
            self.problems.push(match nearest {
                Some(near) => format!("{name} is no setting: did you mean {PREFIX}{near}?"),
                None => format!("{name} is no setting"),
            });
        }
        if list {
            let names: Vec<String> =
                self.known.iter().map(|name| format!("{PREFIX}{name}")).collect();
            self.problems.push(format!("the settings are {}", names.join(", ")));
        }
    }
}

/// A name without the prefix, if it has that in upper or lower case.
fn setting(name: &str) -> Option<&str> {
    let (prefix, rest) = name.split_at_checked(PREFIX.len())?;
    prefix.eq_ignore_ascii_case(PREFIX).then_some(rest)
}

/// The known name that is nearest to `name`, if at most half of it would have to change.
fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let name = name.to_ascii_uppercase();
    let change = |known: &str| {
        let length = known.chars().count().max(name.chars().count()).max(1);
        distance(&name, known) * 1000 / length
    };
    let ranked = known.iter().map(|known| (change(known), *known));
    ranked.min().filter(|(change, _)| *change <= 500).map(|(_, known)| known)
}

/// How many characters must be added, removed or replaced to make one text the other (Levenshtein).
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.chars().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        for (cell, b) in row[1..].iter_mut().zip(&other) {
            let replaced = diagonal + usize::from(a != *b);
            diagonal = *cell;
            left = replaced.min(*cell + 1).min(left + 1);
            *cell = left;
        }
        row[0] = i + 1;
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_count_changed_characters() {
        for (one, other, expected) in
            [("", "", 0), ("", "abc", 3), ("abc", "", 3), ("kitten", "sitting", 3), ("ab", "ba", 2)]
        {
            assert_eq!(distance(one, other), expected, "{one} {other}");
        }
    }

    #[test]
    fn the_nearest_name_is_found_unless_none_is_near() {
        let known = ["STREAMS", "RUN_MS", "TARGET_TIMEOUT_MS", "MAXIMUM_RETRY_ATTEMPTS"];
        for (name, expected) in [
            ("STREAM", Some("STREAMS")),
            ("streams", Some("STREAMS")),
            ("TIMEOUT_MS", Some("TARGET_TIMEOUT_MS")),
            ("RETRY_ATTEMPTS", Some("MAXIMUM_RETRY_ATTEMPTS")),
            ("COLOUR", None),
            ("", None),
        ] {
            assert_eq!(nearest(name, &known), expected, "{name}");
        }
    }
}
