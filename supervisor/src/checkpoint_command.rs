// SPDX-License-Identifier: Apache-2.0
//! The commands `steadfast checkpoint list`, `steadfast checkpoint verify` and `steadfast checkpoint diff`.

mod show;

use std::io::{self, Write as _};
use std::path::PathBuf;

use steadfast_checkpoints::{
    Boot, Catalogue, Comparison, Depth, FindError, Known, Manifest, ManifestError, Problem,
    differences,
};

use crate::exit_code::ExitCode;
use crate::settings::LayoutChoice;

/// Exit code when something is torn, or nothing can be said.
const TORN: u8 = 1;

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// What is to be done.
    pub(crate) action: Action,
    /// The directory; absolute.
    pub(crate) directory: PathBuf,
    /// Name of this node: what its machine may have lost when it went down is told of.
    pub(crate) node: String,
    /// How the checkpoints in it are laid out.
    pub(crate) layout: LayoutChoice,
    /// Answer in JSON.
    pub(crate) json: bool,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// One line for each.
    List,
    /// Everything that is wrong with these, or with all where none is named.
    Verify {
        /// Their names in the directory.
        names: Vec<String>,
        /// How closely they are looked at.
        depth: Depth,
    },
    /// Which files of two differ.
    Diff {
        /// Their names in the directory; the newest two where absent.
        names: Option<[String; 2]>,
        /// How closely they are looked at.
        depth: Depth,
    },
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
enum CommandError {
    #[error("{0}: {1}")]
    Find(String, io::Error),
    #[error("there is no checkpoint `{0}` in {1}")]
    NotThere(String, String),
    #[error("there are no two checkpoints in {0} to compare")]
    NoTwo(String),
    #[error("cannot compare them: {0}")]
    Compare(String),
}

/// What was found out about one.
struct Verdict<'a> {
    known: &'a Known,
    problems: Vec<Problem>,
    /// What else there is to say.
    note: Option<String>,
}

/// Carries out the command, and gives the exit code.
pub(crate) fn run(request: &Request) -> u8 {
    let mut catalogue = Catalogue::new(request.directory.clone(), request.layout.selection());
    if let Ok(boot) = Boot::now(&request.node) {
        catalogue = catalogue.seen_in(boot);
    }
    let (text, code) = match answer(request, &mut catalogue) {
        Ok(answer) => answer,
        Err(error) => {
            // There is nowhere left to say that standard error cannot be written.
            drop(writeln!(io::stderr(), "error: {error}"));
            return TORN;
        }
    };
    // A reader that went away (`| head`) is no failure.
    drop(io::stdout().write_all(text.as_bytes()));
    code
}

fn answer(request: &Request, catalogue: &mut Catalogue) -> Result<(String, u8), CommandError> {
    let all = catalogue.look().map_err(|FindError { path, source }| {
        let what = format!("cannot read the checkpoint directory {}", path.display());
        CommandError::Find(what, source)
    })?;
    if let Action::Diff { names, depth } = &request.action {
        return compare(request, &all, names.as_ref(), *depth);
    }
    let is_list = request.action == Action::List;
    let verdicts: Vec<Verdict<'_>> = match &request.action {
        Action::List | Action::Diff { .. } => all.into_iter().map(as_known).collect(),
        Action::Verify { names, depth } => {
            if let Some(name) = names
                .iter()
                .find(|name| all.iter().all(|known| known.found.name != **name))
            {
                let directory = request.directory.display().to_string();
                return Err(CommandError::NotThere(name.clone(), directory));
            }
            let mut asked = all;
            asked.retain(|known| names.is_empty() || names.contains(&known.found.name));
            asked
                .into_iter()
                .map(|known| verify(known, *depth))
                .collect()
        }
    };
    let torn = verdicts.iter().any(|verdict| !verdict.problems.is_empty());
    let text = if request.json {
        show::in_json(&request.directory, &verdicts)
    } else if verdicts.is_empty() {
        format!("no checkpoints in {}\n", request.directory.display())
    } else {
        show::as_text(&verdicts, !is_list)
    };
    let code = if torn && !is_list {
        TORN
    } else {
        ExitCode::Success as u8
    };
    Ok((text, code))
}

/// Compares two checkpoints; the exit code says whether they differ.
fn compare(
    request: &Request,
    all: &[&Known],
    names: Option<&[String; 2]>,
    depth: Depth,
) -> Result<(String, u8), CommandError> {
    let directory = request.directory.display().to_string();
    let named = |name: &String| {
        let known = all.iter().find(|known| known.found.name == *name).copied();
        known.ok_or_else(|| CommandError::NotThere(name.clone(), directory.clone()))
    };
    let (first, second) = match (names, all) {
        (Some([first, second]), _) => (named(first)?, named(second)?),
        (None, [.., first, second]) => (*first, *second),
        (None, _) => return Err(CommandError::NoTwo(directory)),
    };
    let differences =
        differences(first, second, depth).map_err(|error| CommandError::Compare(chain(&error)))?;
    let pair = (&first.found, &second.found);
    let text = if request.json {
        show::differences_in_json(pair, &differences, depth)
    } else {
        show::differences_as_text(pair, &differences, depth)
    };
    let code = if differences.is_empty() {
        ExitCode::Success as u8
    } else {
        TORN
    };
    Ok((text, code))
}

fn as_known(known: &Known) -> Verdict<'_> {
    Verdict {
        known,
        problems: known.checked.problems.clone(),
        note: None,
    }
}

/// Compares a checkpoint with its manifest, and leaves one where it has none that fits.
fn verify(known: &Known, depth: Depth) -> Verdict<'_> {
    let mut verdict = as_known(known);
    if !verdict.problems.is_empty() {
        return verdict;
    }
    match against_manifest(known, depth) {
        Ok((problems, note)) => (verdict.problems, verdict.note) = (problems, note),
        Err(error @ ManifestError::File { .. }) => verdict.problems.push(Problem::Unreadable {
            file: known.found.name.clone(),
            error: chain(&error),
        }),
        Err(error) => verdict.note = Some(format!("no manifest is kept: {}", chain(&error))),
    }
    verdict
}

fn against_manifest(
    known: &Known,
    depth: Depth,
) -> Result<(Vec<Problem>, Option<String>), ManifestError> {
    let (found, checked) = (&known.found, &known.checked);
    // One that cannot be read is as good as none, and is replaced.
    let before = Manifest::read(found).ok().flatten();
    let unchanged = |manifest: &Manifest| manifest.compare(&checked.listing) == Comparison::Same;
    let note = match (before.clone().filter(unchanged), depth) {
        (Some(manifest), Depth::Full) if manifest.has_hashes() => {
            let problems = manifest.compare_hashes(found, &checked.listing)?;
            return Ok((problems, Some("every byte is compared".to_owned())));
        }
        (Some(_), Depth::Metadata) => return Ok((Vec::new(), None)),
        (_, Depth::Full) => "hashes are kept, there were none to compare with",
        (None, Depth::Metadata) => "a manifest is kept",
    };
    let new = Manifest::of(found, checked, depth)?;
    // Flushing what lies there would prove nothing; what has been flushed before stays so.
    let was_flushed = before.is_some_and(|manifest| manifest.vouches_for(&checked.listing));
    let new = if was_flushed { new.flushed() } else { new };
    new.write(found)?;
    Ok((Vec::new(), Some(note.to_owned())))
}

fn chain(error: &ManifestError) -> String {
    let source = std::error::Error::source(error).map(|source| format!(": {source}"));
    format!("{error}{}", source.unwrap_or_default())
}
