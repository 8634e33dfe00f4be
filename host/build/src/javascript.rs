//! JavaScript (and TypeScript): bundled by esbuild, made a component by componentize-js, both pinned and run by Node.

use std::fs;
use std::process::Command;

use crate::toolbox::{find_program, run};
use crate::{Doing, Error, Progress, Project, Report, Toolbox, component};

const PACKAGE: &str = include_str!("../tools/javascript/package.json");
const LOCK: &str = include_str!("../tools/javascript/package-lock.json");
const DRIVER: &str = include_str!("../tools/javascript/driver.mjs");

pub(crate) struct Componentizer;

impl Componentizer {
    pub(crate) fn find() -> Result<Componentizer, Error> {
        for tool in ["node", "npm"] {
            if find_program(tool).is_none() {
                return Err(Error::MissingTool {
                    tool: if tool == "node" { "Node.js" } else { "npm" },
                    needed_for: "handlers in JavaScript",
                    get: "Get it from https://nodejs.org (18 or newer), or on Debian by `apt-get install nodejs npm`."
                        .to_owned(),
                });
            }
        }
        Ok(Componentizer)
    }

    pub(crate) fn version(&self) -> String {
        crate::project::digest([PACKAGE, LOCK, DRIVER].concat().as_bytes())
    }

    pub(crate) fn compile(&self, project: &Project, toolbox: &Toolbox, report: Report<'_>) -> Result<Vec<u8>, Error> {
        let tools = toolbox.installed(&format!("javascript-{}", &self.version()[..12]), |folder| {
            report(Progress::Step("fetching componentize-js, this once (npm, about 400 MB on disk)"));
            for (name, content) in [("package.json", PACKAGE), ("package-lock.json", LOCK), ("driver.mjs", DRIVER)] {
                fs::write(folder.join(name), content).doing(|| format!("writing {name} into {}", folder.display()))?;
            }
            let mut npm = Command::new("npm");
            // Their packages carry what they need; no script of theirs has to run.
            npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel", "http"]).current_dir(folder);
            run("npm ci", &mut npm, report).map(drop)
        })?;

        let name = &project.name;
        report(Progress::Step(&format!("{name}: making a component of JavaScript (about 20 seconds)")));
        let scratch = tempfile::tempdir().doing(|| "creating a temporary folder".to_owned())?;
        let wit = component::prepare_wit(project, scratch.path())?;
        let out = scratch.path().join("component.wasm");
        let entry = project.entry.as_ref().expect("a JavaScript project has an entry");
        let mut node = Command::new("node");
        node.arg(tools.join("driver.mjs"))
            .arg(project.folder.join(entry))
            .args([&wit.folder])
            .arg(&wit.world)
            .arg(&out);
        // componentize-js finds the bundle by the current folder.
        node.current_dir(scratch.path());
        run(&format!("{name}: componentize-js"), &mut node, report)?;
        fs::read(&out).doing(|| format!("reading {}", out.display()))
    }
}
