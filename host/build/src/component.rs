//! The component around a handler: its WIT folder before the compiler runs, the wrapping of a core module, and the check afterwards.

use std::fs;
use std::path::{Path, PathBuf};

use wit_component::{ComponentEncoder, DecodedWasm};
use wit_parser::{Resolve, WorldItem, WorldKey};

use crate::{Doing, Error, Project, embedded};

/// A WIT folder that is complete, and the world in it.
pub(crate) struct Wit {
    pub(crate) folder: PathBuf,
    pub(crate) world: String,
}

/// Copies the project's `wit/` into `scratch` and adds what it lacks: the contract, and without any world of its own one that is just
/// `handler`. So a project needs a `wit/` only to ask for more imports, and never has an outdated copy of the contract by accident.
pub(crate) fn prepare_wit(project: &Project, scratch: &Path) -> Result<Wit, Error> {
    let folder = scratch.join("wit");
    let own = project.folder.join("wit");
    if own.is_dir() {
        copy_folder(&own, &folder)?;
    } else {
        write(&folder.join("world.wit"), &embedded::world("guest", &project.name, &[]))?;
    }
    let mut resolve = Resolve::default();
    // The contract may lie in `deps` under any name, so the question is whether it resolves.
    let mut parsed = resolve.push_dir(&folder);
    if parsed.is_err() {
        write(&folder.join("deps/sprag-handler/handler.wit"), embedded::CONTRACT)?;
        resolve = Resolve::default();
        parsed = resolve.push_dir(&folder);
    }
    let not_a_handler = |reason: String| Error::NotAHandler { handler: project.name.clone(), reason };
    let (package, _) = parsed.map_err(|error| not_a_handler(format!("its WIT: {error:#}")))?;
    let world = resolve
        .select_world(&[package], None)
        .map_err(|error| not_a_handler(format!("its WIT must have one world: {error:#}")))?;
    Ok(Wit { folder, world: resolve.worlds[world].name.clone() })
}

/// Makes a component of a core module that carries component type information. What is a component already stays as it is.
pub(crate) fn wrap(name: &str, module: Vec<u8>) -> Result<Vec<u8>, Error> {
    // Bytes 4 to 8 of the header: version and layer, where 1 is the component layer.
    if module.get(4..8) == Some(&[0x0d, 0, 1, 0]) {
        return Ok(module);
    }
    ComponentEncoder::default()
        .validate(true)
        .module(&module)
        .and_then(|mut encoder| encoder.encode())
        .map_err(|error| Error::NotAHandler { handler: name.to_owned(), reason: format!("{error:#}") })
}

/// Refuses what Sprag could not load, and answers the interfaces that the component imports.
pub(crate) fn check(name: &str, component: &[u8]) -> Result<Vec<String>, Error> {
    let not_a_handler = |reason: String| Error::NotAHandler { handler: name.to_owned(), reason };
    let decoded = wit_component::decode(component).map_err(|error| not_a_handler(format!("{error:#}")))?;
    let DecodedWasm::Component(resolve, world) = decoded else {
        return Err(not_a_handler("the compiler made a WIT package".to_owned()));
    };
    let world = &resolve.worlds[world];
    for export in ["describe", "handle"] {
        let found = world.exports.get(&WorldKey::Name(export.to_owned()));
        if !matches!(found, Some(WorldItem::Function(_))) {
            return Err(not_a_handler(format!("it exports no `{export}`")));
        }
    }
    Ok(world
        .imports
        .keys()
        .filter_map(|key| match key {
            WorldKey::Interface(interface) => resolve.id_of(*interface),
            WorldKey::Name(_) => None,
        })
        .collect())
}

fn copy_folder(from: &Path, to: &Path) -> Result<(), Error> {
    let doing = || format!("copying {}", from.display());
    fs::create_dir_all(to).doing(doing)?;
    for entry in fs::read_dir(from).doing(doing)? {
        let entry = entry.doing(doing)?;
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_folder(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target).doing(doing)?;
        }
    }
    Ok(())
}

fn write(file: &Path, text: &str) -> Result<(), Error> {
    let doing = || format!("writing {}", file.display());
    fs::create_dir_all(file.parent().expect("the file lies in a folder")).doing(doing)?;
    fs::write(file, text).doing(doing)
}
