// SPDX-License-Identifier: Apache-2.0
//! The structured error that a worker leaves behind, in torchelastic's format, and the copy for an outer launcher.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

/// Most bytes of an error file that are read.
const MAX_BYTES: u64 = 1024 * 1024;

/// What an error file says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkerError {
    /// Type of the exception, such as `ValueError`; empty if the message names none.
    pub exception: String,
    /// The message without the type.
    pub message: String,
    /// The traceback as Python prints it; empty if there is none.
    pub traceback: String,
    /// When it was raised, in milliseconds since 1970, by the worker's clock. Files usually hold whole seconds.
    pub raised_ms: Option<i64>,
    /// The exit code, if somebody recorded it.
    pub exit_code: Option<i32>,
    /// What was wrong with the file itself, if anything was.
    pub note: Option<String>,
}

/// Why an error file could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum ErrorFileError {
    /// The file is there but cannot be read.
    #[error("failed to read error file {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The copy could not be written.
    #[error("failed to write error file {path}")]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

/// Reads an error file, at most 1 MiB of it. `None` if there is none, or an empty one. Garbage is no error: it comes
/// back as the message, with a note.
pub fn read_error_file(path: &Path) -> Result<Option<WorkerError>, ErrorFileError> {
    let bytes = read_bounded(path)?;
    Ok(bytes
        .filter(|bytes| !bytes.trim_ascii().is_empty())
        .map(|bytes| parse_error_file(&bytes)))
}

/// Understands the contents of an error file, in any of the forms that are in use.
pub fn parse_error_file(bytes: &[u8]) -> WorkerError {
    let value = match serde_json::from_slice::<Value>(bytes) {
        Ok(value) => value,
        Err(error) => {
            return not_understood(bytes, &format!("the error file is not valid JSON: {error}"));
        }
    };
    let Some(message) = value.get("message") else {
        return not_understood(bytes, "the error file has no field `message`");
    };
    let inner = message.get("message").unwrap_or(message);
    let extra = message.get("extraInfo").or_else(|| value.get("extraInfo"));
    let field = |name: &str| {
        let place = |holder: Option<&Value>| holder.and_then(|holder| holder.get(name)).cloned();
        place(extra)
            .or_else(|| place(Some(message)))
            .or_else(|| place(Some(&value)))
    };
    let (exception, message) = split_exception(&text(inner));
    WorkerError {
        exception,
        message,
        traceback: field("py_callstack").as_ref().map(text).unwrap_or_default(),
        raised_ms: field("timestamp_ms")
            .and_then(|exact| exact.as_i64())
            .or_else(|| field("timestamp").as_ref().and_then(milliseconds)),
        exit_code: field("errorCode").and_then(|code| i32::try_from(code.as_i64()?).ok()),
        note: None,
    }
}

/// Copies the error file `from` to `to` with the worker's exit code added, as an outer launcher expects it. Whatever
/// else the file holds is kept; one that is not understood is wrapped. Written whole or not at all.
pub fn copy_error_file(from: &Path, to: &Path, exit_code: i32) -> Result<(), ErrorFileError> {
    let bytes = read_bounded(from)?.unwrap_or_default();
    let mut value = match serde_json::from_slice::<Value>(&bytes) {
        Ok(Value::Object(fields)) if fields.contains_key("message") => Value::Object(fields),
        _ => json!({ "message": { "message": String::from_utf8_lossy(&bytes) } }),
    };
    let holder: Option<&mut Map<String, Value>> = match value.get("message") {
        Some(Value::Object(_)) => value.get_mut("message").and_then(Value::as_object_mut),
        // A plain text has no place for it.
        _ => value.as_object_mut(),
    };
    if let Some(holder) = holder {
        holder.insert("errorCode".to_owned(), exit_code.into());
    }
    replace(to, value.to_string().as_bytes())
}

/// Writes an error file for a worker that left none.
pub fn write_error_file(
    to: &Path,
    error: &WorkerError,
    exit_code: i32,
) -> Result<(), ErrorFileError> {
    let message = match (error.exception.as_str(), error.message.as_str()) {
        ("", message) => message.to_owned(),
        (exception, "") => exception.to_owned(),
        (exception, message) => format!("{exception}: {message}"),
    };
    let seconds = error.raised_ms.unwrap_or_default().div_euclid(1000);
    let extra = json!({ "py_callstack": error.traceback, "timestamp": seconds.to_string() });
    let value =
        json!({ "message": { "message": message, "extraInfo": extra, "errorCode": exit_code } });
    replace(to, value.to_string().as_bytes())
}

fn read_bounded(path: &Path) -> Result<Option<Vec<u8>>, ErrorFileError> {
    let fail = |source| ErrorFileError::Read {
        path: path.to_owned(),
        source,
    };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(fail(error)),
    };
    let mut bytes = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut bytes).map_err(fail)?;
    Ok(Some(bytes))
}

fn replace(path: &Path, bytes: &[u8]) -> Result<(), ErrorFileError> {
    let fail = |source| ErrorFileError::Write {
        path: path.to_owned(),
        source,
    };
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let fresh = path.with_file_name(name);
    let written = File::create(&fresh)
        .and_then(|mut file| file.write_all(bytes))
        .and_then(|()| fs::rename(&fresh, path));
    if let Err(error) = written {
        // The first error is the one to report; the half-written file may not even be there.
        let _gone = fs::remove_file(&fresh);
        return Err(fail(error));
    }
    Ok(())
}

fn not_understood(bytes: &[u8], note: &str) -> WorkerError {
    let message = String::from_utf8_lossy(&bytes[..bytes.len().min(4096)])
        .trim()
        .to_owned();
    WorkerError {
        message,
        note: Some(note.to_owned()),
        ..WorkerError::default()
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// Seconds since 1970, as a number or in quotes.
fn milliseconds(value: &Value) -> Option<i64> {
    let seconds = value
        .as_f64()
        .or_else(|| value.as_str()?.trim().parse().ok())?;
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the cast saturates, and nonsense is left out"
    )]
    let milliseconds = (seconds * 1000.0).round() as i64;
    (milliseconds > 0 && milliseconds < i64::MAX).then_some(milliseconds)
}

/// Splits `ValueError: bad batch` in two. A text that does not begin with the name of a class is all message.
pub(crate) fn split_exception(text: &str) -> (String, String) {
    let text = text.trim();
    let (name, message) = text.split_once(':').unwrap_or((text, ""));
    let is_path = !name.is_empty() && name.split('.').all(is_identifier);
    let last = name.rsplit('.').next().unwrap_or(name);
    let is_class =
        last.starts_with(|first: char| first.is_ascii_uppercase()) && !last.contains(' ');
    let known = [
        "Error",
        "Exception",
        "Interrupt",
        "Exit",
        "Warning",
        "Group",
        "Timeout",
        "Iteration",
    ];
    let looks_like_one =
        known.iter().any(|end| last.ends_with(end)) || (name.contains('.') && is_class);
    if is_path && is_class && looks_like_one {
        (name.to_owned(), message.trim().to_owned())
    } else {
        (String::new(), text.to_owned())
    }
}

fn is_identifier(part: &str) -> bool {
    !part.is_empty()
        && !part.starts_with(|first: char| first.is_ascii_digit())
        && part
            .chars()
            .all(|character| character.is_alphanumeric() || character == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: &str = r#"{"message":{"message":"ValueError: bad batch","extraInfo":
        {"py_callstack":"Traceback (most recent call last):\n","timestamp":"1796042610"}}}"#;

    #[test]
    fn every_form_is_understood() {
        let full = parse_error_file(FULL.as_bytes());
        assert_eq!(
            (full.exception.as_str(), full.message.as_str()),
            ("ValueError", "bad batch")
        );
        assert_eq!(full.raised_ms, Some(1_796_042_610_000));
        assert!(full.traceback.starts_with("Traceback"));
        let plain = parse_error_file(br#"{"message":"went wrong","timestamp":1796042610.25}"#);
        assert_eq!(
            (plain.exception.as_str(), plain.message.as_str()),
            ("", "went wrong")
        );
        assert_eq!(plain.raised_ms, Some(1_796_042_610_250));
        let coded = parse_error_file(
            br#"{"message":{"message":"torch.OutOfMemoryError: CUDA","errorCode":3}}"#,
        );
        assert_eq!(
            (coded.exception.as_str(), coded.exit_code),
            ("torch.OutOfMemoryError", Some(3))
        );
    }

    #[test]
    fn garbage_comes_back_with_a_note() {
        for garbage in ["{\"message\":", "[1,2]", "\u{0}\u{1}", "{}", "12"] {
            let error = parse_error_file(garbage.as_bytes());
            assert!(error.note.is_some(), "{garbage}");
        }
        assert_eq!(
            parse_error_file(br#"{"message":null,"timestamp":"soon"}"#).raised_ms,
            None
        );
    }

    #[test]
    fn no_file_and_an_empty_file_are_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("error.json");
        assert_eq!(read_error_file(&path).unwrap(), None);
        fs::write(&path, " \n").unwrap();
        assert_eq!(read_error_file(&path).unwrap(), None);
        assert!(matches!(
            read_error_file(directory.path()),
            Err(ErrorFileError::Read { .. })
        ));
    }

    #[test]
    fn a_copy_keeps_everything_and_adds_the_exit_code() {
        let directory = tempfile::tempdir().unwrap();
        let (from, to) = (
            directory.path().join("error.json"),
            directory.path().join("outer.json"),
        );
        fs::write(&from, FULL).unwrap();
        copy_error_file(&from, &to, 17).unwrap();
        let value: Value = serde_json::from_slice(&fs::read(&to).unwrap()).unwrap();
        assert_eq!(value["message"]["errorCode"], 17);
        assert_eq!(value["message"]["extraInfo"]["timestamp"], "1796042610");
        fs::write(&from, r#"{"message":"text"}"#).unwrap();
        copy_error_file(&from, &to, 1).unwrap();
        assert_eq!(read_error_file(&to).unwrap().unwrap().exit_code, Some(1));
        fs::write(&from, "not json").unwrap();
        copy_error_file(&from, &to, 2).unwrap();
        let wrapped = read_error_file(&to).unwrap().unwrap();
        assert_eq!(
            (wrapped.message.as_str(), wrapped.exit_code),
            ("not json", Some(2))
        );
        assert_eq!(
            fs::read_dir(directory.path()).unwrap().count(),
            2,
            "nothing is left beside the copy"
        );
    }

    #[test]
    fn what_is_written_reads_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("error.json");
        let error = WorkerError {
            raised_ms: Some(12_000),
            ..parse_error_file(FULL.as_bytes())
        };
        write_error_file(&path, &error, 9).unwrap();
        let read = read_error_file(&path).unwrap().unwrap();
        assert_eq!(
            read,
            WorkerError {
                exit_code: Some(9),
                ..error
            }
        );
    }
}
