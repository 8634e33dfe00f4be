//! From a file's bytes to a component that fits the contract, or to one line that says why not.
//!
//! Everything here looks at names and sections only: it costs a few milliseconds even for a Python component, and comes before the
//! compiler, which takes seconds.

use std::borrow::Cow;

use sprag_core::ids::HandlerName;
use wasmparser::{ComponentTypeRef, Encoding, Parser, Payload};
use wit_component::ComponentEncoder;

use crate::config::HandlerConfig;

/// The contract's version that this host speaks.
const CONTRACT: &str = "sprag:handler@0.1.0";

/// Why a file does not become a handler. Each is one line that names what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    #[error("this is not WebAssembly: {0}")]
    NotWasm(String),
    #[error("this is not a whole WebAssembly file: {0}")]
    Truncated(String),
    #[error("this WebAssembly file is not valid: {0}")]
    Invalid(String),
    #[error(
        "this is a plain core module without component type information; build it against the `handler` world of {CONTRACT} (`sprag build` does)"
    )]
    PlainModule,
    #[error("this component is for another world: it does not export `{0}`, as the `handler` world of {CONTRACT} does")]
    MissingExport(String),
    #[error("this component is for another world: {0}")]
    WrongWorld(String),
    #[error("this component was built for {found}; this host speaks {CONTRACT}: build it against that")]
    WrongVersion { found: String },
    #[error("it imports `{import}`, which is not granted; to grant it: {fix}")]
    NotGranted { import: String, fix: String },
    #[error("it imports `{import}`, which this host does not have{hint}")]
    UnknownImport { import: String, hint: String },
    #[error("folder {path} ({guest}): {why}")]
    Folder { path: String, guest: String, why: String },
    #[error("{0}")]
    Limits(String),
    #[error("`describe` failed: {0}")]
    Describe(String),
    #[error("`describe` names no event type")]
    NoEventTypes,
    #[error(
        "event type `{event_type}` at endpoint `{endpoint}` is already handled by `{other}`; two endpoints can share it:\n\n{fix}"
    )]
    Claimed { event_type: String, endpoint: String, other: String, fix: String },
    #[error("the file cannot be read: {0}")]
    Read(String),
}

/// What the outside of a component says.
#[derive(Debug, Default)]
pub(crate) struct Outside {
    imports: Vec<String>,
    exports: Vec<String>,
}

impl Outside {
    pub(crate) fn imports_wasi(&self) -> bool {
        self.imports.iter().any(|name| name.starts_with("wasi:"))
    }

    pub(crate) fn imports(&self, interface: &str) -> bool {
        self.imports.iter().any(|name| {
            name.strip_prefix("sprag:handler/").is_some_and(|rest| rest.split('@').next() == Some(interface))
        })
    }
}

/// The component in these bytes, wrapped if need be.
pub(crate) fn from_file(bytes: &[u8]) -> Result<Cow<'_, [u8]>, LoadError> {
    if !bytes.starts_with(b"\0asm") {
        if b"\0asm".starts_with(bytes) {
            return Err(LoadError::Truncated(format!("it has {} bytes", bytes.len())));
        }
        let text = std::str::from_utf8(&bytes[..bytes.len().min(1_024)]).map(|_| "it starts like text");
        return Err(LoadError::NotWasm(text.unwrap_or("it does not start with the bytes `\\0asm`").to_owned()));
    }
    if bytes.len() < 8 {
        return Err(LoadError::Truncated(format!("it has {} bytes", bytes.len())));
    }
    let (mut has_type, mut preview1, mut encoding) = (false, false, None);
    for payload in Parser::new(0).parse_all(bytes) {
        match payload.map_err(|error| unreadable(&error, bytes.len()))? {
            Payload::Version { encoding: found, .. } => encoding = encoding.or(Some(found)),
            Payload::CustomSection(section) if encoding == Some(Encoding::Module) => {
                has_type |= section.name().starts_with("component-type");
            }
            Payload::ImportSection(section) if encoding == Some(Encoding::Module) => {
                for import in section.into_imports() {
                    let import = import.map_err(|error| LoadError::Invalid(error.to_string()))?;
                    preview1 |= import.module == "wasi_snapshot_preview1";
                }
            }
            _ => {}
        }
    }
    match encoding {
        Some(Encoding::Component) => Ok(Cow::Borrowed(bytes)),
        Some(Encoding::Module) if !has_type => Err(LoadError::PlainModule),
        _ => wrap(bytes, preview1).map(Cow::Owned),
    }
}

fn unreadable(error: &wasmparser::BinaryReaderError, len: usize) -> LoadError {
    let text = error.to_string();
    if text.contains("unexpected end") || error.offset() >= len {
        LoadError::Truncated(format!("it ends in the middle, after {len} bytes"))
    } else {
        LoadError::Invalid(text)
    }
}

fn wrap(module: &[u8], preview1: bool) -> Result<Vec<u8>, LoadError> {
    use wasi_preview1_component_adapter_provider::{
        WASI_SNAPSHOT_PREVIEW1_ADAPTER_NAME as NAME, WASI_SNAPSHOT_PREVIEW1_REACTOR_ADAPTER as ADAPTER,
    };
    let encode = || {
        let mut encoder = ComponentEncoder::default().module(module)?.validate(true);
        if preview1 {
            encoder = encoder.adapter(NAME, ADAPTER)?;
        }
        encoder.encode()
    };
    encode().map_err(|error| {
        LoadError::WrongWorld(format!("the module cannot be made a component: {error:#}").replace('\n', " "))
    })
}

/// The names a component imports and exports.
pub(crate) fn outside(component: &[u8]) -> Result<Outside, LoadError> {
    let mut outside = Outside::default();
    let mut depth = 0_usize;
    for payload in Parser::new(0).parse_all(component) {
        match payload.map_err(|error| unreadable(&error, component.len()))? {
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
            Payload::End(_) => depth = depth.saturating_sub(1),
            Payload::ComponentImportSection(section) if depth == 0 => {
                for import in section {
                    let import = import.map_err(|error| LoadError::Invalid(error.to_string()))?;
                    // Types are names for what other imports and exports use, and nothing to be granted.
                    if !matches!(import.ty, ComponentTypeRef::Type(_)) {
                        outside.imports.push(import.name.name.to_owned());
                    }
                }
            }
            Payload::ComponentExportSection(section) if depth == 0 => {
                for export in section {
                    let export = export.map_err(|error| LoadError::Invalid(error.to_string()))?;
                    outside.exports.push(export.name.name.to_owned());
                }
            }
            _ => {}
        }
    }
    Ok(outside)
}

/// Version, world and grants, in the order in which a person wants to hear of them.
pub(crate) fn check(outside: &Outside, name: &HandlerName, config: &HandlerConfig) -> Result<(), LoadError> {
    for import in outside.imports.iter().chain(&outside.exports) {
        if let Some((package, _, version)) = parts(import)
            && package == "sprag:handler"
            && !compatible(version)
        {
            return Err(LoadError::WrongVersion { found: format!("{package}@{version}") });
        }
    }
    for export in ["describe", "handle"] {
        if !outside.exports.iter().any(|name| name == export) {
            return Err(LoadError::MissingExport(export.into()));
        }
    }
    outside.imports.iter().try_for_each(|import| check_import(import, name, config))
}

fn check_import(import: &str, name: &HandlerName, config: &HandlerConfig) -> Result<(), LoadError> {
    let unknown = |hint: &str| Err(LoadError::UnknownImport { import: import.to_owned(), hint: hint.to_owned() });
    let not_granted = |line: String| {
        Err(LoadError::NotGranted { import: import.to_owned(), fix: format!("[handler.{name}] {line}") })
    };
    let Some((package, interface, version)) = parts(import) else {
        return unknown("");
    };
    match (package, interface) {
        ("sprag:handler", "types" | "context" | "log" | "outgoing") => Ok(()),
        ("sprag:handler", "state") if config.grants("state") => Ok(()),
        ("sprag:handler", "state") => {
            let mut grants: Vec<String> = config.grant.iter().map(|grant| format!("{grant:?}")).collect();
            grants.push("\"state\"".into());
            not_granted(format!("grant = [{}]", grants.join(", ")))
        }
        ("sprag:handler", "sql") if config.grant.iter().any(|grant| grant.starts_with("sql:")) => Ok(()),
        ("sprag:handler", "sql") => {
            let mut grants: Vec<String> = config.grant.iter().map(|grant| format!("{grant:?}")).collect();
            grants.push("\"sql:NAME\"".into());
            not_granted(format!(
                "grant = [{}], where NAME is the endpoint's store (\"embedded\" without another)",
                grants.join(", ")
            ))
        }
        ("sprag:handler", "config") if config.config.is_some() => Ok(()),
        ("sprag:handler", "config") => not_granted("config = { key = \"value\" }".into()),
        ("wasi:io" | "wasi:clocks" | "wasi:random" | "wasi:cli" | "wasi:filesystem" | "wasi:sockets", _) => {
            if version.starts_with("0.2") { Ok(()) } else { unknown(": of WASI it has version 0.2") }
        }
        ("wasi:http", _) => unknown(": a handler cannot make HTTP requests in this version"),
        _ => unknown(""),
    }
}

/// `sprag:handler/state@0.1.0` in its parts.
fn parts(import: &str) -> Option<(&str, &str, &str)> {
    let (package, rest) = import.split_once('/')?;
    let (interface, version) = rest.split_once('@').unwrap_or((rest, ""));
    Some((package, interface, version))
}

/// Below 1.0 the minor number is what must not change.
fn compatible(version: &str) -> bool {
    version == "0.1" || version.starts_with("0.1.")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn imports(names: &[&str]) -> Outside {
        Outside {
            imports: names.iter().map(|name| (*name).to_owned()).collect(),
            exports: vec!["describe".into(), "handle".into(), "memory".into(), "wasi:cli/run@0.2.0".into()],
        }
    }

    fn checked(names: &[&str], config: &HandlerConfig) -> Result<(), LoadError> {
        check(&imports(names), &"payment".into(), config)
    }

    #[test]
    fn granted_to_everybody_and_extra_exports_are_ignored() {
        let names = [
            "sprag:handler/types@0.1.0",
            "sprag:handler/context@0.1.7",
            "sprag:handler/log@0.1.0",
            "sprag:handler/outgoing@0.1.0",
            "wasi:clocks/monotonic-clock@0.2.9",
            "wasi:sockets/tcp@0.2.0",
            "wasi:filesystem/preopens@0.2.9",
        ];
        assert_eq!(checked(&names, &HandlerConfig::default()), Ok(()));
    }

    #[test]
    fn what_is_not_granted_is_named_with_the_line_that_grants_it() {
        let mut config = HandlerConfig { grant: vec!["sql:main".into()], ..HandlerConfig::default() };
        let error = checked(&["sprag:handler/state@0.1.0"], &config).unwrap_err().to_string();
        assert!(error.contains("`sprag:handler/state@0.1.0`"), "{error}");
        assert!(error.contains(r#"[handler.payment] grant = ["sql:main", "state"]"#), "{error}");
        config.grant.push("state".into());
        assert_eq!(checked(&["sprag:handler/state@0.1.0"], &config), Ok(()));

        assert_eq!(checked(&["sprag:handler/sql@0.1.0"], &config), Ok(()));
        config.grant.retain(|grant| grant == "state");
        let error = checked(&["sprag:handler/sql@0.1.0"], &config).unwrap_err().to_string();
        assert!(error.contains(r#"grant = ["state", "sql:NAME"]"#), "{error}");

        let error = checked(&["sprag:handler/config@0.1.0"], &config).unwrap_err().to_string();
        assert!(error.contains("[handler.payment] config = "), "{error}");
        config.config = Some(std::collections::BTreeMap::new());
        assert_eq!(checked(&["sprag:handler/config@0.1.0"], &config), Ok(()));
    }

    #[test]
    fn what_this_host_does_not_have_is_named() {
        for name in ["wasi:http/outgoing-handler@0.2.0", "acme:thing/x", "bare", "wasi:clocks/monotonic-clock@0.3.0"] {
            let error = checked(&[name], &HandlerConfig::default()).unwrap_err();
            assert!(matches!(&error, LoadError::UnknownImport { import, .. } if import == name), "{error}");
            assert!(!error.to_string().contains('\n'));
        }
    }

    #[test]
    fn another_version_of_the_contract_is_named_first() {
        let error =
            checked(&["wasi:http/x@0.2.0", "sprag:handler/context@0.2.0"], &HandlerConfig::default()).unwrap_err();
        assert_eq!(error, LoadError::WrongVersion { found: "sprag:handler@0.2.0".into() });
        assert!(error.to_string().contains("sprag:handler@0.1.0"), "{error}");
    }

    #[test]
    fn what_is_no_wasm_or_half_of_it() {
        assert!(matches!(from_file(b"hello, this is text"), Err(LoadError::NotWasm(_))));
        assert!(matches!(from_file(&[0xff; 100]), Err(LoadError::NotWasm(_))));
        for half in [&b""[..], b"\0", b"\0asm", b"\0asm\x01\0"] {
            assert!(matches!(from_file(half), Err(LoadError::Truncated(_))), "{half:?}");
        }
        assert_eq!(from_file(b"\0asm\x01\0\0\0"), Err(LoadError::PlainModule));
        assert!(matches!(from_file(b"\0asm\x01\0\0\0\x00\x7fabc"), Err(LoadError::Truncated(_))));
    }
}
