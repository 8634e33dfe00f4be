//! What the verbs print: as text, a line each and aligned, without colours; and as JSON, whose shape is stable.
//!
//! The types here are the JSON. The text is made of the same values, so both say the same.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Change, Conflict, Current, Difference, Found, Leftover, Problem, Report, Severity, Wanted};
use crate::administration::{self, Path, Setting};

/// A setting's value: `true`, `10`, `"30s"`, `"never"`, or null for nowhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Value {
    Flag(bool),
    Number(u64),
    Text(String),
    None,
}

/// A line of `topology show`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Entity {
    pub entity: String,
    pub kind: &'static str,
    pub exists: bool,
    /// `active`, …; null when it is not there.
    pub status: Option<String>,
    /// By name; empty when it is not there.
    pub settings: BTreeMap<&'static str, Value>,
    pub rules: Vec<Rule>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Rule {
    pub name: String,
    pub filter: String,
    pub action: Option<String>,
}

/// A line of `topology diff`, and of what `apply` has done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Step {
    /// `create`, `update`, `create-rule`, `update-rule`.
    pub change: &'static str,
    pub entity: String,
    pub kind: &'static str,
    pub settings: Vec<SettingStep>,
    pub rule: Option<Rule>,
    /// What the rule says until then.
    pub rule_before: Option<Rule>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SettingStep {
    pub name: &'static str,
    /// Null for an entity that is to be made.
    pub from: Option<Value>,
    pub to: Value,
}

/// What cannot be changed in place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Refused {
    pub entity: String,
    pub kind: &'static str,
    pub setting: &'static str,
    pub reason: String,
    pub remedy: String,
}

/// A rule that stays, and that nobody here wants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Left {
    pub entity: String,
    pub kind: &'static str,
    pub rule: Rule,
}

/// `topology diff --json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Steps {
    pub changes: Vec<Step>,
    pub conflicts: Vec<Refused>,
    pub left: Vec<Left>,
}

/// `topology apply --json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Applied {
    pub done: Vec<Step>,
    pub untouched: Vec<Name>,
    pub left: Vec<Left>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Name {
    pub entity: String,
    pub kind: &'static str,
}

/// A finding of `check`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// `error` or `warning`.
    pub severity: &'static str,
    pub entity: String,
    pub kind: &'static str,
    pub text: String,
    pub remedy: String,
}

/// What is there of what is wanted, each entity once.
pub fn show(wanted: &[Wanted], current: &Current) -> Vec<Entity> {
    let mut all: Vec<Entity> = Vec::new();
    for Wanted { path, .. } in wanted {
        let entity = entity(path, current.get(path));
        if !all.iter().any(|known| (known.kind, &known.entity) == (entity.kind, &entity.entity)) {
            all.push(entity);
        }
    }
    all
}

fn entity(path: &Path, found: Option<&Found>) -> Entity {
    let Some(Found { entity: it, rules }) = found else {
        let (entity, kind) = named(path);
        let (settings, rules) = (BTreeMap::new(), Vec::new());
        return Entity { entity, kind, exists: false, status: None, settings, rules };
    };
    let (entity, kind) = named(&it.path);
    let received = [
        Setting::RequiresSession(it.requires_session),
        Setting::LockDuration(it.lock_duration),
        Setting::MaxDeliveryCount(it.max_delivery_count),
        Setting::DeadLetterOnExpiry(it.dead_letter_on_expiry),
        Setting::ForwardTo(it.forward_to.clone()),
    ];
    let kept = [
        Setting::DuplicateDetection(it.duplicate_detection),
        Setting::Partitioned(it.partitioned),
        Setting::MaxSizeInMegabytes(it.max_size_in_megabytes),
    ];
    let all = [Setting::TimeToLive(it.time_to_live), Setting::AutoDeleteOnIdle(it.auto_delete_on_idle)];
    let mut settings: Vec<Setting> = all.to_vec();
    if !matches!(it.path, Path::Topic(_)) {
        settings.extend(received);
    }
    if !matches!(it.path, Path::Subscription { .. }) {
        settings.extend(kept);
    }
    Entity {
        entity,
        kind,
        exists: true,
        status: Some(it.status.to_string()),
        settings: settings.iter().map(|setting| (setting.name(), value(setting))).collect(),
        rules: rules.iter().map(rule).collect(),
    }
}

pub fn steps(difference: &Difference) -> Steps {
    Steps {
        changes: difference.changes.iter().map(step).collect(),
        conflicts: difference.conflicts.iter().map(refused).collect(),
        left: difference.left.iter().map(left).collect(),
    }
}

pub fn applied(report: &Report) -> Applied {
    let name = |path: &Path| {
        let (entity, kind) = named(path);
        Name { entity, kind }
    };
    Applied {
        done: report.done.iter().map(step).collect(),
        untouched: report.untouched.iter().map(name).collect(),
        left: report.left.iter().map(left).collect(),
    }
}

pub fn findings(problems: &[Problem]) -> Vec<Finding> {
    let finding = |problem: &Problem| {
        let (entity, kind) = named(&problem.path);
        let severity = match problem.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        Finding { severity, entity, kind, text: problem.text.clone(), remedy: problem.remedy.clone() }
    };
    problems.iter().map(finding).collect()
}

/// One change, also for a line of progress.
pub fn step(change: &Change) -> Step {
    let (entity, kind) = named(change.path());
    let plain = |name| Step { change: name, entity, kind, settings: Vec::new(), rule: None, rule_before: None };
    match change {
        Change::Create { settings, rule: first, .. } => {
            let made = |setting: &Setting| SettingStep { name: setting.name(), from: None, to: value(setting) };
            let settings = settings.iter().map(made).collect();
            Step { settings, rule: first.as_ref().map(rule), ..plain("create") }
        }
        Change::Update { settings, .. } => {
            let changed = |it: &super::Changed| SettingStep {
                name: it.to.name(),
                from: Some(value(&it.from)),
                to: value(&it.to),
            };
            Step { settings: settings.iter().map(changed).collect(), ..plain("update") }
        }
        Change::CreateRule { rule: new, .. } => Step { rule: Some(rule(new)), ..plain("create-rule") },
        Change::UpdateRule { from, to, .. } => {
            Step { rule: Some(rule(to)), rule_before: Some(rule(from)), ..plain("update-rule") }
        }
    }
}

fn refused(conflict: &Conflict) -> Refused {
    let (entity, kind) = named(&conflict.path);
    let Conflict { setting, reason, remedy, .. } = conflict.clone();
    Refused { entity, kind, setting, reason, remedy }
}

fn left(left: &Leftover) -> Left {
    let (entity, kind) = named(&left.path);
    Left { entity, kind, rule: rule(&left.rule) }
}

fn rule(rule: &administration::Rule) -> Rule {
    Rule { name: rule.name.clone(), filter: rule.filter.to_string(), action: rule.action.clone() }
}

fn named(path: &Path) -> (String, &'static str) {
    (path.name().to_string(), path.kind())
}

fn value(setting: &Setting) -> Value {
    match setting {
        Setting::RequiresSession(on)
        | Setting::DeadLetterOnExpiry(on)
        | Setting::DuplicateDetection(on)
        | Setting::Partitioned(on)
        | Setting::DeadLetterOnFilterErrors(on)
        | Setting::BatchedOperations(on)
        | Setting::SupportOrdering(on) => Value::Flag(*on),
        Setting::MaxDeliveryCount(count) => Value::Number((*count).into()),
        Setting::MaxSizeInMegabytes(size) => Value::Number(*size),
        Setting::ForwardTo(None) => Value::None,
        other => Value::Text(other.value()),
    }
}

// === as text ===

impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Flag(on) => on.fmt(f),
            Self::Number(number) => number.fmt(f),
            Self::Text(text) => f.write_str(text),
            Self::None => f.write_str("none"),
        }
    }
}

impl std::fmt::Display for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.name, self.filter)?;
        self.action.as_ref().map_or(Ok(()), |action| write!(f, ", then {action}"))
    }
}

pub fn show_text(entities: &[Entity]) -> String {
    let row = |it: &Entity| vec![it.kind.to_owned(), it.entity.clone(), described(it)];
    aligned(&entities.iter().map(row).collect::<Vec<_>>())
}

fn described(it: &Entity) -> String {
    if !it.exists {
        return "not there".to_owned();
    }
    let flag = |name: &str| it.settings.get(name) == Some(&Value::Flag(true));
    let mut told: Vec<String> = Vec::new();
    match it.settings.get("forward_to") {
        Some(Value::Text(target)) => told.push(format!("forwards to {target}")),
        // What it holds is received from it.
        Some(_) => {
            told.push(if flag("requires_session") { "sessions" } else { "no sessions" }.to_owned());
            told.extend(it.settings.get("lock_duration").map(|lock| format!("lock {lock}")));
            told.extend(it.settings.get("max_delivery_count").map(|count| format!("{count} deliveries")));
        }
        None => {}
    }
    told.extend(it.settings.get("ttl").map(|ttl| format!("expires {}", when(ttl))));
    if flag("duplicate_detection") {
        told.push("duplicate detection".to_owned());
    }
    if flag("partitioned") {
        told.push("partitioned".to_owned());
    }
    if let Some(auto) = it.settings.get("auto_delete_on_idle").filter(|it| **it != Value::Text("never".into())) {
        told.push(format!("removed when idle for {auto}"));
    }
    told.extend(it.status.iter().filter(|status| *status != "active").cloned());
    told.extend(it.rules.iter().map(|rule| format!("rule {rule}")));
    told.join(", ")
}

fn when(ttl: &Value) -> String {
    match ttl {
        Value::Text(text) if text == "never" => text.clone(),
        other => format!("after {other}"),
    }
}

pub fn steps_text(steps: &Steps) -> String {
    let mut rows: Vec<Vec<String>> = steps.changes.iter().map(step_row).collect();
    rows.extend(steps.conflicts.iter().map(|it| {
        let reason = format!("{}: {}. {}", it.setting, it.reason, it.remedy);
        vec!["conflict".to_owned(), it.kind.to_owned(), it.entity.clone(), reason]
    }));
    rows.extend(steps.left.iter().map(left_row));
    if rows.is_empty() { "nothing to do\n".to_owned() } else { aligned(&rows) }
}

pub fn applied_text(applied: &Applied) -> String {
    let mut rows: Vec<Vec<String>> = applied.done.iter().map(step_row).collect();
    rows.extend(
        applied
            .untouched
            .iter()
            .map(|it| vec!["as it is".to_owned(), it.kind.to_owned(), it.entity.clone(), String::new()]),
    );
    rows.extend(applied.left.iter().map(left_row));
    aligned(&rows)
}

/// One line of progress.
pub fn step_text(step: &Step) -> String {
    aligned(&[step_row(step)])
}

pub fn findings_text(findings: &[Finding]) -> String {
    let row = |it: &Finding| {
        let text = format!("{}. {}", it.text, it.remedy);
        vec![it.severity.to_owned(), it.kind.to_owned(), it.entity.clone(), text]
    };
    aligned(&findings.iter().map(row).collect::<Vec<_>>())
}

fn step_row(step: &Step) -> Vec<String> {
    let mut told: Vec<String> = Vec::new();
    for it in &step.settings {
        told.push(match &it.from {
            None => format!("{} {}", it.name, it.to),
            Some(from) => format!("{} {} (is {from})", it.name, it.to),
        });
    }
    told.extend(step.rule.as_ref().map(|rule| format!("rule {rule}")));
    told.extend(step.rule_before.as_ref().map(|rule| format!("(is {rule})")));
    vec![step.change.to_owned(), step.kind.to_owned(), step.entity.clone(), told.join(", ")]
}

fn left_row(left: &Left) -> Vec<String> {
    let text = format!("rule {} (not of this configuration; it stays)", left.rule);
    vec!["left".to_owned(), left.kind.to_owned(), left.entity.clone(), text]
}

/// Each column as wide as its widest cell, two spaces between them, nothing behind the last.
fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
    let width = |at: usize| rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|at| width(at).unwrap_or_default()).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}
