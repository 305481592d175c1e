// SPDX-License-Identifier: Apache-2.0
//! The Python hook and the module `steadfast`, as far as they need no framework.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;
use steadfast_health::progress_page::{Page, PageDirectory, PagePhase};
use steadfast_tests::{Job, PythonJob, Requirement, python};

/// The first words of scripts that say how far they are and are told when to go on.
const TALK: &str = r#"
import os, sys, time
import steadfast

def say(what):
    open("said-" + what, "w").close()

def wait(name):
    while not os.path.exists(name):
        time.sleep(0.01)
"#;

fn script(lines: &str) -> String {
    format!("{TALK}{lines}")
}

#[track_caller]
fn when_said(job: &Job, what: &str) {
    let path = job.work().join(format!("said-{what}"));
    job.eventually(what, |_| path.exists().then_some(()));
}

#[track_caller]
fn the_page(job: &Job) -> Page {
    job.eventually("a page", |job| job.pages(1, 0).into_iter().next())
}

fn message(error: &Value) -> (&str, &str) {
    let text = |value: &'_ Value| value.as_str().map(str::len).unwrap_or_default();
    let message = &error["message"];
    let stack = &message["extraInfo"]["py_callstack"];
    assert!(text(&message["extraInfo"]["timestamp"]) > 0, "{error}");
    (
        message["message"].as_str().unwrap_or_default(),
        stack.as_str().unwrap_or_default(),
    )
}

#[test]
fn a_program_says_how_far_it_is() {
    if !Requirement::Python.met() {
        return;
    }
    let mut job = PythonJob::new(&script(
        r#"
assert steadfast.supervised() and steadfast.generation() == 1
assert steadfast.resume_path() is None and steadfast.resume_step() is None
steadfast.progress(1006)
steadfast.progress(1007, loss=0.25)
with steadfast.checkpointing():
    say("saving")
    wait("saved")
steadfast.checkpoint_done(1007, "/checkpoints/1007")
say("trained")
wait("end")
"#,
    ))
    .start();
    when_said(&job, "saving");
    let worker = job.eventually("step 1007", |job| {
        let worker = job.status()?["workers"][0].clone();
        (worker["step"] == 1007 && worker["phase"] == "checkpoint").then_some(worker)
    });
    let page = the_page(&job);
    assert_eq!(Value::from(page.pid), worker["pid"]);
    assert_eq!((page.rank, page.local_rank), (Some(0), Some(0)));
    assert_eq!((page.generation, page.loss), (1, Some(0.25)));
    assert_eq!(page.checkpoint_done, None);
    let text = job.ask("status", &[]).stdout_text();
    assert!(text.contains("running, step 1007, checkpoint"), "{text}");
    job.touch("saved");
    when_said(&job, "trained");
    let page = the_page(&job);
    assert_eq!(page.checkpoint_done, Some(1007));
    assert_eq!(page.checkpoint_path, Some("/checkpoints/1007".into()));
    assert_eq!(page.phase, PagePhase::Train);
    job.touch("end");
    job.wait().ended_with(0);
    let end = &job.journal_of("job.ended")[0];
    assert_eq!(end["result"]["best_step"], 1007, "{end}");
}

#[test]
fn a_checkpoint_is_asked_for_at_a_step() {
    if !Requirement::Python.met() {
        return;
    }
    let mut job = PythonJob::new(&script(
        r#"
steadfast.progress(1)
say("started")
wait("asked")
asked = []
for step in range(2, 30):
    steadfast.progress(step)
    if steadfast.should_checkpoint():
        asked.append(step)
        if step > 12:
            steadfast.checkpoint_done(step)
assert asked == [12, 13], asked
"#,
    ))
    .start();
    when_said(&job, "started");
    let mut pages = PageDirectory::new(job.pages_dir(1, 0));
    pages.scan();
    assert_eq!(pages.request_checkpoint(12, 0), 1);
    job.touch("asked");
    job.wait().ended_with(0);
}

#[test]
fn nested_phases_and_those_of_other_threads_are_told_apart() {
    if !Requirement::Python.met() {
        return;
    }
    let mut job = PythonJob::new(&script(
        r"
import threading
from _steadfast.recorder import recorder

def phase():
    return recorder.page().phase

with steadfast.loading():
    assert phase() == 4
    with steadfast.compiling():
        assert phase() == 5
    assert phase() == 4
assert phase() == 0
steadfast.progress(1)
assert phase() == 1

@steadfast.evaluating()
def evaluate():
    assert phase() == 3
    raise KeyError

try:
    evaluate()
except KeyError:
    assert phase() == 1

def in_background():
    with steadfast.checkpointing():
        assert phase() == 1

thread = threading.Thread(target=in_background)
thread.start()
thread.join()
",
    ))
    .start();
    job.wait().ended_with(0);
}

#[test]
fn without_a_supervisor_the_module_does_nothing() {
    if !Requirement::Python.met() {
        return;
    }
    let job = PythonJob::new(&script(
        r#"
assert not steadfast.supervised() and steadfast.generation() == 0
steadfast.progress(5, loss=1)
with steadfast.evaluating():
    pass
steadfast.checkpoint_done(5, "/nowhere")
assert not steadfast.should_checkpoint()
"#,
    ))
    .shell("unset STEADFAST_PAGES STEADFAST_GENERATION; exec $PYTHON script.py");
    job.start().wait().ended_with(0);
}

#[test]
fn an_uncaught_exception_leaves_an_error_file_and_the_users_hook_runs() {
    if !Requirement::Python.met() {
        return;
    }
    let before =
        "import sys; sys.excepthook = lambda *what: print('hook of site', file=sys.stderr)";
    let replaced = "sys.excepthook = lambda *what: print('hook of script', file=sys.stderr)";
    for (line, hook) in [("", "hook of site"), (replaced, "hook of script")] {
        let script = format!("import sys\n{line}\nraise ValueError('batch 7 is \u{1f4a5}')");
        let mut job = PythonJob::new(&script)
            .file("own/sitecustomize.py", before)
            .env("PYTHONPATH", "own")
            .start();
        let outcome = job.wait();
        outcome.ended_with(1).said(hook);
        let error = job.error_file(0, 0);
        let (said, stack) = message(&error);
        assert_eq!(said, "ValueError: batch 7 is \u{1f4a5}");
        assert!(stack.contains("script.py\", line 3"), "{stack}");
    }
}

#[test]
fn an_exit_code_is_explained() {
    if !Requirement::Python.met() {
        return;
    }
    let cases = [
        ("sys.exit(5)", 5, "SystemExit: 5", "line 2"),
        ("sys.exit('no data')", 1, "SystemExit: no data", "line 2"),
        (
            "try:\n    1 / 0\nexcept ZeroDivisionError:\n    sys.exit(3)",
            3,
            "ZeroDivisionError: division by zero",
            "1 / 0",
        ),
    ];
    for (line, code, said, place) in cases {
        let mut job = PythonJob::new(&format!("import sys\n{line}")).start();
        job.wait().ended_with(code);
        let error = job.error_file(0, 0);
        let (found, stack) = message(&error);
        assert_eq!(found, said);
        assert_eq!(error["message"]["errorCode"], code, "{error}");
        assert!(stack.contains(place), "{stack}");
    }
    let caught = "import sys\ntry:\n    sys.exit(4)\nexcept SystemExit:\n    sys.exit()";
    let mut job = PythonJob::new(caught).start();
    job.wait().ended_with(0);
    assert_eq!(job.error_file(0, 0), Value::Null);
}

#[test]
fn tools_and_children_leave_no_error_file() {
    if !Requirement::Python.met() {
        return;
    }
    let mut job = PythonJob::new(
        r#"
import os, subprocess, sys
assert subprocess.call([sys.executable, "-c", "raise ValueError('of a tool')"]) == 1
child = os.fork()
if child == 0:
    sys.exit(9)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
"#,
    )
    .start();
    job.wait().ended_with(0);
    assert_eq!(job.error_file(0, 0), Value::Null);
}

#[test]
fn the_error_of_a_rank_below_a_launcher_is_kept() {
    if !Requirement::Python.met() {
        return;
    }
    // Something that counts as a framework: the child is a rank then, and not a tool.
    let rank = "import sys\nsys.modules['torch'] = sys\nraise OSError('of the rank')";
    let mut job = PythonJob::new(
        "import subprocess, sys\nsubprocess.check_call([sys.executable, 'rank.py'])",
    )
    .file("rank.py", rank)
    .start();
    job.wait().ended_with(1);
    assert_eq!(message(&job.error_file(0, 0)).0, "OSError: of the rank");
}

#[test]
fn a_signal_writes_the_stacks_even_when_a_c_loop_holds_the_interpreter() {
    if !Requirement::Python.met() {
        return;
    }
    let mut job = PythonJob::new(&script(
        r#"
import re, threading
def another_thread():
    wait("end")
threading.Thread(target=another_thread, daemon=True).start()
steadfast.progress(1)
def stuck():
    say("stuck")
    # Takes longer than anybody lives, in C, without letting another thread have the interpreter.
    re.match("(a+)+b", "a" * 99)
stuck()
"#,
    ))
    .start();
    when_said(&job, "stuck");
    let page = the_page(&job);
    let signal = page.stack_signal.unwrap();
    let stacks: PathBuf = job.pages_dir(1, 0).join(format!("{}.stacks", page.pid));
    assert_eq!(fs::metadata(&stacks).unwrap().len(), 0);
    // A real-time signal has no name that `nix` knows.
    #[expect(clippy::disallowed_methods, reason = "tests create processes")]
    let kill = std::process::Command::new("/bin/kill")
        .args([format!("-{signal}"), page.pid.to_string()])
        .status();
    assert!(kill.unwrap().success());
    job.eventually("the stacks", |_| {
        let text = fs::read_to_string(&stacks).unwrap();
        let whole = ["another_thread", "in stuck", "in <module>"];
        whole.iter().all(|word| text.contains(word)).then_some(())
    });
    assert_eq!(job.status().unwrap()["workers"][0]["state"], "running");
    job.ask("stop", &[]).ended_with(0);
    job.wait();
}

#[test]
fn the_users_sitecustomize_and_modules_are_found_as_before() {
    if !Requirement::Python.met() {
        return;
    }
    let mut job = PythonJob::new(
        r#"
import os, sitecustomize, steadfast, sys
assert os.environ["OWN"] == "1" and sitecustomize.mine and "own" in sitecustomize.__file__
assert steadfast.mine
"#,
    )
    .file(
        "own/sitecustomize.py",
        "import os; mine = True; os.environ['OWN'] = '1'",
    )
    .file("steadfast.py", "mine = True")
    .env("PYTHONPATH", "own")
    .start();
    job.wait().ended_with(0);

    let mut job = PythonJob::new("print('it runs')")
        .file("own/sitecustomize.py", "raise RuntimeError('of the user')")
        .env("PYTHONPATH", "own")
        .start();
    job.wait().ended_with(0).said("Error in sitecustomize");
}

#[test]
fn the_hook_can_be_turned_off() {
    if !Requirement::Python.met() {
        return;
    }
    let off = "import sys; assert not [name for name in sys.modules if name.startswith('_steadfast.stacks')]";
    let options = ["--max-restarts", "0", "--no-hook"];
    let job = PythonJob::with_options(&options, off);
    job.start().wait().ended_with(0);
    let job = PythonJob::new(off).shell("STEADFAST_HOOK=0 exec $PYTHON script.py");
    job.start().wait().ended_with(0);
    let job = PythonJob::new(off).shell("exec $PYTHON -E script.py");
    job.start().wait().ended_with(0);
}

#[test]
fn what_goes_wrong_in_the_hook_the_training_does_not_notice() {
    if !Requirement::Python.met() {
        return;
    }
    let train = script(
        "steadfast.progress(3); assert not steadfast.supervised(); print('trained', flush=True)",
    );
    for command in [
        "STEADFAST_PAGES=/nonexistent exec $PYTHON script.py",
        "STEADFAST_PAGES=/dev/null exec $PYTHON script.py",
        // There is no room for a page.
        "ulimit -f 1; exec $PYTHON script.py",
    ] {
        let mut job = PythonJob::new(&train).shell(command).start();
        let outcome = job.wait();
        outcome.ended_with(0);
        let output = outcome.stdout_text() + &outcome.stderr;
        assert!(output.contains("trained"), "{outcome}");
        assert!(!output.contains("Traceback"), "{outcome}");
    }
}

#[test]
fn hostile_pages_are_ignored_with_a_note() {
    if !Requirement::Python.met() {
        return;
    }
    let mut job = PythonJob::new(&script(
        r#"
directory = os.environ["STEADFAST_PAGES"]
with open(os.path.join(directory, "bad.page"), "wb") as file:
    file.write(b"\xff" * 5000)
os.symlink("/proc/kmsg", os.path.join(directory, "link.page"))
os.mkfifo(os.path.join(directory, "pipe.page"))
steadfast.progress(41)
wait("end")
"#,
    ))
    .start();
    job.eventually("step 41", |job| (job.status()?["step"] == 41).then_some(()));
    job.eventually("three notes", |job| {
        (job.journal_of("page.ignored").len() == 3).then_some(())
    });
    job.touch("end");
    let outcome = job.wait();
    outcome
        .ended_with(0)
        .said("bad.page is not a progress page");
}

#[test]
fn grandchildren_are_seen_and_forked_children_write_no_page_of_their_parent() {
    if !Requirement::Python.met() {
        return;
    }
    let rank = script(
        r#"
steadfast.progress(8)
child = os.fork()
if child == 0:
    steadfast.progress(2)
    os._exit(0)
os.waitpid(child, 0)
say("forked")
wait("end")
"#,
    );
    let launcher = format!(
        "import subprocess, sys\nsubprocess.check_call([{:?}, 'rank.py'])",
        python()
    );
    let mut job = PythonJob::new(&launcher)
        .file("rank.py", &rank)
        .shell("$PYTHON script.py; exit $?")
        .start();
    when_said(&job, "forked");
    let steps: Vec<u64> = job
        .pages(1, 0)
        .iter()
        .filter_map(|page| Some(page.step?.number))
        .collect();
    assert_eq!(steps.iter().sum::<u64>(), 10, "{steps:?}");
    job.eventually("the step of a grandchild", |job| {
        job.status()?["step"].is_u64().then_some(())
    });
    job.touch("end");
    job.wait().ended_with(0);
}
