// SPDX-License-Identifier: Apache-2.0
//! Finds the last Python traceback in a worker's last lines.

use std::sync::LazyLock;

use regex::Regex;

use crate::error_file::split_exception;

/// Most lines kept of a traceback: its start and its end.
const MAX_LINES: usize = 80;
/// Most lines of a message that spans several.
const MAX_MESSAGE_LINES: usize = 20;

/// A traceback, taken apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traceback {
    /// Type of the exception, with its module if it was printed.
    pub exception: String,
    /// Its message; may have several lines.
    pub message: String,
    /// Frames, the outermost first.
    pub frames: Vec<Frame>,
    /// The traceback as it was printed, without the prefixes of ranks; long ones are cut in the middle.
    pub text: String,
}

/// A place in the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The source file as Python named it.
    pub file: String,
    /// The line, from 1.
    pub line: u32,
    /// The function; empty for a syntax error.
    pub function: String,
}

static RANK_PREFIX: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"^\[(?:rank|default)\d+\]: ?").ok());
static FRAME: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r#"^\s*File "([^"]+)", line (\d+)(?:, in (.+))?$"#).ok());

impl Traceback {
    /// The innermost frame of the user's own code: not Python's, and not of an installed package. The innermost of all if
    /// there is none.
    pub fn innermost_user_frame(&self) -> Option<&Frame> {
        self.frames
            .iter()
            .rev()
            .find(|frame| is_users(&frame.file))
            .or_else(|| self.frames.last())
    }
}

/// The last traceback in `lines` (oldest first). Of chained exceptions that is the one that ended the program. If only
/// its end is among the lines, that is taken.
pub fn last_traceback<S: AsRef<str>>(lines: &[S]) -> Option<Traceback> {
    let lines: Vec<&str> = lines
        .iter()
        .map(|line| without_prefix(line.as_ref()))
        .collect();
    let header = lines
        .iter()
        .rposition(|line| line.trim() == "Traceback (most recent call last):");
    let from_header = header.and_then(|header| parse(&lines[header..]));
    from_header.or_else(|| headless(&lines))
}

/// The traceback or error text in one string, such as an error file holds.
pub(crate) fn parse_text(text: &str) -> Option<Traceback> {
    last_traceback(&text.lines().collect::<Vec<_>>())
}

/// Lines from the header on.
fn parse(lines: &[&str]) -> Option<Traceback> {
    let end = lines
        .iter()
        .skip(1)
        .position(|line| is_exception_line(line))?
        + 1;
    Some(assemble(lines, end))
}

/// A syntax error in the program's main file has no header, and the header of a long traceback may have scrolled away.
fn headless(lines: &[&str]) -> Option<Traceback> {
    let end = lines.iter().rposition(|line| {
        is_exception_line(line)
            && !split_exception(line).0.is_empty()
            && !line.starts_with(char::is_whitespace)
    })?;
    let start = lines[..end]
        .iter()
        .rposition(|line| !line.starts_with("  ") && !line.is_empty())
        .map_or(0, |last_before| last_before + 1);
    let found = assemble(&lines[start..], end - start);
    (!found.frames.is_empty()).then_some(found)
}

/// Makes a traceback of `lines`, of which `end` is the one with the exception.
fn assemble(lines: &[&str], end: usize) -> Traceback {
    let more = lines[end + 1..]
        .iter()
        .take(MAX_MESSAGE_LINES)
        .take_while(|line| {
            !line.trim().is_empty()
                && !line.contains("Traceback (most recent")
                && !is_log_line(line)
        })
        .count();
    let whole = &lines[..=end + more];
    let (mut exception, mut message) = split_exception(lines[end]);
    if exception.is_empty() {
        // Any class may be raised, whatever its name: `StopTraining: enough`.
        let (name, rest) = lines[end].split_once(':').unwrap_or((lines[end], ""));
        (exception, message) = (name.trim().to_owned(), rest.trim().to_owned());
    }
    for line in &lines[end + 1..=end + more] {
        message.push('\n');
        message.push_str(line);
    }
    Traceback {
        exception,
        message,
        frames: lines[..end].iter().filter_map(|line| frame(line)).collect(),
        text: cut(whole),
    }
}

fn frame(line: &str) -> Option<Frame> {
    let found = FRAME.as_ref()?.captures(line)?;
    Some(Frame {
        file: found.get(1)?.as_str().to_owned(),
        line: found.get(2)?.as_str().parse().ok()?,
        function: found
            .get(3)
            .map(|function| function.as_str().trim().to_owned())
            .unwrap_or_default(),
    })
}

/// The first line after the frames that is not indented.
fn is_exception_line(line: &str) -> bool {
    line.starts_with(|first: char| first.is_alphabetic() || first == '_')
        && line
            .split(':')
            .next()
            .is_some_and(|name| !name.trim().contains(' '))
}

/// The next line of a log, and no more of the message.
fn is_log_line(line: &str) -> bool {
    line.starts_with('[')
        || line.starts_with("WARNING")
        || line.starts_with("INFO")
        || line.starts_with("ERROR")
}

fn without_prefix(line: &str) -> &str {
    let prefix = RANK_PREFIX.as_ref().and_then(|prefix| prefix.find(line));
    prefix
        .map_or(line, |prefix| &line[prefix.end()..])
        .trim_end()
}

fn is_users(file: &str) -> bool {
    let foreign = [
        "/site-packages/",
        "/dist-packages/",
        "/lib/python",
        "/lib64/python",
        "<frozen ",
        "<string>",
    ];
    !foreign.iter().any(|part| file.contains(part))
}

fn cut(lines: &[&str]) -> String {
    if lines.len() <= MAX_LINES {
        return lines.join("\n");
    }
    let half = MAX_LINES / 2;
    let (start, end) = (&lines[..half], &lines[lines.len() - half..]);
    format!(
        "{}\n  ... {} lines left out ...\n{}",
        start.join("\n"),
        lines.len() - 2 * half,
        end.join("\n")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(text: &str) -> Option<Traceback> {
        parse_text(text)
    }

    #[test]
    fn the_last_of_chained_exceptions_counts() {
        let found = find(concat!(
            "step 3\n",
            "Traceback (most recent call last):\n",
            "  File \"/home/u/train.py\", line 10, in load\n",
            "    open(path)\n",
            "FileNotFoundError: [Errno 2] No such file or directory: 'x'\n",
            "\n",
            "During handling of the above exception, another exception occurred:\n",
            "\n",
            "Traceback (most recent call last):\n",
            "  File \"/home/u/train.py\", line 30, in <module>\n",
            "    main()\n",
            "  File \"/home/u/train.py\", line 12, in main\n",
            "    raise ValueError(\"bad\")\n",
            "  File \"/usr/lib/python3.11/site-packages/torch/nn/module.py\", line 99, in __call__\n",
            "    ~~~~^^^^\n",
            "ValueError: bad\n",
            "and more\n",
        ))
        .unwrap();
        assert_eq!(
            (found.exception.as_str(), found.message.as_str()),
            ("ValueError", "bad\nand more")
        );
        assert_eq!(found.frames.len(), 3);
        let frame = found.innermost_user_frame().unwrap();
        assert_eq!((frame.line, frame.function.as_str()), (12, "main"));
        assert!(found.text.starts_with("Traceback") && !found.text.contains("FileNotFoundError"));
    }

    #[test]
    fn prefixes_of_ranks_are_taken_off() {
        let found = find(concat!(
            "[rank3]: Traceback (most recent call last):\n",
            "[rank3]:   File \"train.py\", line 1, in <module>\n",
            "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n",
            "[rank3]:[W1130 ProcessGroupNCCL.cpp:1] Warning: destroy_process_group() was not called\n",
        ))
        .unwrap();
        assert_eq!(found.exception, "torch.OutOfMemoryError");
        assert_eq!(
            found.message,
            "CUDA out of memory. Tried to allocate 2.00 GiB"
        );
    }

    #[test]
    fn an_error_without_a_header_is_found() {
        let found = find(
            "  File \"train.py\", line 3\n    def f(:\n          ^\nSyntaxError: invalid syntax\n",
        )
        .unwrap();
        assert_eq!(
            (found.exception.as_str(), found.frames[0].line),
            ("SyntaxError", 3)
        );
        let scrolled =
            find("    main()\n  File \"t.py\", line 12, in main\n    boom()\nRuntimeError: boom\n")
                .unwrap();
        assert_eq!(
            (scrolled.exception.as_str(), scrolled.frames.len()),
            ("RuntimeError", 1)
        );
    }

    #[test]
    fn other_output_is_none() {
        assert_eq!(find("step 3 loss 0.5\nSaving: done\n"), None);
        assert_eq!(find("ValueError: printed by somebody\n"), None);
        assert_eq!(find(""), None);
        assert_eq!(find("Traceback (most recent call last):\n"), None);
    }

    #[test]
    fn an_exception_with_an_odd_name_is_taken() {
        let found = find("Traceback (most recent call last):\n  File \"t.py\", line 1, in f\nKeyboardInterrupt\n").unwrap();
        assert_eq!(found.exception, "KeyboardInterrupt");
        let own = find("Traceback (most recent call last):\n  File \"t.py\", line 1, in f\nStopTraining: enough\n").unwrap();
        assert_eq!(
            (own.exception.as_str(), own.message.as_str()),
            ("StopTraining", "enough")
        );
    }
}
