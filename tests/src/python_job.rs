// SPDX-License-Identifier: Apache-2.0
//! Jobs whose workers run a few lines of Python.

use std::path::PathBuf;

use serde_json::Value;
use steadfast_health::progress_page::{Page, PageDirectory};

use crate::job::Job;
use crate::launch::Launch;
use crate::requirement::python;

/// The monotonic clock never gets that far.
const LATER_THAN_EVER: u64 = u64::MAX / 2;

/// A job of one generation and one worker, which is not restarted, unless the options say otherwise.
#[derive(Debug)]
#[must_use = "nothing runs until it is started"]
pub struct PythonJob {
    launch: Launch,
}

impl PythonJob {
    /// The worker runs `script`, in a file called `script.py`.
    pub fn new(script: &str) -> PythonJob {
        PythonJob::with_options(&["--max-restarts", "0"], script)
    }

    /// As [`PythonJob::new`], with these options of `steadfast run`.
    pub fn with_options(options: &[&str], script: &str) -> PythonJob {
        let launch = Launch::run(options).command(&["--", python(), "script.py"]);
        PythonJob { launch }.file("script.py", script)
    }

    /// Runs this shell command instead, in which `$PYTHON` is the interpreter.
    pub fn shell(mut self, command: &str) -> PythonJob {
        self.launch = self
            .launch
            .command(&["--", "/bin/sh", "-c", command])
            .env("PYTHON", python());
        self
    }

    /// Puts a file into the directory that the worker starts in.
    pub fn file(self, name: &str, content: &str) -> PythonJob {
        let path = self.launch.directory().join("work").join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
        self
    }

    /// Sets a variable.
    pub fn env(mut self, name: &str, value: &str) -> PythonJob {
        self.launch = self.launch.env(name, value);
        self
    }

    /// Starts it.
    pub fn start(self) -> Job {
        self.launch.start()
    }
}

impl Job {
    /// Where a worker's processes put their progress pages.
    pub fn pages_dir(&self, generation: u64, local_rank: u32) -> PathBuf {
        self.runtime_root()
            .join(format!("job@node/pages/{generation}/{local_rank}"))
    }

    /// The pages of a worker's processes.
    pub fn pages(&self, generation: u64, local_rank: u32) -> Vec<Page> {
        let mut directory = PageDirectory::new(self.pages_dir(generation, local_rank));
        directory.scan();
        directory.look(LATER_THAN_EVER).pages
    }

    /// The error file of a worker; null when there is none.
    pub fn error_file(&self, attempt: u32, local_rank: u32) -> Value {
        let path = self
            .run_dir()
            .join(format!("attempt_{attempt}/{local_rank}/error.json"));
        match std::fs::read(path) {
            Ok(text) => serde_json::from_slice(&text).unwrap(),
            Err(_) => Value::Null,
        }
    }
}
