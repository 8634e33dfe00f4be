//! What is wanted against what is there. Pure.

use std::fmt;

use super::{Current, Found, Wanted};
use crate::administration::{Path, Rule, Setting};

/// What has to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// With its first rule, when it is a subscription. Others are changes of their own.
    Create {
        path: Path,
        settings: Vec<Setting>,
        rule: Option<Rule>,
    },
    /// In place. What is not named stays.
    Update {
        path: Path,
        settings: Vec<Changed>,
    },
    CreateRule {
        path: Path,
        rule: Rule,
    },
    UpdateRule {
        path: Path,
        from: Rule,
        to: Rule,
    },
}

/// One setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changed {
    pub from: Setting,
    pub to: Setting,
}

impl Change {
    pub fn path(&self) -> &Path {
        match self {
            Self::Create { path, .. }
            | Self::Update { path, .. }
            | Self::CreateRule { path, .. }
            | Self::UpdateRule { path, .. } => path,
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Create { path, .. } => write!(f, "create {path}"),
            Self::Update { path, settings } => {
                let names: Vec<_> = settings.iter().map(|changed| changed.to.name()).collect();
                write!(f, "update {} of {path}", names.join(", "))
            }
            Self::CreateRule { path, rule } => write!(f, "create rule {} of {path}", rule.name),
            Self::UpdateRule { path, to, .. } => write!(f, "update rule {} of {path}", to.name),
        }
    }
}

/// What is not as it has to be and cannot be changed in place. Somebody has to decide.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    pub path: Path,
    /// The setting, or `kind`.
    pub setting: &'static str,
    pub reason: String,
    /// What to do about it.
    pub remedy: String,
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}. {}", self.path, self.reason, self.remedy)
    }
}

/// A rule that nobody here wants. It stays: it may be somebody's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leftover {
    pub path: Path,
    pub rule: Rule,
}

/// What is not as it has to be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Difference {
    /// In the order in which they are to be carried out.
    pub changes: Vec<Change>,
    pub conflicts: Vec<Conflict>,
    pub left: Vec<Leftover>,
}

impl Difference {
    /// Everything is as it has to be.
    pub fn is_none(&self) -> bool {
        self.changes.is_empty() && self.conflicts.is_empty()
    }
}

/// Several endpoints may want the same entity: it is made with what all of them want of it.
pub fn diff(wanted: &[Wanted], current: &Current) -> Difference {
    let mut difference = Difference::default();
    let mut made: Vec<&Path> = Vec::new();
    for one in wanted {
        match current.get(&one.path) {
            Some(found) => compare(one, found, wanted, &mut difference),
            None if made.iter().any(|path| path.is(&one.path)) => {}
            None => {
                made.push(&one.path);
                create(one, wanted, &mut difference.changes);
            }
        }
    }
    difference
}

/// Where two wishes differ, the first one makes it, and the next look says what the other still has to change.
fn create(first: &Wanted, all: &[Wanted], changes: &mut Vec<Change>) {
    let (mut settings, mut rules): (Vec<Setting>, Vec<Rule>) = (Vec::new(), Vec::new());
    let of_this = || all.iter().filter(|wanted| wanted.path.is(&first.path));
    // What one of them cannot do without goes before what another one is only made with.
    let wishes = of_this().flat_map(|it| &it.settings).chain(of_this().flat_map(|it| &it.made_with));
    for wish in wishes {
        if !settings.iter().any(|known| known.name() == wish.name()) {
            settings.push(wish.clone());
        }
    }
    for wanted in of_this() {
        let new = wanted.rules.iter().filter(|it| !rules.iter().any(|known| known.is_named(&it.name)));
        let new: Vec<_> = new.cloned().collect();
        rules.extend(new);
    }
    let path = &first.path;
    let mut rules = rules.into_iter();
    changes.push(Change::Create { path: path.clone(), settings, rule: rules.next() });
    changes.extend(rules.map(|rule| Change::CreateRule { path: path.clone(), rule }));
}

fn compare(wanted: &Wanted, found: &Found, all: &[Wanted], difference: &mut Difference) {
    let path = &wanted.path;
    if !found.entity.path.is(path) {
        difference.conflicts.push(Conflict {
            path: path.clone(),
            setting: "kind",
            reason: format!("there is a {} of this name, and a {} is needed", found.entity.path.kind(), path.kind()),
            remedy: format!("Give the endpoint another name, or remove the {}", found.entity.path),
        });
        return;
    }
    let mut settings = Vec::new();
    for to in &wanted.settings {
        let from = found.entity.setting(to);
        if from.agrees_with(to) {
            continue;
        }
        match to.is_fixed() {
            true => difference.conflicts.push(fixed(path, to)),
            false => settings.push(Changed { from, to: to.clone() }),
        }
    }
    if !settings.is_empty() {
        difference.changes.push(Change::Update { path: path.clone(), settings });
    }
    for to in &wanted.rules {
        match found.rules.iter().find(|rule| rule.is_named(&to.name)) {
            None => difference.changes.push(Change::CreateRule { path: path.clone(), rule: to.clone() }),
            Some(from) if !from.agrees_with(to) => {
                let (path, from, to) = (path.clone(), from.clone(), to.clone());
                difference.changes.push(Change::UpdateRule { path, from, to });
            }
            Some(_) => {}
        }
    }
    let of_this = |other: &&Wanted| other.path.is(path);
    let is_wanted =
        |rule: &Rule| all.iter().filter(of_this).any(|it| it.rules.iter().any(|it| it.is_named(&rule.name)));
    for rule in found.rules.iter().filter(|rule| !is_wanted(rule)) {
        let leftover = Leftover { path: path.clone(), rule: rule.clone() };
        if !difference.left.contains(&leftover) {
            difference.left.push(leftover);
        }
    }
}

fn fixed(path: &Path, wanted: &Setting) -> Conflict {
    let reason = match wanted {
        Setting::RequiresSession(true) => "it has no sessions, and it needs them",
        Setting::RequiresSession(_) => "it requires sessions, and must not",
        Setting::DuplicateDetection(_) => {
            "it has duplicate detection, which swallows retries and parked messages that keep their id (P25)"
        }
        _ => "it is partitioned, and must not be",
    };
    let anew = format!(
        "receive what it holds, delete it, and run `sprag topology apply` again: {path} is then made as it has to be"
    );
    let remedy = match wanted {
        Setting::DuplicateDetection(_) => {
            format!("Duplicate detection belongs on the entity that publishers send to; here, {anew}")
        }
        _ => format!("This is decided when an entity is made: give the endpoint another name, or {anew}"),
    };
    Conflict { path: path.clone(), setting: wanted.name(), reason: reason.to_owned(), remedy }
}
